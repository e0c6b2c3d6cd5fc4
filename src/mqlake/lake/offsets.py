"""The start and the end of a read, and spans of queue offsets. Times are store times, in ms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

EARLIEST, LATEST = -2, -1
"""In the offsets that users give: the first offset of a queue, and the one after its last."""


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


def to_ms(moment: datetime) -> int:
    """Returns a store time in ms; without a zone it is in UTC."""
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


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
    """`value` is a physical offset or a time in ms; `queues` are queue offsets, or times in ms. `name`: what errors
    call it, such as `start` or `option 'startingOffsets'`."""

    kind: PositionKind
    value: int = 0
    queues: QueueOffsets = field(default_factory=dict)
    name: str = field(default="", compare=False)
