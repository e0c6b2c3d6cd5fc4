"""Export of a log to Parquet beside Spark writing the same Parquet from Parquet.

Both sides write all columns, zstd, a directory a topic and day, to a new place each round; the rows written are
counted from the files' footers.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import mqlake.spark
from bench.alternate import compared
from bench.context import Context
from bench.measure import Line
from bench.spark import session
from bench.workload import make_log
from mqlake.spark.jobs.export import by_topic_and_date


def spark_export(context: Context) -> Iterator[Line]:
    """The log of 1 KB messages; at least two thirds of the rate is within 1.5 times of the time."""
    settings = {"mappedFileSizeCommitLog": context.scale.recovered_file}
    root = context.kept("log", lambda path: make_log(path, context.scale.recovered, settings))
    with session() as spark, context.scratch("export") as directory:
        path = str(directory / "rows")
        with context.progress.step("the same rows as Parquet"):
            mqlake.spark.read_log(spark, str(root)).write.option("compression", "zstd").parquet(path)
        rows = spark.read.parquet(path).count()
        numbers = itertools.count()

        def written(messages: Callable[[], DataFrame]) -> int:
            out = directory / f"out-{next(numbers)}"
            writer = by_topic_and_date(messages()).write.partitionBy("topic", "date")
            writer.option("compression", "zstd").parquet(str(out))
            found = sum(pq.read_metadata(file).num_rows for file in out.rglob("*.parquet"))
            shutil.rmtree(out)
            return found

        yield compared(
            context,
            "Spark: export to Parquet, 1 KB",
            lambda: written(lambda: mqlake.spark.read_log(spark, str(root))),
            lambda: written(lambda: spark.read.parquet(path)),
            peer_name="Parquet",
            amount=rows,
            unit="rows/s",
            ratio_min=1 / 1.5,
        )
