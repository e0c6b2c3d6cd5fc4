"""Streams of messages for jobs, with options checked before Spark wraps what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from mqlake.errors import ConfigError
from mqlake.lake.live.cluster import Live
from mqlake.spark.error_messages import when_workers_start
from mqlake.spark.options import log_options, option_texts
from mqlake.spark.rocketmq.options import read_options


def store_stream(
    spark: SparkSession, path: str, topics: Sequence[str] = (), batch_size: str | None = None
) -> DataFrame:
    """A store directory from its beginning. Raises what log_options() raises, NotAStoreError and its like."""
    options: dict[str, object] = {}
    if topics:
        options["topics"] = list(topics)
    if batch_size is not None:
        options["maxBytesPerTrigger"] = batch_size
    given = option_texts([path], options)
    for storage in log_options(given).stores:
        storage.check()
    return when_workers_start(spark.readStream.format("commitlog").options(**given).load)


def broker_stream(spark: SparkSession, namesrv: str, topics: Sequence[str]) -> DataFrame:
    """Topics of a live cluster from their beginning. Raises what broker_options() raises."""
    given = {**broker_options(namesrv, topics), "startingOffsets": "earliest"}
    return when_workers_start(spark.readStream.format("rocketmq").options(**given).load)


def broker_options(namesrv: str, topics: Sequence[str]) -> dict[str, str]:
    """Options of the source `rocketmq`; the name server knows the topics.

    ConfigError without topics and for an invalid address, RemotingError and its like, TopicNotFoundError.
    """
    if not topics:
        raise ConfigError("of brokers at least one topic has to be named")
    given = {"namesrvAddr": namesrv, "subscribe": ",".join(topics)}
    options = read_options(given)
    with Live(options.cluster) as live:
        live.queues(options.topics)
    return given
