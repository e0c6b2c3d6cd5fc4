"""The JSON that clients and brokers send each other: heartbeats, subscriptions, queue locks, assignments, resets.

`client` makes the requests and reads the answers, `broker.requests` and `broker.pop` the other way round. A heartbeat
(HeartbeatData) carries all that a broker knows of a client: its groups, and what each of them subscribes to.
"""

from __future__ import annotations

import enum
from dataclasses import field

from mqlake.remoting.bodies.codec import JsonBody, json_name
from mqlake.remoting.bodies.topic import MessageQueue


class ConsumeType(enum.Enum):
    CONSUME_ACTIVELY = "PULL"
    CONSUME_PASSIVELY = "PUSH"
    CONSUME_POP = "POP"


class MessageModel(enum.Enum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


class MessageRequestMode(enum.Enum):
    PULL = "PULL"
    POP = "POP"


class SubscriptionData(JsonBody):
    class_filter_mode: bool = False
    topic: str = ""
    sub_string: str | None = None
    tags_set: set[str] = field(default_factory=set)
    code_set: set[int] = field(default_factory=set)
    """Hash codes of the tags."""
    sub_version: int = 0
    """ms since 1970: when the subscription was made."""
    expression_type: str | None = "TAG"


class ConsumerData(JsonBody):
    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(JsonBody):
    group_name: str = ""


class HeartbeatData(JsonBody):
    client_id: str = field(default="", metadata=json_name("clientID"))
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(JsonBody):
    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class GetConsumerListByGroupResponseBody(JsonBody):
    consumer_id_list: list[str] = field(default_factory=list)


class LockBatchRequestBody(JsonBody):
    """Also the body of an unlock."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: set[MessageQueue] = field(default_factory=set)


class LockBatchResponseBody(JsonBody):
    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set, metadata=json_name("lockOKMQSet"))


class ResetOffsetBody(JsonBody):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class MessageQueueForC(JsonBody):
    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    offset: int = 0


class ResetOffsetBodyForC(JsonBody):
    """The same as a list, for clients without objects as keys."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


class GetConsumerStatusBody(JsonBody):
    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


class QueryAssignmentRequestBody(JsonBody):
    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(JsonBody):
    message_queue: MessageQueue | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(JsonBody):
    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(JsonBody):
    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


class MessageRequestModes(JsonBody):
    """Topic → group → its mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


class CMResult(enum.Enum):
    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


class ConsumeMessageDirectlyResult(JsonBody):
    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0


class ProcessQueueInfo(JsonBody):
    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata=json_name("cachedMsgSizeInMiB"))
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(JsonBody):
    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumeStatus(JsonBody):
    """Times in ms, rates per second, the rest in the last hour."""

    pull_rt: float = field(default=0.0, metadata=json_name("pullRT"))
    pull_tps: float = field(default=0.0, metadata=json_name("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=json_name("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=json_name("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=json_name("consumeFailedTPS"))
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(JsonBody):
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None
