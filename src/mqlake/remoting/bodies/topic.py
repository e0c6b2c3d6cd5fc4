"""Topics as brokers configure and register them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mqlake.base.clock import now_ms
from mqlake.remoting.bodies.codec import JsonBody

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4

QUEUES_MAX = 1 << 16
"""Maximum queues of a topic; RocketMQ has no limit, but some requests go through all queues."""
TOPIC_SYS_FLAG_UNIT = 1
TOPIC_SYS_FLAG_UNIT_SUB = 2


@dataclass(slots=True, kw_only=True, frozen=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker; the key of many maps."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0

    def __str__(self) -> str:
        return f"topic {self.topic}, broker {self.broker_name}, queue {self.queue_id}"


class DataVersion(JsonBody):
    """Which state of a table this is. Equal versions mean equal tables."""

    state_version: int = 0
    timestamp: int = 0
    """ms since 1970."""
    counter: int = 0

    def next_version(self) -> None:
        """The table has changed."""
        self.timestamp = now_ms()
        self.counter += 1


class TopicFilterType(enum.Enum):
    SINGLE_TAG = 0
    MULTI_TAG = 1


class TopicConfig(JsonBody):
    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = field(default_factory=dict)


class TopicQueueMappingInfo(JsonBody):
    """The queues of a static topic on one broker: logical queue → its own."""

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: int = 0
    bname: str | None = None
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] | None = None


class LogicQueueMappingItem(JsonBody):
    gen: int = 0
    queue_id: int = 0
    bname: str | None = None
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    hosted_queues: dict[int, list[LogicQueueMappingItem]] | None = None


class TopicConfigSerializeWrapper(JsonBody):
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class RegisterBrokerBody(JsonBody):
    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)


class TopicList(JsonBody):
    topic_list: set[str] = field(default_factory=set)
    broker_addr: str | None = None


class CreateTopicListRequestBody(JsonBody):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class KVTable(JsonBody):
    table: dict[str, str] = field(default_factory=dict)
