# mypy: disable-error-code="misc"
"""`metaq` as a stream.

    checkpoint   {"orders": {"/data/meta:0": 27000, "/data/meta:1": 0}}     of brokers: {"orders": {"0:1": 27000}}
    a batch      the records in [start, end) of each partition: the same whenever it is read again

An offset is a record boundary. Of a directory that a broker writes to, a batch takes whole records, flushed or not;
brokers send flushed ones only. A new partition is read from its first offset on. The offset of a partition that
disappears is kept, so that reading continues there if it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes

from mqlake.lake.offsets import EARLIEST
from mqlake.spark.error_messages import short_errors
from mqlake.spark.metaq.locations import Offsets, PartitionKey, Piece, end_after, resolve
from mqlake.spark.metaq.options import MetaqOptions
from mqlake.spark.metaq.partition import Pieces, partitions_of, read_pieces
from mqlake.spark.partitions import TaskPartition
from mqlake.spark.stream_readers import LimitedStreamReader

Json = dict[str, dict[str, int]]


def to_json(offsets: Mapping[PartitionKey, int]) -> Json:
    found: Json = {}
    for part in sorted(offsets):
        found.setdefault(part.topic, {})[part.name] = offsets[part]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    found = {}
    for topic, partitions in offsets.items():
        for name, offset in partitions.items():
            place, _, partition = name.rpartition(":")
            found[PartitionKey(topic, place, int(partition))] = offset
    return found


@short_errors
class MetaqStreamReader(LimitedStreamReader[PartitionKey]):
    def __init__(self, options: MetaqOptions, columns: Sequence[str]) -> None:
        super().__init__(options)
        self._options = options
        self._columns = tuple(columns)
        self._place = options.place()

    # ------------------------------------------------------------------ offsets, in one process of the driver

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names, here and below
        bounds = self._place.bounds({})
        starts = resolve(self._options.start, bounds, EARLIEST)
        for part, start in starts.items():
            low, high = bounds[part]
            if not low <= start <= high:
                self._options.data_loss(
                    f"{part}: offset {start} is not in the partition, which has {low} to {high}"
                )
                starts[part] = min(max(start, low), high)
        return to_json(starts)

    def _ends(self) -> Offsets:
        return {part: end for part, (_, end) in self._place.bounds({}).items()}

    def reportLatestOffset(self) -> Json:  # noqa: N802
        return to_json(self._ends())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        known = from_json(start)
        bounds = self._place.bounds(known)
        ends = (
            {part: end for part, (_, end) in bounds.items()} if self._target is None else dict(self._target)
        )
        left = {
            part: end - max(known.get(part, 0), bounds[part][0])
            for part, end in ends.items()
            if part in bounds and end > max(known.get(part, 0), bounds[part][0])
        }
        unit = "size" if isinstance(limit, ReadMaxBytes) else "records"
        for part, amount in (self._shares(left, limit) or {}).items():
            first = ends[part] - left[part]
            pieces = self._place.pieces(part, first, ends[part])
            ends[part] = end_after(pieces, first, ends[part], **{unit: amount})
        return to_json({**known, **ends})

    # ------------------------------------------------------------------ batches

    def partitions(self, start: Json, end: Json) -> list[TaskPartition[Pieces]]:
        starts, ends = from_json(start), from_json(end)
        changed = {part: last for part, last in ends.items() if starts.get(part, -1) != last}
        if not changed:
            return []
        bounds = self._place.bounds(ends)
        pieces: list[Piece] = []
        lost = self._options.data_loss
        for part, last in changed.items():
            if part not in bounds:
                lost(f"{part}: there is no such partition (any longer)")
                continue
            low, high = bounds[part]
            first = starts.get(part, low)
            if first < low:
                lost(
                    f"{part}: offsets {first} to {min(low, last)} are gone; the partition has {low} to {high}"
                )
            if max(first, last) > high or first > last:
                lost(f"{part}: it was read up to {max(first, last)}; the partition has {low} to {high}")
            first, last = max(first, low), min(last, high)
            if first < last:
                pieces += self._place.pieces(part, first, last)
        return partitions_of(pieces, self._options.split_size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_pieces(partition.task, self._options, self._columns)
