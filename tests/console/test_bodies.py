"""Bodies decoded by a schema that the operator names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from mqlake.console.bodies import Bodies
from mqlake.console.excerpts import Excerpt
from mqlake.console.payload import payload_views
from mqlake.errors import ConfigError

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}


def test_a_body_is_decoded_by_the_schema_of_its_topic(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    bodies = Bodies.given([f"Orders-*=avro:{file}"])
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(SCHEMA), {"id": 7, "note": "fräulich"})
    found = bodies.decode("Orders-eu", written.getvalue())
    assert found is not None and json.loads(found.text) == {"id": 7, "note": "fräulich"}
    views = payload_views(Excerpt(written.getvalue(), True), "Orders-eu", bodies)
    assert views["best"] == "decoded" and views["format"] == "avro" and "hex" in views
    assert bodies.decode("Payments", written.getvalue()) is None
    wrong = bodies.decode("Orders-eu", b"\xff" * 40)
    assert wrong is not None and wrong.reason and not wrong.text
    views = payload_views(Excerpt(b"\xff" * 40, True), "Orders-eu", bodies)
    assert views["best"] == "hex" and wrong.reason in views["note"]


@pytest.mark.parametrize(
    "text", ["Orders", "Orders=avro", "Orders=xml:f", "=avro:f", "Orders=avro:/no/such/file"]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Bodies.given([text])
