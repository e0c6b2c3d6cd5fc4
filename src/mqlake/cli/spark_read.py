"""`mqlake spark search | stats | export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from mqlake.cli.options import json_option
from mqlake.cli.output import count_text, print_json, print_json_line, print_table
from mqlake.cli.spark_shared import Where, job, spark_options, wanted_options
from mqlake.errors import ConfigError

BODY_SHOWN = 80
COLUMNS_SHOWN = ("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "msgId", "body")

# ---------------------------------------------------------------------- search


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@wanted_options
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most.")
@json_option
@spark_options
def search(directories: tuple[str, ...], limit: int, as_json: bool, where: Where, **wanted: Any) -> None:
    """Find messages in stores. All of what is given has to hold.

    Keys, topics, tags and times skip what need not be read. --json prints a line a message.
    """
    with job(where, "searching") as spark:
        from mqlake.spark.jobs.search import Wanted
        from mqlake.spark.jobs.search import search as search_job

        found = search_job(spark, *directories, wanted=Wanted(**wanted))
        rows = [row.asDict() for row in found.limit(limit).collect()]
    if as_json:
        for row in rows:
            print_json_line(_message_object(row))
        return
    print_table(COLUMNS_SHOWN, [[_shown(row[name]) for name in COLUMNS_SHOWN] for row in rows])
    more = " (there may be more: --limit)" if len(rows) == limit else ""
    click.echo(f"\n{count_text(len(rows), 'message')}{more}")


def _message_object(row: dict[str, Any]) -> dict[str, Any]:
    """`body` as text where it is UTF-8, else `bodyHex`."""
    found = {name: value for name, value in row.items() if name != "body"}
    for name in ("bornTimestamp", "storeTimestamp"):
        found[name] = None if row[name] is None else row[name].isoformat(timespec="milliseconds")
    body = bytes(row["body"])
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["bodyHex"] = body.hex()
    return found


def _shown(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        text = bytes(value).decode("utf-8", "backslashreplace")
        text = text if text.isprintable() else repr(text)[1:-1]
    elif isinstance(value, int):
        return value
    else:
        text = "-" if value is None else str(value)
    return text if len(text) <= BODY_SHOWN else text[: BODY_SHOWN - 1] + "…"


# ---------------------------------------------------------------------- stats


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--interval", metavar="TIME", help="Of rates, such as 1m or 1h; default: as the log spans.")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="So many keys.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only these topics.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with tables and plots there.")
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
    """Rates, sizes, time from producer to store, the most frequent keys, how even the queues are."""
    with job(where, "counting") as spark:
        from mqlake.spark.jobs.stats import collected, log_stats, stats_page

        options = {"topics": list(topics)} if topics else {}
        found = log_stats(spark, *directories, interval=interval, top=top, **options)
        tables = collected(found)
    if html is not None:
        title = "Figures of " + ", ".join(directories)
        Path(html).write_text(stats_page(tables, title=title, interval=found.interval), encoding="utf-8")
    if as_json:
        print_json({"interval": found.interval, **{name: _plain(rows) for name, rows in tables.items()}})
        return
    for name in ("topics", "quantiles", "skew", "keys"):
        rows = tables[name]
        if rows:
            click.echo(f"{name}")
            print_table(list(rows[0]), [[_figure(value) for value in row.values()] for row in rows], indent=2)
            click.echo()
    click.echo(f"rates by {found.interval}: --json or --html")


def _figure(value: object) -> object:
    return (
        f"{value:.2f}" if isinstance(value, float) else value if isinstance(value, int | str) else str(value)
    )


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
        for row in rows
    ]


# ---------------------------------------------------------------------- export


@click.command()
@click.argument("source", metavar="DIR")
@click.argument("target", metavar="OUT", type=click.Path(file_okay=False))
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only these topics.")
@click.option("--json-schema", metavar="SCHEMA", help='Bodies are JSON: "id long, name string", or `infer`.')
@click.option(
    "--avro-schema", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Bodies are Avro."
)
@click.option("--from-broker", is_flag=True, help="DIR is host:port of a name server; --topic says what.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--batch-size", metavar="BYTES", default="1g", show_default=True, help="Of log, a batch.")
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
    """Messages to Parquet (zstd), a directory a topic and day.

    Run it again and it goes on where it was: every message is there once, whatever is stopped or killed. With
    --json-schema or --avro-schema bodies become the columns `value.…`; one that cannot be decoded is kept as it
    is in `undecoded`.
    """
    if json_schema and avro_schema:
        raise ConfigError("one of --json-schema and --avro-schema")
    with job(where, "exporting") as spark:
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
                raise ConfigError("--json-schema infer works for store directories")
            decoding = job_module.Decoding(
                job_module.JSON,
                job_module.infer_json_schema(spark, job_module.sampled(spark, source, topics)),
            )
        elif json_schema:
            decoding = job_module.Decoding(job_module.JSON, json_schema)
        elif avro_schema:
            decoding = job_module.Decoding(job_module.AVRO, Path(avro_schema).read_text(encoding="utf-8"))
        query = job_module.export_stream(job_module.decoded(stream, decoding), target, follow=follow)
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
        report = job_module.report_of(query, target, time.monotonic() - began)
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"{report.path}: {count_text(report.rows, 'message')} in {count_text(report.batches, 'batch', 'batches')}, "
            f"{report.seconds:.1f} s"
        )
