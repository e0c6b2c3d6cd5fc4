"""Export: every message once over many runs, and bodies as columns."""

from __future__ import annotations

import io
import json
from datetime import date
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs.avro import avro_type
from mqlake.spark.jobs.export import Decoding, decoded, export, infer_json_schema, json_schema, sampled
from mqlake.spark.jobs.streams import store_stream
from mqlake.store import open_store

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def put(root: Path, topic: str, bodies: list[bytes]) -> None:
    with open_store(root, {"mappedFileSizeCommitLog": 1 << 20}) as store:
        for n, body in enumerate(bodies):
            assert store.put_message(MessageExtBrokerInner(topic, body, keys=f"k{n}", queue_id=n % 2)).is_ok


@pytest.mark.spark
def test_again_and_again(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out"
    bodies = [json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(40)]
    put(root, "Orders", bodies)
    put(root, "Other", [b"[]", b"{no json"])
    schema = infer_json_schema(spark, sampled(spark, str(root), ["Orders"]))
    decoding = Decoding("json", schema)
    first = export(store_stream(spark, str(root), batch_size="5k"), str(out), decoding)
    assert (first.rows, first.batches > 1) == (42, True)
    assert export(store_stream(spark, str(root), batch_size="5k"), str(out), decoding).rows == 0
    put(root, "Orders", bodies[:3])
    assert export(store_stream(spark, str(root), batch_size="5k"), str(out), decoding).rows == 3
    found = spark.read.parquet(str(out))
    orders = [row.asDict(recursive=True) for row in found.where("topic = 'Orders'").collect()]
    assert sorted(row["value"]["id"] for row in orders) == sorted([*range(40), 0, 1, 2])
    assert all(
        row["value"]["name"] == f"n{row['value']['id']}" and row["undecoded"] is None for row in orders
    )
    others = found.where("topic = 'Other'").collect()
    assert {bytes(row.undecoded or b"-") for row in others} >= {b"{no json"}
    assert isinstance(others[0].date, date)
    files = list(out.glob("topic=Orders/date=*/*.parquet"))
    assert files and all(".zstd." in file.name for file in files)


@pytest.mark.spark
def test_avro(spark: SparkSession, tmp_path: Path) -> None:
    bodies = []
    for n in range(20):
        stream = io.BytesIO()
        value = {"id": n, "note": f"n{n}" if n % 2 else None, "lines": [{"a": n / 2}] * (n % 3), "at": n}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
        bodies.append(stream.getvalue())
    bodies += [bodies[3] + b"x", b""]
    put(tmp_path / "store", "Orders", bodies)
    log = mqlake.spark.read_log(spark, str(tmp_path / "store"), columns="topic,queueOffset,keys,body")
    rows = decoded(log, Decoding("avro", json.dumps(AVRO))).collect()
    whole = sorted((row.value for row in rows if row.value is not None), key=lambda value: value.id)
    assert [value.id for value in whole] == list(range(20))
    assert [value.note for value in whole[:2]] == [None, "n1"] and whole[4].lines == [{"a": 2.0}]
    assert {bytes(row.undecoded) for row in rows if row.value is None} == {bodies[20], b""}


def test_schemas_that_are_none() -> None:
    with pytest.raises(UnknownKeyError, match="did you mean 'avro'"):
        Decoding("avr", "x")
    with pytest.raises(ConfigError, match="need a schema"):
        Decoding("json")
    with pytest.raises(ConfigError, match="union of 2 types"):
        avro_type(["null", "int", "string"])
    with pytest.raises(ConfigError, match="within itself"):
        avro_type({"type": "record", "name": "A", "fields": [{"name": "next", "type": ["null", "A"]}]})


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_json_schemas_that_are_none() -> None:
    schema = json_schema("id long")
    assert schema.fieldNames() == ["id"]
    assert json_schema(schema.json()) == schema
    for text in ("id lang", "{}", ""):
        with pytest.raises(ConfigError, match="is no schema"):
            json_schema(text)
