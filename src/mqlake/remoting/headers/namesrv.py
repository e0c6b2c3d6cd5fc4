"""Headers of the name server: registration, routes, key-value configuration, write permissions."""

from __future__ import annotations

from dataclasses import dataclass

from mqlake.remoting.headers.codec import CommandHeader, Long
from mqlake.remoting.headers.common import TopicRequestHeader


@dataclass(slots=True, kw_only=True)
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


@dataclass(slots=True, kw_only=True)
class RegisterBrokerResponseHeader(CommandHeader):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True, kw_only=True)
class UnRegisterBrokerRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class QueryDataVersionRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, kw_only=True)
class QueryDataVersionResponseHeader(CommandHeader):
    changed: bool


@dataclass(slots=True, kw_only=True)
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


@dataclass(slots=True, kw_only=True)
class GetBrokerMemberGroupRequestHeader(CommandHeader):
    cluster_name: str
    broker_name: str


@dataclass(slots=True, kw_only=True)
class GetRouteInfoRequestHeader(TopicRequestHeader):
    """105 GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(CommandHeader):
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
    namespace: str
    key: str
    value: str


@dataclass(slots=True, kw_only=True)
class GetKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class GetKVConfigResponseHeader(CommandHeader):
    value: str | None = None


@dataclass(slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@dataclass(slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(CommandHeader):
    namespace: str


@dataclass(slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@dataclass(slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(CommandHeader):
    wipe_topic_count: int


@dataclass(slots=True, kw_only=True)
class AddWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@dataclass(slots=True, kw_only=True)
class AddWritePermOfBrokerResponseHeader(CommandHeader):
    add_topic_count: int
