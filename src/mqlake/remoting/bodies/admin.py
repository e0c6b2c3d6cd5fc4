"""The JSON that operators' tools and brokers send each other: groups, statistics, connections, queues.

`client.admin` and RocketMQ's admin tools ask; `broker.admin` answers. The configuration of subscription groups is here
too: `broker.state` keeps it in config/subscriptionGroup.json in the same form.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from mqlake.message.groups import messages_behind, messages_beyond
from mqlake.remoting.bodies.client import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from mqlake.remoting.bodies.codec import JsonBody, json_name
from mqlake.remoting.bodies.topic import DataVersion, MessageQueue


class SimpleSubscriptionData(JsonBody):
    topic: str = ""
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


class SubscriptionGroupConfig(JsonBody):
    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] | None = field(default_factory=dict)


class SubscriptionGroupWrapper(JsonBody):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] | None = None
    data_version: DataVersion = field(default_factory=DataVersion)


class SubscriptionGroupList(JsonBody):
    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(JsonBody):
    topic: str | None = None
    group: str | None = None
    readable: bool | None = None


class TopicOffset(JsonBody):
    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(JsonBody):
    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


class OffsetWrapper(JsonBody):
    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def behind(self) -> int:
        return messages_behind(self.broker_offset, self.consumer_offset)

    @property
    def beyond(self) -> int:
        return messages_beyond(self.broker_offset, self.consumer_offset)

    @property
    def in_flight(self) -> int:
        return messages_behind(self.pull_offset, self.consumer_offset)


class ConsumeStats(JsonBody):
    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def behind(self) -> int:
        """Messages that the group has not consumed yet."""
        return sum(each.behind for each in self.offset_table.values())

    @property
    def beyond(self) -> int:
        """How far its offsets lie beyond the ends of their queues."""
        return sum(each.beyond for each in self.offset_table.values())


class ConsumeStatsList(JsonBody):
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


class ConsumerOffsetSerializeWrapper(JsonBody):
    """`topic@group` → queue id → offset."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    lmq_offset_table: dict[str, int] | None = None
    """Offsets in the light queues of a RocketMQ with enableLmq; each has one queue."""
    data_version: DataVersion | None = None


class Connection(JsonBody):
    """A connected client. `language` by its name."""

    client_id: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: int = 0


class ConsumerConnection(JsonBody):
    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerConnection(JsonBody):
    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(JsonBody):
    client_id: str | None = None
    remote_ip: str | None = field(default=None, metadata=json_name("remoteIP"))
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(JsonBody):
    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class GroupList(JsonBody):
    group_list: set[str] = field(default_factory=set)


class BrokerStatsItem(JsonBody):
    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(JsonBody):
    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class QueueTimeSpan(JsonBody):
    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class QueryConsumeTimeSpanBody(JsonBody):
    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class QueryCorrectionOffsetBody(JsonBody):
    correction_offsets: dict[int, int] = field(default_factory=dict)


class QuerySubscriptionResponseBody(JsonBody):
    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class ConsumeQueueData(JsonBody):
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(JsonBody):
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


class HAConnectionRuntimeInfo(JsonBody):
    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClientRuntimeInfo(JsonBody):
    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class CheckRocksdbCqWriteResult(JsonBody):
    CHECK_ERROR: ClassVar[int] = 3
    """The only `check_status` with which mqadmin prints the result."""

    check_result: str | None = None
    check_status: int = 0


class HARuntimeInfo(JsonBody):
    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)
