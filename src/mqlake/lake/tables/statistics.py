"""Statistics of the columns of a file, noted while it is written: how many nulls, the lowest and the highest value.

Parquet's own notes do not do for Delta: they do not tell a null list or map from an empty one, and of a row group with
a text beyond 4 KB they have no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.lake.bodies.types import VARIANT


class ColumnStatistics:
    """`nulls`: of each column how many values are null, of a struct a mapping of its fields. `bounds`: of the
    top-level integers, texts and timestamps that have a value the lowest and the highest, timestamps in µs. Floats
    have none: NaN has no place between two."""

    def __init__(self) -> None:
        self.nulls: dict[str, Any] = {}
        self.bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        _count_nulls(self.nulls, batch.schema.names, batch.columns)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not has_bounds(column.type) or column.null_count == len(column):
                continue
            values = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
            found = pc.min_max(values).as_py()
            low, high = self.bounds.get(name, (found["min"], found["max"]))
            self.bounds[name] = (min(low, found["min"]), max(high, found["max"]))


def has_bounds(kind: pa.DataType) -> bool:
    """Returns True for the types of columns whose bounds are noted."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind))


def _count_nulls(counts: dict[str, Any], names: Sequence[str], columns: Sequence[pa.Array]) -> None:
    """Adds the nulls of each column; a field of a struct is null where the struct is. A Variant is one value."""
    for name, column in zip(names, columns, strict=True):
        kind = column.type
        if pa.types.is_struct(kind) and kind != VARIANT:
            _count_nulls(counts.setdefault(name, {}), [each.name for each in kind], column.flatten())
        else:
            counts[name] = counts.get(name, 0) + column.null_count
