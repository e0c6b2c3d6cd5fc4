"""JsonBody: a dataclass that is a JSON body.

Attributes are the JSON's names in Python's spelling, None is left out, unknown names are ignored, missing ones
have their defaults. Maps may have numbers or objects (a dataclass with frozen=True) as keys:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}      what RocketMQ's clients write and read
    {"brokerAddrs":{0:"10.0.0.1:10911"}}
    {"brokerAddrs":{"0":"10.0.0.1:10911"}}                              the same in strict JSON

Both are read. RocketMQ's form is written, unless strict JSON is requested.

Clients in other languages rely on how fastjson 1.2.83, RocketMQ's parser, converts values of another type. The same
conversions are made here:

    enum      its name in any case, or its ordinal (C++: "consumeType":1); an unknown name is a missing field
    number    also as a text, with commas between digits; true is 1, a fraction is truncated
    true      also 1, "1", "true", "Y", "T"; any other number is false
    text      also a number or true; an object or list as its own JSON
    list      also one item without brackets
    any       "" for anything but text, and "null" for a number or true, is a missing field
    name      of a field also in another case, or with _ or - in it (group_name)
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Self

import orjson

from mqlake.base import json_config
from mqlake.base.fields import Fields
from mqlake.base.names import camel_case
from mqlake.base.numbers import java_long
from mqlake.errors import FormatError

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]


def json_name(name: str) -> Any:
    """A field whose JSON name is not its attribute's in camel case; for `dataclasses.field(metadata=...)`."""
    return {"name": name}


class JsonBody(metaclass=Fields):
    def to_value(self) -> dict[str, Any]:
        """Plain dicts and lists, as `json_config.dumps` takes them."""
        kind: Any = type(self)
        value: dict[str, Any] = _writer(kind)(self)
        return value

    def to_json(self, *, strict: bool = False) -> bytes:
        """The body's bytes. `strict`: every key in quotes, ASCII only."""
        value = self.to_value()
        # not for keys other than text, nor for a lone surrogate in a name
        with contextlib.suppress(orjson.JSONEncodeError):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return json_config.dumps(value, pretty=False, browser_compatible=strict).encode()

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The body of parsed JSON. FormatError names the field that does not fit."""
        kind: Any = cls
        try:
            body: Self | None = _reader(kind)(value)
            if body is None:
                raise _expected("an object", value)
        except _WrongTypeError as error:
            raise FormatError(0, f"{cls.__name__}{error.path}: {error.reason}") from None
        return body

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview) -> Self:
        """The body that `data` holds, in RocketMQ's JSON or strict. FormatError."""
        return cls.from_value(load_json(data))


def load_json(data: bytes | bytearray | memoryview) -> Any:
    """Parsed JSON: quickly when it is strict, else as fastjson reads it. FormatError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json_config.loads(bytes(data))


class _WrongTypeError(Exception):
    """`path` grows on the way out: `.queueDatas[2].perm`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path = ""


def _expected(what: str, value: Any) -> _WrongTypeError:
    text = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
    return _WrongTypeError(f"{what} is needed, not {text}")


# --- reading -----------------------------------------------------------------------------------------------


_NULLS = ("", "null", "NULL")
"""Texts that are read as a missing field where a number or boolean belongs."""
_TRUE = frozenset({"true", "1", "y", "t"})
_FALSE = frozenset({"false", "0", "f", "n"})
_DIGITS_MAX = 30
"""Maximum characters of a number in a text, commas included; 64 bits need no more."""


def _read_int(value: Any) -> int | None:
    number = value
    if type(value) is not int:
        if value in _NULLS:
            return None
        try:
            if isinstance(value, str) and len(value) <= _DIGITS_MAX:
                number = int(_TRAILING_ZEROS.sub("", value.replace(",", "")))
            elif isinstance(value, float | bool) and -(1 << 63) <= value < 1 << 63:
                number = int(value)
        except (ValueError, OverflowError):
            pass
    if type(number) is int:
        with contextlib.suppress(ValueError):
            return java_long(number)
    raise _expected("a whole number of 64 bits", value)


_TRAILING_ZEROS = re.compile(r"\.0*$")


def _read_float(value: Any) -> float | None:
    try:
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            return None if value in _NULLS else float(value.replace(",", ""))
    except (ValueError, OverflowError):
        pass
    raise _expected("a number", value)


def _read_bool(value: Any) -> bool | None:
    if value is True or value is False:
        return value
    if isinstance(value, int | float):
        return 1 <= value < 2
    if isinstance(value, str):
        if value in _NULLS:
            return None
        text = value.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    raise _expected("true or false", value)


def _read_str(value: Any) -> str:
    if type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict | list):
        return json_config.dumps(value, pretty=False)
    raise _expected("a text", value)


_SCALARS: dict[Any, Reader] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    Any: lambda value: value,
}


