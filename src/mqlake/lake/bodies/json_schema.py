"""JSON Schema to columns: what it says of types. It is no validator: ranges, patterns and `required` are not checked.

object with properties   struct          string             string; date-time timestamp, date date, and with
object without           map or json                        contentEncoding base64 binary
array with items         array           integer, number    long, double         boolean   boolean
[X, "null"], nullable    X               enum, const        the type of its values; another union is json
"""

from __future__ import annotations

from typing import Any

import orjson

from mqlake.errors import ConfigError
from mqlake.lake.bodies.types import ColumnType, array_of, map_of, struct_of

_PLAIN = {"integer": "long", "number": "double", "boolean": "boolean"}
_FORMATS = {"date-time": "timestamp", "date": "date"}
_JSON = ColumnType("json")


def parse_json_schema(text: str | bytes) -> ColumnType:
    """ConfigError for what is no JSON Schema of an object, and for a type within itself."""
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"no JSON Schema: {error}") from error
    found = _type(schema, schema, ())
    if found.name != "struct":
        raise ConfigError("the JSON Schema is not of an object with properties")
    return found


def _type(schema: Any, root: Any, within: tuple[str, ...]) -> ColumnType:
    if not isinstance(schema, dict):
        return _JSON  # true: any value
    if "$ref" in schema:
        return _referred(str(schema["$ref"]), root, within)
    kinds = schema.get("type", _of_values(schema))
    names = [each for each in (kinds if isinstance(kinds, list) else [kinds]) if each != "null"]
    options = [each for key in ("anyOf", "oneOf") for each in schema.get(key, ()) if each != {"type": "null"}]
    if len(options) == 1 and names == [None]:
        return _type(options[0], root, within)
    if len(names) != 1 or options or "allOf" in schema:
        return ColumnType("double") if set(names) == {"integer", "number"} else _JSON
    return _named(names[0], schema, root, within)


def _named(name: Any, schema: dict[str, Any], root: Any, within: tuple[str, ...]) -> ColumnType:
    if name in _PLAIN:
        return ColumnType(_PLAIN[name])
    if name == "string":
        if schema.get("contentEncoding") == "base64":
            return ColumnType("binary")
        return ColumnType(_FORMATS.get(schema.get("format", ""), "string"))
    if name == "array":
        return array_of(_type(schema.get("items"), root, within))
    if name == "object" or (name is None and "properties" in schema):
        properties = schema.get("properties")
        if properties:
            return struct_of((key, _type(each, root, within)) for key, each in properties.items())
        values = schema.get("additionalProperties")
        return map_of(_type(values, root, within)) if isinstance(values, dict) and values else _JSON
    return _JSON


def _of_values(schema: dict[str, Any]) -> Any:
    """The type of an enum's or a constant's values, where they have one."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    kinds = {names.get(type(each), "") for each in values if each is not None}
    return kinds.pop() if len(kinds) == 1 else None


def _referred(reference: str, root: Any, within: tuple[str, ...]) -> ColumnType:
    if reference in within:
        raise ConfigError(f"the JSON Schema has {reference} within itself, which cannot be a column")
    found: Any = root
    if reference != "#" and not reference.startswith("#/"):
        raise ConfigError(f"the JSON Schema refers to {reference!r}: put it under $defs of the same file")
    for part in reference[2:].split("/") if reference != "#" else ():
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            raise ConfigError(f"the JSON Schema refers to {reference!r}, which is not there")
        found = found[key]
    return _type(found, root, (*within, reference))
