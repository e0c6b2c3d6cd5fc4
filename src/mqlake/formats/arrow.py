"""Arrow arrays made of slices of a buffer, and batches of messages made of Arrow arrays. Needs pyarrow.

buf, starts, lengths ─▶ gather_text, gather_binary ─▶ Arrow strings, Arrow binary
bodies, properties, flags ─▶ encode_items ─▶ Arrow binary, an item of `formats.batch` each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.formats.columns import gather

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_ITEM_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")])
_BINARY = pa.binary()


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    """Arrow's validity bits, one for each value; None when all values are valid."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def text_array(data: Bytes, offsets: npt.NDArray[np.int32], valid: Bools | None = None) -> pa.Array:
    """Arrow strings over UTF-8 `data`; what is not UTF-8 becomes U+FFFD, as everywhere in mqlake."""
    n = len(offsets) - 1
    array = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(data), bitmap(valid))
    if len(data) and data.max() >= 0x80:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            raw = array.view(_BINARY).to_pylist()  # damaged text only: rare, so one by one
            return pa.array([None if b is None else b.decode("utf-8", "replace") for b in raw], pa.string())
    return array


def gather_text(
    buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer], valid: Bools | None = None
) -> pa.Array:
    """Slices of `buf` as Arrow strings, null where not `valid`."""
    offsets, data = gather(buf, starts, lengths)
    return text_array(data, offsets.astype(np.int32, copy=False), valid)


def gather_binary(buf: Bytes, starts: Ints, lengths: npt.NDArray[np.integer]) -> pa.Array:
    """Slices of `buf` as Arrow binary."""
    offsets, data = gather(buf, starts, lengths)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(_BINARY, len(starts), buffers)


def encode_items(bodies: pa.Array, properties: pa.Array, flags: npt.NDArray[Any] | int = 0) -> pa.Array:
    """Messages as `formats.batch` encodes them, an Arrow binary value each.

    `properties`: encoded, at most PROPERTIES_LENGTH_MAX bytes each, which the caller checks.
    """
    lengths = pc.binary_length(properties).to_numpy()
    head = np.zeros(len(bodies), _ITEM_HEAD)
    head["body"] = pc.binary_length(bodies).to_numpy()
    head["size"] = _ITEM_HEAD.itemsize + head["body"] + 2 + lengths
    head["flag"] = flags
    return pc.binary_join_element_wise(
        _fixed(head), bodies, _fixed(lengths.astype(">u2")), properties, pa.scalar(b"")
    )


def _fixed(values: npt.NDArray[Any]) -> pa.Array:
    """The bytes of each element, as Arrow binary."""
    kind = pa.binary(values.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(values), [None, pa.py_buffer(values.tobytes())]
    ).cast(_BINARY)
