"""Headers of the name server: registration, routes, key-value configuration, write permissions."""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.remoting.headers.codec import CommandHeader, Long
from mqlake.remoting.headers.common import TopicRequestHeader


@dataclass(slots=True, kw_only=True)
class RegisterBrokerRequestHeader(CommandHeader):
    """103 REGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


@dataclass(slots=True, kw_only=True)
class RegisterBrokerResponseHeader(CommandHeader):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True, kw_only=True)
class UnRegisterBrokerRequestHeader(CommandHeader):
    """104 UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class QueryDataVersionRequestHeader(CommandHeader):
    """322 QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class QueryDataVersionResponseHeader(CommandHeader):
    changed: bool


@dataclass(slots=True, kw_only=True)
class BrokerHeartbeatRequestHeader(CommandHeader):
    """904 BROKER_HEARTBEAT."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: int | None = None


@dataclass(slots=True, kw_only=True)
class GetBrokerMemberGroupRequestHeader(CommandHeader):
    """901 GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


@dataclass(slots=True, kw_only=True)
class GetRouteInfoRequestHeader(TopicRequestHeader):
    """105 GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(CommandHeader):
    """224 GET_TOPICS_BY_CLUSTER."""

    cluster: str


@dataclass(slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader):
    """216 DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


@dataclass(slots=True, kw_only=True)
class RegisterTopicRequestHeader(TopicRequestHeader):
    """217 REGISTER_TOPIC_IN_NAMESRV."""

    topic: str


@dataclass(slots=True, kw_only=True)
class PutKVConfigRequestHeader(CommandHeader):
    """100 PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


@dataclass(slots=True, kw_only=True)
class GetKVConfigRequestHeader(CommandHeader):
    """101 GET_KV_CONFIG."""

    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class GetKVConfigResponseHeader(CommandHeader):
    value: str | None = None


@dataclass(slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(CommandHeader):
    """102 DELETE_KV_CONFIG."""

    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(CommandHeader):
    """219 GET_KVLIST_BY_NAMESPACE."""

    namespace: str


@dataclass(slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(CommandHeader):
    """205 WIPE_WRITE_PERM_OF_BROKER."""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(CommandHeader):
    wipe_topic_count: int


@dataclass(slots=True, kw_only=True)
class AddWritePermOfBrokerRequestHeader(CommandHeader):
    """327 ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class AddWritePermOfBrokerResponseHeader(CommandHeader):
    add_topic_count: int
