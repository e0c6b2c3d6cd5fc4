"""A streaming job that is there to be killed: `python -m tests.spark.stream_job DIRECTORY`.

Says "progress" when a batch has come through, and goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mqlake.spark
from tests.spark.test_commitlog_stream import start


def main(root: Path) -> None:
    spark = mqlake.spark.session("stream job", master="local[2]", short=True)
    query = start(spark, root, maxBytesPerTrigger="40k").start()
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        time.sleep(0.05)
    print("progress", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
