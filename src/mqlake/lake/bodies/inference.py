"""A schema inferred from a sample of JSON bodies: integers are long, numbers double, texts in ISO 8601 timestamps.

A field whose values are of several types becomes `json`, the text of each value; one that was always null is left out
until it has a value. Of names that differ in case only the first is taken; bodies with the others do
not fit (json_bodies).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mqlake.errors import ConfigError
from mqlake.lake.bodies import json_text
from mqlake.lake.bodies.json_bodies import TIME
from mqlake.lake.bodies.types import ARRAY, STRUCT, ColumnType, array_of, struct_of

SAMPLE = 1000
"""Bodies that are enough for a sample."""

_NULL = ColumnType("null")
_JSON = ColumnType("json")
_TIME = re.compile(TIME)


def infer(bodies: Iterable[bytes | None]) -> ColumnType:
    """The struct of the objects among these bodies. ConfigError when there is none, or none has a field."""
    found = _NULL
    for body in bodies:
        try:
            value = json_text.loads(body or b"")
        except ValueError:
            continue
        if isinstance(value, dict):
            found = _joined(found, _type_of(value))
    kind = _without_nulls(found)
    if kind is None or kind.name != STRUCT:
        raise ConfigError(
            "no schema can be inferred: none of the bodies looked at is a JSON object with fields"
        )
    return kind


def _type_of(value: Any) -> ColumnType:
    if isinstance(value, dict):
        return ColumnType(STRUCT, tuple((name, _type_of(each)) for name, each in value.items()))
    if isinstance(value, list):
        element = _NULL
        for each in value:
            element = _joined(element, _type_of(each))
        return array_of(element)
    if isinstance(value, str):
        return ColumnType("timestamp" if _TIME.match(value) else "string")
    if isinstance(value, int) and not isinstance(value, bool):
        return ColumnType("long" if -(2**63) <= value < 2**63 else "double")
    names = {bool: "boolean", float: "double"}
    return ColumnType(names[type(value)]) if value is not None else _NULL


def _joined(one: ColumnType, other: ColumnType) -> ColumnType:
    """The type that takes the values of both."""
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    names = {one.name, other.name}
    if names == {STRUCT}:
        later = dict(other.fields)
        first = {name for name, _ in one.fields}
        return ColumnType(
            STRUCT,
            (
                *((name, _joined(kind, later.get(name, _NULL))) for name, kind in one.fields),
                *((name, kind) for name, kind in other.fields if name not in first),
            ),
        )
    if names == {ARRAY}:
        return array_of(_joined(one.element, other.element))
    if names == {"long", "double"}:
        return ColumnType("double")
    return ColumnType("string") if names == {"timestamp", "string"} else _JSON


def _without_nulls(kind: ColumnType) -> ColumnType | None:
    """None for what no value was seen of."""
    if kind.name == STRUCT:
        seen: dict[str, tuple[str, ColumnType]] = {}
        for name, each in kind.fields:
            found = _without_nulls(each)
            if found is not None and name:
                seen.setdefault(name.lower(), (name, found))
        return struct_of(seen.values()) if seen else None
    if kind.name == ARRAY:
        element = _without_nulls(kind.element)
        return None if element is None else array_of(element)
    return None if kind == _NULL else kind
