"""Checkpoints and acknowledgements of pop: JSON bodies of records in the revive topic, as RocketMQ 5.3.3 writes them.

    ck     {"bm":0,"bn":"broker-a","c":"G","d":[0,1,3],"it":15000,"n":3,"pt":…,"q":0,…,"ro":0,"so":7,"t":"T"}
           3 messages of T-0 were given to G at pt: offsets 7, 8 and 10
    ack    {"ao":8,"bn":"broker-a","c":"G","pt":…,"q":0,"so":7,"t":"T"}
    bAck   {"ao":-1,"aol":[7,8],"bn":"broker-a","c":"G","pt":…,"q":0,"so":7,"t":"T"}

An acknowledgement belongs to the checkpoint with the same topic, group, queue, start offset, pop time and broker.

All are timer messages: a checkpoint comes out into the revive topic one second before the messages' invisible time is
over, its acknowledgements when it is over. So a checkpoint precedes its acknowledgements there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from mqlake.errors import FormatError
from mqlake.formats.record import record_layout
from mqlake.message import (
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    Host,
    MessageExtBrokerInner,
    tags_code,
)
from mqlake.store.results import PutMessageFuture

CHECKPOINT_TAG = "ck"
ACK_TAG = "ack"
BATCH_ACK_TAG = "bAck"
CHECKPOINT_CODE = tags_code(CHECKPOINT_TAG)
ACK_CODE = tags_code(ACK_TAG)
BATCH_ACK_CODE = tags_code(BATCH_ACK_TAG)
CHECKPOINT_EARLIER_MS = 1000
"""A checkpoint is delivered this long before its acknowledgements."""
COUNT_MAX = 127
"""Messages of a checkpoint; RocketMQ keeps their number in one byte."""

Put = Callable[[MessageExtBrokerInner], PutMessageFuture]


class CheckpointKey(NamedTuple):
    """The common part of a checkpoint and its acknowledgements."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    broker_name: str


class Checkpoint:
    """Messages of one queue that were handed out together. `bits`: bit i is set if message i is acknowledged.

    `revive_offset`: its own queue offset in the revive topic, as it is read. `re_put_times`: how often it was written
    again, by RocketMQ, since a message could not be read; None for never.
    """

    __slots__ = (
        "bits",
        "count",
        "distances",
        "invisible_time",
        "key",
        "re_put_times",
        "revive_offset",
        "suspend",
    )

    def __init__(
        self,
        key: CheckpointKey,
        invisible_time: int,
        distances: Sequence[int],
        *,
        bits: int = 0,
        revive_offset: int = 0,
        re_put_times: str | None = None,
        suspend: bool = False,
    ) -> None:
        self.key = key
        self.invisible_time = invisible_time
        self.distances = distances
        self.count = len(distances)
        self.bits = bits
        self.revive_offset = revive_offset
        self.re_put_times = re_put_times
        self.suspend = suspend

    def __str__(self) -> str:
        key = self.key
        return (
            f"what group {key.group} popped of topic {key.topic}, queue {key.queue_id}, from offset "
            f"{key.start_offset} on"
        )

    @property
    def revive_time(self) -> int:
        """When the messages become visible again, in ms."""
        return self.key.pop_time + self.invisible_time

    @property
    def is_done(self) -> bool:
        """True if all messages are acknowledged."""
        return self.bits.bit_count() >= self.count

    def acknowledge(self, offset: int) -> bool:
        """Sets the bit of a queue offset; False if the checkpoint does not have the message, or had the bit."""
        try:
            bit = 1 << self.distances.index(offset - self.key.start_offset)
        except ValueError:
            return False
        if self.bits & bit:
            return False
        self.bits |= bit
        return True

    def open_offsets(self) -> list[int]:
        """Queue offsets of the messages that are not acknowledged."""
        start = self.key.start_offset
        return [start + distance for i, distance in enumerate(self.distances) if not self.bits >> i & 1]

    def __repr__(self) -> str:
        return (
            f"Checkpoint({self.key}, it={self.invisible_time}, d={list(self.distances)}, bits={self.bits:b})"
        )


class Acknowledgement(NamedTuple):
    """Messages that a consumer has done."""

    key: CheckpointKey
    offsets: Sequence[int]


# --- bytes


@lru_cache(maxsize=8192)
def _text(name: str) -> str:
    return orjson.dumps(name).decode()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    key = checkpoint.key
    again = "" if checkpoint.re_put_times is None else f'"rp":{_text(checkpoint.re_put_times)},'
    suspend = '"sp":true,' if checkpoint.suspend else ""
    return (
        f'{{"bm":{checkpoint.bits},"bn":{_text(key.broker_name)},"c":{_text(key.group)},'
        f'"d":[{",".join(map(str, checkpoint.distances))}],"it":{checkpoint.invisible_time},'
        f'"n":{checkpoint.count},"pt":{key.pop_time},"q":{key.queue_id},'
        f'"reviveTime":{checkpoint.revive_time},"ro":{checkpoint.revive_offset},{again}'
        f'"so":{key.start_offset},{suspend}"t":{_text(key.topic)}}}'
    ).encode()


