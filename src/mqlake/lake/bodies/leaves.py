"""The leaves of nested values converted by Arrow's kernels, and which rows have one that cannot be.

struct<at: string, l: array<string>>  ─▶  struct<at: timestamp, l: array<timestamp>>, and a mask a leaf over the rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.base.clock import YEAR_1_MS, YEAR_10000_MS
from mqlake.lake.arrow.arrays import bool_array, bools_of, number_array
from mqlake.lake.bodies.types import ARRAY, MAP, STRUCT, TIMESTAMP, ColumnType

Bools = npt.NDArray[np.bool_]
Conversion = Callable[[pa.Array, str], pa.Array]
"""Converts an array, given the name of its type; null for a value that is none of that type."""
Bad = list[tuple[Bools, str]]
"""Masks over rows, and what is wrong with those."""


def converted(
    array: pa.Array,
    kind: ColumnType,
    conversions: Mapping[str, Conversion],
    what: Mapping[str, str],
    path: str = "",
) -> tuple[pa.Array, Bad]:
    """The values as `kind`; `conversions`, and what their values should be (`what`), by the name of a leaf's type."""
    if kind.name == STRUCT:
        return _struct(array, kind, conversions, what, path)
    if kind.name in (ARRAY, MAP):
        return _elements(array, kind, conversions, what, path)
    convert = conversions.get(kind.name)
    if convert is None:
        return array, []
    value = convert(array, kind.name)
    if value.null_count == array.null_count:
        return value, []
    bad = bools_of(pc.and_(pc.is_null(value), pc.is_valid(array)))
    return value, [(bad, f"{path} is no {what.get(kind.name, kind.name)}")]


def _struct(
    array: pa.StructArray,
    kind: ColumnType,
    conversions: Mapping[str, Conversion],
    what: Mapping[str, str],
    path: str,
) -> tuple[pa.Array, Bad]:
    children, bad = [], []
    valid = None if not array.null_count else bools_of(pc.is_valid(array))
    for i, (name, each) in enumerate(kind.fields):
        child, found = converted(array.field(i), each, conversions, what, f"{path}.{name}" if path else name)
        children.append(child)
        bad += found if valid is None else [(mask & valid, why) for mask, why in found]
    mask = None if valid is None else bool_array(~valid)
    return pa.StructArray.from_arrays(children, fields=list(kind.arrow), mask=mask), bad


def _elements(
    array: pa.Array,
    kind: ColumnType,
    conversions: Mapping[str, Conversion],
    what: Mapping[str, str],
    path: str,
) -> tuple[pa.Array, Bad]:
    values = array.values if kind.name == ARRAY else array.items
    finished, found = converted(values, kind.element, conversions, what, f"{path}[]")
    offsets = np.asarray(array.offsets)
    mask = pc.is_null(array) if array.null_count else None
    if kind.name == ARRAY:
        whole = pa.ListArray.from_arrays(number_array(offsets), finished, type=kind.arrow, mask=mask)
    else:
        whole = pa.MapArray.from_arrays(
            number_array(offsets), array.keys, finished, type=kind.arrow, mask=mask
        )
    bad = []
    for each, why in found:
        counted = np.append(0, np.cumsum(each))
        bad.append((counted[offsets[1:]] > counted[offsets[:-1]], why))
    return whole, bad


def times_of(us: pa.Array) -> pa.Array:
    """Timestamps of µs since 1970, in the years 1 to 9999 that all readers of tables can hold; null beyond."""
    us = us if us.type == pa.int64() else us.view(pa.int64())
    within = pc.and_(pc.greater_equal(us, YEAR_1_MS * 1000), pc.less(us, YEAR_10000_MS * 1000))
    return pc.if_else(within, us, pa.scalar(None, pa.int64())).view(TIMESTAMP)
