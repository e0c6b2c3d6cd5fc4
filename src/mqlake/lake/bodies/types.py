"""The types that bodies become columns of: one language for all formats, written as Spark's DDL, and their Arrow types.

    id long, item struct<name: string, price: double>, tags array<string>, extra map<string, long>, at timestamp_ms

boolean int long float double string binary date timestamp decimal(p,s) struct array map<string, …>. In JSON, times are
texts in ISO 8601, or numbers since 1970: timestamp_s, timestamp_ms, timestamp_us; `json` keeps any value as its text.
`variant` is a whole body of JSON in binary, as Delta and Parquet have it (variant.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from mqlake.errors import ConfigError, UnknownKeyError

STRUCT, ARRAY, MAP = "struct", "array", "map"
TIMESTAMP = pa.timestamp("us", tz="UTC")
ELEMENT = "element"
"""The name of a list's items in Arrow, as Parquet, Iceberg and Delta call them."""
DECIMAL_DIGITS_MAX = 38

VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""A Variant in Arrow and Parquet. No other column has this type: all that others hold may be null."""

PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_s": TIMESTAMP,
    "timestamp_ms": TIMESTAMP,
    "timestamp_us": TIMESTAMP,
    "json": pa.string(),
    "variant": VARIANT,
}
ALIASES = {"bool": "boolean", "integer": "int", "bigint": "long", "real": "float", "varchar": "string"}


@dataclass(frozen=True)
class ColumnType:
    """`name` is one of PLAIN, `decimal(p,s)`, struct (`fields`), array (one field), or map (one field: its values)."""

    name: str
    fields: tuple[tuple[str, ColumnType], ...] = ()

    @property
    def element(self) -> ColumnType:
        """Type of an array's items, or of a map's values."""
        return self.fields[0][1]

    @property
    def arrow(self) -> pa.DataType:
        if self.name == STRUCT:
            return pa.struct([pa.field(name, kind.arrow) for name, kind in self.fields])
        if self.name == ARRAY:
            return pa.list_(pa.field(ELEMENT, self.element.arrow))
        if self.name == MAP:
            return pa.map_(pa.string(), self.element.arrow)
        if self.name.startswith("decimal"):
            return pa.decimal128(*_digits(self.name))
        return PLAIN[self.name]

    @property
    def ddl(self) -> str:
        """As `parse_ddl` takes it: of a struct its columns."""
        if self.name == STRUCT:
            return ", ".join(f"{_quoted(name)} {kind}" for name, kind in self.fields)
        return str(self)

    def __str__(self) -> str:
        if self.name == STRUCT:
            return f"struct<{', '.join(f'{_quoted(name)}: {kind}' for name, kind in self.fields)}>"
        if self.name == ARRAY:
            return f"array<{self.element}>"
        return f"map<string, {self.element}>" if self.name == MAP else self.name

    def uses(self, *names: str) -> bool:
        """True if one of these types is in it."""
        return self.name in names or any(kind.uses(*names) for _, kind in self.fields)


def struct_of(fields: Iterable[tuple[str, ColumnType]]) -> ColumnType:
    """ConfigError for names that are empty, or differ in case only: SQL takes them for one."""
    fields = tuple(fields)
    seen: dict[str, str] = {}
    for name, _ in fields:
        if not name:
            raise ConfigError("a field of the schema has an empty name")
        if name.lower() in seen:
            raise ConfigError(
                f"the schema has the fields {seen[name.lower()]!r} and {name!r}, one name to SQL: leave one out"
            )
        seen[name.lower()] = name
    return ColumnType(STRUCT, fields)


def array_of(element: ColumnType) -> ColumnType:
    return ColumnType(ARRAY, ((ELEMENT, element),))


def map_of(value: ColumnType) -> ColumnType:
    return ColumnType(MAP, (("value", value),))


def decimal_of(precision: int, scale: int) -> ColumnType:
    """ConfigError for more digits than a column can have."""
    if not (0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise ConfigError(
            f"decimal({precision},{scale}): 1 to {DECIMAL_DIGITS_MAX} digits, of them the scale"
        )
    return ColumnType(f"decimal({precision},{scale})")


# ---------------------------------------------------------------------- DDL

_NAME = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(decimal\s*\(\s*\d+\s*,\s*\d+\s*\))|([^\W\d]\w*)|([<>,:])|(\S))", re.I
)


def parse_ddl(text: str) -> ColumnType:
    """The struct of `name type, name type, …` (or of `struct<…>`). ConfigError, which says what was found where."""
    parser = _Parser(text)
    if parser.peek().lower() == STRUCT and parser.peek(1) == "<":
        found = parser.type()
    else:
        found = struct_of(parser.columns(""))
    parser.expect("")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._tokens: list[tuple[str, bool, int]] = []
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            assert match is not None  # the last branch takes any character
            quoted, *others = match.groups()
            token = quoted.replace("``", "`") if quoted else next(each for each in others if each)
            self._tokens.append((token, quoted is not None, match.start(match.lastindex or 0)))
            at = match.end()
        self._next = 0

    def peek(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def take(self) -> str:
        found = self.peek()
        self._next += 1
        return found

    def expect(self, wanted: str) -> None:
        at = self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)
        if self.take() != wanted:
            rest = self._text[at : at + 20] or "its end"
            raise ConfigError(f"the schema has {rest!r} at {at}, where {wanted or 'nothing'!r} was expected")

    def columns(self, end: str) -> list[tuple[str, ColumnType]]:
        found = []
        while True:
            name, quoted = self.peek(), self._next < len(self._tokens) and self._tokens[self._next][1]
            if not quoted and not _NAME.fullmatch(name):
                raise ConfigError(
                    f"the schema has {name!r} where a column was expected: name type, … (`name` for any characters)"
                    if name
                    else "the schema ends where a column was expected: name type, name type, …"
                )
            self._next += 1
            if self.peek() == ":":
                self.take()
            found.append((name, self.type()))
            if self.peek() != ",":
                break
            self.take()
        if self.peek() != end:
            raise ConfigError(f"the schema has {self.peek()!r} after the column {found[-1][0]!r}")
        return found

    def type(self) -> ColumnType:
        name = self.take().lower()
        if name == STRUCT:
            self.expect("<")
            found = struct_of(self.columns(">"))
            self.expect(">")
            return found
        if name in (ARRAY, MAP):
            self.expect("<")
            if name == MAP:
                key = self.type()
                if key.name != "string":
                    raise ConfigError(f"the keys of a map are strings, not {key}")
                self.expect(",")
            element = self.type()
            self.expect(">")
            return array_of(element) if name == ARRAY else map_of(element)
        if name.startswith("decimal") and name != "decimal":
            return decimal_of(*_digits(name))
        name = ALIASES.get(name, name)
        if name not in PLAIN:
            raise UnknownKeyError(name, (*PLAIN, STRUCT, ARRAY, MAP, "decimal(p,s)"), what="type")
        return ColumnType(name)


def _digits(name: str) -> tuple[int, int]:
    precision, scale = re.findall(r"\d+", name)
    return int(precision), int(scale)


def _quoted(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"
