"""Bodies of JSON as Variants: any JSON in a binary form, whose fields engines find without parsing text.

    b'{"id": 7, "tags": ["a"]}'  ─▶  metadata   01 02 00 02 06 i d t a g s            names of fields, each once
                                     value      02 02 00 01 00 02 … 0c 07 … 03 01 …   ids of names, offsets, values

    value    type in two bits: 0 null, boolean, number or long text; 1 text below 64 bytes; 2 object; 3 array
    object   fields in the order of their names, as readers look them up by bisection

Delta tables have the type; Iceberg has it from format version 3 on. Source: Apache Parquet, VariantEncoding.md,
version 1. A whole number takes the least bytes, and is exact up to 64 bits; other numbers are doubles.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.bodies import json_text
from mqlake.lake.bodies.decoder import Reasons, decode_each, decode_filled
from mqlake.lake.bodies.types import VARIANT, ColumnType

_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INTEGERS = ((1 << 7, Struct("<Bb"), 3 << 2), (1 << 15, Struct("<Bh"), 4 << 2), (1 << 31, Struct("<Bi"), 5 << 2),
             (1 << 63, Struct("<Bq"), 6 << 2))  # fmt: skip
_DOUBLE, _LONG_TEXT = Struct("<Bd"), Struct("<BI")
_DECIMAL_16 = bytes((10 << 2, 0))
"""Head of a decimal of 16 bytes, without digits after the point: for whole numbers from 2⁶³ to 2⁶⁴, which JSON's
readers keep exact."""
SHORT_TEXT, OBJECT, ARRAY = 1, 2, 3
_SHORT_MAX, _SMALL_MAX = 63, 255


class VariantDecoder:
    """Bodies that are JSON of any kind, each for itself."""

    type = ColumnType("variant")

    def decode(self, bodies: pa.BinaryArray) -> tuple[pa.Array, pa.StringArray]:
        values, reasons = decode_filled(bodies, VARIANT, self._chunk)
        return without_nested_nulls(values), reasons

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        values, reasons = decode_each(bodies, encoded, (ValueError,))
        return pa.array(values, VARIANT), reasons


def without_nested_nulls(variants: pa.StructArray) -> pa.StructArray:
    """With empty bytes in the fields of those that are null: a field that may not be null may not be so below a null
    either, as Arrow and Parquet's writer see it."""
    if not variants.null_count:
        return variants
    parts = [pc.fill_null(variants.field(number), b"") for number in range(VARIANT.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=pc.is_null(variants))


def encoded(body: bytes) -> dict[str, bytes]:
    """A JSON text as the fields of a Variant. ValueError for what is no JSON, and for too many levels."""
    names: dict[str, int] = {}
    value = _value(json_text.loads(body), names)
    return {"metadata": _metadata(names), "value": value}


def _metadata(names: dict[str, int]) -> bytes:
    """The names of fields by their ids, which are in the order of `names`."""
    texts = [name.encode() for name in names]
    size = _size_of(max(len(texts), sum(map(len, texts))))
    return b"".join(
        (bytes((1 | (size - 1) << 6,)), len(texts).to_bytes(size, "little"), _offsets(texts, size), *texts)
    )


def _value(value: Any, names: dict[str, int]) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if value is None or value is True or value is False:
        return _NULL if value is None else _TRUE if value else _FALSE
    if isinstance(value, int):
        for limit, layout, header in _INTEGERS:
            if -limit <= value < limit:
                return layout.pack(header, value)
        return _DECIMAL_16 + value.to_bytes(16, "little", signed=True)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is beyond a double")
        return _DOUBLE.pack(7 << 2, value)
    if isinstance(value, list):
        return _array([_value(each, names) for each in value])
    fields = sorted((name.encode(), names.setdefault(name, len(names)), each) for name, each in value.items())
    return _object([number for _, number, _ in fields], [_value(each, names) for _, _, each in fields])


def _text(value: str) -> bytes:
    text = value.encode()
    if len(text) <= _SHORT_MAX:
        return bytes((len(text) << 2 | SHORT_TEXT,)) + text
    return _LONG_TEXT.pack(16 << 2, len(text)) + text


def _array(values: list[bytes]) -> bytes:
    size, is_large = _size_of(sum(map(len, values))), len(values) > _SMALL_MAX
    header = bytes(((is_large << 2 | (size - 1)) << 2 | ARRAY,))
    return b"".join(
        (header, len(values).to_bytes(4 if is_large else 1, "little"), _offsets(values, size), *values)
    )


def _object(ids: list[int], values: list[bytes]) -> bytes:
    size, is_large = _size_of(sum(map(len, values))), len(values) > _SMALL_MAX
    width = _size_of(max(ids, default=0))
    header = bytes(((is_large << 4 | (width - 1) << 2 | (size - 1)) << 2 | OBJECT,))
    count = len(values).to_bytes(4 if is_large else 1, "little")
    numbers = b"".join(number.to_bytes(width, "little") for number in ids)
    return b"".join((header, count, numbers, _offsets(values, size), *values))


def _offsets(parts: list[bytes], size: int) -> bytes:
    """Encodes the beginning of each part, and the end of the last one."""
    found, at = [b"\0" * size], 0
    for part in parts:
        at += len(part)
        found.append(at.to_bytes(size, "little"))
    return b"".join(found)


def _size_of(number: int) -> int:
    """Bytes that hold a number, at least one."""
    return max(1, (number.bit_length() + 7) // 8)
