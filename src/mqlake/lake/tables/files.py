"""Rows to Parquet files: parted by day, rolled by size, described for the commit. Runs in tasks.

    batches ─▶ parts by day of store time ─▶ row groups ─▶ day=2024-05-01/UUID-00000.parquet …
            ─▶ of each queue: first, last and number of rows

A file is whole and on the disk before anybody commits it, and no commit knows of it before. Files of a run that died
belong to nothing; they are found later by their age.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from mqlake.base.progress import Progress, no_progress
from mqlake.lake.bodies.decoder import REASON
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.bodies.variant import without_nested_nulls
from mqlake.lake.offsets import LastMessage
from mqlake.lake.tables.config import s3_endpoint
from mqlake.lake.tables.state import queue_name
from mqlake.lake.tables.statistics import ColumnStatistics

DAY_US = 86_400_000_000
TARGET_BYTES = 128 << 20
GROUP_ROWS = 128 << 10
GROUP_BYTES = 32 << 20
"""Bytes held in memory for each open file before they become a row group."""
OPEN_MAX = 4
"""Days written at the same time; a log is in the order of store times, so more are rare."""
STORE_TIME = "storeTimestamp"
PLAIN = frozenset({"body", "uniqKey", "keys", "physicalOffset", "queueOffset"})
"""Columns whose values hardly repeat: a dictionary of them is work for nothing."""
EPOCH = date(1970, 1, 1)


S3 = ("s3", "s3a")


@dataclass(frozen=True)
class WriteSpec:
    """How the files of one table are written. `root`: a path or URI; `schema`: of the table; `field_ids`: the schema
    to write with, when it differs (Iceberg's numbers of columns); `day_format`: the directory of a day, such as
    `date={}`; empty without partitions; `day_column`: the times that the days are of."""

    root: str
    schema: pa.Schema
    field_ids: pa.Schema | None = None
    day_format: str = ""
    target_bytes: int = TARGET_BYTES
    day_column: str = STORE_TIME

    def file_system(self) -> tuple[pyarrow.fs.FileSystem, str]:
        return file_system_of(self.root)


def of_names(schema: pa.Schema, names: Sequence[str] | None) -> pa.Schema:
    """The named columns, in that order; None: all."""
    return schema if names is None else pa.schema([schema.field(name) for name in names])


def file_system_of(place: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" not in place:
        place = place.removeprefix("file:")
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(place)
    scheme, _, inside = place.partition("://")
    if scheme in S3 and s3_endpoint():
        return pyarrow.fs.S3FileSystem(endpoint_override=s3_endpoint()), inside
    found: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(place)
    return found


@dataclass(frozen=True)
class WrittenFile:
    """`path` as `root` is spelled; `day` None: no partitions, or rows without a store time."""

    path: str
    size: int
    rows: int
    day: date | None
    metadata: pq.FileMetaData
    statistics: ColumnStatistics


@dataclass
class QueueRange:
    """The rows of one queue: the first and the last queue offset, and how many. `message`: the last one, where the rows
    say where it lies."""

    first: int
    last: int
    count: int
    message: LastMessage | None = None

    def add(self, other: QueueRange) -> None:
        if other.last >= self.last:
            self.message = other.message
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.count += other.count


@dataclass
class Written:
    """The files that one or more tasks wrote for a table; `until`: the latest store time, ms. `changes`, `unkeyed`:
    of a table of latest rows (lake.tables.latest), whose files are written by its commit, and the messages without a
    key."""

    files: list[WrittenFile] = field(default_factory=list)
    queues: dict[str, QueueRange] = field(default_factory=dict)
    rows: int = 0
    undecoded: int = 0
    until: int = 0
    changes: pa.Table | None = None
    unkeyed: int = 0

    def add(self, other: Written) -> None:
        self.files += other.files
        add_ranges(self.queues, other.queues)
        self.rows += other.rows
        self.undecoded += other.undecoded
        self.until = max(self.until, other.until)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def add_ranges(ranges: dict[str, QueueRange], more: dict[str, QueueRange]) -> None:
    for name, each in more.items():
        if name in ranges:
            ranges[name].add(each)
        else:
            ranges[name] = replace(each)


def count_rows(written: Written, batch: pa.RecordBatch) -> None:
    """Notes how many rows of a topic there are, and of which queue offsets."""
    written.rows += batch.num_rows
    if REASON in batch.schema.names:
        undecoded = batch.column(REASON)
        written.undecoded += len(undecoded) - undecoded.null_count
    latest = pc.max(batch.column("storeTimestamp")).cast(pa.int64()).as_py()
    written.until = max(written.until, (latest or 0) // 1000)
    add_ranges(written.queues, queue_ranges(batch))


class TableWriter:
    """Writes the rows of one table; close() gives what was written. On an error, discard() deletes the files."""

    def __init__(self, spec: WriteSpec) -> None:
        self._spec = spec
        self._file_system, self._root = spec.file_system()
        self._open: dict[date | None, _OpenFile] = {}
        self._written = Written()
        self._id = uuid.uuid4().hex
        self._number = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows of the spec's schema. Raises OSError."""
        if not batch.num_rows:
            return
        self._count(batch)
        for number, each in enumerate(batch.schema):
            if each.type == VARIANT:
                batch = batch.set_column(number, each, without_nested_nulls(batch.column(number)))
        if self._spec.field_ids is not None:
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.field_ids)
        with _named(self._spec.root):
            for day, rows in (
                _by_day(batch, self._spec.day_column) if self._spec.day_format else [(None, batch)]
            ):
                self._file(day).write(rows)
                if self._open[day].is_full:
                    self._end(day)

    def _count(self, batch: pa.RecordBatch) -> None:
        count_rows(self._written, batch)

    def _file(self, day: date | None) -> _OpenFile:
        if day not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._end(next(iter(self._open)))
            name = f"{self._id}-{self._number:05}.parquet"
            self._number += 1
            directory = self._spec.day_format.format("null" if day is None else day.isoformat())
            inside = "/".join(part for part in (directory, name) if part)
            self._open[day] = _OpenFile(self._spec, self._file_system, self._root, inside, day)
        return self._open[day]

    def _end(self, day: date | None) -> None:
        self._written.files.append(self._open[day].close())
        del self._open[day]

    def close(self) -> Written:
        """Raises OSError; call discard() then."""
        with _named(self._spec.root):
            for day in list(self._open):
                self._end(day)
        return self._written

    def discard(self) -> None:
        for file in self._open.values():
            file.discard()
        self._open.clear()
        delete_files(self._spec, self._written.files)
        self._written = Written()


