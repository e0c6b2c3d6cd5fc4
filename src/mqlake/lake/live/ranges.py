"""The ranges of queues that a read of live brokers consists of, and the rows that a task makes of one.

driver    position ─▶ an offset of each queue ─▶ ranges [start, end), divided among tasks
task      range ─▶ pulls ─▶ raw records ─▶ scan ─▶ unpack ─▶ Arrow batches
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mqlake.client import MessageQueue
from mqlake.client.records import decode_messages, whole_records
from mqlake.errors import ConfigError, FormatError, UndecodableMessageError
from mqlake.formats.columns import Bytes, Scan
from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.arrow.memory import keep_freed_memory
from mqlake.lake.arrow.rows import RowBuilder
from mqlake.lake.arrow.unpack import BODY_BYTES_MAX
from mqlake.lake.live.cluster import Live, Queue, missing, scans_of
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.log.splits import Damage
from mqlake.lake.log.tasks import packed_flags, select_records
from mqlake.lake.offsets import EARLIEST, LATEST, LastMessage, Position, PositionKind
from mqlake.lake.options import LogOptions
from mqlake.message import PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, bytes_to_properties

logger = logging.getLogger(__name__)

QueueOffsets = dict[Queue, int]


@dataclass(frozen=True)
class QueueRange:
    """The messages [start, end) of a queue."""

    queue: Queue
    start: int
    end: int


# ---------------------------------------------------------------------- on the driver


def subscribed(live: Live, options: ReadOptions) -> list[str]:
    """The topics' names. ConfigError when the pattern matches none."""
    if options.pattern is None:
        return list(options.topics)
    topics = live.topics_like(options.pattern)
    if not topics:
        raise ConfigError(f"option 'subscribePattern' is {options.pattern!r}: no topic matches it")
    return topics


def resolve(
    live: Live, position: Position, bounds: Mapping[Queue, tuple[int, int]], default: int
) -> QueueOffsets:
    """Queue offsets for a position; `default` (EARLIEST or LATEST) for queues that it does not name.

    ConfigError for a queue that is named and not there.
    """
    kind = position.kind
    if kind is PositionKind.TIMESTAMP:
        wanted = dict.fromkeys(bounds, position.value)
    elif kind in (PositionKind.QUEUES, PositionKind.QUEUE_TIMESTAMPS):
        wanted = _named(position, bounds)
    else:
        wanted = {}
        default = EARLIEST if kind is PositionKind.EARLIEST else LATEST
    if kind in (PositionKind.TIMESTAMP, PositionKind.QUEUE_TIMESTAMPS):
        wanted = live.at_time(wanted)
    found = {}
    for queue, (low, high) in bounds.items():
        offset = wanted.get(queue, default)
        found[queue] = {EARLIEST: low, LATEST: high}.get(offset, offset)
    return found


def _named(position: Position, bounds: Mapping[Queue, tuple[int, int]]) -> QueueOffsets:
    found = {}
    left = dict(position.queues)
    for queue in bounds:
        for name in (queue.name, str(queue.queue_id)):
            value = position.queues.get((queue.topic, name))
            if value is not None:
                found[queue] = value
                left.pop((queue.topic, name), None)
                break
    if left:
        (topic, name), *_ = left
        raise ConfigError(f"{position.name} names queue {name} of topic {topic}, which is not there")
    return found


def in_queue(options: ReadOptions, queue: Queue, offset: int, bounds: tuple[int, int]) -> int:
    """The offset, when the queue has it; else the nearest that it has, which may be data loss."""
    low, high = bounds
    if low <= offset <= high:
        return offset
    options.data_loss(f"{queue}: offset {offset} is not there; the broker has {low} to {high}")
    return min(max(offset, low), high)


def replaced(
    live: Live, offsets: Mapping[Queue, int], lasts: Mapping[Queue, LastMessage | None]
) -> Iterator[str]:
    """Yields a sentence for each queue whose message before an offset is not the one that was there when the offset
    was noted. A queue without that message, there or in `lasts`, cannot be compared."""
    known = {queue: offset for queue, offset in offsets.items() if lasts.get(queue) is not None}
    for queue, found in live.last_messages(known).items() if known else ():
        if found is not None and found != lasts[queue]:
            yield (
                f"{queue}: {lasts[queue]} was read at offset {known[queue] - 1}, the broker has {found} there: the "
                "topic was deleted and made again, or the broker lost its messages"
            )


def planned(options: ReadOptions) -> list[QueueRange]:
    """The queues and offsets that the options name, as the brokers report them now. Raises what Live, resolve() and
    in_queue() raise."""
    with Live(options.cluster) as live:
        queues = live.queues(subscribed(live, options))
        bounds = live.bounds(queues)
        starts = resolve(live, options.start, bounds, EARLIEST)
        ends = resolve(live, options.end, bounds, LATEST)
    ranges = [
        QueueRange(
            queue,
            in_queue(options, queue, starts[queue], bounds[queue]),
            in_queue(options, queue, ends[queue], bounds[queue]),
        )
        for queue in queues
    ]
    return divided(ranges, options.min_partitions)


