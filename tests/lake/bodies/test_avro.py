"""Avro bodies: what fastavro wrote, whole, cut, and changed."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.errors import ConfigError
from mqlake.lake.bodies.avro import AvroDecoder

SCHEMA: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["null", "Kind"]},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
            {"name": "n", "type": "int"}, {"name": "kind", "type": "shop.Kind"}]}}},
        {"name": "counts", "type": {"type": "map", "values": "float"}},
        {"name": "took", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}  # fmt: skip
ROW = {
    "id": 7, "name": "x", "at": datetime(2024, 2, 28, 10, 0, 0, 5000, tzinfo=UTC), "day": date(2024, 2, 29),
    "price": Decimal("12.34"), "kind": "B", "other": None, "hash": b"ab", "uuid": "u", "items": [{"n": 1, "kind": "A"}],
    "counts": {"k": 0.5}, "took": 12,
}  # fmt: skip


def plain(schema: Any) -> Any:
    """Without the logical types that are taken as what they are made of."""
    text = (
        json.dumps(schema)
        .replace(', "logicalType": "uuid"', "")
        .replace(', "logicalType": "time-millis"', "")
    )
    return json.loads(text)


def written(row: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(plain(SCHEMA)), row)
    return file.getvalue()


DECODER = AvroDecoder(json.dumps(SCHEMA))


def test_values_and_types() -> None:
    assert DECODER.type.ddl == (
        "id long, name string, at timestamp, day date, price decimal(6,2), kind string, other string, hash binary, "
        "uuid string, items array<struct<n: int, kind: string>>, counts map<string, float>, took int"
    )
    again = pickle.loads(pickle.dumps(DECODER))
    value, reason = again.decode(pa.array([written(ROW), b"", None], pa.binary()))
    assert value.type == DECODER.type.arrow and reason.null_count == 3
    assert value.to_pylist() == [{**ROW, "counts": [("k", 0.5)]}, None, None]


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.binary(max_size=3)), max_size=6
    )
)
@settings(max_examples=30)
def test_cut_and_longer_bodies_stay_what_they_are(given: list[tuple[int, int, bytes]]) -> None:
    whole = [written({**ROW, "id": number}) for number, _, _ in given]
    bodies = [
        body[:cut] if cut < 0 else body + more for body, (_, cut, more) in zip(whole, given, strict=True)
    ]
    value, reason = DECODER.decode(pa.array(bodies, pa.binary()))
    for body, good, (number, _, _), found, why in zip(
        bodies, whole, given, value.to_pylist(), reason.to_pylist(), strict=True
    ):
        assert (found and found["id"]) == (number if body == good else None)
        assert (why is None) == (body == good)


def test_values_that_no_column_holds() -> None:
    large = written(ROW).replace(b"\x04\x04\xd2", b"\x0a\x7f\xff\xff\xff\xff")  # the decimal, with 12 digits
    far = written({**ROW, "at": 2**62})
    value, reason = DECODER.decode(pa.array([written(ROW), large, far], pa.binary()))
    assert [each is not None for each in value.to_pylist()] == [True, False, False]
    assert "recision" in reason[1].as_py() and "no datum" in reason[2].as_py()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema"),
        ('"string"', "have to be records"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]},
            "a union of 2 types",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]},
            "'R' is within itself",
        ),
        ({"type": "record", "name": "R", "fields": []}, "has no fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "null"}]}, "cannot be a column"),
    ],
)
def test_schemas_that_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AvroDecoder(schema if isinstance(schema, str) else json.dumps(schema))
