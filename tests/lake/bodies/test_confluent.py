"""Confluent's wire format: bodies of several schemas in one column."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.lake.bodies.avro import AvroDecoder
from mqlake.lake.bodies.confluent import ConfluentDecoder
from mqlake.lake.bodies.evolution import SchemaChangeError
from mqlake.lake.bodies.json_bodies import JsonDecoder
from mqlake.lake.bodies.protobuf import ProtobufDecoder
from mqlake.lake.bodies.types import parse_ddl
from tests.lake.bodies.protos import descriptor_set, message_class

AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
PROTOS = descriptor_set()
Item = message_class(PROTOS, "shop.Item")
DECODER = ConfluentDecoder(
    {
        7: AvroDecoder(json.dumps(AVRO)),
        8: JsonDecoder(parse_ddl("id long, note string")),
        70000: ProtobufDecoder(PROTOS, "shop.Item"),
    },
    "schemas/",
)


def framed(number: int, payload: bytes) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + payload


def avro(number: int) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, AVRO, {"id": number})
    return file.getvalue()


def row(**fields: object) -> dict[str, object]:
    return {"id": None, "note": None, "name": None, "n": None} | fields


def of(kind: int, number: int) -> tuple[bytes | None, dict[str, object] | None, str | None]:
    """A body, its value, and a part of the reason."""
    item = Item(name="x", n=number).SerializeToString()
    given: list[tuple[bytes | None, dict[str, object] | None, str | None]] = [
        (framed(7, avro(number)), row(id=number), None),
        (framed(8, b'{"id":%d,"note":"n"}' % number), row(id=number, note="n"), None),
        (framed(70000, b"\x00" + item), row(name="x", n=number), None),
        (framed(70000, b"\x02\x00" + item), row(name="x", n=number), None),
        (framed(70000, b"\x02\x02" + item), None, "another message than the first"),
        (framed(9, b"x"), None, "schema 9 is not in schemas/"),
        (framed(7, avro(number) + b"x"), None, "1 bytes follow"),
        (framed(7, b""), None, "nothing follows"),
        (b"\x00\x00\x00", None, "no schema's number"),
        (b"\x00", None, "no schema's number"),
        (b'{"id":1}', None, "no schema's number"),
        (b"", None, None),
        (None, None, None),
    ]
    return given[kind]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(-(2**31), 2**31 - 1)), max_size=12))
@settings(max_examples=40)
def test_groups_come_back_in_order(kinds: list[tuple[int, int]]) -> None:
    given = [of(*each) for each in kinds]
    value, reason = DECODER.decode(pa.array([body for body, _, _ in given], pa.binary()))
    assert value.to_pylist() == [wanted for _, wanted, _ in given]
    for (body, _, part), why in zip(given, reason.to_pylist(), strict=True):
        assert why is None if part is None else part in why, body


def test_the_column_has_the_fields_of_all() -> None:
    assert DECODER.type.ddl == "id long, note string, name string, n int"
    with pytest.raises(SchemaChangeError, match="'id' is long in the table and string"):
        ConfluentDecoder({1: JsonDecoder(parse_ddl("id long")), 2: JsonDecoder(parse_ddl("id string"))})
