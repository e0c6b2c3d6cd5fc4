"""heads(): the records of a store without their bodies, most of them read by Spark's own Parquet reader.

    [0.parquet][1.parquet][2.parquet]│ commitlog from there on
      no Python worker               └ one seam: a physical offset

Which heads are valid is decided when heads() is called, the end of the log whenever Spark runs a query.
"""

from __future__ import annotations

import os
import re
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from mqlake.lake.heads.schema import COLUMNS
from mqlake.lake.heads.valid import Heads, StoreHeads, open_valid
from mqlake.lake.heads_dataset import part_options
from mqlake.lake.options import LogOptions, option_texts
from mqlake.spark.requirements import found_in_workers
from mqlake.spark.schema import spark_schema

CHECKED = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of Spark's Parquet reader."""


def heads(spark: SparkSession, path: str, *, out: str | None = None) -> DataFrame:
    """A row for each record of the store at `path` (every record, as with `unpack` off): the columns of
    mqlake.lake.heads.schema, no bodies. `out`: where `mqlake store heads --out` has written the heads.

    What has no valid heads is read from the log. Raises NotAStoreError, ForeignFormatError, OSError.
    """
    options = LogOptions.parse(option_texts([path], {}))
    [storage] = options.stores
    found = open_valid(storage, out)
    parts = [_parquet(spark, found.valid)] if found.valid else []
    parts += [_log(spark, found, start, end) for start, end, there in found.parts if not there]
    return reduce(DataFrame.unionByName, parts or [_log(spark, found, None, None)])


def _parquet(spark: SparkSession, valid: list[Heads]) -> DataFrame:
    paths = [_literal(heads.path) for heads in valid]
    return spark.read.schema(spark_schema(COLUMNS)).options(**CHECKED).parquet(*paths)


def _literal(path: str) -> str:
    """A path as Spark takes it, without patterns."""
    if "://" not in path:
        path = f"file://{os.path.abspath(path)}"
    return re.sub(r"([\\*?\[\]{},])", r"\\\1", path)


def _log(spark: SparkSession, found: StoreHeads, start: int | None, end: int | None) -> DataFrame:
    given = part_options(found, start, end)
    with found_in_workers(spark):
        return spark.read.format("commitlog").options(**given).load()
