"""Headers of consuming: pull, offsets, groups, locks, queries, pop.

`client.consume` fills them in, `broker.requests` and `broker.pop` read them. The usual pull never comes here: native
code reads it from the frame (`broker.fast.fast_pull`).
"""

from __future__ import annotations

from dataclasses import field

from mqlake.remoting.headers.codec import CommandHeader, Long, mandatory
from mqlake.remoting.headers.common import RpcRequestHeader, TopicRequestHeader


class PullMessageRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int
    commit_offset: Long
    suspend_timeout_millis: Long
    subscription: str | None = None
    sub_version: Long
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None


class PullMessageResponseHeader(CommandHeader):
    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


class QueryConsumerOffsetRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(CommandHeader):
    offset: Long


class UpdateConsumerOffsetRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Long


class SearchOffsetRequestHeader(TopicRequestHeader):
    """29 SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: int
    timestamp: Long
    boundary_type: str | None = None


class SearchOffsetResponseHeader(CommandHeader):
    offset: Long


class GetMaxOffsetRequestHeader(TopicRequestHeader):
    topic: str
    queue_id: int
    committed: bool = True


class GetMaxOffsetResponseHeader(CommandHeader):
    offset: Long


class GetMinOffsetRequestHeader(TopicRequestHeader):
    topic: str
    queue_id: int


class GetMinOffsetResponseHeader(CommandHeader):
    offset: Long


class GetEarliestMsgStoretimeRequestHeader(TopicRequestHeader):
    topic: str
    queue_id: int


class GetEarliestMsgStoretimeResponseHeader(CommandHeader):
    timestamp: Long


class UnregisterClientRequestHeader(RpcRequestHeader):
    client_id: str = field(metadata={"name": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(RpcRequestHeader):
    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(RpcRequestHeader):
    consumer_group: str


class QueryMessageRequestHeader(TopicRequestHeader):
    topic: str
    key: str
    max_num: int
    begin_timestamp: Long
    end_timestamp: Long


class QueryMessageResponseHeader(CommandHeader):
    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class ViewMessageRequestHeader(CommandHeader):
    """33 VIEW_MESSAGE_BY_ID."""

    topic: str | None = None
    offset: Long


class GetConsumerRunningInfoRequestHeader(RpcRequestHeader):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(TopicRequestHeader):
    """309 CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class PopMessageRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(CommandHeader):
    pop_time: Long
    invisible_time: Long
    revive_qid: int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    """The message's receipt handle."""
    offset: Long
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(TopicRequestHeader):
    """200053 CHANGE_MESSAGE_INVISIBLETIME."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool = False
    """The message comes again without another attempt being counted."""


class ChangeInvisibleTimeResponseHeader(CommandHeader):
    pop_time: Long
    invisible_time: Long
    revive_qid: int


class PeekMessageRequestHeader(TopicRequestHeader):
    topic: str
    queue_id: int
    max_msg_nums: int
    consumer_group: str


class NotificationRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(CommandHeader):
    has_msg: bool = mandatory(False)
    polling_full: bool = False


class PollingInfoRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str
    queue_id: int


class PollingInfoResponseHeader(CommandHeader):
    polling_num: int