def encode_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The body of an `ack` for one offset, of a `bAck` for several."""
    key, offsets = acknowledgement
    if len(offsets) == 1:
        which = f'"ao":{offsets[0]},'
    else:
        which = f'"ao":-1,"aol":[{",".join(map(str, offsets))}],'
    return (
        f'{{{which}"bn":{_text(key.broker_name)},"c":{_text(key.group)},"pt":{key.pop_time},'
        f'"q":{key.queue_id},"so":{key.start_offset},"t":{_text(key.topic)}}}'
    ).encode()


def decode_checkpoint(body: bytes | memoryview, broker_name: str, revive_offset: int = 0) -> Checkpoint:
    """FormatError if it cannot be read; `broker_name` is for one that names no broker, which is its own then.

    Fields that are not known here are ignored."""
    fields = _fields(body)
    key = _key(fields, broker_name)
    count = _number(fields, "n", 0)
    if not 0 <= count <= COUNT_MAX:
        raise FormatError(0, f"checkpoint: n is {count}, at most {COUNT_MAX} messages are possible")
    distances = fields.get("d")
    if distances is None:
        distances = range(count)
    elif not isinstance(distances, list) or not all(type(one) is int and one >= 0 for one in distances):
        raise FormatError(0, f"checkpoint: d is {str(distances)[:80]}, a list of distances is needed")
    elif len(distances) < count:
        raise FormatError(0, f"checkpoint: n is {count}, d has {len(distances)}")
    again = fields.get("rp")
    return Checkpoint(
        key,
        _number(fields, "it"),
        distances[:count],
        bits=_number(fields, "bm", 0) & ((1 << count) - 1),
        revive_offset=revive_offset,
        re_put_times=None if again is None else str(again),
        suspend=fields.get("sp") is True,
    )


def decode_acknowledgement(body: bytes | memoryview, broker_name: str) -> Acknowledgement:
    """FormatError if it cannot be read; `broker_name` as for a checkpoint."""
    fields = _fields(body)
    offsets = fields.get("aol")
    if offsets is None:
        offsets = [_number(fields, "ao")]
    elif not isinstance(offsets, list) or not all(type(one) is int for one in offsets):
        raise FormatError(
            0, f"batch acknowledgement: aol is {str(offsets)[:80]}, a list of offsets is needed"
        )
    return Acknowledgement(_key(fields, broker_name), offsets)


def _fields(body: bytes | memoryview) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(0, f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise FormatError(0, "a JSON object is needed")
    return fields


def _key(fields: dict[str, Any], broker_name: str) -> CheckpointKey:
    named = fields.get("bn")
    return CheckpointKey(
        _name(fields, "t"),
        _name(fields, "c"),
        _number(fields, "q"),
        _number(fields, "so"),
        _number(fields, "pt"),
        named if isinstance(named, str) and named else broker_name,
    )


def _name(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise FormatError(0, f"{name} is {str(value)[:80]!r}, a name is needed")
    return value


def _number(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if type(value) is not int:
        raise FormatError(0, f"{name} is {str(value)[:80]!r}, a number is needed")
    return value


def body_of(record: memoryview) -> memoryview:
    """The body of a whole record."""
    head, start, *_ = record_layout(record, 0, len(record))
    return record[start : start + head[-1]]


# --- records


class ReviveLog:
    """Stores checkpoints and acknowledgements, by way of the timer, in the revive topic."""

    def __init__(
        self, topic: str, store_host: Callable[[], Host], clock_ms: Callable[[], int], put: Put
    ) -> None:
        """`topic`: the revive topic; `put` stores a message."""
        self.topic = topic
        self._store_host = store_host
        self._clock_ms = clock_ms
        self._put = put

    def put_checkpoint(self, checkpoint: Checkpoint, revive_queue_id: int) -> PutMessageFuture:
        topic, group, queue_id, start, pop_time, broker = checkpoint.key
        return self._put_record(
            encode_checkpoint(checkpoint),
            CHECKPOINT_TAG,
            f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker}@{CHECKPOINT_TAG}",
            checkpoint.revive_time - CHECKPOINT_EARLIER_MS,
            revive_queue_id,
        )

    def put_acknowledgement(
        self, acknowledgement: Acknowledgement, revive_queue_id: int, revive_time: int
    ) -> PutMessageFuture:
        topic, group, queue_id, _, pop_time, broker = acknowledgement.key
        offsets = acknowledgement.offsets
        offset = offsets[0] if len(offsets) == 1 else -1
        return self._put_record(
            encode_acknowledgement(acknowledgement),
            ACK_TAG if len(offsets) == 1 else BATCH_ACK_TAG,
            f"{topic}@{queue_id}@{offset}@{group}@{pop_time}@{broker}@{ACK_TAG}",
            revive_time,
            revive_queue_id,
        )

    def _put_record(
        self, body: bytes, tag: str, unique: str, deliver_ms: int, revive_queue_id: int
    ) -> PutMessageFuture:
        host = self._store_host()
        return self._put(
            MessageExtBrokerInner(
                self.topic,
                body,
                properties={
                    PROPERTY_TAGS: tag,
                    PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
                    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique,
                },
                queue_id=revive_queue_id,
                born_timestamp=self._clock_ms(),
                born_host=host,
                store_host=host,
            )
        )
