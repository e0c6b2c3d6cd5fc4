"""JSON Schemas as columns."""

from __future__ import annotations

import json

import pytest

from mqlake.errors import ConfigError
from mqlake.lake.bodies.json_schema import parse_json_schema


def ddl(properties: object, **more: object) -> str:
    return parse_json_schema(json.dumps({"type": "object", "properties": properties, **more})).ddl


def test_types() -> None:
    assert ddl(
        {"i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "s": {"type": "string"}}
    ) == ("i long, n double, b boolean, s string")
    assert ddl(
        {
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": ["null", "string"], "format": "date"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "l": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "m": {"type": "object", "additionalProperties": {"type": "number"}},
            "kind": {"enum": ["a", "b", None]},
            "one": {"const": 3},
            "opt": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
            "num": {"type": ["integer", "number"]},
        }
    ) == (
        "at timestamp, day date, raw binary, l array<struct<x: long>>, m map<string, double>, kind string, one long, "
        "opt boolean, num double"
    )


def test_what_has_no_one_type_is_kept_as_text() -> None:
    assert (
        ddl(
            {
                "union": {"type": ["string", "integer"]},
                "any": True,
                "free": {"type": "object"},
                "of": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                "list": {"type": "array"},
                "mixed": {"enum": [1, "a"]},
            }
        )
        == "union json, any json, free json, of json, list array<json>, mixed json"
    )


def test_references() -> None:
    defs = {"$defs": {"a/b": {"type": "integer"}}}
    assert ddl({"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/a~1b"}}, **defs) == "x long, y long"
    for reference, said in (
        ("#/$defs/c", "which is not there"),
        ("other.json", "put it under"),
        ("#", "within itself"),
    ):
        with pytest.raises(ConfigError, match=said):
            ddl({"x": {"$ref": reference, "type": "object"}} | {"y": {"$ref": "#"}}, **defs)


def test_what_is_no_schema_of_an_object() -> None:
    with pytest.raises(ConfigError, match="no JSON Schema"):
        parse_json_schema("{")
    with pytest.raises(ConfigError, match="not of an object"):
        parse_json_schema('{"type": "string"}')
