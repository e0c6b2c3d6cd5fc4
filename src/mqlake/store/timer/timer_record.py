"""The timer of a record of rmq_sys_wheel_timer, or of a copy that was delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from mqlake.errors import FormatError
from mqlake.formats.record import decode_record, record_layout
from mqlake.message import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    TIMER_TOPIC,
    MessageExtBrokerInner,
    bytes_to_properties,
)

ENQUEUE_BYPASSED = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message that was due before it could be put into the wheel."""

STEP_MAX_MS = 1000
"""The longest step of a wheel."""

TimerKey = tuple[str, str, int, bool]
"""Real topic, UNIQ_KEY, TIMER_OUT_MS, whether it cancels another: what a record and its copies are told by."""


def number_of(text: str | None) -> int:
    """The number that a property holds, -1 if it holds none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else -1


class TimerRecord(NamedTuple):
    """A record's properties, and whether it is still in rmq_sys_wheel_timer."""

    in_timer_topic: bool
    properties: dict[str, str]

    @property
    def out_ms(self) -> int:
        """When it is due, ms; -1 if the record does not say."""
        return number_of(self.properties.get(PROPERTY_TIMER_OUT_MS))

    @property
    def real_topic(self) -> str:
        return self.properties.get(PROPERTY_REAL_TOPIC, "")

    @property
    def is_delete(self) -> bool:
        return PROPERTY_TIMER_DEL_UNIQKEY in self.properties

    @property
    def is_copy(self) -> bool:
        """True if the timers wrote it: delivered, or rolled."""
        return PROPERTY_TIMER_DEQUEUE_MS in self.properties

    @property
    def uniq_key(self) -> str:
        return self.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")

    @property
    def recalls(self) -> tuple[str, str]:
        """(Real topic, key) of the message that it cancels."""
        return self.real_topic, self.properties.get(PROPERTY_TIMER_DEL_UNIQKEY, "")

    @property
    def key(self) -> TimerKey:
        return timer_key(self.properties)

    @property
    def roll_times(self) -> int:
        return roll_times(self.properties)


def timer_key(properties: Mapping[str, str]) -> TimerKey:
    return (
        properties.get(PROPERTY_REAL_TOPIC, ""),
        properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""),
        number_of(properties.get(PROPERTY_TIMER_OUT_MS)),
        PROPERTY_TIMER_DEL_UNIQKEY in properties,
    )


Recalls = dict[int, set[tuple[str, str]]]
"""Step at which messages are due, ms → (real topic, key) of each recall of one of them."""


def is_recalled(topic: str, uniq_key: str, keys: set[tuple[str, str]]) -> bool:
    """True if one of the recalls of a step names the message. RocketMQ 5.3.3 names topic and key, 5.4 the key alone."""
    return (topic, f"{topic}+{uniq_key}") in keys or (topic, uniq_key) in keys


def roll_times(properties: Mapping[str, str]) -> int:
    """How often a message was rolled."""
    return max(0, number_of(properties.get(PROPERTY_TIMER_ROLL_TIMES)))


class Copies:
    """The messages that the timers have delivered or rolled: they are not written again after a crash.

    After a crash a message may be rolled at other times than before it, so where its copies have come to counts, and
    not how: what was rolled more often, or delivered, is not stored once more.
    """

    def __init__(self) -> None:
        self._delivered: Counter[TimerKey] = Counter()
        self._rolled: Counter[tuple[TimerKey, int]] = Counter()
        self._times: dict[TimerKey, int] = {}
        """How often a message was rolled at most."""

    def add(self, record: TimerRecord) -> None:
        key, times = record.key, record.roll_times
        if not key[1]:
            return
        if record.in_timer_topic:
            self._rolled[key, times] += 1
            self._times[key] = max(times, self._times.get(key, 0))
        else:
            self._delivered[key] += 1

    def take(self, properties: Mapping[str, str], *, is_roll: bool) -> bool:
        """True if the copy with these properties, which is to be stored, or a later one is there already; it is
        accounted for then."""
        key, times = timer_key(properties), roll_times(properties)
        if is_roll and self._rolled.get((key, times), 0):
            self._rolled[key, times] -= 1
            return True
        if self._times.get(key, 0) > times:
            return True
        if self._delivered.get(key, 0):
            self._delivered[key] -= 1
            return True
        return False

    @property
    def last_out_ms(self) -> int:
        """The latest time at which one of them was, or is, due."""
        return max((key[2] for key in (*self._delivered, *self._times)), default=0)

    def __bool__(self) -> bool:
        return bool(self._delivered or self._rolled)

    def clear(self) -> None:
        """All are accounted for."""
        self._delivered.clear()
        self._rolled.clear()
        self._times.clear()


def read_timer_record(record: memoryview | bytes) -> TimerRecord:
    """FormatError if it is no record."""
    _, _, topic_start, topic_end, properties_start, end = record_layout(record, 0, len(record))
    return TimerRecord(
        bytes(record[topic_start:topic_end]) == _TIMER_TOPIC_BYTES,
        bytes_to_properties(record[properties_start:end]),
    )


def decode_timer_message(
    record: memoryview, physical_offset: int, due: int, *, is_roll: bool
) -> MessageExtBrokerInner:
    """The message that a unit due at `due` leads to, its body checked. FormatError if it leads to another one: the log
    may have been cut back, and written on."""
    message = decode_record(record, message_class=MessageExtBrokerInner)
    assert isinstance(message, MessageExtBrokerInner)
    out = number_of(message.properties.get(PROPERTY_TIMER_OUT_MS))
    if message.physical_offset != physical_offset or message.topic != TIMER_TOPIC:
        raise FormatError(0, f"there is a message of {message.topic}, none of {TIMER_TOPIC}")
    if out < 0 or not (due < out if is_roll else due > out - STEP_MAX_MS):
        raise FormatError(0, f"the message is due at {out}, the unit of the timer log says {due}")
    return message


_TIMER_TOPIC_BYTES = TIMER_TOPIC.encode()
