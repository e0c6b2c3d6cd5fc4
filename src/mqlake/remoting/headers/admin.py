"""Headers of administration: topics, groups, statistics, offsets set from outside, replicas."""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.remoting.headers.codec import CommandHeader, Long, mandatory
from mqlake.remoting.headers.common import RpcRequestHeader, TopicRequestHeader


@dataclass(slots=True, kw_only=True)
class CreateTopicRequestHeader(TopicRequestHeader):
    """17 UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool = mandatory(False)
    attributes: str | None = None
    force: bool = False


@dataclass(slots=True, kw_only=True)
class DeleteTopicRequestHeader(TopicRequestHeader):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


@dataclass(slots=True, kw_only=True)
class GetTopicConfigRequestHeader(TopicRequestHeader):
    topic: str


@dataclass(slots=True, kw_only=True)
class GetTopicStatsInfoRequestHeader(TopicRequestHeader):
    topic: str


@dataclass(slots=True, kw_only=True)
class GetAllTopicConfigRequestHeader(CommandHeader):
    """21 GET_ALL_TOPIC_CONFIG from 5.4 on: topics from the `topic_seq`th in the order of names on."""

    topic_seq: int
    data_version: str | None = None
    """JSON of the table's version that `topic_seq` counts in; empty with the first page."""
    max_topic_num: int | None = None


@dataclass(slots=True, kw_only=True)
class GetAllTopicConfigResponseHeader(CommandHeader):
    total_topic_num: int | None = None
    """Before 5.4 there is none: the body has all."""


@dataclass(slots=True, kw_only=True)
class GetAllSubscriptionGroupRequestHeader(CommandHeader):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, as GetAllTopicConfigRequestHeader."""

    group_seq: int
    data_version: str | None = None
    max_group_num: int | None = None


@dataclass(slots=True, kw_only=True)
class GetAllSubscriptionGroupResponseHeader(CommandHeader):
    total_group_num: int | None = None


@dataclass(slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(CommandHeader):
    version: str
    pending_restart: str | None = None
    """mqlake's: settings that were changed and count from the next start on, as properties."""


@dataclass(slots=True, kw_only=True)
class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader):
    group: str


@dataclass(slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader):
    group_name: str
    clean_offset: bool = False


@dataclass(slots=True, kw_only=True)
class UpdateGroupForbiddenRequestHeader(TopicRequestHeader):
    """353 UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


@dataclass(slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(slots=True, kw_only=True)
class GetConsumeStatsInBrokerHeader(CommandHeader):
    """317 GET_BROKER_CONSUME_STATS."""

    is_order: bool


@dataclass(slots=True, kw_only=True)
class GetConsumerConnectionListRequestHeader(RpcRequestHeader):
    consumer_group: str


@dataclass(slots=True, kw_only=True)
class GetProducerConnectionListRequestHeader(RpcRequestHeader):
    producer_group: str


@dataclass(slots=True, kw_only=True)
class GetAllProducerInfoRequestHeader(CommandHeader):
    """328 GET_ALL_PRODUCER_INFO."""


@dataclass(slots=True, kw_only=True)
class ResetOffsetRequestHeader(TopicRequestHeader):
    """222 INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str
    topic: str
    queue_id: int = -1
    offset: Long | None = None
    timestamp: Long
    is_force: bool


@dataclass(slots=True, kw_only=True)
class GetConsumerStatusRequestHeader(TopicRequestHeader):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True, kw_only=True)
class CloneGroupOffsetRequestHeader(RpcRequestHeader):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader):
    topic: str


@dataclass(slots=True, kw_only=True)
class QueryTopicsByConsumerRequestHeader(RpcRequestHeader):
    group: str


@dataclass(slots=True, kw_only=True)
class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader):
    group: str
    topic: str | None = None


@dataclass(slots=True, kw_only=True)
class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader):
    topic: str
    group: str


@dataclass(slots=True, kw_only=True)
class QueryConsumeQueueRequestHeader(TopicRequestHeader):
    topic: str | None = None
    queue_id: int = 0
    index: Long = 0
    count: int = 0
    consumer_group: str | None = None


@dataclass(slots=True, kw_only=True)
class QueryCorrectionOffsetHeader(TopicRequestHeader):
    filter_groups: str | None = None
    compare_group: str
    topic: str


@dataclass(slots=True, kw_only=True)
class ViewBrokerStatsDataRequestHeader(CommandHeader):
    stats_name: str
    stats_key: str


@dataclass(slots=True, kw_only=True)
class ExchangeHAInfoRequestHeader(CommandHeader):
    """906 EXCHANGE_BROKER_HA_INFO."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True, kw_only=True)
class ExchangeHAInfoResponseHeader(CommandHeader):
    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True, kw_only=True)
class NotifyMinBrokerIdChangeRequestHeader(CommandHeader):
    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@dataclass(slots=True, kw_only=True)
class ResetMasterFlushOffsetHeader(CommandHeader):
    master_flush_offset: Long
