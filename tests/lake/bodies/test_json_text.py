"""Which bodies are JSON, whoever reads them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.bodies import variant
from mqlake.lake.bodies.inference import infer
from mqlake.lake.bodies.json_bodies import JsonDecoder
from mqlake.lake.bodies.json_text import DEPTH_MAX, depth, loads
from mqlake.lake.bodies.types import parse_ddl

values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.text('[]{}"\\x', max_size=4)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_depth(value: Any) -> None:
    assert depth(json.dumps(value).encode()) == levels(value)


def nested(levels: int) -> bytes:
    """An object of so many levels."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_the_limit() -> None:
    assert levels(loads(nested(DEPTH_MAX))) == DEPTH_MAX
    with pytest.raises(ValueError, match="more than 200 levels"):
        loads(nested(DEPTH_MAX + 1))
    flat = b"[" + b"[]," * 5000 + b'"' + b"[" * 5000 + b'"]'
    assert len(loads(flat)) == 5001


@pytest.mark.parametrize("count", [DEPTH_MAX, DEPTH_MAX + 1, 255, 520, 999, 1023, 1025, 100_000])
def test_every_reader_has_the_same(count: int) -> None:
    """A body of 255 levels, or of 999, ended each run into a table: with a column of any JSON, or an inferred one."""
    body = nested(count)
    fits = count <= DEPTH_MAX
    for ddl in ("a json", "b long"):
        _, reasons = JsonDecoder(parse_ddl(ddl)).decode(pa.array([body, b"{}"], pa.binary()))
        reason, none = reasons.to_pylist()
        assert none is None and (reason is None if fits else "levels" in reason)
    _, reasons = variant.VariantDecoder().decode(pa.array([body], pa.binary()))
    assert (reasons.to_pylist() == [None]) is fits
    assert infer([body, b'{"b":1}']) == infer([b'{"b":1}'])  # arrays that hold nothing are no column
