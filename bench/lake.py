"""A log as an Iceberg table: beside bare Parquet files, and beside Spark, which makes the same table of Parquet.

    log ─▶ this process          ─▶ Parquet files ─▶ one commit        lake-table
    log ─▶ Spark's Python tasks  ─▶ Parquet files ─▶ one commit
    Parquet ─▶ Spark             ─▶ Parquet files ─▶ pyiceberg's add_files

Also what DuckDB takes for a query of the log beside a warm Spark (`lake-query`), and of a table and its log as one
(`lake-union`). Processor time is the figure: this process has no threads that matter, Spark has.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.lake
import mqlake.spark
from bench.alternate import compared, spark_clock
from bench.context import Context
from bench.measure import Line
from bench.spark import session
from bench.workload import QUEUES, TOPIC, make_log
from mqlake.lake.tables.append_run import Engine, LocalEngine
from mqlake.lake.tables.config import DEFAULT_COLUMNS, Lake, Topic
from mqlake.lake.tables.topic import TopicTable
from mqlake.spark.jobs.tables import SparkEngine

FIRST_ROW_S = 0.1
FIRST_ROWS = 20
"""Queries that look for one row."""
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
GROUPED = "select queueId, tags, count(*) n, sum(size) s from log group by queueId, tags order by queueId"
OF_UNION = (
    "select queueId, tags, count(*) n, max(queueOffset) s from log group by queueId, tags order by queueId"
)
BODIES = "select count(*) n, sum(octet_length(body)) s from log"


def log_of(context: Context) -> Path:
    """The log that these benches read: 1 KB bodies, one topic of eight queues."""
    settings = {"mappedFileSizeCommitLog": context.scale.recovered_file}
    return context.kept("lake-log", lambda path: make_log(path, context.scale.lake_log, settings))


def filled(place: Path, root: Path, engine: Engine, format: str = "iceberg") -> int:
    """Makes a table of the log; its rows."""
    table = TopicTable.open(Lake(str(place), format), Topic(TOPIC, {"bench": str(root)}))
    found = table.append_new(engine=engine).rows
    shutil.rmtree(place)
    return found


def lake_table(context: Context) -> Iterator[Line]:
    """Half of the rows of bare Parquet writing for the same processor time, and as many as Spark from Parquet."""
    root = log_of(context)
    log = mqlake.lake.scan(root, TOPIC, columns=DEFAULT_COLUMNS)
    rows = log.count_rows()
    numbers = itertools.count()
    with context.scratch("lake-table") as directory, session() as spark:
        parquet = directory / "parquet"
        mqlake.spark.read_log(spark, str(root), columns=",".join(DEFAULT_COLUMNS)).write.option(
            "compression", "zstd"
        ).parquet(str(parquet))

        def as_table(engine: Engine) -> int:
            return filled(directory / f"lake-{next(numbers)}", root, engine)

        def as_parquet() -> int:
            path = directory / f"{next(numbers)}.parquet"
            with pq.ParquetWriter(path, log.schema, compression="zstd") as writer:
                for batch in log.to_reader():
                    writer.write_batch(batch)
            found = int(pq.read_metadata(path).num_rows)
            path.unlink()
            return found

        yield compared(
            context,
            "log to an Iceberg table, 1 KB",
            lambda: as_table(LocalEngine()),
            as_parquet,
            peer_name="Parquet",
            amount=rows,
            unit="rows/s",
            ratio_min=0.5,
            clocks=(time.process_time, time.process_time),
            by_cpu=True,
        )
        both = spark_clock(spark)
        for name, engine, clock in (
            ("in this process", LocalEngine(), time.process_time),
            ("by Spark's tasks", SparkEngine(spark), both),
        ):
            yield compared(
                context,
                f"log to a table, {name}",
                lambda engine=engine: as_table(engine),  # type: ignore[misc]
                lambda: _by_spark(spark, parquet, directory / f"peer-{next(numbers)}"),
                peer_name="Spark from Parquet",
                amount=rows,
                unit="rows/s",
                ratio_min=1,
                warm_up=2,
                clocks=(clock, both),
                by_cpu=True,
            )


def _by_spark(spark: SparkSession, parquet: Path, place: Path) -> int:
    """The same table the way that is cheapest for Spark: its own Parquet writer, and one commit of the files."""
    with _setting(spark, TIMESTAMPS, "TIMESTAMP_MICROS"):
        spark.read.parquet(str(parquet)).write.option("compression", "zstd").parquet(str(place / "data"))
    catalog = load_catalog("bench", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=str(place))
    catalog.create_namespace("mqlake")
    files = sorted(map(str, (place / "data").glob("*.parquet")))
    table = catalog.create_table(f"mqlake.{TOPIC}", pq.read_schema(files[0]))
    table.add_files(files, check_duplicate_files=False)
    found = int(table.current_snapshot().summary["total-records"])  # type: ignore[index,union-attr,arg-type]
    shutil.rmtree(place)
    return found


@contextlib.contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def lake_query(context: Context) -> Iterator[Line]:
    """A group-by of DuckDB's for 0.3 of the processor time of a warm Spark; the first row within 0.1 s."""
    root = log_of(context)
    log = mqlake.lake.scan(root, TOPIC)
    rows = log.count_rows()

    def by_duckdb() -> Any:
        return ask(GROUPED, log)

    with session() as spark:

        def by_spark() -> Any:
            frame = mqlake.spark.read_log(spark, str(root), topics=TOPIC, columns="queueId,tags,size")
            found = frame.groupBy("queueId", "tags").agg(F.count("*"), F.sum("size")).orderBy("queueId")
            return [tuple(row) for row in found.collect()]

        yield compared(
            context,
            "group-by of a log, DuckDB",
            by_duckdb,
            by_spark,
            peer_name="warm Spark",
            amount=rows,
            unit="rows/s",
            ratio_min=1 / 0.3,
            warm_up=8,
            clocks=(time.process_time, spark_clock(spark)),
            by_cpu=True,
        )
    yield _first_row(log)


