"""Bodies to columns, whatever their format: what a decoder is, and batches of messages with columns instead of bodies.

    body binary ─▶ value                 what the body says; null where it could not be decoded, or is empty
                   undecoded             the body, where it could not be decoded; else null
                   undecoded_reason      why; else null

A row never goes, and a body that is not empty is always in one of the two. What a body becomes depends on that body
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.arrow.arrays import bool_array, bools_of, number_array, string_array
from mqlake.lake.bodies.evolution import conform
from mqlake.lake.bodies.leaves import Bad
from mqlake.lake.bodies.types import ColumnType

BODY, VALUE, UNDECODED, REASON = "body", "value", "undecoded", "undecoded_reason"
CHUNK_ROWS, CHUNK_BYTES = 2048, 8 << 20
"""Bodies that are decoded together: one that does not fit makes its chunk take the slow path."""

Reasons = list[str | None]


class Decoder(Protocol):
    """Decodes bodies of one format. It can be pickled."""

    @property
    def type(self) -> ColumnType:
        """Type of the column `value`."""

    def decode(self, bodies: pa.BinaryArray) -> tuple[pa.Array, pa.StringArray]:
        """For each body its value, of the Arrow type `type.arrow`, and why it could not be decoded, or null.

        A null and an empty body have neither, unless an empty body is a value of the format.
        """


def decoded_fields(kind: pa.DataType) -> list[pa.Field]:
    """The columns in place of the body; `kind`: of the value."""
    return [pa.field(VALUE, kind), pa.field(UNDECODED, pa.binary()), pa.field(REASON, pa.string())]


def decode_bodies(bodies: pa.Array, decoder: Decoder, kind: pa.DataType | None = None) -> list[pa.Array]:
    """An array for each of `decoded_fields`; `kind`: of a column that holds more than the decoder gives
    (evolution.merged)."""
    bodies = as_bodies(bodies)
    value, reason = decoder.decode(bodies)
    undecoded = pc.if_else(pc.is_valid(reason), bodies, pa.scalar(None, pa.binary()))
    return [conform(value, decoder.type.arrow if kind is None else kind), undecoded, reason]


# ---------------------------------------------------------------------- what the decoders share


def as_bodies(bodies: pa.Array) -> pa.BinaryArray:
    """Texts and large arrays are bodies, too."""
    return bodies if bodies.type == pa.binary() else pc.cast(bodies, pa.binary())


def chunks(bodies: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """At most CHUNK_ROWS bodies and about CHUNK_BYTES together."""
    if not len(bodies):
        return
    lengths = pc.fill_null(pc.binary_length(bodies), 0)
    filled = np.cumsum(np.asarray(lengths), dtype=np.int64) // CHUNK_BYTES
    cuts = np.union1d(np.arange(0, len(bodies), CHUNK_ROWS), np.flatnonzero(np.diff(filled)) + 1).tolist()
    for first, last in zip(cuts, [*cuts[1:], len(bodies)], strict=True):
        yield bodies.slice(first, last - first)


def decode_filled(
    bodies: pa.Array,
    kind: pa.DataType,
    decode: Callable[[pa.BinaryArray], tuple[pa.Array, Reasons | None]],
    *,
    length_min: int = 1,
) -> tuple[pa.Array, pa.StringArray]:
    """Hands the bodies that are neither null nor shorter to `decode`, a chunk at a time; reasons None: all decoded."""
    bodies = as_bodies(bodies)
    filled = pc.fill_null(pc.greater_equal(pc.binary_length(bodies), length_min), False)
    some = pc.sum(filled).as_py() or 0
    dense = bodies if some == len(bodies) else bodies.filter(filled)
    values: list[pa.Array] = []
    reasons: list[pa.Array] = []
    for chunk in chunks(dense):
        value, found = decode(chunk)
        values.append(value)
        reasons.append(pa.nulls(len(chunk), pa.string()) if found is None else string_array(found))
    value = pa.concat_arrays(values) if values else pa.nulls(0, kind)
    reason = pa.concat_arrays(reasons) if reasons else pa.nulls(0, pa.string())
    if some == len(bodies):
        return value, reason
    is_filled = bools_of(filled)
    places = number_array(np.cumsum(is_filled) - 1, is_filled)
    return value.take(places), reason.take(places)


def decode_each(
    bodies: pa.BinaryArray, decode: Callable[[bytes], object], errors: tuple[type[Exception], ...]
) -> tuple[list[object | None], Reasons | None]:
    """Body by body, for formats without a columnar way: values, and why those of `errors` were raised."""
    values: list[object | None] = []
    reasons: dict[int, str] = {}
    for row, body in enumerate(bodies.to_pylist()):
        try:
            values.append(decode(body))
        except errors as error:
            reasons[row] = str(error) or type(error).__name__
            values.append(None)
    return values, [reasons.get(row) for row in range(len(values))] if reasons else None


def array_of_values(
    values: list[object | None], reasons: Reasons | None, kind: pa.DataType
) -> tuple[pa.Array, Reasons | None]:
    """Python values as Arrow's; where one of them does not fit its column, value by value."""
    try:
        return pa.array(values, kind), reasons
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        reasons = [None] * len(values) if reasons is None else reasons
    found = []
    for row, value in enumerate(values):
        try:
            found.append(pa.array([value], kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            reasons[row] = str(error)
            found.append(pa.nulls(1, kind))
    return pa.concat_arrays(found), reasons


def with_reasons(
    value: pa.StructArray, bad: Bad, reasons: Reasons | None
) -> tuple[pa.StructArray, Reasons | None]:
    """Nulls, and reasons, for the rows of each mask, where they have none yet."""
    for mask, why in bad:
        reasons = [None] * len(value) if reasons is None else reasons
        for row in np.flatnonzero(mask).tolist():
            reasons[row] = reasons[row] or why
    if reasons is None:
        return value, None
    none = pa.nulls(len(value), value.type)
    return pc.if_else(
        bool_array(np.array([each is None for each in reasons], np.bool_)), value, none
    ), reasons


class TextDecoder:
    """Bodies that are text in UTF-8."""

    type = ColumnType("string")

    def decode(self, bodies: pa.BinaryArray) -> tuple[pa.Array, pa.StringArray]:
        return decode_filled(bodies, pa.string(), self._chunk)

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        try:
            return pc.cast(bodies, pa.string()), None
        except pa.ArrowInvalid:  # one of them is no UTF-8
            values, reasons = decode_each(bodies, lambda body: body.decode(), (UnicodeDecodeError,))
            return pa.array(values, pa.string()), reasons
