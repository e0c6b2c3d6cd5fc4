"""The start and the end of a read: the options that Spark's Kafka source has, with the log's physical offsets besides.

    startingOffsets, endingOffsets                        earliest | latest | {"topic": {"0": 123, "1": -2}}
                                                          | 4096 (physical; stores only)
                                                          | {"topic": {"broker-a:0": 123}} (brokers only)
    startingTimestamp, endingTimestamp                    1700000000000 | 2023-11-14T22:13:20Z
    startingOffsetsByTimestamp, endingOffsetsByTimestamp  {"topic": {"0": 1700000000000}}

The most specific one that is given counts, in the order timestamp, offsets by timestamp, offsets. The end itself
is not read. In JSON -2 is the earliest offset and -1 the latest. Times are store times, in ms or ISO 8601.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from mqlake.errors import ConfigError

EARLIEST, LATEST = -2, -1

STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True)
class LastMessage:
    """The message before a queue offset: its physical offset, and its store time in ms. An offset alone does not say
    whose it is: a topic that is deleted and made again counts from 0 as before."""

    physical_offset: int
    store_time: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.store_time / 1000, UTC).isoformat(timespec="milliseconds")
        return f"the message stored at {at.replace('+00:00', 'Z')} (physical offset {self.physical_offset})"


Span = tuple[int, int]
"""Queue offsets [first, end)."""


def outside(gaps: Iterable[Span], first: int, end: int) -> list[Span]:
    """Returns the parts of [first, end) outside of the gaps, which are in order."""
    found, at = [], first
    for begin, after in gaps:
        if at < min(begin, end):
            found.append((at, min(begin, end)))
        at = max(at, after)
    if at < end:
        found.append((at, end))
    return found


QueueOffsets = Mapping[tuple[str, str], int]
"""By topic and queue: `0`, of brokers also `broker-a:0`."""


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    PHYSICAL = "physical"
    QUEUES = "queues"
    TIMESTAMP = "timestamp"
    QUEUE_TIMESTAMPS = "queue timestamps"


@dataclass(frozen=True)
class Position:
    """`value` is a physical offset or a time in ms; `queues` are queue offsets, or times in ms."""

    kind: PositionKind
    option: str = ""
    value: int = 0
    queues: QueueOffsets = field(default_factory=dict)

    @classmethod
    def parse(
        cls, given: Mapping[str, str], names: tuple[str, str, str], default: PositionKind, *, physical: bool
    ) -> Position:
        """Parses the three options `names`; ConfigError for an invalid value.

        `physical`: of a store, which has physical offsets; else of brokers, which have names.
        """
        offsets, timestamp, by_timestamp = names
        if timestamp in given:
            return cls(PositionKind.TIMESTAMP, timestamp, parse_time(timestamp, given[timestamp]))
        if by_timestamp in given:
            queues = _queues(by_timestamp, given[by_timestamp], parse_time, brokers=not physical)
            return cls(PositionKind.QUEUE_TIMESTAMPS, by_timestamp, queues=queues)
        text = given.get(offsets, default.value).strip()
        for kind in (PositionKind.EARLIEST, PositionKind.LATEST):
            if text.lower() == kind.value:
                return cls(kind, offsets)
        if physical and text.isdecimal():
            return cls(PositionKind.PHYSICAL, offsets, int(text))
        if text.startswith("{"):
            return cls(
                PositionKind.QUEUES,
                offsets,
                queues=_queues(offsets, text, _queue_offset, brokers=not physical),
            )
        also = "a physical offset, " if physical else ""
        raise ConfigError(
            f"option {offsets!r} is {text!r}; it can be earliest, latest, {also}"
            'or offsets of queues such as {"topic": {"0": 123}}'
        )


def start_and_end(
    given: Mapping[str, str], default: PositionKind, *, stream: bool | None
) -> tuple[Position, Position]:
    """Returns the positions at which reading of queues begins and ends. `stream` None: it is not known yet, so that
    what either can do passes.

    ConfigError for what this kind of read cannot do.
    """
    start = Position.parse(given, STARTING, default, physical=False)
    end = Position.parse(given, ENDING, PositionKind.LATEST, physical=False)
    if stream is False and start.kind is PositionKind.LATEST:
        raise ConfigError(f"option {start.option!r} is 'latest'; a batch cannot begin there")
    if end.kind is PositionKind.EARLIEST:
        raise ConfigError(f"option {end.option!r} is 'earliest'; nothing can end there")
    if stream and end.kind is not PositionKind.LATEST:
        raise ConfigError(f"option {end.option!r} is for a batch; a stream has no end")
    return start, end


def parse_time(option: str, text: object) -> int:
    """ms since 1970 of a number of ms or an ISO 8601 time; a time without a zone is in UTC."""
    try:
        return int(str(text))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ConfigError(f"option {option!r}: {text!r} is not a time: ms since 1970, or ISO 8601") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _queue_offset(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ConfigError(
            f"option {option!r}: {value!r} is not a queue offset (-2 is the earliest, -1 the latest)"
        )
    return value


def _queues(
    option: str, text: str, parse: Callable[[str, object], int], *, brokers: bool
) -> dict[tuple[str, str], int]:
    try:
        pairs = [
            (topic, queue, value)
            for topic, queues in json.loads(text).items()
            for queue, value in queues.items()
        ]
        for _, queue, _ in pairs:
            int(queue.rpartition(":")[2] if brokers else queue)
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f'option {option!r} is {text!r}; it takes JSON such as {{"topic": {{"0": 123, "1": -2}}}}'
        ) from error
    return {(topic, queue): parse(option, value) for topic, queue, value in pairs}
