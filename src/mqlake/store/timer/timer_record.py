"""What a record of rmq_sys_wheel_timer, or a copy that was delivered, says of its timer."""

from __future__ import annotations

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

TimerKey = tuple[str, str, int, int]
"""Real topic, UNIQ_KEY, TIMER_OUT_MS, and how often it was rolled: what a record or a copy of it is told by."""


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
    def key(self) -> TimerKey:
        return timer_key(self.properties)


def timer_key(properties: Mapping[str, str]) -> TimerKey:
    return (
        properties.get(PROPERTY_REAL_TOPIC, ""),
        properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""),
        number_of(properties.get(PROPERTY_TIMER_OUT_MS)),
        max(0, number_of(properties.get(PROPERTY_TIMER_ROLL_TIMES))),
    )


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
