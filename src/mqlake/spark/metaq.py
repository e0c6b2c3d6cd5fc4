# mypy: disable-error-code="misc"
"""The source `metaq`: MetaQ data directories as a table, read in place, also while a broker writes; or live brokers.

    spark.read.format("metaq").load(DIR)      a row a message:
    spark.read.format("metaq").option("zookeeper", "HOST:PORT").load()
    topic partition offset size id flag attribute body checksum path

`offset` is that of the record's first byte in its partition, `size` the record's bytes (`offset + size` is where the
next one begins), `checksum` what the record says, `path` the directory, or the broker as `meta://host:port`. Options:
path (one or more, separated by commas) or zookeeper (and zkRoot), topics, columns, includeBody, verify (none, crc),
mode (failFast, permissive, dropMalformed), splitSize (of directories; a broker's partition is one task's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.metaq.store.inspect import PartitionFiles, open_data_directory
from mqlake.spark.filters import Condition, conditions
from mqlake.spark.memory import keep_freed_memory
from mqlake.spark.metaq_live import LiveRange, fetch_range, live_ranges
from mqlake.spark.metaq_segments import Damage, Records, Split, check_gaps, splits, walk
from mqlake.spark.options import Mode, flag, listed, named, one_of, parse_size
from mqlake.spark.rows import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from mqlake.spark.schema import CORRUPT_COLUMN, table_schemas
from mqlake.spark.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_NONE

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "size": "int",
    "id": "long",
    "flag": "int",
    "attribute": "string",
    "body": "binary",
    "checksum": "int",
    "path": "string",
}
_KINDS = {**COLUMNS, CORRUPT_COLUMN: "string"}
OPTIONS = (
    "path",
    "paths",
    "zookeeper",
    "zkRoot",
    "topics",
    "columns",
    "includeBody",
    "verify",
    "mode",
    "splitSize",
)
SPLITS_A_PARTITION_MAX = 4096


@dataclass(frozen=True)
class MetaqOptions:
    """One read of data directories, or of the brokers in a ZooKeeper. `topics` None: all. `split_size`: bytes."""

    paths: tuple[str, ...] = ()
    zookeeper: str | None = None
    zk_root: str = "/meta"
    columns: tuple[str, ...] = tuple(COLUMNS)
    topics: frozenset[str] | None = None
    verify: bool = True
    mode: Mode = Mode.FAIL_FAST
    split_size: int = DEFAULT_SPLIT_SIZE

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MetaqOptions:
        """Raises UnknownKeyError for an option nobody knows, ConfigError for a value that cannot be used."""
        given = named(options, OPTIONS)
        paths = [*listed("path", given.get("path", "")), *listed("paths", given.get("paths", ""))]
        if bool(paths) == ("zookeeper" in given):
            raise ConfigError(
                "option 'path' is missing: name data directories, or brokers by 'zookeeper'; not both"
            )
        mode = Mode(one_of(given, "mode", tuple(mode.value for mode in Mode), Mode.FAIL_FAST.value))
        columns = listed("columns", given["columns"]) if "columns" in given else list(COLUMNS)
        if not flag(given, "includeBody", default=True):
            columns = [name for name in columns if name != "body"]
        if mode is Mode.PERMISSIVE and CORRUPT_COLUMN not in columns:
            columns.append(CORRUPT_COLUMN)
        check_columns(columns)
        return cls(
            tuple(path.removeprefix("file://") for path in paths),
            given.get("zookeeper"),
            given.get("zkRoot", "/meta"),
            tuple(columns),
            frozenset(listed("topics", given["topics"])) if "topics" in given else None,
            one_of(given, "verify", (VERIFY_NONE, VERIFY_CRC), VERIFY_CRC) == VERIFY_CRC,
            mode,
            parse_size("splitSize", given.get("splitSize", str(DEFAULT_SPLIT_SIZE))),
        )


def check_columns(names: Sequence[str]) -> None:
    """UnknownKeyError, ConfigError when a name comes twice or there is none."""
    for name in names:
        if name not in _KINDS:
            raise UnknownKeyError(name, COLUMNS, what="column")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"option 'columns' must name columns, each once: {', '.join(names)!r}")


@dataclass
class MetaqPartition(InputPartition):
    splits: tuple[Split | LiveRange, ...]


class MetaqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        options = MetaqOptions.parse(self.options)
        for path in options.paths:
            open_data_directory(path)
        return _schemas(options.columns)[0]

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = schema.fieldNames()
        check_columns(columns)
        if schema != (expected := _schemas(columns)[0]):
            raise ConfigError(
                f"the columns are {expected.simpleString()}, not {schema.simpleString()}; "
                "cast them after reading"
            )
        return MetaqReader(MetaqOptions.parse(self.options), columns)


def _schemas(columns: Sequence[str]) -> tuple[StructType, pa.Schema]:
    return table_schemas({name: _KINDS[name] for name in columns})


class MetaqReader(DataSourceReader):
    def __init__(self, options: MetaqOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        self._conditions = conditions(filters)
        return filters

    def partitions(self) -> list[MetaqPartition]:
        """NotAStoreError, OSError; in mode failFast StoreCorruptError for a gap between segments."""
        options = self._options
        if options.zookeeper is not None:
            ranges = live_ranges(options.zookeeper, options.zk_root, options.topics)
            return [MetaqPartition((each,)) for each in ranges if self._is_wanted(each)]
        found: list[MetaqPartition] = []
        group: list[Split] = []
        size = 0
        for split in self._splits():
            length = split.end - split.start
            if group and (size + length > options.split_size or len(group) == SPLITS_A_PARTITION_MAX):
                found.append(MetaqPartition(tuple(group)))
                group, size = [], 0
            group.append(split)
            size += length
        return [*found, MetaqPartition(tuple(group))] if group else found

    def _splits(self) -> Iterator[Split]:
        for path in self._options.paths:
            directory = open_data_directory(path)
            directory.partitions = [files for files in directory.partitions if self._is_wanted(files)]
            if self._options.mode is Mode.FAIL_FAST:
                check_gaps(directory)
            for files in directory.partitions:
                yield from splits(path, files, self._options.split_size)

    def _is_wanted(self, files: PartitionFiles | LiveRange) -> bool:
        if self._options.topics is not None and files.topic not in self._options.topics:
            return False
        known = {"topic": files.topic, "partition": files.partition}
        return not any(
            each.column in known and each.allowed is not None and known[each.column] not in each.allowed
            for each in self._conditions
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, MetaqPartition):  # Spark's stand-in when there are no partitions
            return
        keep_freed_memory()
        options, schema = self._options, _schemas(self._columns)[1]
        for split in partition.splits:
            verify = options.verify
            reading = (
                walk(split, verify=verify) if isinstance(split, Split) else fetch_range(split, verify=verify)
            )
            for found in reading:
                if isinstance(found, Records):
                    for part in found.pieces(BATCH_RECORDS_MAX, BATCH_BYTES_MAX):
                        arrays = [column(name, part, split) for name in self._columns]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                elif options.mode is Mode.FAIL_FAST:
                    raise found.error()
                elif options.mode is Mode.PERMISSIVE:
                    yield damage_row(found, split, schema)


def column(name: str, records: Records, split: Split | LiveRange) -> pa.Array:
    """One of COLUMNS, or `_corrupt`."""
    match name:
        case "topic":
            return pa.repeat(pa.scalar(split.topic, pa.string()), len(records))
        case "partition":
            return pa.repeat(pa.scalar(split.partition, pa.int32()), len(records))
        case "path":
            return pa.repeat(pa.scalar(split.directory, pa.string()), len(records))
        case "offset":
            return pa.array(records.offset)
        case "size":
            return pa.array(records.size)
        case "id":
            return pa.array(np.ascontiguousarray(records.scan.message_id))
        case "flag":
            return pa.array(np.ascontiguousarray(records.scan.flag))
        case "attribute":
            return records.attributes()
        case "body":
            return records.bodies()
        case "checksum":
            return pa.array(records.checksum)
        case _:
            return pa.nulls(len(records), pa.string())


def damage_row(damage: Damage, split: Split | LiveRange, schema: pa.Schema) -> pa.RecordBatch:
    """The row of mode permissive that stands for damage."""
    values = {
        "topic": split.topic,
        "partition": split.partition,
        "offset": damage.offset,
        "path": split.directory,
        CORRUPT_COLUMN: str(damage.error()),
    }
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in schema.names}], schema=schema)
