"""Between RocketMQ's values and the messages of package apache.rocketmq.v2: times, addresses, names, types."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from mqlake.errors import IllegalTopicError
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
    is_system_topic,
    validate_topic,
)
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    MessageType,
    Resource,
)
from mqlake.remoting.bodies.topic import TopicConfig

GROUP_LENGTH_MAX = 120
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

_DELAYED = frozenset(
    {
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELAY_MS,
    }
)
_MIXED = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
MESSAGE_TYPE_ATTRIBUTE = "message.type"


# --- times


def duration_ms(duration: Duration) -> int:
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def timestamp_ms(timestamp: Timestamp) -> int:
    return int(timestamp.seconds) * 1000 + int(timestamp.nanos) // 1_000_000


def timestamp(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


# --- addresses


def endpoints(host: str, port: int) -> Endpoints:
    """One address; the scheme follows its form, as clients demand."""
    try:
        scheme = AddressScheme.IPv6 if ip_address(host).version == 6 else AddressScheme.IPv4
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=port)])


# --- names


def topic_name(topic: Resource, *, system: bool = False) -> str:
    """StatusError ILLEGAL_TOPIC; `system`: RocketMQ's own topics are allowed."""
    try:
        validate_topic(topic.name)
    except IllegalTopicError as error:
        raise StatusError(Code.ILLEGAL_TOPIC, str(error)) from None
    if not system and is_system_topic(topic.name):
        raise StatusError(
            Code.ILLEGAL_TOPIC, f"topic {topic.name} is one of RocketMQ's own; clients cannot use it"
        )
    return topic.name


def group_name(group: Resource) -> str:
    """StatusError ILLEGAL_CONSUMER_GROUP."""
    name = group.name
    try:
        validate_topic(name)
    except IllegalTopicError as error:
        raise StatusError(
            Code.ILLEGAL_CONSUMER_GROUP, str(error).replace("topic", "consumer group", 1)
        ) from None
    if len(name) > GROUP_LENGTH_MAX:
        raise StatusError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {name!r} has {len(name)} characters; {GROUP_LENGTH_MAX} are allowed",
        )
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise StatusError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {name} is one of RocketMQ's own; clients cannot use it",
        )
    return name


# --- filters


def filter_of(expression: FilterExpression) -> tuple[str, str]:
    """(type, expression) as brokers take them; everything for an empty expression."""
    kind = "SQL92" if expression.type == FilterType.SQL else "TAG"
    return kind, expression.expression.strip() or "*"


def tags_of(expression: FilterExpression) -> frozenset[str] | None:
    """The tags that the expression names; None if it is not about tags, or names all."""
    kind, text = filter_of(expression)
    if kind != "TAG" or text == "*":
        return None
    return frozenset(tag.strip() for tag in text.split("||") if tag.strip())


# --- types


_NORMAL, _FIFO, _DELAY, _TRANSACTION = (
    _MIXED[0],
    _MIXED[1],
    _MIXED[2],
    _MIXED[3],
)  # a name takes long to look up


def message_type(properties: Mapping[str, str]) -> MessageType:
    """The type of a message by its properties."""
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return _TRANSACTION
    if not _DELAYED.isdisjoint(properties):
        return _DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return _FIFO
    if PROPERTY_PRIORITY in properties:
        return MessageType.PRIORITY
    if PROPERTY_LITE_TOPIC in properties:
        return MessageType.LITE
    return _NORMAL


def accepted_types(config: TopicConfig | None) -> tuple[MessageType, ...]:
    """The types that a topic takes, by its attribute message.type; NORMAL without it."""
    named = ((config.attributes or {}) if config is not None else {}).get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL")
    if named == "MIXED":
        return _MIXED
    if named == "NORMAL":
        return (_NORMAL,)
    if named in ("FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY"):
        return (MessageType.Value(named),)
    return (MessageType.MESSAGE_TYPE_UNSPECIFIED,)
