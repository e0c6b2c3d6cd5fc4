"""The row that every mqlake source gives: one table, from which the Spark and the Arrow schema are made.

    topic queueId queueOffset physicalOffset msgId uniqKey tags keys body bodyCrc properties flag sysFlag
    bornTimestamp bornHost storeTimestamp storeHost reconsumeTimes preparedTransactionOffset size
    brokerName path

Every column may be null: `brokerName` is where a store directory is read, all but `path`, `physicalOffset` and
`_corrupt` are in a row that stands for damage. Timestamps are Spark timestamps (µs, UTC; a message has whole
ms); one beyond what a timestamp can hold is null. A host is `ip:port`, `[ip]:port` for IPv6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqlake.errors import ConfigError, UnknownKeyError

_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "string": (StringType(), pa.string()),
    "int": (IntegerType(), pa.int32()),
    "long": (LongType(), pa.int64()),
    "binary": (BinaryType(), pa.binary()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "map": (MapType(StringType(), StringType(), True), pa.map_(pa.string(), pa.string())),
}

COLUMNS: dict[str, str] = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "long",
    "physicalOffset": "long",
    "msgId": "string",
    "uniqKey": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "bodyCrc": "int",
    "properties": "map",
    "flag": "int",
    "sysFlag": "int",
    "bornTimestamp": "timestamp",
    "bornHost": "string",
    "storeTimestamp": "timestamp",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "long",
    "size": "int",
    "brokerName": "string",
    "path": "string",
}

CORRUPT_COLUMN = "_corrupt"
"""In mode permissive: what is wrong, with file and offset, in a row that stands for damage; else null."""


def _kind(name: str) -> str:
    kind = "string" if name == CORRUPT_COLUMN else COLUMNS.get(name)
    if kind is None:
        raise UnknownKeyError(name, COLUMNS, what="column")
    return kind


def spark_schema(names: Iterable[str] = tuple(COLUMNS)) -> StructType:
    """The named columns (all by default) as a Spark schema. UnknownKeyError for a name not in COLUMNS."""
    return StructType([StructField(name, _TYPES[_kind(name)][0], True) for name in names])


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The same as an Arrow schema, exactly as Spark expects it from a Python source."""
    return pa.schema([pa.field(name, _TYPES[_kind(name)][1], nullable=True) for name in names])


def table_schemas(columns: Mapping[str, str]) -> tuple[StructType, pa.Schema]:
    """The Spark and the Arrow schema of another table; kinds as in COLUMNS."""
    return (
        StructType([StructField(name, _TYPES[kind][0], True) for name, kind in columns.items()]),
        pa.schema([pa.field(name, _TYPES[kind][1], nullable=True) for name, kind in columns.items()]),
    )


def check_same(given: StructType, expected: StructType) -> None:
    """ConfigError when a user gave a schema to a source that has but one."""
    if given != expected:
        raise ConfigError("this source has one schema; select and cast its columns after reading")


def check_user_schema(schema: StructType) -> list[str]:
    """Column names of a schema that a user gave to `.schema(...)`: a way to choose columns, not to cast them."""
    for field in schema:
        expected = _TYPES[_kind(field.name)][0]
        if field.dataType != expected:
            raise ConfigError(
                f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                "cast it after reading"
            )
    return [field.name for field in schema]
