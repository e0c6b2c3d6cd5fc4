"""Headers of the name server: registration, routes, key-value configuration, write permissions."""

from __future__ import annotations

from mqlake.remoting.headers.codec import CommandHeader, Long
from mqlake.remoting.headers.common import TopicRequestHeader


class RegisterBrokerRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0
    partial: bool | None = None
    """mqlake's own: these topics are not all that the broker has. RocketMQ's name server does not look at it."""


class RegisterBrokerResponseHeader(CommandHeader):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionResponseHeader(CommandHeader):
    changed: bool


class BrokerHeartbeatRequestHeader(CommandHeader):
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: int | None = None


class GetBrokerMemberGroupRequestHeader(CommandHeader):
    cluster_name: str
    broker_name: str


class GetRouteInfoRequestHeader(TopicRequestHeader):
    """105 GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


class GetTopicsByClusterRequestHeader(CommandHeader):
    cluster: str


class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader):
    """216 DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(TopicRequestHeader):
    """217 REGISTER_TOPIC_IN_NAMESRV."""

    topic: str


class PutKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


class GetKVConfigResponseHeader(CommandHeader):
    value: str | None = None


class DeleteKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(CommandHeader):
    namespace: str


class WipeWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


class WipeWritePermOfBrokerResponseHeader(CommandHeader):
    wipe_topic_count: int


class AddWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


class AddWritePermOfBrokerResponseHeader(CommandHeader):
    add_topic_count: int
