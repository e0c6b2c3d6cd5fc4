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
from collections.abc import Callable, Mapping
from datetime import datetime

from mqlake.errors import ConfigError
from mqlake.lake.offsets import EARLIEST, Position, PositionKind, QueueOffsets, to_ms

STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_position(
    given: Mapping[str, str], names: tuple[str, str, str], default: PositionKind, *, physical: bool
) -> Position:
    """The position that the three options `names` give; ConfigError for an invalid value.

    `physical`: of a store, which has physical offsets; else of brokers, which have names.
    """
    option = next((name for name in (names[1], names[2]) if name in given), names[0])
    text, name = given.get(option, default.value).strip(), f"option {option!r}"
    if option == names[1]:
        return Position(PositionKind.TIMESTAMP, parse_time(option, given[option]), name=name)
    if option == names[2]:
        times = _queues(option, given[option], parse_time, brokers=not physical)
        return Position(PositionKind.QUEUE_TIMESTAMPS, queues=times, name=name)
    for kind in (PositionKind.EARLIEST, PositionKind.LATEST):
        if text.lower() == kind.value:
            return Position(kind, name=name)
    if physical and text.isdecimal():
        return Position(PositionKind.PHYSICAL, int(text), name=name)
    if text.startswith("{"):
        offsets = _queues(option, text, _queue_offset, brokers=not physical)
        return Position(PositionKind.QUEUES, queues=offsets, name=name)
    also = "a physical offset, " if physical else ""
    raise ConfigError(
        f"{name} is {text!r}; it can be earliest, latest, {also}"
        'or offsets of queues such as {"topic": {"0": 123}}'
    )


def start_and_end(
    given: Mapping[str, str], default: PositionKind, *, stream: bool | None
) -> tuple[Position, Position]:
    """Returns the positions at which reading of queues begins and ends. `stream` None: it is not known yet, so that
    what either can do passes.

    ConfigError for what this kind of read cannot do.
    """
    start = parse_position(given, STARTING, default, physical=False)
    end = parse_position(given, ENDING, PositionKind.LATEST, physical=False)
    if stream is False and start.kind is PositionKind.LATEST:
        raise ConfigError(f"{start.name} is 'latest'; a batch cannot begin there")
    if end.kind is PositionKind.EARLIEST:
        raise ConfigError(f"{end.name} is 'earliest'; nothing can end there")
    if stream and end.kind is not PositionKind.LATEST:
        raise ConfigError(f"{end.name} is for a batch; a stream has no end")
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
    return to_ms(moment)


def _queue_offset(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ConfigError(
            f"option {option!r}: {value!r} is not a queue offset (-2 is the earliest, -1 the latest)"
        )
    return value


def _queues(option: str, text: str, parse: Callable[[str, object], int], *, brokers: bool) -> QueueOffsets:
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
