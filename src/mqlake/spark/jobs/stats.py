"""stats: rates, sizes, how long messages took to the store, the most frequent keys, how even queues are.

    counts      records and bytes by topic, queue and time: added up in the tasks (mqlake.spark.count_by)
    quantiles   sizes and latencies by topic, of columns without bodies
    keys        words of KEYS, counted by Spark

All of it comes from the heads of log files that have them, without a row in a Python worker.

Latency is store time less born time: two clocks, so it may be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.spark.jobs.page import Page, bars, lines
from mqlake.spark.log.heads import messages as messages_without_bodies

QUANTILES = (0.5, 0.95, 0.99)
INTERVALS = (("1s", 1), ("10s", 10), ("1m", 60), ("10m", 600), ("1h", 3600), ("6h", 21600), ("1d", 86400))
POINTS_MAX = 500
"""Over how many intervals rates are shown at most: the interval follows from the time that the log spans."""
TOP_KEYS = 20
NARROW = ("topic", "size", "bornTimestamp", "storeTimestamp", "keys")


@dataclass(frozen=True)
class LogStats:
    """Figures of a log as DataFrames; none has been computed yet.

    topics     topic, records, bytes, bodyBytes, firstStoreTimestamp, lastStoreTimestamp
    queues     the same by topic and queueId
    rates      the same by topic and storeTimestamp, cut down to `interval`
    quantiles  topic, sizeP50, sizeP95, sizeP99, sizeMax (bytes), latencyP50, latencyP95, latencyP99, latencyMax (ms)
    keys       topic, key, records: the most frequent
    skew       topic, queues, mean, least, most (records a queue), skew (most / mean)
    """

    topics: DataFrame
    queues: DataFrame
    rates: DataFrame
    quantiles: DataFrame
    keys: DataFrame
    skew: DataFrame
    interval: str


def log_stats(
    spark: SparkSession, *paths: str, interval: str | None = None, top: int = TOP_KEYS, **options: Any
) -> LogStats:
    """The figures; `interval` such as `5m` (by default from the time that the log spans), `options` as `commitlog`.

    Raises what mqlake.spark.read_log() raises.
    """
    topics = mqlake.spark.count_by(spark, *paths, by="topic", **options).cache()
    if interval is None:
        interval = _interval(topics)
    queues = mqlake.spark.count_by(spark, *paths, by="topic,queueId", **options)
    narrow = messages_without_bodies(spark, *paths, columns=NARROW, **{"verify": "none", **options})
    return LogStats(
        topics,
        queues,
        mqlake.spark.count_by(spark, *paths, by=["topic", f"storeTimestamp/{interval}"], **options),
        quantiles(narrow),
        top_keys(narrow, top),
        skew(queues),
        interval,
    )


def quantiles(messages: DataFrame) -> DataFrame:
    """Returns quantiles of sizes and latencies, by topic."""
    latency = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")
    found = (
        messages.select("topic", "size", latency.alias("latency"))
        .groupBy("topic")
        .agg(
            *(
                each
                for name in ("size", "latency")
                for each in (
                    F.percentile_approx(name, list(QUANTILES), 1000).alias(name),
                    F.max(name).alias(f"{name}Max"),
                )
            )
        )
    )
    columns = [
        each
        for name in ("size", "latency")
        for each in (
            *(F.col(name)[n].alias(f"{name}P{int(100 * q)}") for n, q in enumerate(QUANTILES)),
            F.col(f"{name}Max"),
        )
    ]
    return found.select("topic", *columns)


def top_keys(messages: DataFrame, count: int = TOP_KEYS) -> DataFrame:
    """The most frequent words of KEYS, in their topics."""
    words = messages.select("topic", F.explode(F.split("keys", " ")).alias("key")).where("key <> ''")
    counted = words.groupBy("topic", "key").agg(F.count("*").alias("records"))
    return counted.orderBy(F.desc("records"), "topic", "key").limit(count)


def skew(queues: DataFrame) -> DataFrame:
    """How evenly a topic's queues are filled, of counts by topic and queueId."""
    found = queues.groupBy("topic").agg(
        F.count("*").alias("queues"),
        F.avg("records").alias("mean"),
        F.min("records").alias("least"),
        F.max("records").alias("most"),
    )
    return found.withColumn("skew", F.col("most") / F.col("mean"))


def _interval(topics: DataFrame) -> str:
    row = topics.agg(F.min("firstStoreTimestamp"), F.max("lastStoreTimestamp")).first()
    seconds = (row[1] - row[0]).total_seconds() if row is not None and row[0] is not None else 0.0
    return next((name for name, width in INTERVALS if seconds <= width * POINTS_MAX), INTERVALS[-1][0])


def collected(stats: LogStats) -> dict[str, list[dict[str, Any]]]:
    """All of it computed: the rows of each table as dictionaries, in order; times are in UTC."""
    frames = {
        "topics": stats.topics.orderBy("topic"),
        "queues": stats.queues.orderBy("topic", "queueId"),
        "rates": stats.rates.orderBy("topic", "storeTimestamp"),
        "quantiles": stats.quantiles.orderBy("topic"),
        "keys": stats.keys,
        "skew": stats.skew.orderBy("topic"),
    }
    found = {name: [_in_utc(row.asDict()) for row in frame.collect()] for name, frame in frames.items()}
    stats.topics.unpersist()
    return found


def _in_utc(row: dict[str, Any]) -> dict[str, Any]:
    """Spark gives times in this machine's zone, without saying so."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }


def stats_page(tables: dict[str, list[dict[str, Any]]], *, title: str, interval: str) -> str:
    """The figures as an HTML page with pictures."""
    page = Page(title)
    topics = tables["topics"]
    records = sum(row["records"] for row in topics)
    page.paragraph(
        f"{records:,} messages, {sum(row['bytes'] for row in topics):,} bytes, {len(topics)} topics"
    )
    if topics:
        page.picture(bars({row["topic"]: row["bytes"] / 2**20 for row in topics}, "MiB"), "bytes by topic")
        series: dict[str, list[tuple[datetime, float]]] = {}
        for row in tables["rates"]:
            series.setdefault(row["topic"], []).append((row["storeTimestamp"], row["records"]))
        page.heading("Messages over time")
        page.picture(lines(series, f"messages in {interval}"), "messages over time")
    for name, title_of in (
        ("topics", "Topics"),
        ("quantiles", "Sizes (bytes) and time from producer to store (ms)"),
        ("skew", "Queues: how even"),
        ("keys", "The most frequent keys"),
    ):
        rows = tables[name]
        if rows:
            page.heading(title_of)
            page.table(list(rows[0]), [list(row.values()) for row in rows])
    return page.text()
