"""The Spark part of `mqlake demo`: questions about flights, asked of the log they were written to.

The functions take and return DataFrames; `log` is what the source `commitlog` gives.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

BODY_SCHEMA = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string,
    air_time int, distance int, hour int, minute int, time_hour timestamp
"""


def queue_counts(log: DataFrame) -> DataFrame:
    """topic, queueId, messages."""
    return log.groupBy("topic", "queueId").agg(F.count("*").alias("messages"))


def row_numbers(log: DataFrame) -> DataFrame:
    """One row: rows, distinct, first, last of the property `row`: all there, each once?"""
    row = F.col("properties")["row"].cast("long")
    return log.select(row.alias("row")).agg(
        F.count("row").alias("rows"),
        F.count_distinct("row").alias("distinct"),
        F.min("row").alias("first"),
        F.max("row").alias("last"),
    )


def decode(log: DataFrame) -> DataFrame:
    """The flights, columns from the JSON body, with the place of each message and its born time."""
    body = F.from_json(F.col("body").cast("string"), BODY_SCHEMA)
    return log.select("topic", "queueId", "queueOffset", "bornTimestamp", body.alias("flight")).select(
        "topic", "queueId", "queueOffset", "bornTimestamp", "flight.*"
    )


def delays(flights: DataFrame) -> DataFrame:
    """carrier, month, flights, departed, dep_delay and arr_delay (minutes in all), born_in_month."""
    in_new_york = F.from_utc_timestamp("bornTimestamp", "America/New_York")
    return flights.groupBy("carrier", "month").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("dep_delay"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arr_delay"),
        F.count_if(F.month(in_new_york) == F.col("month")).alias("born_in_month"),
    )


def write_parquet(flights: DataFrame, path: str) -> None:
    """One directory per airline, zstd, the flights of one airline by one task."""
    flights.repartition("carrier").write.mode("overwrite").partitionBy("carrier").parquet(path)


def parquet_totals(spark: SparkSession, path: str) -> tuple[int, int]:
    """Flights and minutes of departure delay in what write_parquet() wrote."""
    row = spark.read.parquet(path).agg(F.count("*"), F.coalesce(F.sum("dep_delay"), F.lit(0))).first()
    assert row is not None
    return int(row[0]), int(row[1])


def with_key(log: DataFrame, topic: str, key: str) -> DataFrame:
    """physicalOffset of the topic's messages that have `key` among their keys."""
    has_key = F.array_contains(F.split("keys", " "), key)
    return log.where((F.col("topic") == topic) & has_key).select("physicalOffset")
