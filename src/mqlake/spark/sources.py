"""All data sources of mqlake, and their registration with a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from mqlake.spark.log.commitlog import CommitLogDataSource
from mqlake.spark.log.counts import CommitLogCountsDataSource
from mqlake.spark.log.queue_and_index import ConsumeQueueDataSource, MqIndexDataSource
from mqlake.spark.metaq.source import MetaqDataSource
from mqlake.spark.requirements import require_in_workers
from mqlake.spark.rocketmq.source import RocketMQDataSource

SOURCES = (
    CommitLogDataSource,
    CommitLogCountsDataSource,
    ConsumeQueueDataSource,
    MqIndexDataSource,
    MetaqDataSource,
    RocketMQDataSource,
)


def register(spark: SparkSession) -> None:
    """Makes the sources known to a session, and lets Spark pass its filters to them.

    MissingPartError when the Python that Spark runs them with cannot import mqlake.
    """
    require_in_workers(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    for source in SOURCES:
        spark.dataSource.register(source)
