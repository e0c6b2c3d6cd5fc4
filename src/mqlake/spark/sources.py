"""All data sources of mqlake, and their registration with a session."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from mqlake.spark.lake.sink import DeltaSink, IcebergSink
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
    IcebergSink,
    DeltaSink,
)


def register(spark: SparkSession) -> None:
    """Makes the sources known that Spark has not found by itself (automatic).

    MissingPartError when the Python that Spark runs them with cannot import mqlake.
    """
    require_in_workers(spark)
    for source in SOURCES:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
