"""The rows of live brokers for a query: which ranges of which queues it needs, read one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from mqlake.lake.arrow.filters import Condition
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.live.ranges import QueueRange, planned, read_range


def live_batches(
    options: ReadOptions, conditions: tuple[Condition, ...], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows that may fulfil the conditions, of the messages that are there now.

    Raises what planned() and read_range() raise.
    """
    for each in needed(options, conditions):
        yield from read_range(each, options, list(columns), conditions)


def needed(options: ReadOptions, conditions: Sequence[Condition]) -> list[QueueRange]:
    """The ranges with all rows that may fulfil the conditions. Raises what planned() raises."""
    found = [narrowed(each, conditions) for each in planned(options)]
    return [each for each in found if each is not None]


def narrowed(given: QueueRange, conditions: Sequence[Condition]) -> QueueRange | None:
    """The part of a range that can have rows which fulfil the conditions; None: no part."""
    queue, start, end = given.queue, given.start, given.end
    known = {"topic": queue.topic, "queueId": queue.queue_id}
    for each in conditions:
        if each.column in known:
            value = known[each.column]
            if each.compare is None and value not in each.values:
                return None
            if each.compare is not None and not each.compare(value, each.values[0]):
                return None
        elif each.column == "queueOffset":
            start, end = _offsets(each, start, end)
    return replace(given, start=start, end=end) if start < end else None


def _offsets(condition: Condition, start: int, end: int) -> tuple[int, int]:
    """Returns the first and the last offset that the condition allows: the comparison rises or falls once, or is
    true at points."""
    if condition.allowed is not None:
        inside = [value for value in condition.values if start <= value < end]
        return (int(min(inside)), int(max(inside)) + 1) if inside else (start, start)
    assert condition.compare is not None
    bound = int(condition.values[0])
    if condition.compare(bound + 1, condition.values[0]):  # greater
        return max(start, bound), end
    return start, min(end, bound + 1)
