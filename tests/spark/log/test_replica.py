"""Spark on a slave's log, in place, while it follows its master: the same rows as the master's, each once."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from tests.spark.streams import catch_up
from tests.store.ha.pair import node, wait_equal
from tests.store.small_store import message


def test_batch_and_stream_read_the_replica_in_place(spark: SparkSession, tmp_path: Path) -> None:
    with node(tmp_path / "master") as master, node(tmp_path / "replica", brokerRole="SLAVE") as replica:
        replica.follow(master.address)
        for number in range(150):
            master.store.put_message(message(number))
        wait_equal(master, replica)
        read = spark.read.format("commitlog")
        columns = ["physicalOffset", "topic", "queueId", "queueOffset", "keys"]

        def rows(root: Path) -> list[object]:
            return sorted(read.load(str(root)).select(*columns).collect())

        assert rows(tmp_path / "replica") == rows(tmp_path / "master")
        out = str(tmp_path / "out")

        def writer() -> DataStreamWriter:
            stream = spark.readStream.format("commitlog").load(str(tmp_path / "replica"))
            chosen = stream.select("physicalOffset").writeStream.format("parquet")
            return chosen.option("path", out).option("checkpointLocation", str(tmp_path / "checkpoint"))

        catch_up(writer)
        for number in range(150, 300):
            master.store.put_message(message(number))
        wait_equal(master, replica)
        catch_up(writer)
        found = [row[0] for row in spark.read.parquet(out).collect()]
        assert len(found) == len(set(found)) == 300
