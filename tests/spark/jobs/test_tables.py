"""Tables that Spark's tasks write and Spark reads, beside the plain decoder of the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import mqlake.spark
from mqlake.base.progress import no_progress
from mqlake.lake.tables.config import DEFAULT_COLUMNS
from mqlake.spark.jobs.tables import SizedEngine, SparkEngine
from tests.lake.tables.lakes import ORDERS, expected, in_order, open_topic, put, rows_in, save


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
