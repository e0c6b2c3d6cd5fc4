"""Spark's schemas of the rows in lake.arrow.schema, and the check of those that users give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

from mqlake.errors import ConfigError
from mqlake.lake.arrow.schema import COLUMNS, kind_of, table_schema

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map": MapType(StringType(), StringType(), True),
}


def spark_schema(names: Iterable[str] = tuple(COLUMNS)) -> StructType:
    """The named columns (all by default) as a Spark schema. UnknownKeyError for a name not in COLUMNS."""
    return StructType([StructField(name, _TYPES[kind_of(name)], True) for name in names])


def table_schemas(columns: Mapping[str, str]) -> tuple[StructType, pa.Schema]:
    """The Spark and the Arrow schema of another table; kinds as in COLUMNS."""
    fields = [StructField(name, _TYPES[kind], True) for name, kind in columns.items()]
    return StructType(fields), table_schema(columns)


def check_same(given: StructType, expected: StructType) -> None:
    """ConfigError when a user gave a schema to a source that has but one."""
    if given != expected:
        raise ConfigError("this source has one schema; select and cast its columns after reading")


def check_user_schema(schema: StructType) -> list[str]:
    """Column names of a schema that a user gave to `.schema(...)`: a way to choose columns, not to cast them."""
    for field in schema:
        expected = _TYPES[kind_of(field.name)]
        if field.dataType != expected:
            raise ConfigError(
                f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; "
                "cast it after reading"
            )
    return [field.name for field in schema]
