"""Spark's columns as those of a table: what Iceberg and Delta have in common, and Variant where there is one.

Every column may be null. Whole numbers below 32 bits become 32 bits, as Iceberg has no smaller ones.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from mqlake.errors import ConfigError
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.tables.config import DELTA

_PLAIN = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
    BinaryType,
    DateType,
    DecimalType,
    TimestampNTZType,
)


def table_schema(schema: StructType, format: str) -> pa.Schema:
    """ConfigError for a column whose type a table of this format cannot have."""
    fields = []
    for each in schema:
        if isinstance(each.dataType, VariantType):
            if format != DELTA:
                raise ConfigError(
                    f"column {each.name!r} is a variant, which Iceberg has from format version 3 on, and pyiceberg "
                    "writes version 2: use to_json(), or a Delta table (mqlake-delta)"
                )
            fields.append(pa.field(each.name, VARIANT))
        else:
            fields.append(pa.field(each.name, _type(each.name, each.dataType)))
    return pa.schema(fields)


def _type(name: str, kind: DataType) -> pa.DataType:
    if isinstance(kind, ByteType | ShortType):
        return pa.int32()
    if isinstance(kind, TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, StructType):
        return pa.struct([pa.field(each.name, _type(f"{name}.{each.name}", each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _type(f"{name}[]", kind.elementType)))
    if isinstance(kind, MapType):
        return pa.map_(_type(f"{name} key", kind.keyType), _type(f"{name} value", kind.valueType))
    if isinstance(kind, _PLAIN):
        found: pa.DataType = to_arrow_type(kind)
        return found
    raise ConfigError(
        f"column {name!r} is {kind.simpleString()}, which no table has: cast it, or drop it before the sink"
    )
