# mypy: disable-error-code="misc"
"""The source `metaq`: MetaQ data directories as a table or a stream, read in place, also while a broker writes; or
live brokers.

    spark.read.format("metaq").load(DIR)      a row a message:
    spark.readStream.format("metaq").option("zookeeper", "HOST:PORT").load()
    topic partition offset size id flag attribute body checksum path

`offset` is that of the record's first byte in its partition, `size` the record's bytes (`offset + size` is where the
next one begins), `checksum` what the record says, `path` the directory, or the broker as `meta://host:port`. Options:
path (one or more, separated by commas; also what fsspec opens, with storageOptions) or zookeeper (and zkRoot), topics,
columns, includeBody, verify (none, crc), mode (failFast, permissive, dropMalformed), splitSize (of directories; a
broker's partition is one task's), startingOffsets, endingOffsets, maxBytesPerTrigger, maxOffsetsPerTrigger
(messages), failOnDataLoss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError, OffsetOutOfRangeError, UnknownKeyError
from mqlake.spark.filters import Condition, conditions
from mqlake.spark.memory import keep_freed_memory
from mqlake.spark.metaq_places import Brokers, Directories, Part, Piece, Place, read_piece, resolve
from mqlake.spark.metaq_segments import Damage, Records, Split, open_directory
from mqlake.spark.offsets import EARLIEST, ENDING, LATEST, STARTING, Position, PositionKind
from mqlake.spark.options import PLACE_OPTIONS, Mode, count, flag, listed, named, one_of, parse_size, stores
from mqlake.spark.parts import require_stream_readers
from mqlake.spark.rows import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from mqlake.spark.schema import CORRUPT_COLUMN, table_schemas
from mqlake.spark.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_NONE
from mqlake.spark.storage import Storage

log = logging.getLogger(__name__)

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
    *PLACE_OPTIONS,
    "zookeeper",
    "zkRoot",
    "topics",
    STARTING[0],
    ENDING[0],
    "columns",
    "includeBody",
    "verify",
    "mode",
    "splitSize",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
)
SPLITS_A_PARTITION_MAX = 4096


@dataclass(frozen=True)
class MetaqOptions:
    """One read of data directories, or of the brokers in a ZooKeeper. `topics` None: all. Sizes are bytes."""

    storages: tuple[Storage, ...] = ()
    zookeeper: str | None = None
    zk_root: str = "/meta"
    columns: tuple[str, ...] = tuple(COLUMNS)
    topics: frozenset[str] | None = None
    start: Position = field(default_factory=lambda: Position(PositionKind.EARLIEST, STARTING[0]))
    end: Position = field(default_factory=lambda: Position(PositionKind.LATEST, ENDING[0]))
    verify: bool = True
    mode: Mode = Mode.FAIL_FAST
    split_size: int = DEFAULT_SPLIT_SIZE
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool | None = None) -> MetaqOptions:
        """A batch and a stream of directories begin at the earliest offsets, a stream of brokers at the latest.

        `stream` None: it is not known yet which of them it will be, so that what only one can do passes.
        Raises UnknownKeyError for an option nobody knows, ConfigError for a value that cannot be used.
        """
        given = named(options, OPTIONS)
        if ("path" in given or "paths" in given) == ("zookeeper" in given):
            raise ConfigError(
                "option 'path' is missing: name data directories, or brokers by 'zookeeper'; not both"
            )
        if "maxBytesPerTrigger" in given and "maxOffsetsPerTrigger" in given:
            raise ConfigError("one of the options 'maxBytesPerTrigger' and 'maxOffsetsPerTrigger' at most")
        mode = Mode(one_of(given, "mode", tuple(mode.value for mode in Mode), Mode.FAIL_FAST.value))
        columns = listed("columns", given["columns"]) if "columns" in given else list(COLUMNS)
        if not flag(given, "includeBody", default=True):
            columns = [name for name in columns if name != "body"]
        if mode is Mode.PERMISSIVE and CORRUPT_COLUMN not in columns:
            columns.append(CORRUPT_COLUMN)
        check_columns(columns)
        from_end = stream and "zookeeper" in given
        default = PositionKind.LATEST if from_end else PositionKind.EARLIEST
        start = Position.parse(given, STARTING, default, physical=False)
        end = Position.parse(given, ENDING, PositionKind.LATEST, physical=False)
        if stream is False and start.kind is PositionKind.LATEST:
            raise ConfigError("option 'startingOffsets' is 'latest'; a batch cannot begin there")
        if end.kind is PositionKind.EARLIEST:
            raise ConfigError("option 'endingOffsets' is 'earliest'; nothing can end there")
        if stream and end.kind is not PositionKind.LATEST:
            raise ConfigError("option 'endingOffsets' is for a batch; a stream has no end")
        size = given.get("maxBytesPerTrigger")
        return cls(
            () if "zookeeper" in given else stores(given),
            given.get("zookeeper"),
            given.get("zkRoot", "/meta"),
            tuple(columns),
            frozenset(listed("topics", given["topics"])) if "topics" in given else None,
            start,
            end,
            one_of(given, "verify", (VERIFY_NONE, VERIFY_CRC), VERIFY_CRC) == VERIFY_CRC,
            mode,
            parse_size("splitSize", given.get("splitSize", str(DEFAULT_SPLIT_SIZE))),
            None if size is None else parse_size("maxBytesPerTrigger", size),
            count(given, "maxOffsetsPerTrigger"),
            flag(given, "failOnDataLoss", default=True),
        )

    def place(self) -> Place:
        if self.zookeeper is None:
            must_be_whole = self.mode is Mode.FAIL_FAST
            return Directories(self.storages, self.topics, self.split_size, must_be_whole=must_be_whole)
        return Brokers(self.zookeeper, self.zk_root, self.topics, fail_on_data_loss=self.fail_on_data_loss)


def check_columns(names: Sequence[str]) -> None:
    """UnknownKeyError, ConfigError when a name comes twice or there is none."""
    for name in names:
        if name not in _KINDS:
            raise UnknownKeyError(name, COLUMNS, what="column")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"option 'columns' must name columns, each once: {', '.join(names)!r}")


@dataclass
class MetaqPartition(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]


class MetaqDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "metaq"

    def schema(self) -> StructType:
        options = MetaqOptions.parse(self.options)
        for storage in options.storages:
            open_directory(storage)
        return _schemas(options.columns)[0]

    def reader(self, schema: StructType) -> DataSourceReader:
        return MetaqReader(MetaqOptions.parse(self.options, stream=False), chosen_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.metaq_stream import MetaqStreamReader

        return MetaqStreamReader(MetaqOptions.parse(self.options, stream=True), chosen_columns(schema))


def chosen_columns(schema: StructType) -> list[str]:
    """Those of a schema that a user may have given: a way to choose columns, not to cast them. ConfigError."""
    columns: list[str] = schema.fieldNames()
    check_columns(columns)
    if schema != (expected := _schemas(columns)[0]):
        raise ConfigError(
            f"the columns are {expected.simpleString()}, not {schema.simpleString()}; cast them after reading"
        )
    return columns


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
        options, place = self._options, self._options.place()
        bounds = place.bounds()
        starts = resolve(options.start, bounds, EARLIEST)
        ends = resolve(options.end, bounds, LATEST)
        pieces: list[Piece] = []
        for part, (low, high) in bounds.items():
            if not self._is_wanted(part):
                continue
            for offset in (starts[part], ends[part]):
                if not low <= offset <= high:
                    data_loss(options, f"{part}: offset {offset} is not there; there are {low} to {high}")
            start, end = max(starts[part], low), min(ends[part], high)
            pieces += place.pieces(part, start, None if end == high else end)
        return grouped(pieces, options.split_size)

    def _is_wanted(self, part: Part) -> bool:
        known = {"topic": part.topic, "partition": part.partition}
        return not any(
            each.column in known and each.allowed is not None and known[each.column] not in each.allowed
            for each in self._conditions
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, MetaqPartition):  # else Spark's stand-in when there are no partitions
            yield from read_partition(partition, self._options, self._columns)


def data_loss(options: MetaqOptions, what: str) -> None:
    """OffsetOutOfRangeError, or with failOnDataLoss=false a warning."""
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{what} (failOnDataLoss=false reads on with what is there)")
    log.warning("%s; reading goes on with what is there", what)


def grouped(pieces: Iterable[Piece], split_size: int) -> list[MetaqPartition]:
    """Small pieces that follow each other become one task's work; what a broker gives is a task a partition."""
    found: list[MetaqPartition] = []
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        length = piece.end - piece.start if isinstance(piece, Split) else split_size
        if group and (size + length > split_size or len(group) == SPLITS_A_PARTITION_MAX):
            found.append(MetaqPartition(tuple(group)))
            group, size = [], 0
        group.append(piece)
        size += length
    return [*found, MetaqPartition(tuple(group))] if group else found


