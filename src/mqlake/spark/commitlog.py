# mypy: disable-error-code="misc"
"""The source `commitlog`: store directories as a table, read in place, also while a broker writes.

    driver    options, filters ─▶ paths ─▶ ranges to read ─▶ splits (where the log ends is decided here)
    task      splits ─▶ map file ─▶ scan ─▶ choose rows ─▶ unpack ─▶ Arrow batches ─▶ JVM

Spark does not tell a Python source which columns a query needs: name them with the option `columns`, or with a
schema (`.schema("topic string, queueId int")`). Filters it does tell.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.errors import OffsetOutOfRangeError
from mqlake.formats.columns import Scan
from mqlake.message import MessageSysFlag
from mqlake.spark.filters import Condition, RowFilter, conditions
from mqlake.spark.memory import keep_freed_memory
from mqlake.spark.offsets import Position, PositionKind
from mqlake.spark.options import LogOptions, Mode
from mqlake.spark.parts import require_stream_readers
from mqlake.spark.properties import Bytes
from mqlake.spark.queue_files import queue_bounds, queue_files
from mqlake.spark.rows import RowBuilder
from mqlake.spark.schema import check_user_schema, spark_schema
from mqlake.spark.skipping import ranges_to_read
from mqlake.spark.splits import CHUNK_RECORDS, Damage, LogFile, Split, cut, log_files, open_window, walk
from mqlake.spark.storage import Storage
from mqlake.spark.unpack import PACKED, unpack

log = logging.getLogger(__name__)

SPLITS_A_PARTITION_MAX = 4096


@dataclass
class LogPartition(InputPartition):
    """What one task reads; `lost` says what a stream could not read any more, and from which offset on."""

    splits: tuple[Split, ...]
    lost: tuple[Storage, int, str] | None = None


@dataclass(frozen=True)
class ReadPlan:
    """Bytes of the logs, and of them those that are read."""

    partitions: list[LogPartition]
    bytes_to_read: int
    bytes_of_log: int


class CommitLogDataSource(DataSource):
    """`spark.read.format("commitlog").option("path", DIR).load()`; options: LogOptions."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        options = LogOptions.parse(self.options)
        for storage in options.stores:
            storage.check()
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(LogOptions.parse(self.options), check_user_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.commitlog_stream import CommitLogStreamReader

        return CommitLogStreamReader(LogOptions.parse(self.options), check_user_schema(schema))


class CommitLogReader(DataSourceReader):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        options.check_batch()
        self._options = options
        self._columns = columns
        self._conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        self._conditions = tuple(conditions(filters))
        return filters

    def partitions(self) -> list[LogPartition]:
        found = self.plan()
        log.info("%d of %d bytes are read", found.bytes_to_read, found.bytes_of_log)
        return found.partitions

    def plan(self) -> ReadPlan:
        """What is read, with what may be skipped left out.

        Raises what log_files() raises, and OffsetOutOfRangeError for an offset that is not in the log.
        """
        splits: list[Split] = []
        size = 0
        positions = (self._options.start, self._options.end)
        for position in positions:
            check_in_queues(self._options.stores, position)
        for storage in self._options.stores:
            files = log_files(storage)
            for position in positions:
                check_in_log(storage, files, position)
            ranges = ranges_to_read(storage, files, RowFilter(self._options, self._conditions))
            splits += cut(storage, files, self._options.split_size, ranges)
            size += sum(file.limit for file in files)
        return ReadPlan(
            grouped(splits, self._options.split_size), sum(split.end - split.start for split in splits), size
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):  # else Spark's stand-in when there are no partitions
            yield from read_partition(partition, self._options, self._conditions, self._columns)


def check_in_log(storage: Storage, files: Sequence[LogFile], position: Position) -> None:
    """OffsetOutOfRangeError for a physical offset that is not in the log."""
    if position.kind is not PositionKind.PHYSICAL:
        return
    first, last = (files[0].base_offset, files[-1].end_offset) if files else (0, 0)
    if not first <= position.value <= last:
        raise OffsetOutOfRangeError(
            f"option {position.option!r} is {position.value}, but the log of {storage.root} "
            f"holds {first} to {last}"
        )


def check_in_queues(stores: Sequence[Storage], position: Position) -> None:
    """OffsetOutOfRangeError for a queue offset that no store has; without consume queues nobody knows."""
    wanted = {name: offset for name, offset in position.queues.items() if offset >= 0}
    if position.kind is not PositionKind.QUEUES or not wanted:
        return
    files = [file for storage in stores for file in queue_files(storage, {topic for topic, _ in wanted})]
    if not files and not any(queue_files(storage) for storage in stores):
        return
    bounds = [queue_bounds(each for each in files if each.storage == storage) for storage in stores]
    for (topic, queue), offset in wanted.items():
        known = [found[topic, queue] for found in bounds if (topic, queue) in found]
        if not any(low <= offset <= high for low, high in known):
            there = " and ".join(f"{low} to {high}" for low, high in known)
            raise OffsetOutOfRangeError(
                f"option {position.option!r}: topic {topic}, queue {queue} "
                + (f"has offsets {there}, not {offset}" if known else "is not there")
            )


def grouped(splits: Sequence[Split], split_size: int) -> list[LogPartition]:
    """Small splits that follow each other become one task's work."""
    found: list[LogPartition] = []
    group: list[Split] = []
    size = 0
    for split in splits:
        length = split.end - split.start
        if group and (size + length > split_size or len(group) == SPLITS_A_PARTITION_MAX):
            found.append(LogPartition(tuple(group)))
            group, size = [], 0
        group.append(split)
        size += length
    return [*found, LogPartition(tuple(group))] if group else found


# ---------------------------------------------------------------------- in a task

Chosen = tuple[Bytes, Scan, npt.NDArray[np.int64] | None]
"""A buffer, a scan of it, and the numbers of the records of it that are wanted (None: all)."""


def read_partition(
    partition: LogPartition, options: LogOptions, conditions: tuple[Condition, ...], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Raises StoreCorruptError (mode failFast), OffsetOutOfRangeError (a file is gone)."""
    wanted = RowFilter(options, conditions)
    if partition.lost is not None and options.mode is Mode.PERMISSIVE:
        storage, offset, text = partition.lost
        yield RowBuilder(columns, storage.root).damage(offset, text)
    for split in partition.splits:
        builder = RowBuilder(columns, split.store)
        for found in chosen(split, wanted, with_bodies="body" in columns):
            if isinstance(found, Damage):
                yield builder.damage(found.physical_offset, str(found.error()))
            else:
                yield from builder.batches(*found)


def chosen(
    split: Split, wanted: RowFilter, *, with_bodies: bool, chunk_records: int = CHUNK_RECORDS
) -> Iterator[Chosen | Damage]:
    """The split's records that are wanted, unpacked when that is; damage in mode permissive only.

    Without bodies, compressed ones stay as they are.
    """
    options = wanted.options
    keep_freed_memory()
    try:
        window = open_window(split)
    except FileNotFoundError as error:
        text = (
            f"{split.file}: gone while it was read; physical offsets {split.base_offset + split.start} "
            f"to {split.base_offset + split.end} are lost"
        )
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text} (failOnDataLoss=false reads on)") from error
        log.warning("%s", text)
        return
    packed = PACKED if with_bodies else MessageSysFlag.NEED_UNWRAP_FLAG
    for walked in walk(split, window, verify=options.verify, chunk_records=chunk_records):
        parts = (
            iter([walked])
            if isinstance(walked, Damage)
            else choose(window.array, walked, wanted, packed, split.file, window.origin)
        )
        for found in parts:
            if not isinstance(found, Damage):
                yield found
            elif options.mode is Mode.FAIL_FAST:
                raise found.error()
            elif options.mode is Mode.PERMISSIVE:
                yield found


def choose(
    buf: Bytes, scan: Scan, wanted: RowFilter, packed: int, file: str = "", origin: int = 0
) -> Iterator[Chosen | Damage]:
    """The wanted records of one scan; those with a flag of `packed` come unpacked, behind the others."""
    rows = wanted.rows(buf, scan)
    if not wanted.options.unpack or not (scan.sys_flag & packed).any():
        if rows is None or len(rows):
            yield buf, scan, rows
        return
    rows = np.arange(len(scan)) if rows is None else rows
    plain = rows[scan.sys_flag[rows] & packed == 0]
    if len(plain):
        yield buf, scan, plain
    holders = wanted.rows(buf, scan, packed=True)
    holders = np.arange(len(scan)) if holders is None else holders
    holders = holders[scan.sys_flag[holders] & MessageSysFlag.NEED_UNWRAP_FLAG != 0]
    compressed = rows[scan.sys_flag[rows] & packed == MessageSysFlag.COMPRESSED_FLAG]
    for found in unpack(buf, scan, np.union1d(holders, compressed), file, origin):
        if isinstance(found, Damage):
            yield found
            continue
        unpacked, messages = found
        rows = wanted.rows(unpacked, messages)
        if rows is None or len(rows):
            yield unpacked, messages, rows
