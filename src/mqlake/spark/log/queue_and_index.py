# mypy: disable-error-code="misc"
"""The sources `consumequeue` and `mqindex`: data derived from the log, as tables for audits and joins.

    consumequeue   a row a unit:  topic queueId queueOffset physicalOffset size tagsCode storeTimestamp batchSize
                                  type file path
    mqindex        a row an entry: entry keyHash physicalOffset storeTimestamp previous file path

`storeTimestamp` is there for units of batch queues, and for index entries to the second. `physicalOffset` joins
both with `commitlog`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqlake.formats.index import INDEX_SIZE
from mqlake.lake.arrow.arrays import number_array, repeated
from mqlake.lake.arrow.rows import BATCH_RECORDS_MAX, timestamp_array
from mqlake.lake.log.grouped import grouped
from mqlake.lake.log.queue_files import BATCH, IndexTable, QueueFile, index_files, queue_files
from mqlake.lake.log.splits import bounded
from mqlake.lake.log.topics import check_topics
from mqlake.lake.options import LogOptions
from mqlake.spark.error_messages import short_errors
from mqlake.spark.filters import FilteredReader
from mqlake.spark.options import INDEX_OPTIONS, QUEUE_OPTIONS, count, log_options, named
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.schema import check_same, table_schemas

_QUEUE_SPARK, _QUEUE_ARROW = table_schemas(
    {
        "topic": "string",
        "queueId": "int",
        "queueOffset": "long",
        "physicalOffset": "long",
        "size": "int",
        "tagsCode": "long",
        "storeTimestamp": "timestamp",
        "batchSize": "int",
        "type": "string",
        "file": "string",
        "path": "string",
    }
)
_INDEX_SPARK, _INDEX_ARROW = table_schemas(
    {
        "entry": "int",
        "keyHash": "int",
        "physicalOffset": "long",
        "storeTimestamp": "timestamp",
        "previous": "int",
        "file": "string",
        "path": "string",
    }
)


@dataclass
class IndexPartition(InputPartition):
    """Entries number `first` to `last` (exclusive)."""

    table: IndexTable
    first: int
    last: int
    begin_timestamp: int


@short_errors
class ConsumeQueueDataSource(DataSource):
    """`spark.read.format("consumequeue").load(DIR)`; options: path, storageOptions, topics, splitSize."""

    @classmethod
    def name(cls) -> str:
        return "consumequeue"

    def schema(self) -> StructType:
        _checked(self.options)
        return _QUEUE_SPARK

    def reader(self, schema: StructType) -> DataSourceReader:
        check_same(schema, _QUEUE_SPARK)
        return _QueueReader(_checked(self.options))


@short_errors
class MqIndexDataSource(DataSource):
    """`spark.read.format("mqindex").load(DIR)`; options: path, storageOptions, splitSize, maxHashSlotNum."""

    @classmethod
    def name(cls) -> str:
        return "mqindex"

    def schema(self) -> StructType:
        _checked(self.options, INDEX_OPTIONS)
        return _INDEX_SPARK

    def reader(self, schema: StructType) -> DataSourceReader:
        check_same(schema, _INDEX_SPARK)
        options = _checked(self.options, INDEX_OPTIONS)
        return _IndexReader(options, count(named(self.options, INDEX_OPTIONS), "maxHashSlotNum"))


def _checked(given: Mapping[str, str], known: Sequence[str] = QUEUE_OPTIONS) -> LogOptions:
    options = log_options(given, known)
    for storage in options.stores:
        storage.check()
    return options


@short_errors
class _QueueReader(FilteredReader):
    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> list[TaskPartition[tuple[QueueFile, ...]]]:
        check_topics(self._options)
        files = (
            file
            for storage in self._options.stores
            for file in queue_files(storage, self._options.topics)
            if self._may_match({"topic": file.topic, "queueId": file.queue_id})
        )
        groups = grouped(files, lambda file: file.size, self._options.split_size)
        return as_partitions(groups)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            return
        for file in partition.task:
            units, queue_offset = file.units()
            for first in range(0, len(units), BATCH_RECORDS_MAX):
                part = units[first : first + BATCH_RECORDS_MAX]
                n, batch = len(part), file.kind == BATCH
                yield pa.RecordBatch.from_arrays(
                    [
                        repeated(file.topic, n),
                        repeated(file.queue_id, n),
                        number_array(queue_offset[first : first + n]),
                        number_array(part["offset"].astype(np.int64)),
                        number_array(part["size"].astype(np.int32)),
                        number_array(part["tags_code"].astype(np.int64)),
                        timestamp_array(part["store_time"].astype(np.int64))
                        if batch
                        else pa.nulls(n, pa.timestamp("us", tz="UTC")),
                        number_array(part["batch_size"].astype(np.int32)) if batch else repeated(1, n),
                        repeated(file.kind, n),
                        repeated(file.path, n),
                        repeated(file.storage.root, n),
                    ],
                    schema=_QUEUE_ARROW,
                )


@short_errors
class _IndexReader(DataSourceReader):
    def __init__(self, options: LogOptions, slots: int | None) -> None:
        self._options = options
        self._slots = slots

    def partitions(self) -> list[IndexPartition]:
        found = []
        for storage in self._options.stores:
            for table in index_files(storage, self._slots):
                table.check_slots()
                header = table.header()
                step = max(1, bounded(self._options.split_size, table.size) // INDEX_SIZE)
                found += [
                    IndexPartition(
                        table, first, min(first + step, header.index_count), header.begin_timestamp
                    )
                    for first in range(1, header.index_count, step)
                ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IndexPartition):
            return
        table = partition.table
        entries = table.entries(partition.first, partition.last)
        for first in range(0, len(entries), BATCH_RECORDS_MAX):
            part = entries[first : first + BATCH_RECORDS_MAX]
            n, number = len(part), partition.first + first
            stored = partition.begin_timestamp + part["time_diff"].astype(np.int64) * 1000
            yield pa.RecordBatch.from_arrays(
                [
                    number_array(np.arange(number, number + n, dtype=np.int32)),
                    number_array(part["key_hash"].astype(np.int32)),
                    number_array(part["phy_offset"].astype(np.int64)),
                    timestamp_array(stored),
                    number_array(part["previous"].astype(np.int32)),
                    repeated(table.path, n),
                    repeated(table.storage.root, n),
                ],
                schema=_INDEX_ARROW,
            )
