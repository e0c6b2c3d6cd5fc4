"""JSON as Variants, read back by Spark's decoder of them, which shares nothing with what makes them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from mqlake.errors import ConfigError
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.bodies.types import VARIANT
from mqlake.lake.bodies.variant import VariantDecoder, encoded

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.text(min_size=60, max_size=70)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)


def read(value: dict[str, bytes]) -> Any:
    return VariantVal(value["value"], value["metadata"]).toPython()


def body_of(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


@given(VALUES)
def test_any_json(value: Any) -> None:
    found = read(encoded(body_of(value)))
    assert found == value and repr(found == 0) == repr(value == 0)


@pytest.mark.parametrize(
    "value",
    [
        {f"field-{n}": n for n in range(300)},
        list(range(300)),
        {"z" * 300: "x" * 70_000, "a": {"z" * 300: 1}},
        [[-128, 127], [-129, 128], [-32769, 32768], [-(2**31) - 1, 2**31]],
        {"é": "ü" * 40, "A": 1, "a": 2, "": None},
    ],
)
def test_sizes(value: Any) -> None:
    assert read(encoded(body_of(value))) == value


def test_fields_are_in_the_order_of_their_names() -> None:
    """Spark looks them up by bisection where there are 32 or more."""
    names = sorted((f"{n * 7919 % 101}é" for n in range(100)), key=str.encode)
    found = VariantVal(
        *(encoded(body_of(dict.fromkeys(reversed(names), 1)))[each] for each in ("value", "metadata"))
    )
    assert list(json.loads(found.toJson())) == names


def test_a_body_that_is_no_json_is_kept() -> None:
    bodies = [
        b'{"a": 1}',
        b"",
        None,
        b"{",
        b"1e400",
        b"NaN",
        b"\xff",
        b"null",
        b"[" * 2000,
        b"7",
        b'{"a": 1, "a": 2}',
    ]
    value, reason = VariantDecoder().decode(pa.array(bodies, pa.binary()))
    assert value.type == VARIANT
    assert [None if each is None else [read(each)] for each in value.to_pylist()] == [
        [{"a": 1}], None, None, None, None, None, None, [None], None, [7], [{"a": 2}],
    ]  # fmt: skip
    assert [number for number, why in enumerate(reason.to_pylist()) if why] == [3, 4, 5, 6, 8]


def test_as_a_format() -> None:
    format = BodyFormat.given(variant=True)
    assert format is not None and BodyFormat.from_spec(format.spec) == format
    assert format.following(format) == format and format.column.arrow == VARIANT
    with pytest.raises(ConfigError, match="is the whole body"):
        BodyFormat.given(json="id long, rest variant")
