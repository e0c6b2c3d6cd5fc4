"""Schemas inferred from bodies."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError
from mqlake.lake.bodies.body_format import BodyFormat, decode
from mqlake.lake.bodies.decoder import decode_bodies
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


def decoded(sample: list[bytes], bodies: list[bytes]) -> list[tuple[object, str | None]]:
    """Of each body its value, and why it has none."""
    format = BodyFormat.given(json="infer")
    assert format is not None
    value, undecoded, reason = decode_bodies(pa.array(bodies), format.with_sample(sample).decoder())
    kept = [None if why is None else body for body, why in zip(bodies, reason.to_pylist(), strict=True)]
    assert undecoded.to_pylist() == kept
    return list(zip(value.to_pylist(), reason.to_pylist(), strict=True))


CLASHES = {
    b'{"ID":4}': b'{"id":5}',
    b'{"a":{"Name":1,"x":0}}': b'{"a":{"name":5,"x":0}}',
    b'{"l":[[{"Tag":"t"}]]}': b'{"l":[[{"Tag":"t"},{"TAG":"u"}]]}',
    b'{"id":1}': b'{"id":1,"\\u0049d":2}',
    '{"ключ":1}'.encode(): '{"КЛЮЧ":2}'.encode(),
    b'{"name":1,"a":{"NAME":1}}': b'{"name":1,"a":{"name":2}}',
    b'{"id":1, "x":2}': b'{"id":1, "":2}',
    b'{"a":{"x":1}}': b'{"a":{"x":1,"":[0]}}',
    b'{"a:b":1,"id":0}': b'{"id":":","A:B":2}',
}


@pytest.mark.parametrize(("seen", "later"), CLASHES.items())
@pytest.mark.parametrize("many", [0, 50])
def test_a_value_under_a_name_that_no_column_can_have_is_kept(seen: bytes, later: bytes, many: int) -> None:
    """`{"ID":4}`, then `{"id":5}`: the 5 was in no column and not in `undecoded`."""
    for sample in ([seen], [seen, later]):
        *fine, (value, reason) = decoded(sample, [*[seen] * many, later])
        assert value is None and reason is not None
        assert all(why is None and each is not None for each, why in fine)
        assert "differs from the column" in reason or "empty name" in reason


def test_other_fields_are_left_out_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all bodies of a chunk are still parsed together: one by one takes twice as long."""
    monkeypatch.setattr(JsonDecoder, "_alone", None)
    bodies = [b'{"id":1,"none":null,"new":{"y":"ID\\"id"}}', b'{"id":2,"s":"\\"Id\\":"}'] * 20
    expected = [({"id": 1}, None), ({"id": 2}, None)] * 20
    assert decoded([b'{"id":1}'], bodies) == expected


def test_a_null_under_such_a_name_is_no_value() -> None:
    assert decoded([b'{"id":1}'], [b'{"ID":null,"id":2}']) == [({"id": 2}, None)]


def test_names_that_were_given_are_a_choice() -> None:
    """Who names the columns names what is left out, too."""
    found = decode(pa.table({"body": [b'{"ID":5}']}), {"json": "id long"})
    assert found["value"].to_pylist() == [{"id": None}] and found["undecoded"].to_pylist() == [None]