def delete_paths(paths: Sequence[str], report: Progress = no_progress) -> int:
    """Deletes files by their paths or URIs, those that are gone already left out; how many.

    OSError for the first that cannot be deleted, after all others were tried.
    """
    failed: OSError | None = None
    systems: dict[str, pyarrow.fs.FileSystem] = {}
    deleted = 0
    for number, path in enumerate(paths, 1):
        root = path.partition("://")[0] if "://" in path else ""
        if root not in systems:
            systems[root] = file_system_of(path)[0]
        inside = path.partition("://")[2] if root else path
        try:
            if systems[root].get_file_info(inside).type == pyarrow.fs.FileType.File:
                systems[root].delete_file(inside)
                deleted += 1
        except OSError as error:
            failed = failed or error
        report(number, len(paths))
    if failed is not None:
        raise failed
    return deleted


def delete_files(spec: WriteSpec, files: Iterable[WrittenFile]) -> None:
    """Deletes files that no commit has. What cannot be deleted is left for `lake orphans`."""
    file_system, _ = spec.file_system()
    for file in files:
        with contextlib.suppress(OSError):
            file_system.delete_file(file_system_of(file.path)[1])


class _OpenFile:
    """One Parquet file; rows are gathered to row groups. It is opened with the first of them: a run over thousands of
    small topics has one open at a time."""

    def __init__(
        self,
        spec: WriteSpec,
        file_system: pyarrow.fs.FileSystem,
        root: str,
        inside: str,
        day: date | None,
    ) -> None:
        self._spec, self._file_system, self._day = spec, file_system, day
        self._path = f"{root.rstrip('/')}/{inside}"
        self._name = f"{spec.root.rstrip('/')}/{inside}"
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._total = 0
        self._statistics = ColumnStatistics()
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def _opened(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._file_system.create_dir(self._path.rpartition("/")[0], recursive=True)
            self._sink = self._file_system.open_output_stream(self._path)
            schema = self._spec.field_ids or self._spec.schema
            dictionaries = [name for name in schema.names if name not in PLAIN] if _is_flat(schema) else True
            self._writer = pq.ParquetWriter(
                self._sink, schema, compression="zstd", use_dictionary=dictionaries
            )
        return self._writer

    @property
    def is_full(self) -> bool:
        written = int(self._sink.tell()) if self._sink is not None else 0
        return written + self._bytes // 4 >= self._spec.target_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._statistics.add(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._opened().write_table(pa.Table.from_batches(self._batches), row_group_size=GROUP_ROWS)
            self._total += self._rows
        self._batches, self._rows, self._bytes = [], 0, 0

    def close(self) -> WrittenFile:
        writer = self._opened()
        self._flush()
        writer.close()
        assert self._sink is not None
        self._sink.close()
        if isinstance(self._file_system, pyarrow.fs.LocalFileSystem):
            fsync_file(self._path)
        size = self._file_system.get_file_info(self._path).size
        metadata = writer.writer.metadata
        return WrittenFile(self._name, size, self._total, self._day, metadata, self._statistics)

    def discard(self) -> None:
        for each in (self._writer, self._sink):
            with contextlib.suppress(OSError, pa.ArrowException):
                if each is not None:
                    each.close()
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._file_system.delete_file(self._path)


@contextlib.contextmanager
def _named(root: str) -> Iterator[None]:
    """OSError that says where: pyarrow's do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or root in str(error):
            raise
        raise OSError(error.errno, f"writing data files: {error.strerror or error}", root) from error


def fsync_file(path: str) -> None:
    """Makes a local file and its name durable: what a commit names outlives a power cut, as the commit does."""
    for name in (path, os.path.dirname(path)):
        fd = os.open(name, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _is_flat(schema: pa.Schema) -> bool:
    return not any(pa.types.is_nested(each.type) and each.name != "properties" for each in schema)


def _by_day(batch: pa.RecordBatch, column: str) -> Iterator[tuple[date | None, pa.RecordBatch]]:
    """The rows of each day (UTC) of a column of times; None for rows without one."""
    times = batch.column(column)
    bounds = pc.min_max(times.cast(pa.int64())).as_py()
    if not times.null_count and bounds["min"] // DAY_US == bounds["max"] // DAY_US:
        yield EPOCH + timedelta(bounds["min"] // DAY_US), batch
        return
    days = pc.floor_temporal(times, unit="day").cast(pa.int64())
    for each in pc.unique(days):
        mask = pc.is_null(days) if not each.is_valid else pc.equal(days, each)
        day = EPOCH + timedelta(each.as_py() // DAY_US) if each.is_valid else None
        yield day, batch.filter(pc.fill_null(mask, False))


def queue_ranges(batch: pa.RecordBatch) -> dict[str, QueueRange]:
    """Returns for each queue the first and last queue offset, the number of rows, and the last message, where its
    store time is known: rows of a queue are in its order."""
    by = ["brokerName", "queueId"]
    columns = pa.Table.from_batches([batch.select([*by, "physicalOffset", "storeTimestamp"])])
    grouped = columns.group_by(by, use_threads=False)  # with threads there is no last one
    with_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    lasts = grouped.aggregate(
        [("physicalOffset", "last", with_nulls), ("storeTimestamp", "last", with_nulls)]
    )
    messages = zip(
        lasts["brokerName"].to_pylist(),
        lasts["queueId"].to_pylist(),
        lasts["physicalOffset_last"].to_pylist(),
        lasts["storeTimestamp_last"].cast(pa.int64()).to_pylist(),
        strict=True,
    )
    found = {
        queue_name(broker, queue_id): LastMessage(at, stored // 1000)
        for broker, queue_id, at, stored in messages
        if stored is not None
    }
    ranges = {queue_name(key["brokerName"], key["queueId"]): each for key, each in queue_ranges_by(batch, by)}
    return {name: replace(each, message=found.get(name)) for name, each in ranges.items()}


def queue_ranges_by(batch: pa.RecordBatch, columns: list[str]) -> Iterator[tuple[dict[str, Any], QueueRange]]:
    """The same for any columns that name a queue: their values, and the range."""
    grouped = pa.Table.from_batches([batch.select([*columns, "queueOffset"])]).group_by(columns)
    found = grouped.aggregate([("queueOffset", "min"), ("queueOffset", "max"), ("queueOffset", "count")])
    for row in found.to_pylist():
        yield row, QueueRange(row["queueOffset_min"], row["queueOffset_max"], row["queueOffset_count"])