# ---------------------------------------------------------------------- in a task


def read_partition(
    partition: MetaqPartition, options: MetaqOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. StoreCorruptError (mode failFast), OffsetOutOfRangeError, RemotingError, OSError."""
    keep_freed_memory()
    schema = _schemas(columns)[1]
    for piece in partition.pieces:
        try:
            for found in read_piece(piece, verify=options.verify):
                if isinstance(found, Records):
                    for part in found.pieces(BATCH_RECORDS_MAX, BATCH_BYTES_MAX):
                        arrays = [column(name, part, piece) for name in columns]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                elif options.mode is Mode.FAIL_FAST:
                    raise found.error()
                elif options.mode is Mode.PERMISSIVE:
                    yield damage_row(found, piece, schema)
        except FileNotFoundError as error:
            data_loss(options, f"{error.filename or error}: gone while it was read")


def column(name: str, records: Records, split: Piece) -> pa.Array:
    """One of COLUMNS, or `_corrupt`."""
    match name:
        case "topic":
            return pa.repeat(pa.scalar(split.topic, pa.string()), len(records))
        case "partition":
            return pa.repeat(pa.scalar(split.partition, pa.int32()), len(records))
        case "path":
            return pa.repeat(pa.scalar(split.place, pa.string()), len(records))
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


def damage_row(damage: Damage, split: Piece, schema: pa.Schema) -> pa.RecordBatch:
    """The row of mode permissive that stands for damage."""
    values = {
        "topic": split.topic,
        "partition": split.partition,
        "offset": damage.offset,
        "path": split.place,
        CORRUPT_COLUMN: str(damage.error()),
    }
    return pa.RecordBatch.from_pylist([{name: values.get(name) for name in schema.names}], schema=schema)
