# mypy: disable-error-code="misc"
"""What a read of MetaQ's data may be told: which places, from where to where, which columns.

path (one or more, separated by commas; also what fsspec opens, with storageOptions) or zookeeper (and zkRoot), topics,
columns, includeBody, verify (none, crc), mode (failFast, permissive, dropMalformed), splitSize (of directories; a
broker's partition is one task's), startingOffsets, endingOffsets, maxBytesPerTrigger, maxOffsetsPerTrigger
(messages), failOnDataLoss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.spark.arrow.schema import CORRUPT_COLUMN, table_schemas
from mqlake.spark.log.splits import DEFAULT_SPLIT_SIZE, VERIFY_CRC, VERIFY_NONE
from mqlake.spark.log.storage import Storage
from mqlake.spark.metaq.locations import Brokers, Directories, Place
from mqlake.spark.offsets import ENDING, STARTING, Position, PositionKind, start_and_end
from mqlake.spark.options import (
    PLACE_OPTIONS,
    Mode,
    count,
    flag,
    listed,
    named,
    one_of,
    parse_size,
    some_of,
    stores,
)

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
                "one of the options 'path' (data directories) and 'zookeeper' (of brokers) is needed, and not both"
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
        start, end = start_and_end(given, default, stream=stream)
        size = given.get("maxBytesPerTrigger")
        return cls(
            () if "zookeeper" in given else stores(given),
            given.get("zookeeper"),
            given.get("zkRoot", "/meta"),
            tuple(columns),
            some_of(given, "topics"),
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


def chosen_columns(schema: StructType) -> list[str]:
    """Those of a schema that a user may have given: a way to choose columns, not to cast them. ConfigError."""
    columns: list[str] = schema.fieldNames()
    check_columns(columns)
    if schema != (expected := schemas(columns)[0]):
        raise ConfigError(
            f"the columns are {expected.simpleString()}, not {schema.simpleString()}; cast them after reading"
        )
    return columns


def schemas(columns: Sequence[str]) -> tuple[StructType, pa.Schema]:
    return table_schemas({name: _KINDS[name] for name in columns})
