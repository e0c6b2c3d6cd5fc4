"""Topics of live brokers as the source of tables: queue offsets are the only positions, and the messages come by pulls.

    state   broker-a:0 → 120   broker-a:1 → 98          bounds   broker-a:0 [100, 180)   broker-a:1 [90, 98)
    pieces  broker-a:0 [120, 180)

RocketMQ's brokers and mqlake's alike. Nothing is registered, and no consumer group moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from mqlake.errors import TableError
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.live.cluster import Cluster, Live, Queue
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.live.ranges import QueueRange, read_range, replaced
from mqlake.lake.live.rows import narrowed
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.offsets import Span, outside
from mqlake.lake.tables.source import Lag, States, StepPlan, waiting_seconds
from mqlake.lake.tables.state import TableState

MESSAGE_BYTES = 1024
"""Guessed: brokers count messages only."""
PIECE_MESSAGES = 100_000


@dataclass(frozen=True)
class BrokerPiece:
    """A part of one queue."""

    range: QueueRange
    options: ReadOptions
    conditions: tuple[Condition, ...] = ()
    name: str = ""

    @property
    def bytes(self) -> int:
        return (self.range.end - self.range.start) * MESSAGE_BYTES

    def read(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Raises what read_range() raises."""
        for batch in read_range(self.range, self.options, list(columns), self.conditions):
            yield self.range.queue.topic, batch


@dataclass(frozen=True)
class BrokerTail:
    """The messages of queues after a table's position, up to their ends when this was created."""

    ranges: Sequence[QueueRange]
    options: ReadOptions

    @property
    def begins(self) -> dict[str, int]:
        return {}

    def pieces(self, conditions: tuple[Condition, ...]) -> list[BrokerPiece]:
        found = [narrowed(each, conditions) for each in self.ranges]
        return [BrokerPiece(each, self.options, conditions) for each in found if each is not None]


class BrokerSource:
    """The brokers that `namesrv` knows. Raises what Live raises."""

    def __init__(self, namesrv: str, *, fail_on_data_loss: bool = True) -> None:
        self._options = ReadOptions(
            cluster=Cluster(namesrv), fail_on_data_loss=fail_on_data_loss, reads_on="fail_on_data_loss=False"
        )

    def names(self, topic: str) -> Sequence[str]:
        with Live(self._options.cluster) as live:
            return sorted({queue.broker for queue in live.queues([topic])})

    def check(self, topics: Sequence[str]) -> None:
        with Live(self._options.cluster) as live:
            live.queues(topics)

    def plan(self, states: States, bytes_max: int) -> StepPlan:
        ranges: list[QueueRange] = []
        gaps: dict[str, dict[str, list[Span]]] = {}
        for topic, state in states.items():
            found, gaps[topic] = self._ranges(topic, state)
            ranges += found
        messages, most = sum(each.end - each.start for each in ranges), max(1, bytes_max // MESSAGE_BYTES)
        if messages > most:
            first_of_each = {each.queue: each for each in reversed(ranges)}
            ranges = list(first_of_each.values())
            ranges = [replace(each, end=each.start + _share(each, most, messages)) for each in ranges]
        pieces = [
            BrokerPiece(replace(each, start=first, end=min(first + PIECE_MESSAGES, each.end)), self._options)
            for each in ranges
            for first in range(each.start, each.end, PIECE_MESSAGES)
        ]
        marks: Mapping[str, Mapping[str, Mark]] = {topic: {} for topic in states}
        return StepPlan(pieces, marks, is_last=messages <= most, gaps=gaps)

    def _ranges(self, topic: str, state: TableState | None) -> tuple[list[QueueRange], dict[str, list[Span]]]:
        """Returns the ranges of each queue that the table lacks, in order: of a static topic's the parts between its
        gaps; and these, as gaps() gives them. TableError when another message is where the table's last one was."""
        state = state or TableState()
        known = state.queues
        found = []
        with Live(self._options.cluster) as live:
            bounds = live.bounds(live.queues([topic]))
            gaps = live.gaps
            offsets = {queue: known[queue.name] for queue in bounds if queue.name in known}
            lasts = {queue: state.lasts.get(queue.name) for queue in bounds}
            for what in replaced(live, offsets, lasts):
                raise TableError(f"table of {topic}: {what}; make a new table (--table)")
        for queue, (low, high) in bounds.items():
            start = known.get(queue.name, low)
            if start > high:
                raise TableError(
                    f"table of {topic}: {queue} has messages up to {high}, the table up to {start}: these are other "
                    "brokers, or the topic was deleted and made again; make a new table (--table)"
                )
            for lost, until in outside(gaps.get(queue, ()), start, low):
                self._options.data_loss(f"table of {topic}: {queue}: offsets {lost} to {until} were deleted")
            parts = outside(gaps.get(queue, ()), max(start, low), high)
            found += [QueueRange(queue, first, end) for first, end in parts]
        return found, _by_name(gaps)

    def tail(self, topic: str, state: TableState | None) -> BrokerTail:
        ranges, _ = self._ranges(topic, state)
        return BrokerTail(ranges, self._options)

    def lag(self, topic: str, state: TableState | None) -> Lag:
        state = state or TableState()
        bounds, gaps = self._bounds(topic)
        messages = 0
        for queue, (low, high) in bounds.items():
            start = max(state.queues.get(queue.name, low), low)
            messages += sum(end - first for first, end in outside(gaps.get(queue, ()), start, high))
        return Lag(messages, messages * MESSAGE_BYTES, waiting_seconds(messages, state))

    def ends(self) -> None:
        return None

    def bounds(self, topic: str) -> dict[str, tuple[int, int]]:
        bounds, _ = self._bounds(topic)
        return {queue.name: each for queue, each in bounds.items()}

    def gaps(self, topic: str) -> dict[str, list[Span]]:
        with Live(self._options.cluster) as live:
            live.queues([topic])
            return _by_name(live.gaps)

    def _bounds(self, topic: str) -> tuple[dict[Queue, Span], dict[Queue, list[Span]]]:
        with Live(self._options.cluster) as live:
            return live.bounds(live.queues([topic])), live.gaps


def _by_name(gaps: Mapping[Queue, list[Span]]) -> dict[str, list[Span]]:
    return {queue.name: each for queue, each in gaps.items()}


def _share(each: QueueRange, most: int, messages: int) -> int:
    """Returns as large a part of a queue's messages as of all."""
    return max(1, (each.end - each.start) * most // messages)
