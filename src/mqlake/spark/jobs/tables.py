"""Tables and Spark: its tasks write the files of a step, and its DataFrames read a topic's table and log as one.

    driver   pieces of a step ─▶ tasks: read ▸ decode ▸ Parquet ─▶ descriptions of the files ─▶ driver: one commit

No row crosses to the JVM on the way into a table, and no JVM table format is needed on the way out: pyiceberg and
deltalake say which files a version has, and Spark's own reader reads them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from mqlake.base.progress import Progress
from mqlake.errors import TableError
from mqlake.lake.tables.append_run import Engine, LocalEngine, WriteTarget, write_pieces
from mqlake.lake.tables.files import Written
from mqlake.lake.tables.source import Piece
from mqlake.lake.tables.topic import topic_table
from mqlake.lake.tables.union import UnionDataset
from mqlake.spark.error_messages import short_errors_of, when_workers_start
from mqlake.spark.jobs.parallel import parallelism, per_piece, rows_batch, shared_out

COLUMNS = {"topic": "string", "written": "binary"}
TASKS_A_CORE = 2
SPARK_MIN_BYTES = 512 << 20
"""Below so much log a JVM costs more than it saves."""


class SparkEngine:
    """Spark's tasks read, decode and write; what they report is committed by the driver."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(
        self, pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress
    ) -> dict[str, Written]:
        """Raises what Spark raises for a task that failed. Files of tasks that ended before it stay as orphans."""
        given = dict(targets)

        def work(group: list[Piece]) -> Iterator[pa.RecordBatch]:
            found = write_pieces(group, given)
            rows: list[dict[str, object]] = [
                {"topic": topic, "written": pickle.dumps(each)} for topic, each in found.items()
            ]
            yield rows_batch(rows, COLUMNS)

        groups = shared_out(pieces, parallelism(self._spark) * TASKS_A_CORE)
        rows = when_workers_start(lambda: per_piece(self._spark, groups, work, COLUMNS).collect())
        total: dict[str, Written] = {}
        for row in rows:
            total.setdefault(row.topic, Written()).add(pickle.loads(row.written))
        size = sum(piece.bytes for piece in pieces)
        report(size, size)
        return total


class SizedEngine:
    """Spark for steps that are worth a JVM, this process for others; `start` gives the session when it is needed."""

    def __init__(self, start: Callable[[], SparkSession], least: int = SPARK_MIN_BYTES) -> None:
        self._start, self._least = start, least
        self._spark: Engine | None = None

    def write(
        self, pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress
    ) -> dict[str, Written]:
        if self._spark is None and sum(piece.bytes for piece in pieces) < self._least:
            return LocalEngine().write(pieces, targets, report)
        if self._spark is None:
            self._spark = SparkEngine(self._start())
        return self._spark.write(pieces, targets, report)


def read_topic(
    spark: SparkSession,
    file: str | os.PathLike[str],
    topic: str,
    as_of: int | datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """A topic's table and what the log has after it, as a DataFrame; see TopicTable.union() and at().

    `file` is a lake.toml or its folder. Table and log are fixed now: call it again for what came since. Raises what
    topic_table() and union_of() raise; TableError for a table whose rows are not just those of its files.
    """
    table = topic_table(file, topic)
    if table.topic.latest:
        raise TableError(
            f"table {table.table.name} has the latest row of each key: use union() with DuckDB or Polars, or read the "
            "table's files alone"
        )
    found = table.union() if as_of is None else table.at(as_of)
    names = list(found.schema.names if columns is None else columns)
    needed = names if found.before is None or "storeTimestamp" in names else [*names, "storeTimestamp"]
    both = _of_table(spark, found, needed).unionByName(_of_log(spark, found, needed))
    if found.before is not None:
        before = found.before.astimezone(UTC).isoformat()
        both = both.where(F.col("storeTimestamp") < F.lit(before).cast("timestamp"))
    return both.select(*names)


def _of_table(spark: SparkSession, found: UnionDataset, names: Sequence[str]) -> DataFrame:
    paths = found.table.paths(found.version)
    if paths is None:
        raise TableError(
            f"table {found.table.name} has rows that another engine deleted, or columns that were renamed: Spark "
            "cannot read its files alone; use union() with DuckDB or Polars, or compact the table with that engine"
        )
    schema = from_arrow_schema(pa.schema([found.schema.field(name) for name in names]))
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


def _of_log(spark: SparkSession, found: UnionDataset, names: Sequence[str]) -> DataFrame:
    schema = pa.schema([found.schema.field(name) for name in names])
    pieces = [] if found.tail is None else list(found.tail.pieces(()))
    if not pieces:
        return spark.createDataFrame([], from_arrow_schema(schema))
    rows, columns = found.rows, found.rows.read_for(names)

    @short_errors_of
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for _, each in pieces[number].read(columns):
                    yield rows.some_of(each, pieces[number].name, schema)

    numbers = spark.range(0, len(pieces), 1, len(pieces))
    return numbers.mapInArrow(run, from_arrow_schema(schema))
