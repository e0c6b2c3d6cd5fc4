"""Headers of administration: topics, groups, statistics, offsets set from outside, replicas."""

from __future__ import annotations

from mqlake.remoting.headers.codec import CommandHeader, Long, mandatory
from mqlake.remoting.headers.common import RpcRequestHeader, TopicRequestHeader


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


class DeleteTopicRequestHeader(TopicRequestHeader):
    """215 DELETE_TOPIC_IN_BROKER."""

    topic: str


class GetTopicConfigRequestHeader(TopicRequestHeader):
    topic: str


class GetTopicStatsInfoRequestHeader(TopicRequestHeader):
    topic: str


class GetAllTopicConfigRequestHeader(CommandHeader):
    """21 GET_ALL_TOPIC_CONFIG from 5.4 on: topics from the `topic_seq`th in the order of names on."""

    topic_seq: int
    data_version: str | None = None
    """JSON of the table's version that `topic_seq` counts in; empty with the first page."""
    max_topic_num: int | None = None


class GetAllTopicConfigResponseHeader(CommandHeader):
    total_topic_num: int | None = None
    """Before 5.4 there is none: the body has all."""


class GetAllSubscriptionGroupRequestHeader(CommandHeader):
    """201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, as GetAllTopicConfigRequestHeader."""

    group_seq: int
    data_version: str | None = None
    max_group_num: int | None = None


class GetAllSubscriptionGroupResponseHeader(CommandHeader):
    total_group_num: int | None = None


class GetBrokerConfigResponseHeader(CommandHeader):
    version: str
    pending_restart: str | None = None
    """mqlake's: settings that were changed and count from the next start on, as properties."""


class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader):
    group: str


class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader):
    group_name: str
    clean_offset: bool = False


class UpdateGroupForbiddenRequestHeader(TopicRequestHeader):
    """353 UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


class GetConsumeStatsRequestHeader(TopicRequestHeader):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(CommandHeader):
    """317 GET_BROKER_CONSUME_STATS."""

    is_order: bool


class GetConsumerConnectionListRequestHeader(RpcRequestHeader):
    consumer_group: str


class GetProducerConnectionListRequestHeader(RpcRequestHeader):
    producer_group: str


class GetAllProducerInfoRequestHeader(CommandHeader):
    """328 GET_ALL_PRODUCER_INFO."""


class ResetOffsetRequestHeader(TopicRequestHeader):
    """222 INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str
    topic: str
    queue_id: int = -1
    offset: Long | None = None
    timestamp: Long
    is_force: bool


class GetConsumerStatusRequestHeader(TopicRequestHeader):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffsetRequestHeader(RpcRequestHeader):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader):
    topic: str


class QueryTopicsByConsumerRequestHeader(RpcRequestHeader):
    group: str


class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader):
    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader):
    topic: str
    group: str


class QueryConsumeQueueRequestHeader(TopicRequestHeader):
    topic: str | None = None
    queue_id: int = 0
    index: Long = 0
    count: int = 0
    consumer_group: str | None = None


class QueryCorrectionOffsetHeader(TopicRequestHeader):
    filter_groups: str | None = None
    compare_group: str
    topic: str


class ViewBrokerStatsDataRequestHeader(CommandHeader):
    stats_name: str
    stats_key: str


class ExchangeHAInfoRequestHeader(CommandHeader):
    """906 EXCHANGE_BROKER_HA_INFO."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class ExchangeHAInfoResponseHeader(CommandHeader):
    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class NotifyMinBrokerIdChangeRequestHeader(CommandHeader):
    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ResetMasterFlushOffsetHeader(CommandHeader):
    master_flush_offset: Long
