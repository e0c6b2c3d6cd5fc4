# mypy: disable-error-code="misc"
"""The source `rocketmq`: topics of live brokers, Java or mqlake, as a table or a stream; and the sink.

    driver    topics ─▶ queues ─▶ their offsets now ─▶ ranges [start, end) of queue offsets
    task      range ─▶ pulls ─▶ raw records ─▶ scan ─▶ unpack ─▶ Arrow batches ─▶ JVM

A message has its place in a queue for ever, so a range read again gives the same rows. Option names and behaviour
are those of Spark's Kafka source; an offset is, for each topic, a queue offset by `broker:queue`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError
from mqlake.lake.live.cluster import Live
from mqlake.lake.live.options import ReadOptions
from mqlake.lake.live.ranges import QueueRange, read_range
from mqlake.lake.live.rows import needed
from mqlake.spark.error_messages import short_errors
from mqlake.spark.filters import FilteredReader
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.requirements import require_stream_readers
from mqlake.spark.rocketmq.options import WriteOptions, read_options
from mqlake.spark.schema import check_user_schema, spark_schema


@short_errors
class RocketMQDataSource(DataSource):
    """`spark.read.format("rocketmq").option("namesrvAddr", …).option("subscribe", …)`; options: ReadOptions.

    `frame.write.format("rocketmq")` and `writeStream`: WriteOptions.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        return spark_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RocketMQReader(read_options(self.options, stream=False), check_user_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.rocketmq.pop import RocketMQPopReader
        from mqlake.spark.rocketmq.stream import RocketMQStreamReader

        options = read_options(self.options, stream=True)
        reader = RocketMQStreamReader if options.pop_group is None else RocketMQPopReader
        return reader(options, check_user_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from mqlake.spark.rocketmq.sink import RocketMQWriter

        if overwrite:
            raise ConfigError("messages cannot be overwritten: write with mode('append')")
        options = WriteOptions.parse(self.options, stream=False)
        found = RocketMQWriter(options, schema)
        _check_reachable(options)
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from mqlake.spark.rocketmq.sink import RocketMQExactlyOnceWriter, RocketMQStreamWriter

        options = WriteOptions.parse(self.options, stream=True)
        writer = RocketMQStreamWriter if options.checkpoint is None else RocketMQExactlyOnceWriter
        found = writer(options, schema)
        _check_reachable(options)
        return found


def _check_reachable(options: WriteOptions) -> None:
    """Before a job reads what it is to send. NoNameServerError and its like."""
    with Live(options.cluster) as live:
        live.check()


@short_errors
class RocketMQReader(FilteredReader):
    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[TaskPartition[QueueRange]]:
        return as_partitions(needed(self._options, self._conditions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_range(partition.task, self._options, self._columns, self._conditions)
