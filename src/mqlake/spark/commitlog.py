# mypy: disable-error-code="misc"
"""The batch source `commitlog`: store directories as a table, read in place, also while a broker writes.

    driver    options ─▶ paths ─▶ splits (byte ranges of files; where the log ends is decided here)
    task      split ─▶ map file ─▶ scan ─▶ choose rows ─▶ Arrow batches ─▶ JVM

Spark does not tell a Python source which columns a query needs: name them with the option `columns`, or with a
schema (`.schema("topic string, queueId int")`). Filters it does tell.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqlake.spark.filters import Condition, conditions, rows_passing
from mqlake.spark.options import LogOptions, Mode
from mqlake.spark.rows import RowBuilder
from mqlake.spark.schema import check_user_schema, spark_schema
from mqlake.spark.splits import Damage, Split, map_file, plan, walk
from mqlake.store.message_store import check_is_store


@dataclass
class LogPartition(InputPartition):
    split: Split


class CommitLogDataSource(DataSource):
    """`spark.read.format("commitlog").option("path", DIR).load()`; options: LogOptions."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        options = LogOptions.parse(self.options)
        for path in options.paths:
            check_is_store(path, must_exist=True)
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(LogOptions.parse(self.options), check_user_schema(schema))


class CommitLogReader(DataSourceReader):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        self._conditions = conditions(filters)
        return filters

    def partitions(self) -> list[LogPartition]:
        splits = [split for path in self._options.paths for split in plan(path, self._options.split_size)]
        return [LogPartition(split) for split in splits if self._may_hold_rows(split)]

    def _may_hold_rows(self, split: Split) -> bool:
        """Of a split not yet read only this is known: its rows begin where it does, or behind."""
        start = split.base_offset + split.start
        return not any(
            condition.column == "physicalOffset"
            and condition.compare in (operator.lt, operator.le, operator.eq)
            and condition.values[0] < start
            for condition in self._conditions
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # Spark's stand-in when there are no partitions
            return
        split, options = partition.split, self._options
        builder = RowBuilder(self._columns, split.store)
        buf = map_file(split)
        for found in walk(split, buf, verify=options.verify):
            if isinstance(found, Damage):
                error = found.error()
                if options.mode is Mode.FAIL_FAST:
                    raise error
                if options.mode is Mode.PERMISSIVE:
                    yield builder.damage(found.physical_offset, str(error))
            else:
                rows = rows_passing(found, options.topics, self._conditions)
                if rows is None or len(rows):
                    yield from builder.batches(buf, found, rows)