def _first_row(log: Any) -> Line:
    """How long it takes until a row is there, of a log that has been read before."""
    seconds = []
    for number in range(FIRST_ROWS):
        began = time.perf_counter()
        ((queue,),) = ask(f"select queueId from log where queueId = {number % QUEUES} limit 1", log)
        seconds.append(time.perf_counter() - began)
        assert queue == number % QUEUES
    found = statistics.median(seconds)
    return Line(
        "first row of a query of a log, DuckDB",
        found * 1000,
        "ms",
        target=f"< {FIRST_ROW_S * 1000:g}",
        met=found < FIRST_ROW_S,
        work=f"{FIRST_ROWS} queries, slowest {max(seconds) * 1000:.0f} ms",
    )


def lake_union(context: Context) -> Iterator[Line]:
    """A table that has nearly all of its log, read together with the rest: half of what reading the log takes."""
    settings = {"mappedFileSizeCommitLog": context.scale.recovered_file}
    with context.scratch("lake-union") as directory:
        root = directory / "store"
        make_log(root, context.scale.lake_log, settings)
        table = TopicTable.open(Lake(str(directory / "lake")), Topic(TOPIC, {"bench": str(root)}))
        table.append_new()
        more = max(context.scale.lake_log // 50, 1 << 17)  # 2 %
        make_log(root, context.scale.lake_log + more, settings)
        log = mqlake.lake.scan(root, TOPIC)
        rows = log.count_rows()
        assert table.table.files(table.table.head().version).rows < rows
        for name, query, least in (("group-by", OF_UNION, 2.0), ("sum over bodies", BODIES, None)):
            yield compared(
                context,
                f"{name} of a table and its log",
                lambda query=query: ask(query, table.union()),  # type: ignore[misc]
                lambda query=query: ask(query, log),  # type: ignore[misc]
                peer_name="log",
                amount=rows,
                unit="rows/s",
                ratio_min=least,
                warm_up=3,
                clocks=(time.process_time, time.process_time),
                by_cpu=True,
            )


def ask(query: str, log: Any) -> list[tuple[Any, ...]]:
    """On a connection that is there, as in a notebook: opening one costs as much as a small query."""
    connection = _connection()
    connection.register("log", log)
    found: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    connection.unregister("log")
    return found


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()
