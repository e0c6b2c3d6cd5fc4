# mypy: disable-error-code="misc"
"""`rocketmq` as a stream.

    checkpoint   {"Topic": {"broker-a:0": {"offset": 1200, "last": [734003, 1700000000000]}, "broker-a:1": 0}}
    a batch      for each queue the messages [start, end): the same whenever it is read again

`last` is the message before the offset, by its physical offset and store time: a topic that was deleted and made again
has another one there. It is left out where no message is before the offset, and in checkpoints of earlier versions.

A queue that comes later is read from its earliest message on. One whose offset is known stays in the offsets for
ever, so that it goes on where it was when its broker comes back. A topic that is not subscribed to any more is data
loss, as with Kafka, and so are brokers with none of the queues: the checkpoint may be another stream's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from mqlake.errors import ConfigError, MqlakeError
from mqlake.lake.live.cluster import Live, Queue
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.live.ranges import (
    QueueOffsets,
    QueueRange,
    divided,
    in_queue,
    read_range,
    replaced,
    resolve,
    subscribed,
)
from mqlake.lake.offsets import EARLIEST, LastMessage
from mqlake.spark.error_messages import short_errors
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.stream_readers import LimitedStreamReader

logger = logging.getLogger(__name__)

Offsets = dict[str, dict[str, Any]]
Lasts = dict[Queue, LastMessage | None]


def to_json(
    offsets: Mapping[Queue, int], lasts: Mapping[Queue, LastMessage | None] = MappingProxyType({})
) -> Offsets:
    found: Offsets = {}
    for queue in sorted(offsets):
        last, offset = lasts.get(queue), offsets[queue]
        found.setdefault(queue.topic, {})[queue.name] = (
            offset if last is None else {"offset": offset, "last": [last.physical_offset, last.store_time]}
        )
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> tuple[QueueOffsets, Lasts]:
    """ConfigError for what another source wrote."""
    found: QueueOffsets = {}
    lasts: Lasts = {}
    try:
        for topic, queues in offsets.items():
            for name, given in queues.items():
                broker, _, queue_id = name.rpartition(":")
                queue = Queue(topic, broker, int(queue_id))
                if isinstance(given, Mapping):
                    lasts[queue] = LastMessage(*map(int, given["last"]))
                    given = given["offset"]
                found[queue] = int(given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the checkpoint is not of the source rocketmq: {dict(offsets)}") from error
    return found, lasts


@short_errors
class RocketMQStreamReader(LimitedStreamReader[Queue]):
    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        super().__init__(options)
        self._options = options
        self._columns = columns

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's names, here and below
        with Live(self._options.cluster) as live:
            bounds = live.bounds(live.queues(subscribed(live, self._options)))
            starts = {
                queue: in_queue(self._options, queue, start, bounds[queue])
                for queue, start in resolve(live, self._options.start, bounds, EARLIEST).items()
            }
            return to_json(starts, live.last_messages(starts))

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return to_json(self._ends())

    def _ends(self) -> QueueOffsets:
        return {queue: high for queue, (_, high) in self._bounds().items()}

    def _bounds(self) -> dict[Queue, tuple[int, int]]:
        with Live(self._options.cluster) as live:
            return live.bounds(live.queues(subscribed(live, self._options)))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        offsets, lasts = from_json(start)
        known = self._asked_for(offsets)
        ends = self._planned(known, limit)
        moved = {queue: end for queue, end in ends.items() if end != known.get(queue)}
        if moved:
            with Live(self._options.cluster) as live:
                self._check({queue: known[queue] for queue in moved if queue in known}, lasts, live)
                lasts = {**lasts, **live.last_messages(moved)}
        return to_json({**known, **ends}, lasts)

    def _check(self, offsets: QueueOffsets, lasts: Lasts, live: Live) -> None:
        for what in replaced(live, offsets, lasts):
            self._options.data_loss(f"{what}; a new checkpoint reads it from its beginning")

    def _planned(self, known: QueueOffsets, limit: ReadLimit) -> QueueOffsets:
        """Returns the end of the next batch."""
        bounds = {} if self._target is not None else self._bounds()
        ends = dict(self._target or {queue: high for queue, (_, high) in bounds.items()})
        lows = {queue: low for queue, (low, _) in bounds.items()}
        if known and not known.keys() & ends.keys():
            some = min(known)
            self._options.data_loss(f"{some}: neither it nor any other queue of the checkpoint is there")
        for queue, offset in known.items():  # now, before the checkpoint has an end that is another queue's
            if offset > ends.get(queue, offset):
                self._options.data_loss(
                    f"{queue}: it had been read up to {offset}; the broker has up to {ends[queue]}",
                )
        left = {queue: max(0, end - known.get(queue, lows.get(queue, 0))) for queue, end in ends.items()}
        shares = self._shares(left, limit)
        if shares is None:
            return ends
        return {queue: end - left[queue] + min(left[queue], shares[queue]) for queue, end in ends.items()}

    def _asked_for(self, known: QueueOffsets) -> QueueOffsets:
        """Returns the offsets of the topics that are still subscribed to."""
        for topic in sorted({queue.topic for queue in known}):
            if not self._options.asks_for(topic):
                self._options.data_loss(
                    f"topic {topic}: the checkpoint has it, it is not subscribed to any more"
                )
        return {queue: offset for queue, offset in known.items() if self._options.asks_for(queue.topic)}

    def partitions(self, start: Offsets, end: Offsets) -> list[TaskPartition[QueueRange]]:
        (starts, _), (ends, lasts) = from_json(start), from_json(end)
        changed = [queue for queue, offset in ends.items() if starts.get(queue, -1) != offset]
        if not changed:
            return []
        with Live(self._options.cluster) as live:
            present = set(live.queues({queue.topic for queue in changed}))
            bounds = live.bounds([queue for queue in changed if queue in present])
            self._check({queue: ends[queue] for queue in bounds}, lasts, live)
        ranges = []
        for queue in changed:
            if queue not in bounds:
                self._options.data_loss(f"{queue}: there is no such queue (any more)")
                continue
            low, high = bounds[queue]
            first = starts.get(queue, low)
            last = ends[queue]
            for lost, until in live.with_messages(queue, first, min(low, last)):
                self._options.data_loss(
                    f"{queue}: offsets {lost} to {until} are gone; the broker has {low} to {high}",
                )
            if first > last or last > high:
                self._options.data_loss(
                    f"{queue}: it had been read up to {max(first, last)}; the broker has {low} to {high}",
                )
            ranges.append(QueueRange(queue, max(first, low), min(last, high)))
        return as_partitions(divided(ranges, self._options.min_partitions))

    def commit(self, end: Offsets) -> None:
        """Tells the brokers how far `groupIdForCommit` has come; that is for dashboards, so a failure only warns."""
        group = self._options.group_id_for_commit
        if group is None:
            return
        offsets, _ = from_json(end)
        try:
            with Live(self._options.cluster) as live:
                present = live.queues({queue.topic for queue in offsets})
                live.commit(group, {queue: offsets[queue] for queue in present if queue in offsets})
        except MqlakeError as error:
            logger.warning("offsets of group %s are not committed: %s", group, error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_range(partition.task, self._options, self._columns)
