"""Bodies in Confluent's wire format to columns: a prefix names the schema, which lies in a local folder.

    00 │ 00 00 00 07 │ an Avro datum, JSON, or for Protobuf the path of the message and then the message
    magic   schema 7    schemas/7.avsc, 7.json (JSON Schema), 7.desc (a descriptor set)

Bodies are grouped by schema and decoded a group at a time; the column has the fields of all schemas. A body without
the prefix, or of a schema that is not in the folder, is kept undecoded. Of Protobuf the first message of the file is
decoded.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.formats.arrow import Bytes, Ints
from mqlake.formats.columns import gather
from mqlake.lake.arrow.arrays import bools_of, number_array
from mqlake.lake.bodies.decoder import Decoder, Reasons, decode_filled
from mqlake.lake.bodies.evolution import conform, merged
from mqlake.lake.bodies.protobuf import ProtobufDecoder
from mqlake.lake.bodies.types import ColumnType

PREFIX = 5
_FIRST_MESSAGE = (b"\x00", b"\x02\x00")
"""The path of a file's first message: short, and in full."""


class ConfluentDecoder:
    """`decoders` by the ids of their schemas."""

    def __init__(self, decoders: Mapping[int, Decoder], where: str = "the folder of schemas") -> None:
        """SchemaChangeError for schemas that cannot share a column."""
        kinds = [decoder.type for _, decoder in sorted(decoders.items())]
        self.type: ColumnType = kinds[0]
        for kind in kinds[1:]:
            self.type = merged(self.type, kind)
        self._decoders, self._where = dict(decoders), where

    def decode(self, bodies: pa.Array) -> tuple[pa.Array, pa.StringArray]:
        return decode_filled(bodies, self.type.arrow, self._chunk)

    def _chunk(self, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons | None]:
        ids = _schema_ids(bodies)
        kind = self.type.arrow
        parts: list[pa.Array] = []
        order: list[Ints] = []
        reasons: Reasons = [None] * len(bodies)
        for each in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == each)
            value, found = self._group(each, bodies.take(number_array(rows)))
            parts.append(pa.nulls(len(rows), kind) if value is None else conform(value, kind))
            order.append(rows)
            for row, reason in zip(rows.tolist(), found, strict=True):
                reasons[row] = reason
        places = np.empty(len(bodies), np.int64)
        places[np.concatenate(order)] = np.arange(len(bodies))
        value = pa.concat_arrays(parts).take(number_array(places))
        return value, reasons if any(reasons) else None

    def _group(self, schema_id: int, bodies: pa.BinaryArray) -> tuple[pa.Array | None, Reasons]:
        """Values and reasons of bodies that have one schema."""
        if schema_id < 0:
            return None, ["no schema's number before the body (Confluent's wire format)"] * len(bodies)
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            return None, [f"schema {schema_id} is not in {self._where}"] * len(bodies)
        if not isinstance(decoder, ProtobufDecoder):
            value, reason = decoder.decode(_after(bodies, PREFIX))
            absent = pc.and_(pc.is_null(value), pc.is_null(reason))
            return value, pc.if_else(absent, "nothing follows the schema's number", reason).to_pylist()
        return _first_messages(decoder, bodies)


def _laid_out(bodies: pa.BinaryArray) -> tuple[Bytes, Ints, Ints]:
    """The bytes of bodies that are all valid, and where each begins and how long it is."""
    _, offsets, data = bodies.buffers()
    ends = np.frombuffer(offsets, np.int32)[bodies.offset :][: len(bodies) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), ends[:-1], np.diff(ends)


def _after(bodies: pa.BinaryArray, skipped: Ints | int) -> pa.BinaryArray:
    """The bodies without their first bytes, of which each has so many (pyarrow's binary_slice fails at its end)."""
    data, starts, lengths = _laid_out(bodies)
    offsets, kept = gather(data, starts + skipped, lengths - skipped)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(kept)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bodies), buffers)


def _schema_ids(bodies: pa.BinaryArray) -> Ints:
    """-1 where there is no prefix."""
    data, starts, lengths = _laid_out(bodies)
    framed = lengths >= PREFIX
    ids = np.full(len(bodies), -1, np.int64)
    heads = data[starts[framed][:, None] + np.arange(PREFIX)].astype(np.int64)
    numbers = heads[:, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    ids[framed] = np.where(heads[:, 0] == 0, numbers, -1)
    return ids


def _first_messages(decoder: ProtobufDecoder, bodies: pa.BinaryArray) -> tuple[pa.Array, Reasons]:
    """Bodies with the path of another message are left undecoded."""
    short, full = _FIRST_MESSAGE
    after = _after(bodies, PREFIX)
    is_short = pc.starts_with(after, short)
    is_first = pc.or_(is_short, pc.starts_with(after, full))
    path = np.where(bools_of(is_short), len(short), np.where(bools_of(is_first), len(full), 0))
    value, reason = decoder.decode(pc.if_else(is_first, _after(after, path), pa.scalar(None, pa.binary())))
    other = f"another message than the first of its file, {decoder.message}"
    return value, pc.if_else(is_first, reason, pa.scalar(other)).to_pylist()
