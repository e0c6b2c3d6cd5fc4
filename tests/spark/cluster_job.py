"""What test_cluster.py runs in a process of its own: `python -m tests.spark.cluster_job STORE DIRECTORY SCRATCH`.

A Spark cluster of two executor processes reads a store as a table, loses one of them, copies the store as a stream,
and does the jobs of `mqlake spark` whose tasks write, and those that compare. What it found goes to stdout as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import mqlake.spark
from mqlake.cli.main import cli
from tests import spark_classes
from tests.spark.kills import executors
from tests.spark.stores import SETTINGS, copy_store
from tests.spark.streams import catch_up

MASTER = "local-cluster[2,1,1024]"
SETS = [f"--set={name}={value}" for name, value in SETTINGS.items()]


def job(*arguments: object) -> Any:
    """What a job says with --json."""
    done = CliRunner().invoke(cli, ["spark", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def main(store: str, directory: Path, scratch: str) -> None:
    java = f"{os.environ[spark_classes.VARIABLE]} -Djava.io.tmpdir={scratch}"
    config = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": java}
    spark = mqlake.spark.session("cluster", master=MASTER, short=True, config=config)
    log = mqlake.spark.read_log(spark, store, columns="topic,queueId,queueOffset", splitSize="7000")
    rows = sorted(tuple(row) for row in log.collect())
    tasks = log.rdd.getNumPartitions()
    first, *_ = executors(os.getsid(0))
    os.kill(first, signal.SIGKILL)
    catch_up(
        lambda: (
            spark.readStream.format("commitlog")
            .options(columns="topic,queueId,queueOffset", maxBytesPerTrigger="40k")
            .load(store)
            .writeStream.format("parquet")
            .options(path=str(directory / "copy"), checkpointLocation=str(directory / "checkpoint"))
        )
    )
    copied = sorted(tuple(row) for row in spark.read.parquet(str(directory / "copy")).collect())
    rebuilt = copy_store(Path(store), directory / "rebuilt")
    found = {
        "rows": rows,
        "tasks": tasks,
        "copied": copied,
        "verify": job("verify", store, *SETS),
        "rebuild": job("rebuild", rebuilt, *SETS),
        "diff": job("diff", store, rebuilt, "--physical"),
        "compact": job("compact", store, directory / "compacted", *SETS),
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
