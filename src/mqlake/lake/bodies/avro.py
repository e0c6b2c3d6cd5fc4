"""Avro bodies to columns: one datum of one schema a body, without a file's header.

    record          struct                  int long float double boolean string bytes    the same (bytes: binary)
    array, map      array, map              enum, uuid    string          fixed    binary
    [null, X]       X                       decimal       decimal         date, timestamp-millis, timestamp-micros

Body by body: fastavro reads one datum at a time, and no reader of columns says which body a fault is in. Other unions
and types within themselves are refused.
"""

from __future__ import annotations

import functools
import io
import json
from typing import Any

import pyarrow as pa

from mqlake.errors import ConfigError
from mqlake.lake.bodies.decoder import Reasons, array_of_values, decode_each, decode_filled
from mqlake.lake.bodies.types import ColumnType, array_of, decimal_of, map_of, struct_of
from mqlake.lake.requirements import require_modules

INSTALL = "pip install 'mqlake[bodies]'"
_PLAIN = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "string")},
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp"}


_STRIPPED = (
    "uuid",
    "time-millis",
    "time-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
    "duration",
)
"""Logical types that are taken as what they are made of."""


class UndecodableError(Exception):
    """A body that is no datum of the schema."""


class AvroDecoder:
    """Bodies that are data of one Avro schema (the text of an .avsc file)."""

    def __init__(self, schema: str) -> None:
        """ConfigError for an invalid schema, or one with types that no column has."""
        require_modules("fastavro", command=INSTALL)
        import fastavro

        try:
            parsed = json.loads(schema)
            fastavro.parse_schema(json.loads(schema))
        except Exception as error:  # fastavro raises many kinds
            raise ConfigError(f"no Avro schema: {error}") from error
        self.type = _type(parsed, {})
        if self.type.name != "struct":
            raise ConfigError(f"the Avro schema is of {self.type}; the bodies have to be records")
        self._text = schema

    @functools.cached_property
    def _schema(self) -> Any:
        import fastavro

        return fastavro.parse_schema(_stripped(json.loads(self._text)))

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, pa.StringArray]:
        return decode_filled(bodies, self.type.arrow, self._chunk)

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        return array_of_values(*decode_each(bodies, self._alone, (UndecodableError,)), self.type.arrow)

    def _alone(self, body: bytes) -> Any:
        import fastavro

        file = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(file, self._schema, None)
        except Exception as error:  # fastavro raises many kinds
            raise UndecodableError(f"no datum of the Avro schema: {error or type(error).__name__}") from None
        if file.tell() != len(body):
            raise UndecodableError(f"{len(body) - file.tell()} bytes follow the Avro datum")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_schema"}


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _stripped(each) if key in ("type", "items", "values", "fields") else each
        for key, each in schema.items()
        if not (key == "logicalType" and each in _STRIPPED)
    }


def _type(schema: Any, known: dict[str, ColumnType | None], space: str = "") -> ColumnType:
    """`known`: named types by their full names, None while they are looked at."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ConfigError(
                f"a union of {len(others)} types cannot be a column: {json.dumps(schema)[:200]}"
            )
        return _type(others[0], known, space)
    if isinstance(schema, dict):
        return _described(schema, known, space)
    if schema in _PLAIN:
        return ColumnType(_PLAIN[schema])
    found = known.get(schema if "." in schema else f"{space}.{schema}", known.get(schema))
    if found is None:
        raise ConfigError(
            f"the Avro type {schema!r} is within itself, or has no values: it cannot be a column"
        )
    return found


def _described(schema: dict[str, Any], known: dict[str, ColumnType | None], space: str) -> ColumnType:
    kind, logical = schema["type"], schema.get("logicalType")
    name = str(schema.get("name", ""))
    space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space))
    full = name if "." in name or not name else f"{space}.{name}"
    if logical == "decimal" and kind in ("bytes", "fixed"):
        found = decimal_of(int(schema["precision"]), int(schema.get("scale", 0)))
    elif logical in _LOGICAL and kind in ("int", "long"):
        found = ColumnType(_LOGICAL[logical])
    elif kind == "record":
        known[full] = None
        found = struct_of((each["name"], _type(each["type"], known, space)) for each in schema["fields"])
        if not found.fields:
            raise ConfigError(f"the Avro record {name!r} has no fields: it cannot be a column")
    elif kind == "array":
        found = array_of(_type(schema["items"], known, space))
    elif kind == "map":
        found = map_of(_type(schema["values"], known, space))
    else:
        found = _type(kind, known, space)
    if name:
        known[full] = found
    return found
