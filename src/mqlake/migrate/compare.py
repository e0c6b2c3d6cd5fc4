"""Comparing both sides of a migration, each read once more as a whole.

MetaQ's segments  ─▶ Tally, offsets/*.parquet, positions of groups
RocketMQ's log    ─▶ Tally                                             equal: the same messages in the same order
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mqlake.base.durable import fsync_dir
from mqlake.formats.arrow import Bytes, Ints
from mqlake.formats.columns import gather
from mqlake.metaq.store.columns import read_partition
from mqlake.metaq.store.inspect import PartitionFiles
from mqlake.migrate.append import MESSAGE_SIZE_MAX, properties_of
from mqlake.migrate.positions import PositionCounter
from mqlake.migrate.report import DIRECTORY, MigratedPartition
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.written_pages import WrittenPages


class Tally:
    """One side of a queue: messages, body bytes, and digests of all fields in their order."""

    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0
        self._digests = [hashlib.blake2b(digest_size=16) for _ in range(3)]

    def add(self, bodies: Bytes, properties: Bytes, numbers: Sequence[Ints]) -> None:
        """`numbers`: body length, properties' length and flag of each."""
        self.messages += len(numbers[0])
        self.body_bytes += len(bodies)
        self._digests[0].update(bodies.data)
        self._digests[1].update(properties.data)
        self._digests[2].update(np.stack(numbers, axis=1).astype("<i8").tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self._seen() == other._seen()

    __hash__ = None  # type: ignore[assignment]

    def _seen(self) -> tuple[object, ...]:
        return self.messages, self.body_bytes, *(each.digest() for each in self._digests)


def read_source(
    files: PartitionFiles,
    partition: MigratedPartition,
    attribute_as: str,
    store: str,
    counters: Sequence[PositionCounter],
    advance: Callable[[int], None],
) -> Tally:
    """Reads a partition: its tally, its table of offsets, and where groups are in it. StoreCorruptError, OSError."""
    tally = Tally()
    here = [each for each in counters if each.is_in(files.topic, files.partition)]
    with _OffsetTable(store, files.name) as table:
        for found in read_partition(files):
            properties, _ = properties_of(found, attribute_as)
            lengths = pc.binary_length(properties).to_numpy().astype(np.int64)
            bodies = gather(found.buf, found.body_start, found.body_length, large=True)[1]
            text = np.frombuffer(properties.buffers()[2], np.uint8)[: int(lengths.sum())]
            first = tally.messages
            tally.add(bodies, text, (found.body_length, lengths, found.scan.flag.astype(np.int64)))
            table.add(found.offset, first, found.scan.message_id)
            for counter in here:
                counter.count(found.offset + found.size)
            advance(int(found.size.sum(dtype=np.int64)))
    partition.messages, partition.body_bytes = tally.messages, tally.body_bytes
    return tally


class _OffsetTable:
    """metaq/offsets/<partition>.parquet, replaced as a whole when the `with` ends without an error."""

    def __init__(self, store: str, name: str) -> None:
        self._directory = os.path.join(store, DIRECTORY, "offsets")
        os.makedirs(self._directory, exist_ok=True)
        self._path = os.path.join(self._directory, f"{name}.parquet")
        kinds = [("offset", pa.int64()), ("queueOffset", pa.int64()), ("id", pa.int64())]
        self._schema = pa.schema(kinds)
        self._writer = pq.ParquetWriter(f"{self._path}.tmp", self._schema, compression="zstd")

    def __enter__(self) -> _OffsetTable:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._writer.close()
        if kind is None:
            os.replace(f"{self._path}.tmp", self._path)
            fsync_dir(self._directory)

    def add(self, offsets: Ints, first: int, ids: Ints) -> None:
        columns = [offsets, np.arange(first, first + len(offsets)), ids]
        self._writer.write_batch(pa.record_batch([pa.array(each) for each in columns], self._schema))


def compare(
    store: str,
    settings: Mapping[str, Any],
    partitions: Sequence[MigratedPartition],
    sources: Sequence[Tally],
    advance: Callable[[int], None],
) -> None:
    """Fills in `stored` and `same`, read from the store's log and its consume queues."""
    tallies = {(each.to_topic, each.partition): Tally() for each in partitions}
    in_order = dict.fromkeys(tallies, True)
    with ReadOnlyStore(store, {"maxMessageSize": MESSAGE_SIZE_MAX, **settings}) as view:
        for buf, scan, rows, key in _queues_of(view):
            if key not in tallies:
                continue
            tally = tallies[key]
            numbers = np.arange(tally.messages, tally.messages + len(rows))
            in_order[key] &= bool(np.array_equal(scan.queue_offset[rows], numbers))
            body_length, length = scan.body_length[rows], scan.properties_length[rows]
            bodies = gather(buf, scan.body_start[rows], body_length, large=True)[1]
            properties = gather(buf, scan.properties_start[rows], length, large=True)[1]
            columns = (body_length, length, scan.flag[rows])
            tally.add(bodies, properties, [each.astype(np.int64) for each in columns])
            advance(int(scan.size[rows].sum(dtype=np.int64)))
        for partition, source in zip(partitions, sources, strict=True):
            key = (partition.to_topic, partition.partition)
            first = max(0, view.min_offset_in_queue(*key))  # below 0: an empty partition has made no queue
            partition.stored = view.max_offset_in_queue(*key) - first
            partition.same = in_order[key] and tallies[key] == source


def _queues_of(view: ReadOnlyStore) -> Iterator[tuple[Bytes, Any, Ints, tuple[str, int]]]:
    """The log's records by topic and queue, chunk by chunk."""
    pages = WrittenPages(view.commit_log_files, None)
    for chunk in view.scan():
        pages.add(chunk.end - chunk.start)
        scan = chunk.scan
        if len(scan) == 0:
            continue
        queue = scan.topic_id.astype(np.int64) << 32 | scan.queue_id
        for each in np.unique(queue).tolist():
            topic = scan.topics[each >> 32].decode("utf-8", "replace")
            yield chunk.mapped_file.array, scan, np.flatnonzero(queue == each), (topic, each & 0xFFFFFFFF)
