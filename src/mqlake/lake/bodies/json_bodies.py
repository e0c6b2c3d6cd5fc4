"""JSON bodies to columns: a chunk in one pass of pyarrow's parser, and body by body only where that finds a fault.

    chunk   BODY {"marker":0} BODY {"marker":1} …   ─▶ pyarrow.json ─▶ rows: body, marker, body, marker …
    fits    exactly one row between two markers     ─▶ texts to times, dates, bytes ─▶ value
    else    each body: orjson ─▶ a check a field    ─▶ the same

The markers prove which row is whose: their key is random, so no body holds one, and a body of no document or two, or
one that goes on in the next, moves them. Without them such bodies cancel out, and all rows between are moved.

A body is an object. It fits when each field that the schema names is absent, null, or of its type. Fields that the
schema does not name are left out, but where the schema was inferred, so that nobody chose its names, a body does not
fit either that has a name no column can have beside them: one that differs from a column's in case only, or is empty.
docs/lake.md has the types and what each takes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ConfigError
from mqlake.lake.arrow.arrays import number_array
from mqlake.lake.bodies import json_text
from mqlake.lake.bodies.decoder import (
    CHUNK_ROWS,
    Reasons,
    decode_each,
    decode_filled,
    with_reasons,
)
from mqlake.lake.bodies.leaves import Conversion, converted, times_of
from mqlake.lake.bodies.types import ARRAY, ELEMENT, MAP, STRUCT, TIMESTAMP, ColumnType

Check = Callable[[Any], Any]

_MARKER = f"mqlake-{secrets.token_hex(12)}"
TIME = r"^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?)?$"
_ZONE = r"[T ].*(?:Z|[+-]\d{2}(?::?\d{2})?)$"
_OTHERWISE_READ = r"[:\[,][ \t\r\n]*(?:-?(?:NaN|Inf|[\d.]{200}|\d[\d.]*[eE]\+?\d{3})|-0[ \t\r\n]*[,\]}])"
"""Values that pyarrow's parser and orjson may read differently: NaN and Infinity, which are no JSON; numbers beyond a
double, which orjson refuses also where no column is; and -0, which it takes for 0. In a text it may match, too."""
_TEXT_AND_COLON = re.compile(rb'"((?:[^"\\]|\\.)*+)"([ \t\r\n]*:)?', re.DOTALL)
"""A text of a document, and the colon that makes it a field's name."""
_UNITS_US = {"timestamp_s": 1_000_000, "timestamp_ms": 1000, "timestamp_us": 1}


class MisfitError(Exception):
    """A body that is not what the schema says."""


class JsonDecoder:
    """Bodies that are JSON objects with the fields of a struct."""

    def __init__(self, type: ColumnType, *, inferred: bool = False) -> None:
        """ConfigError for a type that JSON has no values of."""
        if type.name != STRUCT or not type.fields:
            raise ConfigError("the schema of JSON bodies names their fields: name type, name type, …")
        _check_names(type)
        self.type = type
        self._inferred = inferred
        self._spellings: dict[str, set[str]] = {}
        _spell(type, self._spellings)
        self._parsed = _parsed(type)
        # pyarrow's parser knows no maps, and no values of any type
        self._columnar = not type.uses(MAP, "json")

    def decode(self, bodies: pa.BinaryArray) -> tuple[pa.Array, pa.StringArray]:
        return decode_filled(bodies, self.type.arrow, self._chunk)

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        parsed = self._together(bodies) if self._columnar else None
        reasons: Reasons | None = None
        if parsed is None:
            values, reasons = decode_each(bodies, self._alone, (MisfitError,))
            parsed = pa.array(values, self._parsed)
        return with_reasons(*converted(parsed, self.type, _CONVERSIONS, _WHAT), reasons)

    def _together(self, bodies: pa.BinaryArray) -> pa.StructArray | None:
        """The values of bodies that all fit; None when one does not."""
        if not _is_safe(bodies):
            return None
        try:
            pc.cast(bodies, pa.string())  # else the parser takes what is no UTF-8
            rows = self._rows(bodies)
        except pa.ArrowInvalid:
            return None
        n = len(bodies)
        if rows.num_rows != 2 * n:
            return None
        marks = rows.column(rows.num_columns - 1).combine_chunks()
        if not marks.slice(0, 2 * n).equals(_expected_marks(n)):
            return None
        every_other = number_array(np.arange(0, 2 * n, 2))
        columns = [rows.column(i).combine_chunks().take(every_other) for i in range(rows.num_columns - 1)]
        return pa.StructArray.from_arrays(columns, fields=list(self._parsed))

    def _rows(self, bodies: pa.BinaryArray) -> pa.Table:
        """ArrowInvalid where a body may have a name that no column can have."""
        if not self._inferred:
            return _parse(bodies, self._parsed, others="ignore")
        try:
            return _parse(bodies, self._parsed, others="error")
        except pa.ArrowInvalid:
            if self._may_clash(bodies):
                raise
            return _parse(bodies, self._parsed, others="ignore")

    def _may_clash(self, bodies: pa.BinaryArray) -> bool:
        """True if a field may be named as a column is but for the case, at any depth, or not at all."""
        texts = set(_TEXT_AND_COLON.findall(b"\n".join(bodies.to_pylist())))
        for name in {text.decode() for text, colon in texts if colon}:
            spellings = self._spellings.get(name.lower(), {name})
            if not name or "\\" in name or spellings != {name}:
                return True
        return False

    def _alone(self, body: bytes) -> Any:
        try:
            found = json_text.loads(body)
        except ValueError as error:
            raise MisfitError(f"no JSON: {error}") from None
        if type(found) is not dict:
            raise MisfitError(f"{_kind(found)}, not an object")
        return self._check(found)

    @functools.cached_property
    def _check(self) -> Check:
        return _checker(self.type, "", self._inferred)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_check"}


