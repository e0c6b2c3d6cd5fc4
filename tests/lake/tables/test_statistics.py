"""What is noted of a file's columns while it is written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.tables.delta import TEXT_MAX, above, below
from mqlake.lake.tables.statistics import ColumnStatistics

NESTED = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])


def noted(*batches: dict[str, pa.Array]) -> ColumnStatistics:
    found = ColumnStatistics()
    for each in batches:
        found.add(pa.RecordBatch.from_pydict(each))
    return found


def test_every_column_has_its_nulls_and_each_that_can_be_its_bounds() -> None:
    """Parquet has no bounds of long texts and counts an empty list as a null one; a reader of a Delta table takes what
    is not told for rows that are not there."""
    first = {
        "keys": pa.array(["b" * 5000, None]),
        "at": pa.array([5, None], pa.timestamp("us", tz="UTC")),
        "tags": pa.array([None, None], pa.string()),
        "value": pa.array([{"id": 1, "tags": []}, None], NESTED),
        "list": pa.array([[], None], pa.list_(pa.int32())),
        "price": pa.array([1.0, float("nan")]),
        "body": pa.array([b"", None]),
        "any": pa.array([{"metadata": b"m", "value": b"v"}, None], VARIANT),
    }
    second = {name: each.slice(0, 1) for name, each in first.items()} | {"keys": pa.array(["a"])}
    found = noted(first, second)
    assert found.nulls == {
        "keys": 1,
        "at": 1,
        "tags": 3,
        "value": {"id": 1, "tags": 1},
        "list": 1,
        "price": 0,
        "body": 1,
        "any": 1,
    }
    assert found.bounds == {"keys": ("a", "b" * 5000), "at": (5, 5)}


@given(st.text(st.sampled_from("a\ud7ff\ue000\uffff🚀\U0010ffff"), max_size=TEXT_MAX + 3), st.data())
def test_bounds_that_are_cut_hold_the_value(text: str, data: Any) -> None:
    """A maximum that is cut and not rounded up lies below its value, and a file is skipped that has it."""
    text += data.draw(st.sampled_from(["", "x" * TEXT_MAX, "\U0010ffff" * TEXT_MAX]))
    assert below(text).encode() <= text.encode() <= above(text).encode()
    assert len(below(text)) <= TEXT_MAX
    assert len(above(text)) <= TEXT_MAX or above(text) == text
