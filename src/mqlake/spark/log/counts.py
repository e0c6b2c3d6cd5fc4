# mypy: disable-error-code="misc"
"""Counts and histograms of a log: what crosses to the JVM is a row per task and group, not the records.

    task     heads of a log file, or its records ─▶ Arrow batches without bodies ─▶ pyarrow's group-by
    Spark    the rows of all tasks, summed: count_by()
    driver   all of it, where so little is read that planning and starting Spark's tasks would take longer

A group is made of columns, a number or a time cut down to a multiple of something: `topic`, `size/1k`,
`storeTimestamp/1h`. Bodies are neither copied nor, unless `verify` asks for it, looked at.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.arrow.filters import RowFilter, hidden_topics
from mqlake.lake.arrow.rows import RowBuilder
from mqlake.lake.arrow.schema import NUMBERS, TIMES, kind_of
from mqlake.lake.heads.schema import COLUMNS as HEADS_COLUMNS
from mqlake.lake.log.reading import files_within
from mqlake.lake.log.splits import VERIFY_NONE, Damage, LogFile, cut
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import LogTask, packed_flags, read_selected
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import LogOptions
from mqlake.lake.plan import plan_read
from mqlake.message import UNSEEN_FLAG
from mqlake.spark.error_messages import short_errors
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.options import OPTIONS, listed, log_options, named, option_texts
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.requirements import found_in_workers
from mqlake.spark.schema import check_same, table_schemas

if TYPE_CHECKING:
    from mqlake.lake.heads.valid import Heads

COUNT_OPTIONS = (*OPTIONS, "by")
TEXT_COLUMNS = ("topic", "tags")
SUMS: dict[str, str] = {
    "records": "long",
    "bytes": "long",
    "bodyBytes": "long",
    "firstStoreTimestamp": "timestamp",
    "lastStoreTimestamp": "timestamp",
}
"""The figures of a group; bytes are those of whole records."""

SUMMED = ("size", "bodySize", "storeTimestamp")
"""The columns that the figures are made of."""

CHUNK_ROWS = 1 << 18
"""Rows that are grouped at once."""
GROUPS_MAX = 100_000
"""A task with more groups emits what it has and starts again."""
HERE_BYTES_MAX = 2 << 30
"""Bytes of log that the driver counts by itself: most of what Spark adds to a count does not depend on the log's
size."""
HERE_ROWS_MAX = 100_000_000
"""Rows of heads that the driver counts by itself."""
HERE_THREADS = 2
"""Between reads and scans, which let go of the interpreter lock, there is work for no more."""

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Key:
    """One part of a group: a column, cut down to a multiple of `width` (1: as it is; times in ms)."""

    column: str
    width: int = 1

    @classmethod
    def parse(cls, text: str) -> Key:
        column, _, width = (part.strip() for part in text.partition("/"))
        groupable = (*TEXT_COLUMNS, *NUMBERS, *TIMES)
        if column not in groupable:
            raise UnknownKeyError(column, groupable, what="column to group by")
        if not width:
            return cls(column)
        if column in TIMES:
            match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", width)
            if match is None or int(match.group(1)) == 0:
                raise ConfigError(f"option 'by': {text!r}: a time is cut to 500ms, 1s, 5m, 1h, 1d or such")
            return cls(column, int(match.group(1)) * _UNITS_MS[match.group(2)])
        if column in TEXT_COLUMNS:
            raise ConfigError(f"option 'by': {text!r}: {column} is text, which cannot be cut down")
        return cls(column, parse_size("by", width))


def parse_by(text: str) -> list[Key]:
    """`topic,size/1k,storeTimestamp/1h`; ConfigError, UnknownKeyError."""
    keys = [Key.parse(item) for item in listed("by", text)]
    if not keys or len({key.column for key in keys}) != len(keys):
        raise ConfigError(f"option 'by' must name columns to group by, each once: {text!r}")
    return keys


def count_by(spark: SparkSession, *paths: str, by: str | Sequence[str], **options: object) -> DataFrame:
    """The groups of these stores with SUMS; options as `commitlog` (`verify` is `none` unless it is given).

    Local stores with no more than HERE_BYTES_MAX to read are counted at once, others when Spark needs the result.
    Raises what log_options() and parse_by() raise, NotAStoreError and its like; counting at once raises what
    plan_read() and read_selected() raise.
    """
    given = option_texts(paths, {"verify": "none", "splitSize": "256m", "by": by, **options})
    keys = parse_by(given["by"])
    source = CommitLogCountsDataSource(given)
    schema = source.schema()
    here = _counted_here(source)
    if here is not None:
        return spark.createDataFrame(here, schema)
    with found_in_workers(spark):
        partial = spark.read.format(source.name()).options(**given).load()
    return partial.groupBy(*(key.column for key in keys)).agg(
        *(F.sum(name).alias(name) for name in ("records", "bytes", "bodyBytes")),
        F.min("firstStoreTimestamp").alias("firstStoreTimestamp"),
        F.max("lastStoreTimestamp").alias("lastStoreTimestamp"),
    )


def _counted_here(source: CommitLogCountsDataSource) -> pa.Table | None:
    """None where Spark's tasks are to count."""
    options, keys = source.parsed()
    if not all(storage.is_local for storage in options.stores):
        return None
    tasks = count_tasks(options, keys)
    if sum(each.bytes_to_read for each in tasks) > HERE_BYTES_MAX or (
        sum(each.rows for each in tasks) > HERE_ROWS_MAX
    ):
        return None
    found = _schemas(keys)[1].empty_table()
    with ThreadPoolExecutor(HERE_THREADS) as threads:
        for part in threads.map(lambda task: list(counts_of(task, options, keys)), tasks):
            found = _summed([found, *part], keys)
            if len(found) > GROUPS_MAX:
                return None
    return found


