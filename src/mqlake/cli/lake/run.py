"""`mqlake lake add | run`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
from typing import Any

import click

from mqlake.cli.lake.shared import LakeArguments, age_option, making_options, opened
from mqlake.cli.options import Whole, json_option, size_option
from mqlake.cli.output import count_text, note, print_json, print_json_line, print_table, progress, size_text
from mqlake.cli.spark.shared import Where, job, spark_options
from mqlake.errors import ConfigError
from mqlake.spark.requirements import require_pyspark


@click.command()
@making_options
@click.option("--file", "path", metavar="FILE", help="The lake.toml.  [default: in the warehouse]")
@json_option
def add(given: LakeArguments, path: str | None, as_json: bool) -> None:
    """Add topics to a lake.toml, and make their tables. `mqlake lake run FILE` fills them.

    \b
    mqlake lake add broker-a=/data/store --warehouse /data/lake --topic Orders --topic Payments
    mqlake lake add -n 127.0.0.1:9876 --warehouse /data/lake --topic Orders
    """
    from mqlake.lake.tables.config import FILE, LakeFile
    from mqlake.lake.tables.topic import TopicTable

    topics = given.made_topics()
    lake = given.made_lake()
    if path is None and "://" in lake.warehouse:
        raise ConfigError(f"{lake.warehouse} is not a local directory: say where the lake.toml goes (--file)")
    path = path or os.path.join(lake.warehouse, FILE)
    file = LakeFile.load(path) if os.path.exists(path) else LakeFile(lake)
    if file.lake != lake:
        raise ConfigError(f"{path} is of another lake: its format, catalog, warehouse or namespace differs")
    for topic in topics:
        file = file.with_topic(topic)
    made = [TopicTable.open(lake, topic) for topic in topics]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    file.save(path)
    if as_json:
        print_json({"file": path, "tables": [each.table.name for each in made]})
    else:
        click.echo(f"{path}: {count_text(len(file.topics), 'topic')}; mqlake lake run {path}")


@click.command()
@making_options
@click.option(
    "--engine",
    type=click.Choice(["auto", "local", "spark"]),
    default="auto",
    show_default=True,
    help="What reads and writes: this process, Spark's tasks, or Spark from 512 MiB of log on if it is installed.",
)
@size_option("--step-bytes", "1g", "Bytes of log that a commit takes at most.")
@size_option("--file-bytes", "128m", "Size of a data file at which the next one begins.")
@click.option(
    "--allow-gaps", is_flag=True, help="Go on where messages were deleted before the table had them."
)
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C, commit by commit.")
@size_option("--commit-bytes", "128m", "With --follow: commit when the log has so much more.")
@age_option("--commit-interval", "5m", "With --follow: or after this time.")
@click.option("--metrics-port", type=Whole(1, 65535), help="With --follow: Prometheus metrics there.")
@json_option
@spark_options
def run(
    given: LakeArguments,
    engine: str,
    step_bytes: int,
    file_bytes: int,
    allow_gaps: bool,
    follow: bool,
    commit_bytes: int,
    commit_interval: float,
    metrics_port: int | None,
    as_json: bool,
    where: Where,
) -> None:
    """Append what the log has and the tables lack, each message once, whatever is killed when.

    How far a table is, is part of each of its commits: run it again, as often as you like, or two at a time.

    \b
    mqlake lake run broker-a=/data/store --warehouse /data/lake --topic Orders
    mqlake lake run /data/lake                            the topics of its lake.toml
    mqlake lake run /data/lake --follow                   and what comes, a commit every 5 minutes
    """
    from mqlake.lake.tables.append_run import TableReport
    from mqlake.lake.tables.topic import RunOptions, add_report, steps

    tables = opened(given, RunOptions(step_bytes, file_bytes, not allow_gaps))
    with contextlib.ExitStack() as running:
        chosen = _engine(engine, where, running)
        if follow:
            _follow(tables, chosen, commit_bytes, commit_interval, metrics_port, as_json)
            return
        totals = {each.topic.topic: TableReport(each.topic.topic, each.table.name) for each in tables}
        report = running.enter_context(progress("reading"))
        for step in steps(tables, chosen, report=report):
            for each in step.tables:
                add_report(totals[each.topic], each)
    show(list(totals.values()), as_json=as_json)


def _engine(name: str, where: Where, running: contextlib.ExitStack) -> Any:
    """The engine that writes; if it needs a Spark session, that ends with `running`. Raises MissingPartError for Spark
    without PySpark."""
    from mqlake.lake.tables.append_run import LocalEngine

    if name == "local" or (name == "auto" and importlib.util.find_spec("pyspark") is None):
        return LocalEngine()
    require_pyspark()
    from mqlake.spark.jobs.tables import SizedEngine

    def start() -> Any:
        return running.enter_context(job(where, "writing"))

    return SizedEngine(start) if name == "auto" else SizedEngine(start, 0)


def _follow(
    tables: list[Any],
    engine: Any,
    commit_bytes: int,
    interval_s: float,
    metrics_port: int | None,
    as_json: bool,
) -> None:
    from mqlake.lake.tables.follow import follow
    from mqlake.lake.tables.metrics import TableMetrics

    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    metrics = TableMetrics(tables)
    if metrics_port is not None:
        metrics.serve(metrics_port)
    note(f"following {count_text(len(tables), 'topic')}; Ctrl-C ends it")

    def done(step: Any) -> None:
        metrics.add(step)
        for each in step.tables:
            if as_json:
                print_json_line({**each.__dict__, "seconds": step.seconds})
            else:
                click.echo(
                    f"{each.table}  {count_text(each.rows, 'message')}, {count_text(each.files, 'file')}, "
                    f"{size_text(each.bytes)}, {step.seconds:.1f} s"
                )

    follow(tables, engine, stop, done, commit_bytes=commit_bytes, interval_s=interval_s)


def show(reports: list[Any], *, as_json: bool) -> None:
    if as_json:
        print_json(reports)
        return
    if not reports:
        note("the lake has no topics: mqlake lake add")
        return
    for each in reports:
        if each.unkeyed:
            note(f"{each.table}: {count_text(each.unkeyed, 'message')} without a key left out")
    print_table(
        ["topic", "table", "messages", "undecoded", "files", "size", "commits"],
        [
            [
                each.topic,
                each.table,
                each.rows,
                each.undecoded,
                each.files,
                size_text(each.bytes),
                each.commits,
            ]
            for each in reports
        ],
    )
