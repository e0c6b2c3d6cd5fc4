"""Streams of messages for jobs, with options checked before Spark wraps what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from mqlake.errors import ConfigError
from mqlake.spark import option_texts
from mqlake.spark.options import LogOptions


def store_stream(
    spark: SparkSession, path: str, topics: Sequence[str] = (), batch_size: str | None = None
) -> DataFrame:
    """A store directory from its beginning. Raises what LogOptions.parse() raises, NotAStoreError and its like."""
    options: dict[str, object] = {}
    if topics:
        options["topics"] = list(topics)
    if batch_size is not None:
        options["maxBytesPerTrigger"] = batch_size
    given = option_texts([path], options)
    for storage in LogOptions.parse(given).stores:
        storage.check()
    return spark.readStream.format("commitlog").options(**given).load()


def broker_stream(spark: SparkSession, namesrv: str, topics: Sequence[str]) -> DataFrame:
    """Topics of a live cluster from their beginning. ConfigError without topics."""
    if not topics:
        raise ConfigError("of brokers at least one topic has to be named")
    reader = spark.readStream.format("rocketmq").option("namesrvAddr", namesrv)
    return reader.option("subscribe", ",".join(topics)).option("startingOffsets", "earliest").load()


def broker_messages(spark: SparkSession, namesrv: str, topics: Sequence[str]) -> DataFrame:
    """What the topics of a live cluster have now."""
    if not topics:
        raise ConfigError("of brokers at least one topic has to be named")
    return (
        spark.read.format("rocketmq")
        .option("namesrvAddr", namesrv)
        .option("subscribe", ",".join(topics))
        .load()
    )
