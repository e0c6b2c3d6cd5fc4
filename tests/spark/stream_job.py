"""Streams that are there to be killed: `python -m tests.spark.stream_job WHERE FIRST`.

WHERE is a `Where` as JSON, FIRST the copy that is started before the others.


A topic of a live broker is copied to Parquet three times, side by side, and on and on: by the source `rocketmq`, and
by the source `commitlog` and the job `export` from the directory that the broker writes to.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import mqlake.spark
from mqlake.spark.jobs.export import CHECKPOINT, export_stream
from mqlake.spark.jobs.streams import store_stream
from mqlake.spark.session_helper import QUICK_JAVA
from tests.spark import streams

COPIES = ("commitlog", "rocketmq", "export")


@dataclass(frozen=True)
class Where:
    """`scratch`: a directory with a short name for what JVMs leave behind when they are killed."""

    master: str
    store: str
    namesrv: str
    topic: str
    out: str
    scratch: str

    def batches(self, copy: str) -> int:
        """How many batches of a copy have come through, by its checkpoint."""
        root = Path(self.out) / copy / CHECKPOINT / "commits"
        return max((int(path.name) + 1 for path in root.glob("[0-9]*")), default=0)

    def copied(self, spark: SparkSession, copy: str) -> Counter[tuple[int, int]]:
        """Queues and offsets of the messages that are in a copy."""
        found = spark.read.parquet(str(Path(self.out) / copy)).where(F.col("topic") == self.topic)
        return Counter(
            (row.queueId, row.queueOffset) for row in found.select("queueId", "queueOffset").collect()
        )


def copying(spark: SparkSession, where: Where, copy: str, *, follow: bool) -> DataStreamWriter:
    """To Parquet, as the guide has it; in small batches to follow."""
    if copy == "commitlog":
        options = {"path": where.store, "topics": where.topic}
        limit = {"maxBytesPerTrigger": "100k"}
    else:
        options = {"namesrvAddr": where.namesrv, "subscribe": where.topic, "startingOffsets": "earliest"}
        limit = {"maxOffsetsPerTrigger": "400"}
    options |= limit if follow else {}
    messages: DataFrame = (
        spark.readStream.format(copy).options(columns="topic,queueId,queueOffset", **options).load()
    )
    out = Path(where.out) / copy
    return messages.writeStream.format("parquet").options(
        path=str(out), checkpointLocation=str(out / CHECKPOINT)
    )


def catch_up(spark: SparkSession, where: Where) -> None:
    """All copies get what there is now."""
    for copy in COPIES:
        streams.finish(lambda copy=copy: started(spark, where, copy, follow=False))


def started(spark: SparkSession, where: Where, copy: str, *, follow: bool) -> StreamingQuery:
    if copy == "export":
        stream = store_stream(spark, where.store, [where.topic], "100k" if follow else None)
        return export_stream(stream, str(Path(where.out) / copy), follow=follow)
    writer = copying(spark, where, copy, follow=follow)
    return (writer if follow else writer.trigger(availableNow=True)).start()


def main(where: Where, first: str) -> None:
    java = f"{QUICK_JAVA} -Djava.io.tmpdir={where.scratch}"
    config = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java}
    spark = mqlake.spark.session("streams", master=where.master, short=True, config=config)
    for copy in sorted(COPIES, key=lambda copy: copy != first):
        # not all at once: Spark gives a Python process ten seconds to start
        streams.follow(lambda copy=copy: started(spark, where, copy, follow=True))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(Where(**json.loads(sys.argv[1])), sys.argv[2])
