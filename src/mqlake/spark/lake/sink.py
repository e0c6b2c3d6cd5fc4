# mypy: disable-error-code="misc"
"""The sinks `mqlake-iceberg` and `mqlake-delta`: a stream's rows become a table, each batch once.

    each batch   plan     the table, made if it is not there      a process that plans
                 task     rows ─▶ Parquet files                    workers
                 commit   files and the batch's number, in one     a process that lives as long as the query

What a table has of a stream stands in the table alone (lake.tables.sink), so a batch that Spark runs again is known
again. Spark calls `abort` after a commit that landed, if it did not hear of it: `abort` deletes nothing, and `lake
orphans` or any other engine finds what a failed batch left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from mqlake.errors import ConfigError, TableError
from mqlake.lake.bodies.evolution import conform, fits
from mqlake.lake.tables.config import DELTA, ICEBERG
from mqlake.lake.tables.files import WriteSpec, Written
from mqlake.lake.tables.opening import load_table, make_table
from mqlake.lake.tables.sink import Batch, SinkState, asked, floors_of
from mqlake.lake.tables.sink_batch import SinkWriter, above, commit_batch, has_place
from mqlake.lake.tables.table import TOPIC, Table
from mqlake.spark.error_messages import short_errors
from mqlake.spark.lake.options import SinkOptions
from mqlake.spark.lake.schema import table_schema

QUERY = "sql.streaming.queryId"
"""The local property by which a task knows its query, whose id is kept in the checkpoint."""


@dataclass
class TaskRows(WriterCommitMessage):
    """The files that one task wrote."""

    query: str
    written: Written


@short_errors
class _TableSink(DataSource):
    _format = ICEBERG

    def schema(self) -> StructType:
        raise self._not_read()

    def reader(self, schema: StructType) -> DataSourceReader:
        raise self._not_read()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        raise self._not_read()

    def _not_read(self) -> ConfigError:
        return ConfigError(
            f"{self.name()} is a sink: read its tables with DuckDB, Polars, pyiceberg or deltalake, or with Spark's "
            "own parquet reader on the files that these list"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise ConfigError(
            f"{self.name()} takes streams: readStream, and writeStream.trigger(availableNow=True) for what is there now"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802
        if overwrite:
            raise ConfigError(f'{self.name()} appends: outputMode("append")')
        options = SinkOptions.parse(self.options, self._format)
        return TableStreamWriter.of(options, schema)


class IcebergSink(_TableSink):
    """`writeStream.format("mqlake-iceberg")`; options: SinkOptions."""

    @classmethod
    def name(cls) -> str:
        return "mqlake-iceberg"


class DeltaSink(_TableSink):
    """`writeStream.format("mqlake-delta")`; options: SinkOptions."""

    _format = DELTA

    @classmethod
    def name(cls) -> str:
        return "mqlake-delta"


@short_errors
class TableStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch. `spec` says how files are written; `state`: what the table had when the batch was planned."""

    def __init__(
        self, options: SinkOptions, spec: WriteSpec, state: SinkState | None, kinds: pa.Schema
    ) -> None:
        self._options, self._spec, self._state, self._kinds = options, spec, state, kinds
        self._query = ""

    @classmethod
    def of(cls, options: SinkOptions, schema: StructType) -> TableStreamWriter:
        """With the table, which is made or follows the columns. Raises TableError, ConfigError, MissingPartError."""
        kinds = table_schema(schema, options.lake.format)
        table = _opened(options, kinds)
        spec = table.write_spec(options.file_bytes, kinds.names)
        return cls(options, spec, table.last(SinkState, table.head().version), kinds)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows. Raises OSError, TableError for a row without its place; no file stays then."""
        context = TaskContext.get()
        query = (context.getLocalProperty(QUERY) if context is not None else None) or ""
        floors = floors_of(self._state, self._options.app or query, query, self._options.on_replay)
        writer = SinkWriter(self._spec)
        try:
            for batch in iterator:
                rows = self._rows(batch)
                writer.write(above(rows, floors) if floors and has_place(rows.schema) else rows)
            return TaskRows(query, writer.close())
        except BaseException:
            writer.discard()
            raise

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the table's types; Spark's timestamps have the session's zone, its texts may be large ones."""
        arrays = []
        for field, wanted in zip(self._kinds, self._spec.schema, strict=True):
            array = batch.column(field.name)
            arrays.append(conform(array, wanted.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._spec.schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raises TableError, see commit_batch()."""
        parts = [each for each in messages if isinstance(each, TaskRows)]
        self._query = next((each.query for each in parts if each.query), self._query)
        app = self._options.app or self._query
        if not app:
            raise ConfigError(
                "this Spark does not tell tasks which query they are of: name the stream (option appId)"
            )
        queues = None
        if has_place(self._kinds):
            total = Written()
            for each in parts:
                total.add(each.written)
            queues = total.queues
        table = load_table(self._options.lake, self._options.table, asked(app, self._query))
        if table is None:
            raise TableError(f"table {self._options.table} was dropped while the stream was writing to it")
        batch = Batch(app, self._query, batchId, queues, bool(self._options.app))
        commit_batch(table, batch, [each.written for each in parts], self._options.on_replay, self._spec)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the commit may have landed."""


def _opened(options: SinkOptions, kinds: pa.Schema) -> Table:
    """The table with columns for a stream's rows. TableError when it cannot have them."""
    if options.day:
        at = kinds.get_field_index(options.day)
        if at < 0 or not pa.types.is_timestamp(kinds.field(at).type):
            raise ConfigError(
                f"option 'partitionBy' is {options.day!r}: the stream has no such column of timestamps"
            )
    names = asked(options.app, "")
    table = load_table(options.lake, options.table, names)
    if table is None:
        return make_table(options.lake, options.table, kinds, {}, options.day, names)
    if TOPIC in table.properties:
        raise TableError(
            f"table {table.name} is kept by mqlake lake run (topic {table.properties[TOPIC]}): give the stream another"
        )
    _follow(options, table, kinds)
    return table


def _follow(options: SinkOptions, table: Table, kinds: pa.Schema) -> None:
    """Gives a table the columns it lacks, if that is wanted. TableError."""
    there = table.schema
    lacking = [field for field in kinds if field.name not in there.names]
    if lacking and not options.merge_schema:
        raise TableError(
            f"table {table.name} has no column {lacking[0].name!r}: set the option mergeSchema=true to add it, or drop "
            "it before the sink"
        )
    for field in kinds:
        if field not in lacking and not fits(field.type, there.field(field.name).type):
            raise TableError(
                f"column {field.name!r} is {field.type} in the stream and {there.field(field.name).type} in table "
                f"{table.name}: cast it before the sink, or write to another table"
            )
    if lacking:
        table.evolve(pa.schema([*there, *lacking]), {})
