# mypy: disable-error-code="misc"
"""The source `commitlog`: store directories as a table, read in place, also while a broker writes.

    driver    options, filters ─▶ paths ─▶ ranges to read ─▶ splits (where the log ends is decided here)
    task      splits ─▶ Arrow batches ─▶ JVM        log_partition

Spark does not pass the columns that a query needs to a Python source: name them with the option `columns`, or with a
schema (`.schema("topic string, queueId int")`). It does pass filters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from mqlake.errors import OffsetOutOfRangeError
from mqlake.spark.arrow.filters import RowFilter
from mqlake.spark.arrow.schema import check_user_schema, spark_schema
from mqlake.spark.error_messages import tells_reasons
from mqlake.spark.log.log_ends import known_end, remember
from mqlake.spark.log.log_partition import (
    LogPartition,
    check_in_log,
    lost_parts,
    partitions_of,
    read_partition,
)
from mqlake.spark.log.queue_files import queue_bounds, queue_files
from mqlake.spark.log.single_records import Pick, picks
from mqlake.spark.log.skipping import what_to_read
from mqlake.spark.log.splits import Split, cut, log_files
from mqlake.spark.log.storage import Storage
from mqlake.spark.log.topics import check_topics
from mqlake.spark.offsets import Position, PositionKind
from mqlake.spark.options import LogOptions, Mode
from mqlake.spark.readers import FilteredReader
from mqlake.spark.requirements import require_stream_readers

logger = logging.getLogger(__name__)

PICKS_A_TASK = 100_000
"""Single records that one task reads."""


@dataclass(frozen=True)
class ReadPlan:
    """Bytes of the logs, and of them those that are read."""

    partitions: list[LogPartition]
    bytes_to_read: int
    bytes_of_log: int


@tells_reasons
class CommitLogDataSource(DataSource):
    """`spark.read.format("commitlog").option("path", DIR).load()`; options: LogOptions."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        options = LogOptions.parse(self.options)
        for storage in options.stores:
            storage.check()
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(LogOptions.parse(self.options), check_user_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        require_stream_readers()
        from mqlake.spark.log.commitlog_stream import CommitLogStreamReader

        return CommitLogStreamReader(LogOptions.parse(self.options), check_user_schema(schema))


@tells_reasons
class CommitLogReader(FilteredReader):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        options.check_batch()
        self._options = options
        self._columns = columns

    def partitions(self) -> list[LogPartition]:
        found = self.plan()
        logger.info("%d of %d bytes are read", found.bytes_to_read, found.bytes_of_log)
        return found.partitions

    def plan(self) -> ReadPlan:
        """The parts of the logs that have to be read.

        Raises what check_topics() and log_files() raise; OffsetOutOfRangeError for an offset that is not in the log.
        """
        check_topics(self._options)
        splits: list[Split | Pick] = []
        lost: list[LogPartition] = []
        size = 0
        positions = (self._options.start, self._options.end)
        for position in positions:
            check_in_queues(self._options.stores, position)
        for storage in self._options.stores:
            files = log_files(storage, known_end(storage), must_be_whole=self._options.mode is Mode.FAIL_FAST)
            for position in positions:
                check_in_log(storage, files, position)
            remember(storage, files)
            lost += lost_parts(storage, files)
            wanted = RowFilter(self._options, self._conditions)
            reading = what_to_read(storage, files, wanted, self._options.split_size)
            parts: list[Split | Pick] = [*cut(storage, files, self._options.split_size, reading.ranges)]
            parts += picks(storage, files, reading.places, PICKS_A_TASK)
            splits += sorted(parts, key=lambda part: part.base_offset + part.start)
            size += sum(file.limit for file in files)
        partitions = [*lost, *partitions_of(splits, self._options.split_size)]
        return ReadPlan(partitions, sum(split.bytes for split in splits), size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):  # else Spark's stand-in when there are no partitions
            yield from read_partition(partition, self._options, self._conditions, self._columns)


def check_in_queues(stores: Sequence[Storage], position: Position) -> None:
    """OffsetOutOfRangeError for a topic or queue offset that no store has; without consume queues none is known."""
    if not position.queues:
        return
    topics = {topic for topic, _ in position.queues}
    files = [file for storage in stores for file in queue_files(storage, topics)]
    if not files and not any(queue_files(storage) for storage in stores):
        return
    for topic in sorted(topics - {file.topic for file in files}):
        raise OffsetOutOfRangeError(f"option {position.option!r}: topic {topic} is not there")
    if position.kind is not PositionKind.QUEUES:
        return
    wanted = {name: offset for name, offset in position.queues.items() if offset >= 0}
    bounds = [queue_bounds(each for each in files if each.storage == storage) for storage in stores]
    for (topic, queue), offset in wanted.items():
        known = [found[topic, queue] for found in bounds if (topic, queue) in found]
        if not any(low <= offset <= high for low, high in known):
            there = " and ".join(f"{low} to {high}" for low, high in known)
            raise OffsetOutOfRangeError(
                f"option {position.option!r}: topic {topic}, queue {queue} "
                + (f"has offsets {there}, not {offset}" if known else "is not there")
            )
