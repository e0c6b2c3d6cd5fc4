"""Spans of queue offsets beside sets of single ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.offsets import outside


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_what_is_left_without_gaps(borders: set[int], first: int, end: int) -> None:
    edges = sorted(borders)
    gaps = list(zip(edges[::2], edges[1::2], strict=False))
    left = outside(gaps, first, end)
    in_gaps = {offset for begin, after in gaps for offset in range(begin, after)}
    assert [offset for span in left for offset in range(*span)] == sorted({*range(first, end)} - in_gaps)
    assert all(begin < after for begin, after in left)
