"""Tables that Spark's tasks write and Spark reads, beside the plain decoder of the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.base.progress import no_progress
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.tables.config import DEFAULT_COLUMNS, LakeFile
from mqlake.lake.tables.topic import TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs.tables import SizedEngine, SparkEngine
from mqlake.store import open_store
from tests.lake.tables.lakes import (
    FORMATS,
    ORDERS,
    expected,
    in_order,
    lake_of,
    open_topic,
    put,
    rows_in,
    save,
    topic_of,
)
from tests.spark.stores import SETTINGS


@pytest.mark.spark
def test_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 200)
    orders = open_topic(tmp_path, store, "iceberg")
    save(tmp_path, store, "iceberg", ORDERS)
    report = orders.append_new(engine=SizedEngine(lambda: spark, 0))
    assert (report.rows, report.commits) == (100, 1) and report.files >= 1
    assert rows_in(orders.table) == expected(store)
    put(store, 60, 200)
    found = mqlake.spark.read_topic(spark, str(tmp_path), ORDERS).toArrow()
    assert in_order(found.select(DEFAULT_COLUMNS).to_pylist(maps_as_pydicts="strict")) == expected(store)
    counts = (
        mqlake.spark.read_topic(spark, str(tmp_path), ORDERS, columns=["queueId"]).groupBy("queueId").count()
    )
    assert sum(row["count"] for row in counts.collect()) == 130
    moment = expected(store)[110]["storeTimestamp"]
    earlier = [row for row in expected(store) if row["storeTimestamp"] < moment]
    assert mqlake.spark.read_topic(spark, str(tmp_path), ORDERS, as_of=moment).count() == len(earlier)
    assert SparkEngine(spark).write([], {}, no_progress) == {}


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS)
def test_columns_that_came_later(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Files of before have narrower numbers and lack columns: Spark reads both, and what the log has after them."""
    store = tmp_path / "store"
    for number, schema in enumerate(
        ("id int, item struct<a: int>", "id long, item struct<a: long, b: string>", "")
    ):
        with open_store(store, SETTINGS) as opened:
            body = b'{"id":%d,"item":{"a":%d,"b":"x"}}' % (number, number)
            assert opened.put_message(MessageExtBrokerInner(ORDERS, body)).is_ok
        if schema:
            given = BodyFormat.given(json=schema)
            assert given is not None
            topic = topic_of(store, bodies=given.spec)
            TopicTable.open(lake_of(tmp_path, format), topic).append_new()
    LakeFile(lake_of(tmp_path, format), {ORDERS: topic}).save(str(tmp_path / "lake.toml"))
    found = mqlake.spark.read_topic(spark, str(tmp_path), ORDERS, columns=["value"]).toArrow()
    rows = sorted((row["value"] for row in found.to_pylist()), key=lambda value: value["id"])
    assert rows == [{"id": n, "item": {"a": n, "b": None if n == 0 else "x"}} for n in range(3)]