@functools.cache
def _reader(hint: Any) -> Reader:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        inner = _reader(_not_none(arguments))
        return lambda value: None if value is None else inner(value)
    if origin in (list, set, collections.abc.Sequence):
        return _list_reader(_reader(arguments[0]), origin)
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint)
    assert _is_dataclass(hint), hint
    return _object_reader(hint)


def _is_dataclass(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _not_none(arguments: tuple[Any, ...]) -> Any:
    (inner,) = (argument for argument in arguments if argument is not type(None))
    return inner


def _list_reader(item: Reader, kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if value == "":
            return None
        items = []
        for i, one in enumerate(value if isinstance(value, list) else (value,)):
            try:
                read_one = item(one)
                if read_one is not None:
                    items.append(read_one)
            except _WrongTypeError as error:
                error.path = f"[{i}]{error.path}"
                raise
        return set(items) if kind is set else items

    return read


def _dict_reader(key_reader: Reader, item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if value == "":
            return None
        if not isinstance(value, dict):
            raise _expected("an object", value)
        fields = {}
        for key, one in value.items():
            try:
                read_one = None if one is None else item(one)
                if read_one is not None:
                    read_key = key_reader(key)
                    if read_key is None:
                        raise _expected("a key", key)
                    fields[read_key] = read_one
            except _WrongTypeError as error:
                error.path = f"[{str(key)[:60]}]{error.path}"
                raise
        return fields

    return read


def _key_reader(hint: Any) -> Reader:
    inner = _reader(hint)
    if not _is_dataclass(hint):
        return inner

    def read(key: Any) -> Any:
        # an object as a key: pairs from the dialect, its own JSON as a text in strict JSON
        if isinstance(key, str):
            try:
                key = load_json(key.encode())
            except (FormatError, UnicodeEncodeError):
                raise _expected("an object", key) from None
        return inner(dict(key) if isinstance(key, tuple) else key)

    return read


def _enum_reader(kind: type[enum.Enum]) -> Reader:
    members = list(kind)
    names = {name.lower(): member for name, member in kind.__members__.items()}

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value.lower())
        if type(value) is int and 0 <= value < len(members):
            return members[value]
        raise _expected(f"one of {', '.join(kind.__members__)}, or 0 to {len(members) - 1},", value)

    return read


def _object_reader(kind: Any) -> Reader:
    # The fields' readers are made at the first use: a type may hold its own kind.
    readers: dict[str, tuple[str, Reader]] = {}
    similar: dict[str, str] = {}

    def read(value: Any) -> Any:
        if value == "":
            return None
        if not isinstance(value, dict):
            raise _expected("an object", value)
        if not readers:
            similar.update((_similar(name), name) for _, name, _ in _fields(kind))
            readers.update((name, (attribute, _reader(hint))) for attribute, name, hint in _fields(kind))
        fields = {}
        for key, one in value.items():
            if one is None:
                continue
            name = key
            known = readers.get(key)
            if known is None:
                name = similar.get(_similar(key)) if isinstance(key, str) else None
                if name is None or name in value:
                    continue
                known = readers[name]
            attribute, reader = known
            try:
                read_one = reader(one)
            except _WrongTypeError as error:
                error.path = f".{name}{error.path}"
                raise
            if read_one is not None:
                fields[attribute] = read_one
        return kind(**fields)

    return read


def _similar(name: str) -> str:
    """The same for names that differ in case, `_` and `-`."""
    return name.replace("_", "").replace("-", "").lower()


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    """(attribute, JSON name, type) of each field."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, field.metadata.get("name") or camel_case(field.name), hints[field.name])
        for field in dataclasses.fields(kind)
    )


# --- writing -----------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


@functools.cache
def _writer(hint: Any) -> Writer:
    if hint in _SCALARS:
        return _same
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        inner = _writer(_not_none(arguments))
        return inner if inner is _same else lambda value: None if value is None else inner(value)
    if origin in (list, set, collections.abc.Sequence):
        return _list_writer(_writer(arguments[0]), origin)
    if origin is dict:
        return _dict_writer(arguments[0], _writer(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda value: value.name
    return _object_writer(hint)


def _list_writer(item: Writer, kind: Any) -> Writer:
    if kind is set:  # sorted: the same set is the same bytes
        return lambda value: [item(one) for one in sorted(value)]
    if item is _same:
        return _same
    return lambda value: [item(one) for one in value]


def _dict_writer(key: Any, item: Writer) -> Writer:
    if _is_dataclass(key):
        key_writer = _writer(key)
        return lambda value: {tuple(sorted(key_writer(k).items())): item(v) for k, v in value.items()}
    return lambda value: {k: item(v) for k, v in value.items()}


def _object_writer(kind: Any) -> Writer:
    writers: list[tuple[str, str, Writer]] = []

    def write(value: Any) -> Any:
        if not writers:
            writers.extend((attribute, name, _writer(hint)) for attribute, name, hint in _fields(kind))
        fields = {}
        for attribute, name, writer in writers:
            one = getattr(value, attribute)
            if one is not None:
                fields[name] = writer(one)
        return fields

    return write
