# mypy: disable-error-code="misc"
"""The source `commitlog`: store directories as a table, read in place, also while a broker writes.

    driver    options, filters ─▶ paths ─▶ ranges to read ─▶ splits (where the log ends is decided here)
    task      splits ─▶ Arrow batches ─▶ JVM        lake.log.tasks

    read_log()    the same with its options checked at once

Spark does not pass the columns that a query needs to a Python source: name them with the option `columns`, or with a
schema (`.schema("topic string, queueId int")`). It does pass filters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.lake.log.tasks import LogTask, read_task
from mqlake.lake.log.topics import check_topics
from mqlake.lake.options import LogOptions
from mqlake.lake.plan import plan_read
from mqlake.spark.error_messages import short_errors
from mqlake.spark.filters import FilteredReader
from mqlake.spark.options import log_options, option_texts
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.requirements import found_in_workers, require_stream_readers
from mqlake.spark.schema import check_user_schema, spark_schema

logger = logging.getLogger(__name__)


@short_errors
class CommitLogDataSource(DataSource):
    """`spark.read.format("commitlog").option("path", DIR).load()`; options: LogOptions."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        options = log_options(self.options)
        for storage in options.stores:
            storage.check()
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(log_options(self.options), check_user_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.log.commitlog_stream import CommitLogStreamReader

        return CommitLogStreamReader(log_options(self.options), check_user_schema(schema))


@short_errors
class CommitLogReader(FilteredReader):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        options.check_batch()
        self._options = options
        self._columns = columns

    def partitions(self) -> list[TaskPartition[LogTask]]:
        found = plan_read(self._options, self._conditions)
        logger.info("%d of %d bytes are read", found.bytes_to_read, found.bytes_of_log)
        return as_partitions(found.tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_task(partition.task, self._options, self._conditions, self._columns)


def read_log(spark: SparkSession, *paths: str, **options: object) -> DataFrame:
    """See mqlake.spark.read_log()."""
    given = option_texts(paths, options)
    parsed = log_options(given)
    parsed.check_batch()
    for storage in parsed.stores:
        storage.check()
    check_topics(parsed)
    with found_in_workers(spark):
        return spark.read.format("commitlog").options(**given).load()
