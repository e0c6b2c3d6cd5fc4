# mypy: disable-error-code="misc"
"""The options of a read of MetaQ's data.

path (one or more, separated by commas; also URLs of fsspec, with storageOptions) or zookeeper (and zkRoot), topics,
columns, includeBody, verify (none, crc), mode (failFast, permissive, dropMalformed), splitSize (of directories; of
brokers each partition is a task), startingOffsets, endingOffsets, maxBytesPerTrigger, maxOffsetsPerTrigger
(messages), failOnDataLoss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.lake.log.splits import VERIFY_CRC, VERIFY_NONE
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import Mode, SourceOptions, check_columns
from mqlake.spark.metaq.locations import Brokers, Directories, Place
from mqlake.spark.options import PLACE_OPTIONS, called, common, named, one_of, some_of, stores
from mqlake.spark.positions import ENDING, STARTING, start_and_end
from mqlake.spark.schema import table_schemas

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


@dataclass(frozen=True, kw_only=True)
class MetaqOptions(SourceOptions):
    """One read of data directories, or of the brokers in a ZooKeeper. `topics` None: all."""

    storages: tuple[Storage, ...] = ()
    zookeeper: str | None = None
    zk_root: str = "/meta"
    columns: tuple[str, ...] = tuple(COLUMNS)
    topics: frozenset[str] | None = None
    verify: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool | None = None) -> MetaqOptions:
        """A batch and a stream of directories begin at the earliest offsets, a stream of brokers at the latest.

        `stream` None: it is not known yet which of them it will be, so that what only one can do passes.
        Raises UnknownKeyError for an unknown option, ConfigError for an invalid value.
        """
        given = named(options, OPTIONS)
        if ("path" in given or "paths" in given) == ("zookeeper" in given):
            raise ConfigError(
                "either the option 'path' (data directories) or 'zookeeper' (of brokers) is needed, not both"
            )
        from_end = stream and "zookeeper" in given
        default = PositionKind.LATEST if from_end else PositionKind.EARLIEST
        start, end = start_and_end(given, default, stream=stream)
        return cls(
            storages=() if "zookeeper" in given else stores(given),
            zookeeper=given.get("zookeeper"),
            zk_root=given.get("zkRoot", "/meta"),
            topics=some_of(given, "topics"),
            start=start,
            end=end,
            verify=one_of(given, "verify", (VERIFY_NONE, VERIFY_CRC), VERIFY_CRC) == VERIFY_CRC,
            **common(given, COLUMNS),
        )

    def place(self) -> Place:
        if self.zookeeper is None:
            must_be_whole = self.mode is Mode.FAIL_FAST
            return Directories(self.storages, self.topics, self.split_size, must_be_whole=must_be_whole)
        return Brokers(self.zookeeper, self.zk_root, self.topics, fail_on_data_loss=self.fail_on_data_loss)


def chosen_columns(schema: StructType) -> list[str]:
    """The columns of a schema, which a user may give to choose columns, not to cast them. ConfigError."""
    columns: list[str] = schema.fieldNames()
    check_columns(columns, COLUMNS, called("columns"))
    if schema != (expected := schemas(columns)[0]):
        raise ConfigError(
            f"the columns are {expected.simpleString()}, not {schema.simpleString()}; cast them after reading"
        )
    return columns


def schemas(columns: Sequence[str]) -> tuple[StructType, pa.Schema]:
    return table_schemas({name: _KINDS[name] for name in columns})
