"""Arrow arrays from numpy's and back without `pa.array`, `pa.scalar` and `to_numpy`.

Those look whether what they are given is pandas', for which they import it: 0.3 s in every new worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]


def number_array(values: npt.NDArray[np.number], valid: Bools | None = None) -> pa.Array:
    """Arrow numbers over the array's own bytes, null where not `valid`."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [bitmap(valid), pa.py_buffer(values)]
    )


def string_array(texts: Sequence[str | None]) -> pa.Array:
    """A few Arrow strings."""
    encoded = [(text or "").encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    valid = bitmap(np.array([text is not None for text in texts], np.bool_))
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), valid
    )


def codes_of(encoded: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """Of each value its number in the dictionary of `dictionary_encode()`."""
    codes: npt.NDArray[np.int32] = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(encoded))
    return codes


def bitmap(valid: Bools | None) -> pa.Buffer | None:
    """Arrow's bits for what is not null; None when all of it is valid."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
