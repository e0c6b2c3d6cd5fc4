"""Avro schemas as Spark types, for bodies that are Avro data without a header.

null, [null, X]     X, null allowed        record    struct        logical types: date, timestamp-millis,
boolean int long    the same               array     array         timestamp-micros, decimal; others are
float double        the same               map       map<string,…> taken as what they are made of
string, enum        string                 bytes, fixed  binary
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqlake.errors import ConfigError
from mqlake.lake.requirements import require_modules

INSTALL_AVRO = "pip install fastavro"

_PLAIN: dict[str, DataType] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}


def parse_avro_schema(text: str) -> Any:
    """The schema as a value that can be pickled. ConfigError for an invalid schema."""
    require_modules("fastavro", command=INSTALL_AVRO)
    import fastavro

    try:
        schema = json.loads(text)
        fastavro.parse_schema(schema)
    except Exception as error:  # fastavro raises many kinds
        raise ConfigError(f"no Avro schema: {error}") from error
    return schema


def avro_type(schema: Any, known: dict[str, Any] | None = None) -> DataType:
    """ConfigError for a union of more than a type and null, and for a type within itself."""
    known = {} if known is None else known
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) > 1:
            raise ConfigError(
                f"a union of {len(others)} types cannot be a column: {json.dumps(schema)[:200]}"
            )
        return avro_type(others[0] if others else "null", known)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if known.get(schema) is None:
            raise ConfigError(f"the Avro type {schema!r} is not known here, or is within itself")
        found: DataType = known[schema]
        return found
    return _named(schema, schema["type"], known)


def _named(schema: Any, kind: Any, known: dict[str, Any]) -> DataType:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        fields = [
            StructField(each["name"], avro_type(each["type"], known), True) for each in schema["fields"]
        ]
        known[schema["name"]] = StructType(fields)
        return StructType(fields)
    if kind == "array":
        return ArrayType(avro_type(schema["items"], known))
    if kind == "map":
        return MapType(StringType(), avro_type(schema["values"], known))
    found = avro_type(kind, known)
    if "name" in schema:
        known[schema["name"]] = found
    return found
