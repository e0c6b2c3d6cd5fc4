"""Topics as brokers configure and register them: the JSON of TopicConfig, its static-topic mappings and data versions.

A broker keeps a TopicConfig for each topic (`broker.state.topic_config`, the file config/topics.json) and sends all of
them to its name servers (`broker.services.registration`), which keep what they are sent (`namesrv`). Operators and
slaves get the same JSON. MessageQueue, the key of a queue in every room of the client, lives here too.
"""

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
    """A name server's knowledge of a static topic on one broker."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: int = 0
    """Logical queues, on all brokers together."""
    bname: str = ""
    epoch: int = 0
    """Grows with each change of the mapping, mostly ms since 1970."""
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)
    """Logical queues whose newest part is on this broker → its physical queue."""


class LogicQueueMappingItem(JsonBody):
    """One part of a logical queue: a physical queue, and where it begins in the logical one.

    offset in the logical queue − logic_offset = offset in the physical one − start_offset
    """

    gen: int = 0
    """Which part it is; grows with each move to another broker."""
    queue_id: int = 0
    """The physical queue."""
    bname: str = ""
    """The broker that has it."""
    logic_offset: int = 0
    """-1 as long as it is not decided: the queue has just moved there."""
    start_offset: int = 0
    end_offset: int = -1
    """Excluded; -1 where the physical queue itself says it, as with all tools up to now."""
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        return self.logic_offset >= 0

    @property
    def has_end(self) -> bool:
        return self.end_offset > self.start_offset

    def logical(self, physical: int) -> int:
        """The offset in the logical queue of one in the physical queue."""
        return self.logic_offset + max(physical - self.start_offset, 0)

    def logical_or_unknown(self, physical: int) -> int:
        """As `logical`, within the part; -1 as long as it is not decided where the part begins."""
        if not self.is_decided:
            return -1
        if self.has_end:
            physical = min(physical, self.end_offset)
        return self.logical(physical)

    def physical(self, logical: int) -> int:
        """The offset in the physical queue of one in the logical queue; less than start_offset if it lies before."""
        return logical - self.logic_offset + self.start_offset


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    """A broker's knowledge of a static topic, in topicQueueMapping.json and in requests of operators."""

    hosted_queues: dict[int, list[LogicQueueMappingItem]] = field(default_factory=dict)
    """Logical queues of which a part is here → all their parts, the newest last."""


class TopicConfigAndQueueMapping(TopicConfig):
    mapping_detail: TopicQueueMappingDetail | None = None


class TopicRemappingDetailWrapper(JsonBody):
    """A mapping as operators' tools keep it in a file, before or after a change."""

    topic: str = ""
    type: str = ""
    """CREATE_OR_UPDATE or REMAPPING."""
    epoch: int = 0
    broker_config_map: dict[str, TopicConfigAndQueueMapping] = field(default_factory=dict)
    """Broker's name → its part."""
    broker_to_map_in: set[str] = field(default_factory=set)
    broker_to_map_out: set[str] = field(default_factory=set)


class TopicConfigSerializeWrapper(JsonBody):
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(TopicConfigSerializeWrapper):
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class TopicQueueMappingSerializeWrapper(JsonBody):
    """The content of topicQueueMapping.json."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


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
