"""What test_cluster.py runs in a process of its own: `python -m tests.spark.cluster_job STORE DIRECTORY`.

A Spark cluster of two executor processes reads a store as a table, and copies it as a stream; what it found goes to
stdout as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mqlake.spark
from mqlake.spark.session_helper import QUICK_JAVA

MASTER = "local-cluster[2,1,1024]"


def main(store: str, directory: Path) -> None:
    config = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JAVA}
    spark = mqlake.spark.session("cluster", master=MASTER, short=True, config=config)
    log = mqlake.spark.read_log(spark, store, columns="topic,queueId,queueOffset", splitSize="7000")
    rows = sorted(tuple(row) for row in log.collect())
    tasks = log.rdd.getNumPartitions()
    (
        spark.readStream.format("commitlog")
        .options(columns="topic,queueId,queueOffset", maxBytesPerTrigger="40k")
        .load(store)
        .writeStream.format("parquet")
        .options(path=str(directory / "copy"), checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    copied = sorted(tuple(row) for row in spark.read.parquet(str(directory / "copy")).collect())
    found = {
        "rows": rows,
        "tasks": tasks,
        "copied": copied,
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
