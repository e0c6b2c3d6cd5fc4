"""Formats of bodies: given, kept as text, made again, changed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake.errors import ConfigError
from mqlake.lake.bodies.body_format import BodyColumns, BodyFormat, format_of
from mqlake.lake.bodies.types import parse_ddl
from tests.lake.bodies.protos import descriptor_set, message_class
from tests.lake.bodies.test_confluent import AVRO, avro, framed


def decoded(format: BodyFormat | None, *bodies: bytes) -> list[object]:
    """Values, through the spec and a pickle, as a task has them; the invariant holds by the way."""
    assert format is not None and BodyFormat.from_spec(format.spec) == format
    columns = pickle.loads(pickle.dumps(format.body_columns))
    assert isinstance(columns, BodyColumns) and columns.spec == format.spec
    batch = pa.RecordBatch.from_pydict({"n": range(len(bodies)), "body": pa.array(bodies, pa.binary())})
    arrays = columns.decode(batch)
    assert [array.type for array in arrays] == [field.type for field in columns.fields]
    value, undecoded, reason = (array.to_pylist() for array in arrays)
    for body, found, kept, why in zip(bodies, value, undecoded, reason, strict=True):
        assert (found is None) == (kept is not None or not body) and (why is None) == (kept is None)
        assert kept in (None, body)
    return list(value)


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ("json", r"""bodies = 'json': a dict is needed, such as {"json": "infer"}"""),
        (["json"], "a dict is needed"),
        ({"jso": "id long"}, "unknown format of bodies 'jso'; did you mean 'json'"),
        ({"json": 5}, "json is 5: a text is needed"),
        ({"text": "yes"}, "text is 'yes': True or False is needed"),
        ({"avro": b"x"}, "avro is b'x': a text is needed"),
    ],
)
def test_what_is_no_format_is_said(bodies: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        format_of(bodies)


def test_text() -> None:
    assert decoded(BodyFormat.given(text=True), b"a", b"\xff", "é".encode(), b"") == ["a", None, "é", None]


def test_json_by_ddl_and_by_schema(tmp_path: Path) -> None:
    assert decoded(BodyFormat.given(json="id long"), b'{"id":1}', b"x") == [{"id": 1}, None]
    (tmp_path / "s.json").write_text('{"type":"object","properties":{"id":{"type":"integer"}}}')
    assert decoded(BodyFormat.given(json_schema=tmp_path / "s.json"), b'{"id":1}') == [{"id": 1}]


def test_avro_protobuf_and_confluent(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "README").write_text("not a schema")
    (tmp_path / "8.desc").write_bytes(descriptor_set())
    (tmp_path / "9.json").write_text('{"type":"object","properties":{"id":{"type":"integer"}}}')
    assert decoded(BodyFormat.given(avro=tmp_path / "7.avsc"), avro(3), b"\xff") == [{"id": 3}, None]
    item = message_class(descriptor_set(), "shop.Item")(name="x").SerializeToString()
    proto = BodyFormat.given(protobuf=tmp_path / "8.desc", message="shop.Item")
    assert decoded(proto, item) == [{"name": "x", "n": None}]
    found = decoded(
        BodyFormat.given(confluent=tmp_path), framed(7, avro(3)), framed(9, b'{"id":4}'), framed(5, b"x")
    )
    assert [row and row["id"] for row in found] == [3, 4, None]  # type: ignore[index]


def test_inferred() -> None:
    given = BodyFormat.given(json="infer")
    assert given is not None and given.needs_sample
    with pytest.raises(ConfigError, match="needs a sample"):
        given.decoder()
    first = given.with_sample([b'{"id":1}', b"x"])
    assert decoded(first, b'{"id":1,"at":"2024-01-01"}') == [{"id": 1}]
    later = first.with_sample([b'{"id":"now a text","at":"2024-01-01"}', b'{"o":{"x":1}}'])
    assert later.column == parse_ddl("id long, at timestamp, o struct<x: long>")
    assert later.with_sample([b"x"]) == later
    fixed = BodyFormat.given(json="id long")
    assert fixed is not None and fixed.with_sample([b'{"more":1}']) == fixed


def test_a_new_schema_for_a_table() -> None:
    old, new = BodyFormat.given(json="id int, gone string"), BodyFormat.given(json="id long, more double")
    assert old is not None and new is not None
    both = new.following(old)
    assert both.column == parse_ddl("id long, gone string, more double")
    assert decoded(both, b'{"id":4294967296,"more":1}') == [{"id": 2**32, "gone": None, "more": 1.0}]
    assert both.following(both) == both and old.following(old) == old
    assert new.following(both).column == both.column


def test_what_is_refused(tmp_path: Path) -> None:
    assert BodyFormat.given() is None
    (tmp_path / "7.avsc").write_text("{")
    for given, said in (
        ({"json": "id long", "text": True}, "bodies have one format"),
        ({"json": "id long", "message": "M"}, "for Protobuf"),
        ({"json": "id decimal(3,1)"}, "JSON bodies have no decimal"),
        ({"avro": tmp_path / "gone.avsc"}, "gone.avsc: No such file"),
        ({"json_schema": tmp_path / "7.avsc"}, "7.avsc: no JSON Schema"),
        ({"confluent": tmp_path / "gone"}, "No such file"),
        ({"confluent": tmp_path}, "schema 7: no Avro schema"),
    ):
        with pytest.raises(ConfigError, match=said):
            BodyFormat.given(**given)  # type: ignore[arg-type]
    (tmp_path / "7.json").write_text('{"type":"object","properties":{"id":{"type":"integer"}}}')
    with pytest.raises(ConfigError, match="schema 7 is there twice"):
        BodyFormat.given(confluent=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no schemas: files such as"):
        BodyFormat.given(confluent=tmp_path / "empty")
    with pytest.raises(ConfigError, match="no format of bodies"):
        BodyFormat.from_spec("[]")
    with pytest.raises(ConfigError, match="no column 'body'"):
        BodyFormat("text").body_columns.decode(pa.RecordBatch.from_pydict({"n": [1]}))
