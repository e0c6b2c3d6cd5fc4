"""Arrow arrays from numpy's and back without `pa.array`, `pa.scalar` and `to_numpy`.

Those look whether what they are given is pandas', for which they import it: 0.3 s in every new worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.formats.arrow import Bools, bitmap


def number_array(values: npt.NDArray[np.number], valid: Bools | None = None) -> pa.Array:
    """Arrow numbers over the array's own bytes, null where not `valid`."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [bitmap(valid), pa.py_buffer(values)]
    )


def bool_array(values: Bools) -> pa.Array:
    """Arrow booleans."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def string_array(texts: Sequence[str | None]) -> pa.Array:
    """A few Arrow strings."""
    encoded = [(text or "").encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    valid = bitmap(np.array([text is not None for text in texts], np.bool_))
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), valid
    )


def batch_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """A few rows of integers, texts and what else `pa.array` takes; what a row does not say is null."""
    return pa.RecordBatch.from_arrays(
        [_column([row.get(field.name) for row in rows], field.type) for field in schema], schema=schema
    )


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return string_array(values)
    if not pa.types.is_signed_integer(kind):
        return pa.array(values, kind)
    valid = np.array([value is not None for value in values], np.bool_)
    return number_array(np.array([value or 0 for value in values], kind.to_pandas_dtype()), valid)


def repeated(value: str | int, n: int, dtype: type[np.integer] = np.int32) -> pa.Array:
    """The same text, or the same number, n times."""
    return (
        pa.repeat(string_array([value])[0], n)
        if isinstance(value, str)
        else number_array(np.full(n, value, dtype))
    )


def bools_of(array: pa.BooleanArray) -> Bools:
    """The answers of a kernel of Arrow for each value; nulls are False."""
    array = pc.fill_null(array, False) if array.null_count else array
    bits = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(
        np.bool_
    )


def codes_of(encoded: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """Returns the number of each value in the dictionary of `dictionary_encode()`."""
    codes: npt.NDArray[np.int32] = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(encoded))
    return codes
