# mypy: disable-error-code="misc"
"""Counts and histograms of a log: what crosses to the JVM is a row per task and group, not the records.

    task     records ─▶ a number for each group they fall into ─▶ counts, bytes, first and last store time
    Spark    the rows of all tasks, summed: count_by()
    driver   all of it, where the log is so small that planning and starting Spark's tasks would take longer

A group is made of columns, a number or a time cut down to a multiple of something: `topic`, `size/1k`,
`storeTimestamp/1h`. Bodies are neither copied nor, unless `verify` asks for it, looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqlake.base.settings import parse_size
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.formats.arrow import Ints
from mqlake.formats.columns import Scan
from mqlake.lake.arrow.arrays import codes_of, number_array, string_array
from mqlake.lake.arrow.filters import NUMBERS, TIMES, RowFilter
from mqlake.lake.arrow.properties import Properties, kernels
from mqlake.lake.arrow.rows import timestamp_array
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.log.splits import Damage
from mqlake.lake.log.tasks import Chosen, LogTask, chosen
from mqlake.lake.options import OPTIONS, LogOptions, listed, named, option_texts
from mqlake.lake.plan import plan
from mqlake.message import PROPERTY_TAGS
from mqlake.spark.error_messages import tells_reasons
from mqlake.spark.log.commitlog import CommitLogReader
from mqlake.spark.log.log_partition import LogPartition
from mqlake.spark.requirements import found_in_workers
from mqlake.spark.schema import check_same, table_schemas

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

CHUNK_RECORDS = 65536
GROUPS_MAX = 100_000
"""A task with more groups emits what it has and starts again."""
SPAN_MAX = 1 << 16
HERE_BYTES_MAX = 2 << 30
"""Of log, which the driver counts by itself: most of what Spark adds to a count does not depend on the log's size."""
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
    Raises what LogOptions.parse() and parse_by() raise, NotAStoreError and its like; counting at once raises what
    plan() and chosen() raise.
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
    planned = plan(options)
    if planned.bytes_to_read > HERE_BYTES_MAX:
        return None
    found = Groups(keys)
    with ThreadPoolExecutor(HERE_THREADS) as threads:
        for part in threads.map(lambda task: list(_groups_of(task, options, keys)), planned.tasks):
            for groups in part:
                found.merge(groups)
            if len(found) > GROUPS_MAX:
                return None
    return pa.Table.from_batches([found.batch()])


@tells_reasons
class CommitLogCountsDataSource(DataSource):
    """`commitlogcounts`: the partial results, for count_by(). Options as `commitlog`, and `by`."""

    @classmethod
    def name(cls) -> str:
        return "commitlogcounts"

    def parsed(self) -> tuple[LogOptions, list[Key]]:
        given = named(self.options, COUNT_OPTIONS)
        keys = parse_by(given.pop("by", ""))
        return LogOptions.parse(given), keys

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
    return table_schemas({**{key.column: COLUMNS[key.column] for key in keys}, **SUMS})


@tells_reasons
class _CountReader(CommitLogReader):
    """Filters are not taken: Spark would apply to the groups what was meant for records."""

    def __init__(self, options: LogOptions, keys: list[Key]) -> None:
        super().__init__(options, [])
        self._keys = keys

    def _push_filters(self, filters: list[Filter]) -> list[Filter]:
        return filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return
        for groups in _groups_of(partition.task, self._options, self._keys):
            yield groups.batch()


def _groups_of(task: LogTask, options: LogOptions, keys: Sequence[Key]) -> Iterator[Groups]:
    """One, or more where a task has too many groups. Raises what chosen() raises."""
    groups = Groups(keys)
    for split in task.splits:
        for found in chosen(split, RowFilter(options), with_bodies=False, chunk_records=CHUNK_RECORDS):
            if isinstance(found, Damage):
                continue
            groups.add(found)
            if len(groups) > GROUPS_MAX:
                yield groups
                groups = Groups(keys)
    yield groups


# ---------------------------------------------------------------------- grouping

Sums = list[int]
Values = Ints | list[str]


