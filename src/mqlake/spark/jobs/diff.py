"""diff: what two stores do not have in common, such as a master and its replica, or a store and its copy.

    1  each store: a fingerprint for every 4096 queue offsets (count, xor and sum of the messages' hashes)
    2  where two fingerprints differ: the messages of those stretches, side by side
    3  missing messages that follow each other ─▶ ranges

Messages are the same when topic, queue, queue offset, body, flags, born time and properties are: of the body its CRC is
compared, and a body that is not what its CRC says is damage. A replica, whose log is byte for byte its master's, has to
have them at the same physical offset and store time as well, with the same hosts and counts (`physical`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.lake.arrow.schema import CORRUPT_COLUMN
from mqlake.message import PROPERTY_INNER_NUM, MessageSysFlag

STRETCH = 4096
BOTH = ("topic", "queueId", "queueOffset")
_STRETCH = ("topic", "queueId", "stretch")
_CONTENT = ("bodyCrc", "flag", "sysFlag", "bornTimestamp", "properties")
_PLACE = ("physicalOffset", "size", "storeTimestamp")
_OF_A_REPLICA = (*_PLACE, "bornHost", "storeHost", "reconsumeTimes", "preparedTransactionOffset")
_NO_PLACE_IN_A_QUEUE = 0x4  # in the sysFlag of prepared and rolled back messages, which have no queue offset

ONLY_FIRST, ONLY_SECOND, DIFFERENT = "only in the first", "only in the second", "different"
DAMAGED_FIRST, DAMAGED_SECOND = "damaged in the first", "damaged in the second"


@dataclass(frozen=True)
class Difference:
    """Queue offsets from first_offset to last_offset (inclusive) of a queue; times are store times in ms.

    Damage has no topic, queue or time: its offsets are the physical one where it begins, `reason` names file and byte.
    """

    what: str
    topic: str | None
    queue_id: int | None
    first_offset: int
    last_offset: int
    messages: int
    first_store_timestamp: int | None
    last_store_timestamp: int | None
    reason: str | None = None


def hashed(messages: DataFrame, *, physical: bool = False) -> DataFrame:
    """topic, queueId, queueOffset, physicalOffset, storeTimestamp, `width` (in queue offsets: an inner batch has
    several) and `hash` of what has to be the same."""
    names = [*_CONTENT, *(_OF_A_REPLICA if physical else ())]
    parts: list[Column] = [
        F.array_sort(F.map_entries("properties")) if name == "properties" else F.col(name) for name in names
    ]
    inner = F.col("sysFlag").bitwiseAND(int(MessageSysFlag.INNER_BATCH_FLAG)) != 0
    count = F.col("properties")[PROPERTY_INNER_NUM].try_cast("int")
    width = F.when(inner, F.greatest(F.coalesce(count, F.lit(1)), F.lit(1))).otherwise(1)
    if not physical:
        # a row that stands for damage has no sysFlag: it stays, with null for its topic
        kind = F.coalesce(F.col("sysFlag").bitwiseAND(_NO_PLACE_IN_A_QUEUE), F.lit(0))
        messages = messages.where(kind == 0)
    return messages.select(
        *BOTH,
        "physicalOffset",
        "storeTimestamp",
        width.alias("width"),
        F.xxhash64(*BOTH, *parts).alias("hash"),
    )


def columns(*, physical: bool = False) -> str:
    """The columns that diff() needs, as the option `columns`."""
    names = (*BOTH, "physicalOffset", "storeTimestamp", *_CONTENT, *(_OF_A_REPLICA if physical else ()))
    return ",".join(dict.fromkeys(names))


def _unequal(one: DataFrame, two: DataFrame) -> DataFrame:
    """topic, queueId, stretch of those whose fingerprints differ."""
    stretches = _fingerprints(one, "first").join(_fingerprints(two, "second"), list(_STRETCH), "full")
    return stretches.where(
        ~F.col("first_records").eqNullSafe(F.col("second_records"))
        | ~F.col("first_xor").eqNullSafe(F.col("second_xor"))
        | ~F.col("first_sum").eqNullSafe(F.col("second_sum"))
    ).select(*_STRETCH)


def _in_stretches(one: DataFrame, two: DataFrame, unequal: DataFrame) -> DataFrame:
    """A row for each difference in these stretches: what, topic, queueId, queueOffset, width, storeTimestamp."""
    # a topic that was deleted and made again has been at the same queue offset twice
    in_turn = Window.partitionBy(*BOTH).orderBy("physicalOffset")
    a, b = (
        _with_stretch(each)
        .join(unequal, list(_STRETCH), "left_semi")
        .withColumn("nth", F.row_number().over(in_turn))
        .alias(name)
        for each, name in ((one, "a"), (two, "b"))
    )
    # eqNullSafe would make it no equi-join; these are never null
    same_place = [F.col(f"a.{name}") == F.col(f"b.{name}") for name in (*BOTH, "nth")]
    joined = a.join(b, same_place, "full")
    what = (
        F.when(F.col("b.hash").isNull(), ONLY_FIRST)
        .when(F.col("a.hash").isNull(), ONLY_SECOND)
        .when(F.col("a.hash") != F.col("b.hash"), DIFFERENT)
    )
    return joined.select(
        what.alias("what"),
        *(F.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in (*BOTH, "width", "storeTimestamp")),
    ).where(F.col("what").isNotNull())


def _with_stretch(messages: DataFrame) -> DataFrame:
    return messages.withColumn("stretch", F.floor(F.col("queueOffset") / STRETCH))


def _fingerprints(messages: DataFrame, name: str) -> DataFrame:
    return (
        _with_stretch(messages)
        .groupBy(*_STRETCH)
        .agg(
            F.count("*").alias(f"{name}_records"),
            F.bit_xor("hash").alias(f"{name}_xor"),
            F.sum(F.col("hash").cast("decimal(20,0)")).alias(f"{name}_sum"),
        )
    )


def ranges(differences: DataFrame) -> DataFrame:
    """Differences of one kind that follow each other in a queue as one row each: what, topic, queueId, first_offset,
    last_offset, messages, first_store_timestamp, last_store_timestamp (ms)."""
    in_queue = Window.partitionBy("what", "topic", "queueId").orderBy("queueOffset")
    end = F.col("queueOffset") + F.col("width")
    goes_on = F.coalesce(F.lag(end).over(in_queue) == F.col("queueOffset"), F.lit(False))
    numbered = differences.withColumn("begins", F.when(goes_on, 0).otherwise(1)).withColumn(
        "run", F.sum("begins").over(in_queue.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    return (
        numbered.groupBy("what", "topic", "queueId", "run")
        .agg(
            F.min("queueOffset").alias("first_offset"),
            F.max(end - 1).alias("last_offset"),
            F.sum("width").alias("messages"),
            F.min(F.unix_millis("storeTimestamp")).alias("first_store_timestamp"),
            F.max(F.unix_millis("storeTimestamp")).alias("last_store_timestamp"),
        )
        .drop("run")
    )


def diff(
    spark: SparkSession, first: str, second: str, *, physical: bool = False, **options: object
) -> list[Difference]:
    """Damage, then the differences between two stores, the first in time before the others; `options` as `commitlog`.

    Raises what mqlake.spark.read_log() raises.
    """
    given = {"unpack": False, "mode": "permissive", **options, "columns": columns(physical=physical)}
    logs = [mqlake.spark.read_log(spark, path, **given) for path in (first, second)]
    one, two = (hashed(log, physical=physical) for log in logs)
    unequal = _unequal(one, two).cache()
    try:
        kinds = {
            row.damage for row in unequal.select(F.col("topic").isNull().alias("damage")).distinct().collect()
        }
        different = collected(ranges(_in_stretches(one, two, unequal))) if False in kinds else []
    finally:
        unequal.unpersist()
    if True not in kinds:
        return different
    damage = [
        found
        for what, log in zip((DAMAGED_FIRST, DAMAGED_SECOND), logs, strict=True)
        for found in _damage(what, log)
    ]
    return [*damage, *different]


def _damage(what: str, log: DataFrame) -> list[Difference]:
    rows = log.where(F.col(CORRUPT_COLUMN).isNotNull()).orderBy("physicalOffset").collect()
    return [
        Difference(
            what, None, None, row.physicalOffset, row.physicalOffset, 0, None, None, row[CORRUPT_COLUMN]
        )
        for row in rows
    ]


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
    """`3 only in the first, 1 different`."""
    counts = {
        what: sum(each.messages for each in differences if each.what == what)
        for what in (ONLY_FIRST, ONLY_SECOND, DIFFERENT)
    }
    for what in (DAMAGED_FIRST, DAMAGED_SECOND):
        counts[what] = sum(each.what == what for each in differences)
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "no differences"
