"""The sinks mqlake-iceberg and mqlake-delta in real streams: each message once, whatever Spark repeats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import VariantVal

from mqlake.lake.tables.config import Lake
from mqlake.lake.tables.opening import load_table
from mqlake.lake.tables.sink import SinkState
from mqlake.lake.tables.table import Table
from tests.lake.tables.lakes import FORMATS, ORDERS, expected, put

pytestmark = pytest.mark.spark
COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "keys", "body", "storeTimestamp")


class Stream:
    """One stream from a store into a table, run to its end each time."""

    def __init__(self, spark: SparkSession, root: Path, format: str) -> None:
        self.spark, self.root, self.format = spark, root, format
        self.checkpoint = root / "checkpoint"

    def frame(self) -> DataFrame:
        log = self.spark.readStream.format("commitlog").option("topics", ORDERS)
        return log.option("maxBytesPerTrigger", "9000").load(str(self.root / "store")).select(*COLUMNS)

    def run(self, frame: DataFrame | None = None, **options: str) -> None:
        given = {
            "table": "shop.Orders",
            "warehouse": str(self.root / "lake"),
            "checkpointLocation": str(self.checkpoint),
            "partitionBy": "storeTimestamp",
            **options,
        }
        writer = (frame if frame is not None else self.frame()).writeStream.format(f"mqlake-{self.format}")
        query = writer.options(**given).trigger(availableNow=True).start()
        query.awaitTermination()

    @property
    def table(self) -> Table:
        found = load_table(Lake(str(self.root / "lake"), self.format), "shop.Orders")
        assert found is not None
        return found

    def rows(self) -> list[dict[str, Any]]:
        version = self.table.head().version
        found = pa.Table.from_batches(self.table.scan(version, COLUMNS, None), self.table.schema)
        return sorted(found.select(COLUMNS).to_pylist(), key=lambda row: row["physicalOffset"])

    def expected(self) -> list[dict[str, Any]]:
        return [{name: row[name] for name in COLUMNS} for row in expected(self.root / "store")]

    def refused(self, **options: str) -> str:
        before = self.table.head().version
        with pytest.raises(StreamingQueryException) as caught:
            self.run(**options)
        assert self.table.head().version == before
        return str(caught.value)


@pytest.fixture(params=FORMATS)
def stream(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Stream:
    put(tmp_path / "store", 120)
    return Stream(spark, tmp_path, request.param)


def test_each_message_once_whatever_is_repeated(stream: Stream) -> None:
    stream.run()
    put(stream.root / "store", 60, 120)
    stream.run()
    assert stream.rows() == stream.expected()
    state = stream.table.last(SinkState, stream.table.head().version)
    assert state is not None
    assert [app.batch >= 1 for app in state.apps.values()] == [True]

    for lost in sorted((stream.checkpoint / "commits").iterdir(), key=lambda path: path.stat().st_mtime)[-2:]:
        lost.unlink()  # the last batch, and its checksum: Spark runs it again
    before = stream.table.head().version
    stream.run()
    assert stream.rows() == stream.expected() and stream.table.head().version == before
    there = {path.removeprefix("file://") for path in stream.table.paths(before) or ()}
    on_disk = {
        str(path) for path in (stream.root / "lake").rglob("*.parquet") if "_delta_log" not in str(path)
    }
    assert there == on_disk, "the files of the batch that was there already were deleted"

    stream.checkpoint = stream.root / "new"
    put(stream.root / "store", 20, 180)
    assert "onReplay=skip" in stream.refused()
    stream.checkpoint = stream.root / "newer"
    stream.run(onReplay="skip")
    assert stream.rows() == stream.expected()


def test_a_table_that_was_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "store", 60)
    stream = Stream(spark, tmp_path, "delta")
    stream.run()
    first = next(each for each in reversed(stream.table.versions()) if "create" not in each.operation)
    put(tmp_path / "store", 20, 60)
    stream.run()
    stream.table.rewind(first.version)
    put(tmp_path / "store", 20, 80)
    assert "was taken back" in stream.refused()


def test_columns_that_come_later(spark: SparkSession, tmp_path: Path) -> None:
    """And rows that do not say where they come from, numbers that a table keeps wider, and a Variant."""
    put(tmp_path / "store", 60)
    stream = Stream(spark, tmp_path, "delta")
    bare = stream.frame().select(
        F.lit(1).cast("short").alias("small"),
        F.parse_json(F.lit('{"a": [1, "x"]}')).alias("any"),
        F.create_map(F.lit("k"), F.array(F.lit(2))).alias("nested"),
        "storeTimestamp",
    )
    stream.run(bare)
    put(tmp_path / "store", 20, 60)
    more = bare.withColumn("more", F.struct(F.lit(1.5).alias("x")))
    with pytest.raises(StreamingQueryException, match="mergeSchema=true"):
        stream.run(more)
    stream.run(more, mergeSchema="true")
    found = pa.Table.from_batches(stream.table.scan(stream.table.head().version, None, None)).to_pylist()
    assert Counter(row["more"] and row["more"]["x"] for row in found) == {None: 30, 1.5: 10}
    assert {(row["small"], str(row["nested"])) for row in found} == {(1, "[('k', [2])]")}
    value = VariantVal(found[0]["any"]["value"], found[0]["any"]["metadata"])
    assert value.toPython() == {"a": [1, "x"]}
    stream.checkpoint = stream.root / "new"
    with pytest.raises(StreamingQueryException, match="onReplay=append"):
        stream.run(bare)


def test_what_a_sink_does_not_do(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "store", 20)
    stream = Stream(spark, tmp_path, "iceberg")
    log = spark.read.format("commitlog").load(str(tmp_path / "store"))
    with pytest.raises(Exception, match="availableNow"):
        log.write.format("mqlake-iceberg").option("table", "a").mode("append").save()
    with pytest.raises(Exception, match="is a sink: read its tables"):
        spark.read.format("mqlake-delta").load()
    variant = stream.frame().select(F.parse_json(F.lit("1")).alias("any"))
    with pytest.raises(StreamingQueryException, match="'any' is a variant"):
        stream.run(variant)