def _spell(kind: ColumnType, spellings: dict[str, set[str]]) -> None:
    """Adds the names of the fields in a type, at any depth, by themselves in lower case."""
    for name, each in kind.fields:
        if kind.name == STRUCT:
            spellings.setdefault(name.lower(), set()).add(name)
        _spell(each, spellings)


def _check_names(kind: ColumnType) -> None:
    if kind.name.startswith("decimal"):
        raise ConfigError(f"JSON bodies have no {kind}: take it as string or double")
    for _, each in kind.fields:
        _check_names(each)


def _parsed(kind: ColumnType) -> pa.DataType:
    """Returns the type that the parser makes of it: texts and long numbers for what is converted afterwards."""
    if kind.name == STRUCT:
        return pa.struct([pa.field(name, _parsed(each)) for name, each in kind.fields])
    if kind.name == ARRAY:
        return pa.list_(pa.field(ELEMENT, _parsed(kind.element)))
    if kind.name == MAP:
        return pa.map_(pa.string(), _parsed(kind.element))
    if kind.name in ("date", "timestamp", "binary"):
        return pa.string()
    if kind.name in _UNITS_US:
        return pa.int64()
    return pa.float64() if kind.name == "float" else kind.arrow


# ---------------------------------------------------------------------- a chunk together


@functools.cache
def _separators() -> pa.BinaryArray:
    return pa.array([b'\n{"%s":%d}\n' % (_MARKER.encode(), n) for n in range(CHUNK_ROWS)], pa.binary())


@functools.lru_cache(maxsize=4)
def _expected_marks(n: int) -> pa.Array:
    numbers = np.repeat(np.arange(n), 2)
    return number_array(numbers, np.arange(2 * n) % 2 == 1)


def _parse(bodies: pa.BinaryArray, kind: pa.StructType, *, others: str) -> pa.Table:
    """`others`: what fields are that `kind` does not name, an `error` or one to `ignore`. Raises ArrowInvalid, its
    subclass of UTF-8 errors among them."""
    import pyarrow.json

    marked = pc.binary_join_element_wise(bodies, _separators().slice(0, len(bodies)), pa.scalar(b""))
    _, _, data = marked.buffers()
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=data.size),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([*kind, pa.field(_MARKER, pa.int64())]),
            newlines_in_values=True,
            unexpected_field_behavior=others,
        ),
    )


def _is_safe(bodies: pa.BinaryArray) -> bool:
    """True if each begins as an object does and none may be too deep, be read differently by the two parsers, or have a
    null beside an object: that kills a process in which pyarrow parses it (26.0.1)."""
    if not pc.all(pc.match_substring_regex(bodies, r"^[ \t\r\n]*\{")).as_py():
        return False
    if pc.max(pc.binary_length(bodies)).as_py() > json_text.DEPTH_MAX:
        opening = pc.add(pc.count_substring(bodies, "["), pc.count_substring(bodies, "{"))
        if pc.max(opening).as_py() > json_text.DEPTH_MAX:
            return False
    if pc.any(pc.match_substring_regex(bodies, _OTHERWISE_READ)).as_py():
        return False
    with_null = bodies.filter(pc.match_substring(bodies, "null"))
    return not (len(with_null) and pc.any(pc.match_substring_regex(with_null, r"\}\s*null")).as_py())


# ---------------------------------------------------------------------- a body alone


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", float: "a number"}
    return "null" if value is None else names.get(type(value), f"the number {value}")


