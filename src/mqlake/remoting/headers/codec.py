"""Encodes a code's own header as text fields, and decodes it.

A header is a dataclass whose attributes are the protocol's field names in Python's spelling (`queue_id` is
`queueId` on the wire), in the order of RocketMQ's class:

    topic: str                        mandatory: without it the request fails
    properties: str | None = None     may be missing, then the default holds; None is not sent
    order: bool = mandatory(False)    mandatory when read, with a default when written

Unknown fields are ignored, so headers of newer versions can be read. Types: str, int (32 bits), Long, bool, float. A
value of the wrong type is an error here, with the field's name; RocketMQ would ignore it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Self

from mqlake.base.fields import Fields
from mqlake.base.names import camel_case
from mqlake.errors import HeaderError

Long = Annotated[int, "long"]
"""An int of 64 bits; plain int has 32 on the wire."""

_MISSING: Any = object()


def mandatory(default: Any) -> Any:
    """A field that is mandatory when a header is read, and has a default when it is written."""
    return dataclasses.field(default=default, metadata={"mandatory": True})


class _Field(NamedTuple):
    attribute: str
    name: str
    convert: Callable[[str], Any] | None  # None: a text is taken as it is
    default: Any  # _MISSING: mandatory
    type_name: str


def _whole_number(bits: int) -> Callable[[str], int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(text: str) -> int:
        # int() reads " 1" and "1_0" besides, and is slow for longer texts
        if (text.isdecimal() or (text[:1] in ("+", "-") and text[1:].isdecimal())) and len(text) <= 20:
            number = int(text)
            if low <= number <= high:
                return number
        raise ValueError(text)

    return convert


def _truth(text: str) -> bool:
    return text.lower() == "true"


_CONVERTERS: dict[Any, tuple[Callable[[str], Any] | None, str]] = {
    str: (None, "a text"),
    int: (_whole_number(32), "a 32-bit number"),
    Long: (_whole_number(64), "a 64-bit number"),
    bool: (_truth, "true or false"),
    float: (float, "a number"),
}


_FIELDS: dict[type, tuple[_Field, ...]] = {}


def _fields_of(header_class: type[CommandHeader]) -> tuple[_Field, ...]:
    known = _FIELDS.get(header_class)
    if known is None:
        known = _FIELDS[header_class] = _declared(header_class)
    return known


_READERS: dict[type, Callable[[Any, Callable[[str], str | None]], None]] = {}


def _reader_of(header_class: type[CommandHeader]) -> Callable[[Any, Callable[[str], str | None]], None]:
    known = _READERS.get(header_class)
    if known is None:
        known = _READERS[header_class] = _made_reader(_fields_of(header_class))
    return known


def _made_reader(fields: tuple[_Field, ...]) -> Callable[[Any, Callable[[str], str | None]], None]:
    """Generates a function that sets the fields of a header one by one, as `dataclass` generates `__init__`: a loop
    takes three times as long, at every request. ValueError if a field is missing or wrong."""
    lines = ["def read(header, get):", "    pass"]  # a header may have no fields
    values: dict[str, Any] = {"missing": ValueError()}
    for number, (attribute, name, convert, default, _) in enumerate(fields):
        lines.append(f"    text = get({name!r})")
        lines.append("    if text is None:")
        if default is _MISSING:
            lines.append("        raise missing")
        else:
            values[f"default{number}"] = default
            lines.append(f"        header.{attribute} = default{number}")
        values[f"convert{number}"] = convert
        read = "text" if convert is None else f"convert{number}(text)"
        lines += ["    else:", f"        header.{attribute} = {read}"]
    exec("\n".join(lines), values)
    reader: Callable[[Any, Callable[[str], str | None]], None] = values["read"]
    return reader


def _declared(header_class: type[CommandHeader]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(header_class, include_extras=True)
    fields = []
    for field in dataclasses.fields(header_class):
        hint = hints[field.name]
        convert, type_name = _CONVERTERS[_without_none(hint)]
        default = field.default
        if default is dataclasses.MISSING or field.metadata.get("mandatory"):
            default = _MISSING
        name = field.metadata.get("name") or camel_case(field.name)
        fields.append(_Field(field.name, name, convert, default, type_name))
    return tuple(fields)


def _without_none(hint: Any) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    return options[0] if type(None) in typing.get_args(hint) else hint


class CommandHeader(metaclass=Fields):
    """The fields of one code's requests or answers."""

    def encode(self) -> dict[str, str]:
        """The fields as they are sent; None is left out."""
        encoded = {}
        for attribute, name, _, _, _ in _fields_of(type(self)):
            value = getattr(self, attribute)
            if value is None:
                continue
            if value is True or value is False:
                encoded[name] = "true" if value else "false"
            else:
                encoded[name] = value if type(value) is str else str(value)
        return encoded

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """The header in `ext_fields`. HeaderError if a mandatory field is missing or a type is wrong."""
        header = cls.__new__(cls)
        try:
            _reader_of(cls)(header, ext_fields.get)
        except ValueError:
            cls._decode_and_explain(header, ext_fields)
        return header

    @classmethod
    def _decode_and_explain(cls, header: Self, ext_fields: Mapping[str, str]) -> None:
        """Decodes field by field: HeaderError names the one that is missing or wrong."""
        get = ext_fields.get
        for attribute, name, convert, default, type_name in _fields_of(cls):
            text = get(name)
            value: Any
            if text is None:
                if default is _MISSING:
                    raise HeaderError(f"the custom field <{name}> is null")
                value = default
            elif convert is None:
                value = text
            else:
                try:
                    value = convert(text)
                except ValueError:
                    shown = text if len(text) <= 80 else text[:77] + "..."
                    raise HeaderError(f"the custom field <{name}> is {shown!r}, not {type_name}") from None
            setattr(header, attribute, value)