@dataclass
class Groups:
    """The counts so far: per group records, bytes, body bytes, first and last store time (ms)."""

    keys: Sequence[Key]
    _sums: dict[tuple[object, ...], Sums] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, found: Chosen) -> None:
        """One pass of numpy for each column; then a step for each group of the scan."""
        buf, scan, rows = found
        chosen_rows: npt.NDArray[np.int64] | slice = slice(None) if rows is None else rows
        columns = [self._codes(key, buf, scan, chosen_rows) for key in self.keys]
        code = columns[0][0]
        for more, values in columns[1:]:
            code = _compact(code * len(values) + more)[1]
        times = scan.store_timestamp[chosen_rows]
        counts = np.bincount(code)
        present = np.flatnonzero(counts)
        sizes = np.bincount(code, scan.size[chosen_rows])
        bodies = np.bincount(code, scan.body_length[chosen_rows])
        first = np.full(len(counts), np.iinfo(np.int64).max)
        last = np.full(len(counts), np.iinfo(np.int64).min)
        np.minimum.at(first, code, times)
        np.maximum.at(last, code, times)
        example = np.zeros(len(counts), np.int64)
        example[code] = np.arange(len(code))
        names = [_taken(values, codes[example[present]]) for codes, values in columns]
        sums = [each[present].astype(np.int64).tolist() for each in (counts, sizes, bodies, first, last)]
        for name, *new in zip(zip(*names, strict=True), *sums, strict=True):
            self._count(name, new)

    def merge(self, other: Groups) -> None:
        for name, sums in other._sums.items():
            self._count(name, sums)

    def _count(self, name: tuple[object, ...], new: Sums) -> None:
        known = self._sums.get(name)
        if known is None:
            self._sums[name] = new
            return
        for n in range(3):
            known[n] += new[n]
        known[3], known[4] = min(known[3], new[3]), max(known[4], new[4])

    def _codes(
        self, key: Key, buf: npt.NDArray[np.uint8], scan: Scan, rows: npt.NDArray[np.int64] | slice
    ) -> tuple[Ints, Values]:
        """A number below len(values) for each record, and the values that they stand for."""
        if key.column == "topic":
            names = [topic.decode("utf-8", "replace") for topic in scan.topics]
            return scan.topic_id[rows].astype(np.int64), names
        if key.column == "tags":
            starts, lengths = scan.properties_start[rows], scan.properties_length[rows]
            properties = Properties(buf, starts, lengths, kernels())
            tags = properties.value_of(PROPERTY_TAGS).dictionary_encode(null_encoding="encode")
            return codes_of(tags).astype(np.int64), tags.dictionary.to_pylist()
        name = NUMBERS.get(key.column) or TIMES[key.column]
        values = getattr(scan, name)[rows].astype(np.int64)
        cells, codes = _compact(values // key.width)
        return codes, cells * key.width

    def batch(self) -> pa.RecordBatch:
        """A row a group."""
        schema = _schemas(self.keys)[1]
        names = list(zip(*self._sums, strict=True)) if self._sums else [() for _ in self.keys]
        sums = np.array(list(self._sums.values()), np.int64).reshape(-1, len(SUMS)).T
        arrays = []
        for key, values in zip(self.keys, names, strict=True):
            kind = COLUMNS[key.column]
            if kind == "timestamp":
                arrays.append(timestamp_array(np.array(values, np.int64)))
            elif kind == "string":
                arrays.append(string_array(values))
            else:
                arrays.append(number_array(np.array(values, np.int32 if kind == "int" else np.int64)))
        arrays += [
            timestamp_array(column) if kind == "timestamp" else number_array(column)
            for column, kind in zip(sums, SUMS.values(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _taken(values: Values, numbers: Ints) -> list[object]:
    return (
        values[numbers].tolist() if isinstance(values, np.ndarray) else [values[n] for n in numbers.tolist()]
    )


def _compact(values: Ints) -> tuple[Ints, Ints]:
    """Numbers that count from 0 for these values, and the value of each; no sorting where they lie together."""
    if len(values) == 0:
        return values, values
    low, high = int(values.min()), int(values.max())
    if high - low < SPAN_MAX:
        return np.arange(low, high + 1, dtype=np.int64), values - low
    cells, codes = np.unique(values, return_inverse=True)
    return cells, codes
