"""Rows to messages: encoded as formats.batch has them, and a store of them that is whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from mqlake.errors import ConfigError, MessageError, PropertiesTooLargeError, StoreError, UnknownKeyError
from mqlake.formats.batch import decode_messages
from mqlake.message import bytes_to_properties, java_hash
from mqlake.spark.jobs.messages import Shape, encode_rows, shaped, write_store
from mqlake.store.check.verify import verify_store
from tests.spark.stores import decoded

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=40),
        "keys": st.none() | TEXT,
        "tags": st.none() | TEXT,
        "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        "properties": st.none()
        | st.lists(st.tuples(TEXT.filter(bool), st.none() | TEXT), max_size=4, unique_by=lambda p: p[0]),
    }
)
ARROW = {
    "body": pa.binary(),
    "keys": pa.string(),
    "tags": pa.string(),
    "flag": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
}


@given(st.lists(ROW, min_size=1, max_size=8))
def test_rows_are_encoded_as_messages(rows: list[dict[str, object]]) -> None:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in ARROW.items()}
    items = [decode_messages(item)[0] for item in encode_rows(columns).to_pylist()]
    for item, row in zip(items, rows, strict=True):
        expected = {name: value for name, value in (row["properties"] or []) if value}  # type: ignore[attr-defined]
        expected |= {
            name: row[column] for column, name in (("keys", "KEYS"), ("tags", "TAGS")) if row[column]
        }
        assert item.body == row["body"]
        assert item.flag == (row["flag"] or 0)
        assert bytes_to_properties(item.properties) == expected


@pytest.mark.parametrize(
    ("properties", "error", "text"),
    [
        ({"a\x01": "b"}, MessageError, "characters 1 and 2"),
        ({"a": "b" * 40000}, PropertiesTooLargeError, "32767"),
    ],
)
def test_properties_that_are_none(properties: dict[str, str], error: type[Exception], text: str) -> None:
    columns = {
        "body": pa.array([b""]),
        "properties": pa.array([list(properties.items())], ARROW["properties"]),
    }
    with pytest.raises(error, match=text):
        encode_rows(columns)


@pytest.mark.spark
def test_a_store_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "new"
    rows = spark.range(3000, numPartitions=3).select(
        "id", (F.col("id") % 7).alias("customer"), F.concat(F.lit("о"), "id").alias("name")
    )
    shape = Shape(
        topic_sql="concat('T', id % 2)",
        keys="name",
        tags="if(id % 3 = 0, 'third', null)",
        sharding_key="if(id % 2 = 0, customer, null)",
        properties={"half": "id div 2"},
    )
    written = write_store(shaped(rows, shape), str(root), queues=4)
    assert written.groupBy().sum("messages").collect()[0][0] == 3000
    report = verify_store(root)
    assert report.ok and not report.findings and report.records == 3000
    messages = sorted(decoded(root), key=lambda m: int(m.properties["KEYS"][1:]))
    for n, message in enumerate(messages):
        assert message.topic == f"T{n % 2}"
        assert message.body.decode() == f'{{"id":{n},"customer":{n % 7},"name":"о{n}"}}'
        assert message.properties.get("TAGS") == (None if n % 3 else "third")
        assert message.properties["half"] == str(n // 2)
        if n % 2 == 0:
            assert message.queue_id == abs(java_hash(str(n % 7))) % 4
    in_order = [m.queue_offset for m in messages if m.topic == "T0" and m.properties["__SHARDINGKEY"] == "3"]
    assert in_order == sorted(in_order)
    assert (root / "config" / "topics.json").exists()
    with pytest.raises(StoreError, match="is there already"):
        write_store(shaped(rows, shape), str(root))


@pytest.mark.spark
def test_nothing_is_left_of_a_run_that_fails(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = spark.range(3).selectExpr("if(id = 2, 'no topic', 'T') topic", "cast(id as string) body")
    with pytest.raises(PySparkException, match="MESSAGE_ILLEGAL: topic 'no topic' contains ' '"):
        write_store(rows, str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == [] and not caplog.text
    other = tmp_path / "new.writing-of-somebody"
    other.mkdir()
    write_store(rows.where("id < 2"), str(tmp_path / "new"))
    assert f"{other}: another run is at work, or was killed" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.writing-of-somebody"]


@pytest.mark.spark
def test_rows_that_are_no_messages(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3)
    with pytest.raises(ConfigError, match="a column 'topic'"):
        shaped(rows, Shape())
    with pytest.raises(ConfigError, match="nowhere"):
        shaped(rows, Shape(topic="T", body="nowhere"))
    with pytest.raises(ConfigError, match="the body is bigint"):
        shaped(rows, Shape(topic="T", body="id"))
    with pytest.raises(UnknownKeyError, match="did you mean 'tags'"):
        write_store(rows.selectExpr("'T' topic", "'b' body", "'c' tag"), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
