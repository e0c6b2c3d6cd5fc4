"""diff: what two stores do not have in common, such as a master and its replica, or a store and its copy.

    1  each store: a fingerprint for every 4096 queue offsets (count, xor and sum of the messages' hashes)
    2  where two fingerprints differ: the messages of those stretches, side by side
    3  missing messages that follow each other ─▶ ranges

Messages are the same when topic, queue, queue offset, body CRC, flags, born time and properties are; a replica, whose
log is byte for byte its master's, has to have them at the same physical offset and store time as well (`physical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark

STRETCH = 4096
BOTH = ("topic", "queueId", "queueOffset")
_CONTENT = ("bodyCrc", "flag", "sysFlag", "bornTimestamp", "properties")
_PLACE = ("physicalOffset", "size", "storeTimestamp")
_NO_PLACE_IN_A_QUEUE = 0x4  # in the sysFlag of prepared and rolled back messages, which have no queue offset

ONLY_FIRST, ONLY_SECOND, DIFFERENT = "only in the first", "only in the second", "different"


@dataclass(frozen=True)
class Difference:
    """Queue offsets from first_offset to last_offset (inclusive) of a queue; times are store times."""

    what: str
    topic: str
    queue_id: int
    first_offset: int
    last_offset: int
    messages: int
    first_store_timestamp: Any
    last_store_timestamp: Any


def hashed(messages: DataFrame, *, physical: bool = False) -> DataFrame:
    """topic, queueId, queueOffset, storeTimestamp and `hash` of what has to be the same."""
    names = [*_CONTENT, *(_PLACE if physical else ())]
    parts: list[Column] = [
        F.array_sort(F.map_entries("properties")) if name == "properties" else F.col(name) for name in names
    ]
    in_queues = messages.where(F.col("sysFlag").bitwiseAND(_NO_PLACE_IN_A_QUEUE) == 0)
    return in_queues.select(*BOTH, "storeTimestamp", F.xxhash64(*BOTH, *parts).alias("hash"))


def columns(*, physical: bool = False) -> str:
    """What diff() needs of messages, as the option `columns`."""
    return ",".join(dict.fromkeys([*BOTH, "storeTimestamp", *_CONTENT, *(_PLACE if physical else ())]))


def differing(first: DataFrame, second: DataFrame, *, physical: bool = False) -> DataFrame:
    """A row a difference: what, topic, queueId, queueOffset, storeTimestamp. The frames are messages."""
    one, two = hashed(first, physical=physical), hashed(second, physical=physical)
    return _in_stretches(one, two, _unequal(one, two))


def _unequal(one: DataFrame, two: DataFrame) -> DataFrame:
    """topic, queueId, stretch of those whose fingerprints differ."""
    stretches = _fingerprints(one, "first").join(
        _fingerprints(two, "second"), ["topic", "queueId", "stretch"], "full"
    )
    return stretches.where(
        ~F.col("first_records").eqNullSafe(F.col("second_records"))
        | ~F.col("first_xor").eqNullSafe(F.col("second_xor"))
        | ~F.col("first_sum").eqNullSafe(F.col("second_sum"))
    ).select("topic", "queueId", "stretch")


def _in_stretches(one: DataFrame, two: DataFrame, unequal: DataFrame) -> DataFrame:
    """The messages of these stretches side by side, of which those that differ."""
    left, right = (
        _with_stretch(each).join(unequal, ["topic", "queueId", "stretch"], "left_semi") for each in (one, two)
    )
    a, b = left.alias("a"), right.alias("b")
    # eqNullSafe would make it no equi-join; these three are never null
    same_place = [F.col(f"a.{name}") == F.col(f"b.{name}") for name in BOTH]
    joined = a.join(b, same_place, "full")
    what = (
        F.when(F.col("b.hash").isNull(), ONLY_FIRST)
        .when(F.col("a.hash").isNull(), ONLY_SECOND)
        .when(F.col("a.hash") != F.col("b.hash"), DIFFERENT)
    )
    return joined.select(
        what.alias("what"),
        *(F.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in (*BOTH, "storeTimestamp")),
    ).where(F.col("what").isNotNull())


def _with_stretch(messages: DataFrame) -> DataFrame:
    return messages.withColumn("stretch", F.floor(F.col("queueOffset") / STRETCH))


def _fingerprints(messages: DataFrame, name: str) -> DataFrame:
    return (
        _with_stretch(messages)
        .groupBy("topic", "queueId", "stretch")
        .agg(
            F.count("*").alias(f"{name}_records"),
            F.bit_xor("hash").alias(f"{name}_xor"),
            F.sum(F.col("hash").cast("decimal(20,0)")).alias(f"{name}_sum"),
        )
    )


def ranges(differences: DataFrame) -> DataFrame:
    """Differences of one kind that follow each other in a queue as one row each; columns as Difference."""
    in_queue = Window.partitionBy("what", "topic", "queueId").orderBy("queueOffset")
    numbered = differences.withColumn("run", F.col("queueOffset") - F.row_number().over(in_queue))
    return (
        numbered.groupBy("what", "topic", "queueId", "run")
        .agg(
            F.min("queueOffset").alias("first_offset"),
            F.max("queueOffset").alias("last_offset"),
            F.count("*").alias("messages"),
            F.min("storeTimestamp").alias("first_store_timestamp"),
            F.max("storeTimestamp").alias("last_store_timestamp"),
        )
        .drop("run")
    )


def diff(
    spark: SparkSession, first: str, second: str, *, physical: bool = False, **options: object
) -> list[Difference]:
    """The differences between two stores, the first in time before the others; `options` as `commitlog`.

    Raises what mqlake.spark.read_log() raises.
    """
    given = {"unpack": False, "verify": "none", **options, "columns": columns(physical=physical)}
    one, two = (
        hashed(mqlake.spark.read_log(spark, path, **given), physical=physical) for path in (first, second)
    )
    unequal = _unequal(one, two).cache()
    try:
        return [] if unequal.isEmpty() else collected(ranges(_in_stretches(one, two, unequal)))
    finally:
        unequal.unpersist()


def collected(found: DataFrame) -> list[Difference]:
    ordered = found.orderBy("first_store_timestamp", "topic", "queueId", "first_offset").collect()
    return [
        Difference(
            row.what,
            row.topic,
            row.queueId,
            row.first_offset,
            row.last_offset,
            row.messages,
            row.first_store_timestamp,
            row.last_store_timestamp,
        )
        for row in ordered
    ]


def describe(differences: Sequence[Difference]) -> str:
    counts = {
        what: sum(each.messages for each in differences if each.what == what)
        for what in (ONLY_FIRST, ONLY_SECOND, DIFFERENT)
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "no differences"
