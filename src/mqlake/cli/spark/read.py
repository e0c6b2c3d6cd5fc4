"""`mqlake spark search | stats | export`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqlake.base.net import parse_address
from mqlake.cli.options import ExistingPath, Whole, json_option
from mqlake.cli.output import count_text, note, print_json, print_json_line, print_table, size_text, time_text
from mqlake.cli.spark.shared import Where, check_stores, job, retry_once, spark_options, wanted_options
from mqlake.cli.standard_streams import EXIT_NOT_FOUND
from mqlake.errors import ConfigError
from mqlake.message import MessageExt
from mqlake.message.rendering import record_line, record_object

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

# ---------------------------------------------------------------------- search


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@wanted_options
@click.option("--limit", type=Whole(1), default=100, show_default=True, help="Maximum number of messages.")
@json_option
@spark_options
def search(directories: tuple[str, ...], limit: int, as_json: bool, where: Where, **wanted: Any) -> None:
    """Find messages in stores. All conditions must match.

    Conditions on key, topic, tag and time skip parts of the log. Messages are shown as by `mqlake store search`:
    physical offset, topic/queue@offset, store time, …; --json prints one object per line. Exit status 1 if there is
    none.
    """
    check_stores(*directories)
    with job(where, "searching") as spark:
        from pyspark.sql import functions as F  # noqa: N812 - as everywhere

        from mqlake.spark.jobs.search import Wanted
        from mqlake.spark.jobs.search import search as search_job

        found = search_job(spark, *directories, wanted=Wanted(**wanted))
        for name in ("bornTimestamp", "storeTimestamp"):
            found = found.withColumn(name, F.unix_millis(name))
        rows = sorted(found.limit(limit + 1).collect(), key=lambda row: (row.path, row.physicalOffset))
    for row in rows[:limit]:
        message = _message(row)
        if as_json:
            print_json_line(record_object(message) | {"path": row.path})
        else:
            click.echo((f"{row.path}  " if len(directories) > 1 else "") + record_line(message))
    if len(rows) > limit:
        note(f"{count_text(limit, 'message')}; there are more: --limit")
        return
    note(f"{count_text(len(rows), 'message')} found")
    if not rows:
        sys.exit(EXIT_NOT_FOUND)


def _message(row: Any) -> MessageExt:
    """The message of a row with times in ms; 0 for a time that a timestamp cannot hold."""
    return MessageExt(
        row.topic,
        bytes(row.body),
        flag=row.flag,
        properties=row.properties,
        queue_id=row.queueId,
        sys_flag=row.sysFlag,
        born_timestamp=row.bornTimestamp or 0,
        born_host=parse_address(row.bornHost),
        store_timestamp=row.storeTimestamp or 0,
        store_host=parse_address(row.storeHost),
        reconsume_times=row.reconsumeTimes,
        prepared_transaction_offset=row.preparedTransactionOffset,
        queue_offset=row.queueOffset,
        physical_offset=row.physicalOffset,
        body_crc=row.bodyCrc,
        store_size=row.size,
    )


# ---------------------------------------------------------------------- stats


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--interval",
    metavar="TIME",
    help="Interval of rates, such as 1m or 1h; by default it depends on the time the log spans.",
)
@click.option("--top", type=Whole(1), default=20, show_default=True, help="Number of most frequent keys.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--html", type=click.Path(dir_okay=False), help="Write a page with tables and plots to this file."
)
@json_option
@spark_options
def stats(
    directories: tuple[str, ...],
    interval: str | None,
    top: int,
    topics: tuple[str, ...],
    html: str | None,
    as_json: bool,
    where: Where,
) -> None:
    """Show rates, sizes, time from producer to store, the most frequent keys, and skew of queues."""
    check_stores(*directories)
    with job(where, "counting") as spark:
        from mqlake.spark.jobs.stats import collected, log_stats, stats_page

        options = {"topics": list(topics)} if topics else {}
        found = log_stats(spark, *directories, interval=interval, top=top, **options)
        tables = collected(found)
    if html is not None:
        title = "Figures of " + ", ".join(directories)
        Path(html).write_text(stats_page(tables, title=title, interval=found.interval), encoding="utf-8")
    if as_json:
        print_json({"interval": found.interval, **tables})
    elif tables["topics"]:
        print_stats(tables, found.interval)
    else:
        click.echo("no messages")


def print_stats(tables: dict[str, list[dict[str, Any]]], interval: str) -> None:
    """Prints the tables of mqlake.spark.jobs.stats.collected() that fit a terminal."""
    topics = tables["topics"]
    records, size = (sum(row[name] for row in topics) for name in ("records", "bytes"))
    first, last = (
        choose(row[name] for row in topics if row[name] is not None).timestamp() * 1000
        for choose, name in ((min, "firstStoreTimestamp"), (max, "lastStoreTimestamp"))
    )
    click.echo(f"{count_text(records, 'message')}, {size_text(size)}, stored from")
    click.echo(f"{time_text(int(first))} to {time_text(int(last))}")
    for title, rows, names in (
        ("topics", topics, ("topic", "records", "bytes", "bodyBytes")),
        ("sizes (bytes)", tables["quantiles"], ("topic", "sizeP50", "sizeP95", "sizeP99", "sizeMax")),
        (
            "time from producer to store (ms)",
            tables["quantiles"],
            ("topic", "latencyP50", "latencyP95", "latencyP99", "latencyMax"),
        ),
        (
            "messages in a queue, and how much fuller the fullest is than the mean (skew)",
            tables["skew"],
            ("topic", "queues", "mean", "least", "most", "skew"),
        ),
        ("most frequent keys", tables["keys"], ("topic", "key", "records")),
    ):
        if rows:
            click.echo(f"\n{title}")
            shown = [name.removeprefix("size").removeprefix("latency") for name in names]
            cells = [["-" if row[name] is None else row[name] for name in names] for row in rows]
            print_table(shown, cells, indent=2)
    click.echo(f"\nrates by {interval}: --json or --html")


# ---------------------------------------------------------------------- export


@click.command()
@click.argument("source", metavar="DIR")
@click.argument("target", metavar="OUT", type=click.Path(file_okay=False))
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--json-schema",
    metavar="SCHEMA",
    help='Decode bodies as JSON with this schema: "id long, name string", or `infer`.',
)
@click.option(
    "--avro-schema",
    metavar="FILE",
    type=ExistingPath(dir_okay=False),
    help="Decode bodies as Avro with the schema in this file.",
)
@click.option(
    "--from-broker",
    is_flag=True,
    help="Read from brokers: DIR is host:port of a name server; requires --topic.",
)
@click.option("--follow", is_flag=True, help="Keep exporting new messages until interrupted.")
@click.option(
    "--batch-size", metavar="BYTES", default="1g", show_default=True, help="Bytes of log per batch."
)
@json_option
@spark_options
def export(
    source: str,
    target: str,
    topics: tuple[str, ...],
    json_schema: str | None,
    avro_schema: str | None,
    from_broker: bool,
    follow: bool,
    batch_size: str,
    as_json: bool,
    where: Where,
) -> None:
    """Export messages to Parquet (zstd), one directory per topic and day.

    Another run continues where the last one stopped: every message is exported exactly once, even if a run is killed.
    With --json-schema or --avro-schema bodies become the columns `value.…`; a body that cannot be decoded is kept in
    `undecoded`.
    """
    if json_schema and avro_schema:
        raise ConfigError("use either --json-schema or --avro-schema")
    if not from_broker:
        check_stores(source)
    with job(where, "exporting") as spark:
        from mqlake.spark.error_messages import when_workers_start
        from mqlake.spark.jobs import export as job_module
        from mqlake.spark.jobs.streams import broker_stream, store_stream

        began = time.monotonic()
        if from_broker:
            stream = broker_stream(spark, source, topics)
        else:
            stream = store_stream(spark, source, topics, batch_size)
        decoding = job_module.Decoding()
        if json_schema == "infer":
            if from_broker:
                raise ConfigError("--json-schema infer only works for store directories")
            decoding = job_module.Decoding(
                job_module.JSON,
                job_module.infer_json_schema(spark, job_module.sampled(spark, source, topics)),
            )
        elif json_schema:
            decoding = job_module.Decoding(job_module.JSON, json_schema)
        elif avro_schema:
            decoding = job_module.Decoding(job_module.AVRO, Path(avro_schema).read_text(encoding="utf-8"))

        def run() -> StreamingQuery:
            query = job_module.export_stream(job_module.decoded(stream, decoding), target, follow=follow)
            try:
                query.awaitTermination()
            except KeyboardInterrupt:
                retry_once(query.stop)
            return query

        query = when_workers_start(run)  # continues from its checkpoint
        report = job_module.report_of(query, target, time.monotonic() - began)
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"{report.path}: {count_text(report.rows, 'message')} in {count_text(report.batches, 'batch', 'batches')}, "
            f"{report.seconds:.1f} s"
        )