def divided(ranges: list[QueueRange], min_partitions: int | None) -> list[QueueRange]:
    """Ranges without empty ones; the large ones in parts until there are about `min_partitions`."""
    ranges = [each for each in ranges if each.start < each.end]
    total = sum(each.end - each.start for each in ranges)
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    found = []
    for each in ranges:
        size = each.end - each.start
        parts = min(size, max(1, round(size / total * min_partitions)))
        borders = [each.start + size * n // parts for n in range(parts + 1)]
        found += [QueueRange(each.queue, first, last) for first, last in itertools.pairwise(borders)]
    return found


# ---------------------------------------------------------------------- in a task


def read_range(
    partition: QueueRange, options: ReadOptions, columns: list[str], conditions: tuple[Condition, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of one task that may fulfil the conditions. Raises OffsetOutOfRangeError, UndecodableMessageError, and
    what the client raises."""
    queue, end = partition.queue, partition.end
    builder = RowBuilder(columns, None, queue.broker)
    packed = packed_flags(options.mode, with_bodies="body" in columns)
    wanted = row_filter(partition, conditions, unpack=options.unpack)
    keep_freed_memory()
    expected = partition.start
    with Live(options.cluster) as live:
        for records, delta in live.pull(queue, partition.start, end):
            scans, dropped = _scanned(options, queue, records, delta)
            for buf, scan in scans:
                if delta:
                    scan.queue_offset = scan.queue_offset + delta
                if queue in live.gaps:  # a part of a static topic's queue may lie in one of another number
                    scan.queue_id = np.full_like(scan.queue_id, queue.queue_id)
                gaps, expected = missing(buf, scan, expected)
                for first, last in gaps:
                    if not dropped.issuperset(range(first, min(last, end))):
                        _gone(options, live, queue, first, min(last, end))
                for found in select_records(buf, scan, wanted, packed, str(queue)):
                    if not isinstance(found, Damage):
                        yield from builder.batches(*found)
                    elif not options.drop_malformed:
                        errors = _undecodable(queue, records, delta)
                        raise next(
                            (e for e in errors if partition.start <= e.queue_offset < end), found.error()
                        )
                    else:
                        _say_dropped(queue, buf, scan, found)
        if expected < end:
            _gone(options, live, queue, expected, end)


def _scanned(
    options: ReadOptions, queue: Queue, records: bytes, delta: int
) -> tuple[list[tuple[Bytes, Scan]], set[int]]:
    """The columns of pulled records, and the queue offsets of damaged ones that are left out. UndecodableMessageError
    for those when nothing is to be left out."""
    try:
        return list(scans_of(records)), set()
    except FormatError:
        damaged = _undecodable(queue, records, delta)
        if not options.drop_malformed:
            raise damaged[0] from None
    for error in damaged:
        logger.warning("left out: %s", error)
    dropped = {offset for error in damaged for offset in range(error.queue_offset, error.next_offset)}
    return list(scans_of(whole_records(records))), dropped


def _undecodable(queue: Queue, records: bytes, delta: int) -> list[UndecodableMessageError]:
    place = MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)
    errors = []
    for message in decode_messages(records, queue.broker, max_body_size=BODY_BYTES_MAX, queue=place):
        if message.undecodable:
            message.queue_offset += delta
            message.undecodable += (
                " (mode=dropMalformed leaves it out, unpack=false reads it as it is stored)"
            )
            errors.append(message.undecodable_error())
    return errors


def _say_dropped(queue: Queue, buf: Bytes, scan: Scan, damage: Damage) -> None:
    row = int(np.flatnonzero(scan.physical_offset == damage.physical_offset)[0])
    start = int(scan.properties_start[row])
    properties = bytes_to_properties(buf[start : start + int(scan.properties_length[row])].tobytes())
    logger.warning(
        "left out: message %s of %s, queue offset %d cannot be decoded: %s",
        properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "(no id)"),
        queue,
        int(scan.queue_offset[row]),
        damage.reason,
    )


def _gone(options: ReadOptions, live: Live, queue: Queue, first: int, last: int) -> None:
    for lost, until in live.with_messages(queue, first, last):
        options.data_loss(
            f"{queue}: offsets {lost} to {until} were deleted before they were read, or the broker found them damaged "
            "(its log names them)",
        )


def row_filter(wanted: QueueRange, conditions: tuple[Condition, ...], *, unpack: bool) -> RowFilter:
    """The filter for the messages of a range that fulfil the conditions."""
    name = (wanted.queue.topic, str(wanted.queue.queue_id))
    options = LogOptions(
        stores=(),
        topics=frozenset({wanted.queue.topic}),
        start=Position(PositionKind.QUEUES, queues={name: wanted.start}),
        end=Position(PositionKind.QUEUES, queues={name: wanted.end}),
        unpack=unpack,
    )
    return RowFilter(options, conditions)