def _checker(kind: ColumnType, path: str, inferred: bool) -> Check:
    """A function that returns a value as pa.array takes it, and raises MisfitError for one of another type; `inferred`:
    and for names that no column can have beside those of the type."""
    plain = _PLAIN_CHECKS.get(kind.name)
    if plain is not None:
        fits, convert = plain

        def check(value: Any) -> Any:
            if value is None:
                return None
            if not fits(value):
                raise MisfitError(f"{path} is {_kind(value)}, not {kind}")
            return convert(value) if convert else value

        return check
    if kind.name == "json":
        return lambda value: None if value is None else _text(value)
    inner = _containers(kind, path, inferred)
    wanted = list if kind.name == ARRAY else dict

    def check_container(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not wanted:
            raise MisfitError(f"{path} is {_kind(value)}, not {kind}")
        return inner(value)

    return check_container


def _containers(kind: ColumnType, path: str, inferred: bool) -> Check:
    if kind.name == STRUCT:
        within = f"{path}." if path else ""
        checks = [(name, _checker(each, f"{within}{name}", inferred)) for name, each in kind.fields]
        known = dict(checks)
        columns = {name.lower(): name for name in known} if inferred else {}

        def check_fields(value: dict[str, Any]) -> dict[str, Any]:
            if inferred and not value.keys() <= known.keys():
                for name in value.keys() - known.keys():
                    _check_other(name, value[name], columns, within)
            return {name: check(value.get(name)) for name, check in checks}

        return check_fields
    element = _checker(kind.element, f"{path}[]", inferred)
    if kind.name == ARRAY:
        return lambda value: [element(each) for each in value]
    return lambda value: [(key, element(each)) for key, each in value.items()]


def _check_other(name: str, value: Any, columns: dict[str, str], within: str) -> None:
    """MisfitError for a field with a value that can never become a column beside `columns`, by their names in lower
    case."""
    if value is None:
        return
    if not name:
        raise MisfitError(f"{within or 'the body '}has a field with an empty name, which no column can have")
    if name.lower() in columns:
        other = f"{within}{columns[name.lower()]}"
        raise MisfitError(f"{within}{name} differs from the column {other} in case only: one name to SQL")


def _text(value: Any) -> str:
    return value if type(value) is str else orjson.dumps(value).decode()


def _is_long(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_double(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


_PLAIN_CHECKS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any] | None]] = {
    "boolean": (lambda value: type(value) is bool, None),
    "int": (lambda value: type(value) is int and -(2**31) <= value < 2**31, None),
    "long": (_is_long, None),
    "double": (_is_double, float),
    "float": (_is_double, float),
    **dict.fromkeys(("string", "binary", "date", "timestamp"), (_is_text, None)),
    **dict.fromkeys(_UNITS_US, (_is_long, None)),
}


# ---------------------------------------------------------------------- texts and numbers to what they stand for


def _times(texts: pa.StringArray, _: str) -> pa.Array:
    """ISO 8601, in UTC where no zone is said; digits after the microsecond are cut off."""
    texts = _like(texts, TIME)
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    has_zone = pc.fill_null(pc.match_substring_regex(texts, _ZONE), False)
    zoned = pc.if_else(has_zone, texts, _NO_TEXT)
    plain = pc.if_else(has_zone, _NO_TEXT, texts)
    return times_of(
        pc.coalesce(
            _cast(zoned, TIMESTAMP).view(pa.int64()), _cast(plain, pa.timestamp("us")).view(pa.int64())
        )
    )


def _like(texts: pa.StringArray, pattern: str) -> pa.StringArray:
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, _NO_TEXT)


def _cast(texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Null where a text is no such value, such as the 30th of February."""
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        distinct = pc.unique(texts)
        whole = pa.concat_arrays([_cast_one(distinct.slice(i, 1), kind) for i in range(len(distinct))])
        return whole.take(pc.index_in(texts, distinct))


def _cast_one(text: pa.StringArray, kind: pa.DataType) -> pa.Array:
    try:
        return pc.cast(text, kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _epochs(numbers: pa.Array, name: str) -> pa.Array:
    factor = _UNITS_US[name]
    fits = pc.less_equal(pc.abs(pc.max_element_wise(numbers, -(2**62))), 2**63 // factor - 1)
    return times_of(pc.multiply(pc.if_else(fits, numbers, pa.scalar(None, pa.int64())), factor))


def _dates(texts: pa.StringArray, _: str) -> pa.Array:
    return _cast(_like(texts, r"^(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])-\d{2}-\d{2}$"), pa.date32())


def _floats(numbers: pa.Array, _: str) -> pa.Array:
    found = pc.cast(numbers, pa.float32(), safe=False)
    return pc.if_else(pc.is_finite(found), found, pa.scalar(None, pa.float32()))


def _base64(texts: pa.StringArray, _: str) -> pa.Array:
    """Text by text: Arrow has no kernel for it."""
    found: list[bytes | None] = []
    for text in texts.to_pylist():
        try:
            found.append(None if text is None else base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            found.append(None)
    return pa.array(found, pa.binary())


_NO_TEXT = pa.scalar(None, pa.string())
_CONVERSIONS: dict[str, Conversion] = {
    "timestamp": _times,
    "date": _dates,
    "binary": _base64,
    "float": _floats,
    **dict.fromkeys(_UNITS_US, _epochs),
}
_WHAT = {"timestamp": "time in ISO 8601", "binary": "base64"}