@short_errors
class CommitLogCountsDataSource(DataSource):
    """`commitlogcounts`: the partial results, for count_by(). Options as `commitlog`, and `by`."""

    @classmethod
    def name(cls) -> str:
        return "commitlogcounts"

    def parsed(self) -> tuple[LogOptions, list[Key]]:
        given = named(self.options, COUNT_OPTIONS)
        keys = parse_by(given.pop("by", ""))
        return log_options(given), keys

    def schema(self) -> StructType:
        options, keys = self.parsed()
        options.check_batch()
        for storage in options.stores:
            storage.check()
        return _schemas(keys)[0]

    def reader(self, schema: StructType) -> DataSourceReader:
        options, keys = self.parsed()
        check_same(schema, _schemas(keys)[0])
        return _CountReader(options, keys)


def _schemas(keys: Sequence[Key]) -> tuple[StructType, pa.Schema]:
    return table_schemas({**{key.column: kind_of(key.column) for key in keys}, **SUMS})


@short_errors
class _CountReader(CommitLogReader):
    """Filters are not taken: Spark would apply to the groups what was meant for records."""

    def __init__(self, options: LogOptions, keys: list[Key]) -> None:
        super().__init__(options, [])
        self._keys = keys

    def _push_filters(self, filters: list[Filter]) -> list[Filter]:
        return filters

    def partitions(self) -> list[InputPartition]:
        return [*as_partitions(count_tasks(self._options, self._keys))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            for found in counts_of(partition.task, self._options, self._keys):
                yield from found.to_batches()


# ---------------------------------------------------------------------- tasks


@dataclass(frozen=True)
class CountTask:
    """Records to be counted. `file`: the log file that all of them are, which has heads of `size` bytes in `place`;
    `rows`: of these, as far as they were looked at."""

    log: LogTask
    file: LogFile | None = None
    rows: int = 0
    size: int = 0
    place: Storage | None = None

    @property
    def bytes_to_read(self) -> int:
        """Bytes of the log."""
        return 0 if self.file else sum(split.bytes for split in self.log.splits)


def count_tasks(options: LogOptions, keys: Sequence[Key]) -> list[CountTask]:
    """The tasks of a count: of log files with heads by these, where they say all that is asked for. Heads that are not
    local are fetched once, by the task that counts them. Raises what plan_read() raises."""
    from mqlake.lake.heads.valid import (  # with pyarrow.parquet, and pandas
        is_full,
        look_through,
        name_of,
        passed_over,
        place_of,
        warn,
    )

    by_heads: list[CountTask] = []

    def others(storage: Storage, files: Sequence[LogFile]) -> list[LogFile]:
        place = place_of(storage)
        names = dict(place.files("")) if heads_suffice(options, [key.column for key in keys]) else {}
        inside = files_within(files, RowFilter(options)) if names else []
        rows = {file.file: 0 for file in inside if is_full(file) and name_of(file) in names}
        if place.is_local:
            looks = [*look_through(storage, place, names, inside, lambda heads: is_as_read(heads, options))]
            warn(passed_over(place, looks))
            rows = {look.file.file: look.heads.origin.records for look in looks if look.heads and look.made}
        for file in files:
            if file.file in rows:
                whole = [(file.base_offset, file.end_offset)]
                task = LogTask(tuple(cut(storage, [file], options.split_size, whole)))
                by_heads.append(CountTask(task, file, rows[file.file], names[name_of(file)], place))
        return [file for file in files if file.file not in rows]

    of_log = [CountTask(task) for task in plan_read(options, to_read=others).tasks]
    return [*by_heads, *of_log]


def heads_suffice(options: LogOptions, columns: Sequence[str]) -> bool:
    """True if heads have all that is asked for, and nobody wants the records' bytes checked."""
    by_offset = (PositionKind.EARLIEST, PositionKind.LATEST, PositionKind.PHYSICAL)
    return (
        options.skipping
        and options.verify == VERIFY_NONE
        and options.keys is None
        and options.start.kind in by_offset
        and options.end.kind in by_offset
        and all(column in HEADS_COLUMNS for column in columns)
    )


def is_as_read(heads: Heads, options: LogOptions) -> bool:
    """True if reading the log without bodies would unpack none of the records, so that the rows are the records
    themselves. Where damage is left out, compressed ones are unpacked, too, since some cannot be. UnfitHeadsError where
    that cannot be read."""
    if not options.unpack:
        return True
    from mqlake.lake.heads.parquet import rows_of  # with pyarrow.dataset, which loads pandas
    from mqlake.lake.heads.valid import unfit_if_damaged

    flags, packed = pc.field("sysFlag"), packed_flags(options.mode, with_bodies=False)
    # the comparisons leave out row groups
    is_packed = ((flags >= packed & -packed) | (flags < 0)) & (
        pc.bit_wise_and(flags, pa.scalar(packed, pa.int32())) != 0
    )
    with unfit_if_damaged():
        return not any(batch.num_rows for batch in rows_of([heads.source], ["sysFlag"], is_packed))


def _wanted(options: LogOptions) -> pc.Expression | None:
    """The heads that are counted, exactly, where heads_suffice()."""
    topic, offset = pc.field("topic"), pc.field("physicalOffset")
    wanted = []
    if options.topics is not None:
        wanted.append(topic.isin(pa.array(sorted(options.topics), pa.string())))
    if options.unpack:
        wanted.append(~topic.isin(pa.array(sorted(hidden_topics(options.topics)), pa.string())))
        wanted.append(pc.bit_wise_and(pc.field("sysFlag"), pa.scalar(UNSEEN_FLAG, pa.int32())) == 0)
    if options.start.kind is PositionKind.PHYSICAL:
        wanted.append(offset >= options.start.value)
    if options.end.kind is PositionKind.PHYSICAL:
        wanted.append(offset < options.end.value)
    return functools.reduce(operator.and_, wanted) if wanted else None


# ---------------------------------------------------------------------- grouping


def counts_of(task: CountTask, options: LogOptions, keys: Sequence[Key]) -> Iterator[pa.Table]:
    """The groups of a task; in several tables where there are many. Raises what read_selected() raises."""
    columns = list(dict.fromkeys([*(key.column for key in keys), *SUMMED]))
    if task.file is not None:
        found = _of_heads(task, task.file, options, keys, columns)
        if found is not None:
            yield from found
            return
    yield from _grouped(_of_log(task.log, options, columns), keys)


def _of_heads(
    task: CountTask, file: LogFile, options: LogOptions, keys: Sequence[Key], columns: Sequence[str]
) -> list[pa.Table] | None:
    """None where the log file has to be read: its heads do not fit, or are gone, or have not all that is counted."""
    from mqlake.lake.heads.parquet import rows_of  # with pyarrow.dataset, which loads pandas
    from mqlake.lake.heads.valid import look_through, name_of, passed_over, unfit_if_damaged, warn

    def counted(heads: Heads) -> list[pa.Table] | None:
        if not is_as_read(heads, options):
            return None
        with unfit_if_damaged():
            return list(_grouped(rows_of([heads.source], columns, _wanted(options)), keys))

    assert task.place is not None
    storage, names = task.log.splits[0].storage, {name_of(file): task.size}
    [look] = look_through(storage, task.place, names, [file], counted)
    warn(passed_over(task.place, [look]))
    return look.made


def _of_log(task: LogTask, options: LogOptions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    builder = RowBuilder(columns, None)
    for split in task.splits:
        for found in read_selected(split, RowFilter(options), with_bodies=False):
            if not isinstance(found, Damage):
                yield from builder.batches(*found)


def _grouped(batches: Iterable[pa.RecordBatch], keys: Sequence[Key]) -> Iterator[pa.Table]:
    found = _schemas(keys)[1].empty_table()
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= CHUNK_ROWS:
            found = _summed([found, _each(waiting, keys)], keys)
            waiting, count = [], 0
            if len(found) > GROUPS_MAX:
                yield found
                found = found.schema.empty_table()
    yield _summed([found, _each(waiting, keys)], keys) if waiting else found


def _each(batches: Sequence[pa.RecordBatch], keys: Sequence[Key]) -> pa.Table:
    """Rows as groups of one."""
    rows = pa.Table.from_batches(batches)
    times = rows.column("storeTimestamp")
    figures = [pa.repeat(pa.scalar(1, pa.int64()), len(rows)), rows.column("size"), rows.column("bodySize")]
    columns = [*(_cut_down(rows.column(key.column), key) for key in keys), *figures, times, times]
    schema = _schemas(keys)[1]
    return pa.table(
        [each.cast(field.type) for each, field in zip(columns, schema, strict=True)], schema=schema
    )


def _cut_down(values: pa.ChunkedArray, key: Key) -> pa.ChunkedArray:
    """Numbers and times as a multiple of the key's width, rounded down."""
    if key.width == 1:
        return values
    width = key.width * 1000 if key.column in TIMES else key.width
    whole = values.cast(pa.int64())
    rounded = pc.multiply(pc.divide(whole, width), width)
    below = pc.if_else(
        pc.greater(rounded, whole), pc.subtract(rounded, width), rounded
    )  # division goes towards 0
    return below.cast(values.type)


def _summed(tables: Sequence[pa.Table], keys: Sequence[Key]) -> pa.Table:
    """Tables of groups as one, each group once."""
    names = [key.column for key in keys]
    found = (
        pa.concat_tables(tables)
        .group_by(names, use_threads=False)
        .aggregate(
            [
                *((name, "sum") for name in ("records", "bytes", "bodyBytes")),
                ("firstStoreTimestamp", "min"),
                ("lastStoreTimestamp", "max"),
            ]
        )
    )
    schema = _schemas(keys)[1]
    figures = [
        *(f"{name}_sum" for name in ("records", "bytes", "bodyBytes")),
        "firstStoreTimestamp_min",
        "lastStoreTimestamp_max",
    ]
    return found.select([*names, *figures]).rename_columns(schema.names)
