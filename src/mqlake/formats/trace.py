"""Message traces: the bodies of messages in RMQ_SYS_TRACE_TOPIC, as RocketMQ's TraceDataEncoder writes them.

    Pub     │1│ time │1│ region │1│ group │1│ topic │1│ msgId │1│ tags │1│ keys │1│ storeHost │1│ bodyLength
            │1│ costTime │1│ msgType │1│ offsetMsgId │1│ success │2│
    SubBefore │1│ time │1│ region │1│ group │1│ requestId │1│ msgId │1│ retryTimes │1│ keys │2│
    SubAfter  │1│ requestId │1│ msgId │1│ costTime │1│ success │1│ keys │1│ contextCode │1│ time │1│ group │2│

│1│ and │2│ are the bytes 1 and 2; one body holds many traces back to back. Text that is absent is written as Java
writes null: a reader that splits by │1│, as RocketMQ's does, would lose empty text at the end. Times are ms.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from mqlake.errors import FormatError

CONTENT_SPLITOR = "\x01"
FIELD_SPLITOR = "\x02"
NULL = "null"


class MessageType(enum.IntEnum):
    """The kind of message that was sent; the numbers are the wire's."""

    NORMAL_MSG = 0
    TRANS_MSG_HALF = 1
    TRANS_MSG_COMMIT = 2
    DELAY_MSG = 3
    ORDER_MSG = 4


class ContextCode(enum.IntEnum):
    """How a consumption ended: RocketMQ's ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Pub:
    """A message was sent."""

    timestamp: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    """The unique key; of a batch all of them, with commas between."""
    tags: str
    keys: str
    store_host: str
    body_length: int
    cost_time: int
    msg_type: MessageType
    offset_msg_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class SubBefore:
    """A message was handed to a consumer."""

    timestamp: int
    region_id: str
    group: str
    request_id: str
    """The same as that of the SubAfter which says how it ended."""
    msg_id: str
    retry_times: int
    keys: str


@dataclass(frozen=True, slots=True)
class SubAfter:
    """The consumer is done with it."""

    request_id: str
    msg_id: str
    cost_time: int
    success: bool
    keys: str
    context_code: int
    timestamp: int
    group: str


Trace = Pub | SubBefore | SubAfter


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    text = str(value).replace(CONTENT_SPLITOR, " ").replace(FIELD_SPLITOR, " ")
    return text or NULL


def encode_trace(trace: Trace) -> str:
    fields = [type(trace).__name__, *(_text(getattr(trace, name)) for name in trace.__slots__)]
    return CONTENT_SPLITOR.join(fields) + FIELD_SPLITOR


def trace_keys(trace: Trace) -> list[str]:
    """The keys of the trace: the message's ids and keys."""
    return [*trace.msg_id.split(","), *trace.keys.split()]


def decode_traces(body: str) -> list[Trace]:
    """The traces of a body in order, without those of unknown kinds. FormatError for one that is damaged."""
    found: list[Trace] = []
    for number, text in enumerate(body.split(FIELD_SPLITOR)):
        name, *fields = text.split(CONTENT_SPLITOR)
        kind = _KINDS.get(name)
        if kind is None:
            continue
        try:
            found.append(kind(fields))
        except (ValueError, IndexError) as error:
            raise FormatError(0, f"trace {number} of the body, a {name}, is damaged: {error}") from None
    return found


def _null(text: str) -> str:
    return "" if text == NULL else text


def _truth(text: str) -> bool:
    return text.lower() == "true"


def _pub(fields: list[str]) -> Pub:
    time, region, group, topic, msg_id, tags, keys, host, length, cost, kind, *rest = fields
    # the versions before 4.5 had no offsetMsgId, later clients add their own address
    offset_msg_id, success = ("", rest[0]) if len(rest) == 1 else rest[:2]
    return Pub(
        int(time), _null(region), _null(group), _null(topic), _null(msg_id), _null(tags), _null(keys), _null(host),
        int(length), int(cost), MessageType(int(kind)), _null(offset_msg_id), _truth(success),
    )  # fmt: skip


def _sub_before(fields: list[str]) -> SubBefore:
    time, region, group, request_id, msg_id, retry_times, *keys = fields
    return SubBefore(
        int(time),
        _null(region),
        _null(group),
        request_id,
        _null(msg_id),
        int(retry_times),
        _null("".join(keys[:1])),
    )


def _sub_after(fields: list[str]) -> SubAfter:
    request_id, msg_id, cost, success, keys, *rest = fields
    code, time, group = [*rest, *("0", "0", "")[len(rest) :]][:3]
    return SubAfter(
        request_id, _null(msg_id), int(cost), _truth(success), _null(keys), int(code), int(time), _null(group)
    )


_KINDS: dict[str, Callable[[list[str]], Trace]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
}
