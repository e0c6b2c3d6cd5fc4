"""Differences between a store and copies of it with something missing, changed or added."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.spark.jobs.diff import (
    DIFFERENT,
    ONLY_FIRST,
    ONLY_SECOND,
    collected,
    columns,
    describe,
    diff,
    differing,
    ranges,
)


@pytest.mark.spark
def test_differences(spark: SparkSession, every_kind: Path) -> None:
    given = {"columns": columns(physical=True), "unpack": False}
    log = mqlake.spark.read_log(spark, str(every_kind), **given).cache()
    of_queue = (F.col("topic") == "Topic-1") & (F.col("queueId") == 1)
    other = (
        log.where(~(of_queue & F.col("queueOffset").isin(2, 3, 6)))
        .withColumn("bodyCrc", F.when(of_queue & (F.col("queueOffset") == 5), 1).otherwise(F.col("bodyCrc")))
        .withColumn("physicalOffset", F.col("physicalOffset") + 1)
    )
    found = collected(ranges(differing(log, other)))
    assert {
        (each.what, each.topic, each.queue_id, each.first_offset, each.last_offset) for each in found
    } == {
        (ONLY_FIRST, "Topic-1", 1, 2, 3),
        (DIFFERENT, "Topic-1", 1, 5, 5),
        (ONLY_FIRST, "Topic-1", 1, 6, 6),
    }
    assert found[0].first_offset == 2
    assert describe(found) == f"3 {ONLY_FIRST}, 1 {DIFFERENT}"
    assert {each.what for each in collected(ranges(differing(other, log)))} == {ONLY_SECOND, DIFFERENT}
    moved = collected(ranges(differing(log, other, physical=True)))
    assert sum(each.messages for each in moved) == log.where("sysFlag & 4 = 0").count()
    log.unpersist()


@pytest.mark.spark
def test_a_store_has_no_difference_from_itself(spark: SparkSession, every_kind: Path) -> None:
    assert diff(spark, str(every_kind), str(every_kind), physical=True) == []
    assert describe([]) == "no differences"
