"""Schemas inferred from bodies."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError
from mqlake.lake.bodies.inference import infer
from mqlake.lake.bodies.json_bodies import JsonDecoder

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=2),
        st.just("2024-02-28T10:00:00Z"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["x", "y", "X"]), inner, max_size=2)
    ),
    max_leaves=5,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3)


@given(st.lists(objects, max_size=5))
@settings(max_examples=40)
def test_the_bodies_looked_at_fit(sample: list[object]) -> None:
    bodies = [json.dumps(each).encode() for each in sample]
    try:
        kind = infer(bodies)
    except ConfigError:
        return
    _, reason = JsonDecoder(kind).decode(pa.array(bodies, pa.binary()))
    assert reason.null_count == len(bodies), (kind, reason)


def test_types() -> None:
    found = infer(
        [
            b'{"id":1,"price":2,"at":"2024-02-28T10:00:00Z","s":"2024-02-28","ok":true,"o":{"x":1},"l":[1],"n":null,"Id":"x"}',
            b'{"id":2,"price":2.5,"at":"2024-02-29","s":"later","mixed":1,"o":{"y":[]},"l":[2.5],"e":[],"deep":[{"x":1},{"y":"z"}]}',
            b'{"mixed":"text"}', b"not json", b"[1]", b"", None,
        ]
    )  # fmt: skip
    assert found.ddl == (
        "id long, price double, at timestamp, s string, ok boolean, o struct<x: long>, l array<double>, mixed json, "
        "deep array<struct<x: long, y: string>>"
    )


def test_nothing_to_infer_from() -> None:
    for bodies in ([], [b"x", b"[]", b"{}"], [b'{"a":null}']):
        with pytest.raises(ConfigError, match="no schema can be inferred"):
            infer(bodies)
