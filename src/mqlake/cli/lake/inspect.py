"""`mqlake lake status | query | verify`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from mqlake.cli.lake.shared import LakeArguments, lake_options, opened
from mqlake.cli.options import Whole, json_option, time_ms
from mqlake.cli.output import note, print_json, print_table, progress, size_text, time_text

EXIT_NOT_SOUND = 1


@click.command()
@lake_options
@json_option
def status(given: LakeArguments, as_json: bool) -> None:
    """Show how far each table is: its lag in messages, bytes of log and time, its files, its last commit."""
    found = [table.status() for table in opened(given, create=False)]
    if as_json:
        print_json(found)
        return
    print_table(
        ["table", "rows", "files", "size", "messages behind", "log behind", "time behind", "last commit"],
        [
            [
                each.table,
                each.rows,
                each.files,
                size_text(each.bytes),
                each.lag.messages,
                size_text(each.lag.bytes),
                f"{each.lag.seconds:.0f} s",
                time_text(each.committed_at),
            ]
            for each in found
        ],
    )
    for each in found:
        if each.is_at_risk:
            note(
                f"{each.table} lacks more than half of what the log keeps ({size_text(each.lag.bytes)} of "
                f"{size_text(each.lag.kept or 0)}): run it before the log is deleted"
            )


@click.command()
@click.argument("sql")
@lake_options
@click.option(
    "--as-of", metavar="TIME", help="What had been stored before this time: ISO 8601, or ms since 1970."
)
@click.option(
    "--archive",
    metavar="PLACE",
    help="Of one store: where its older files are (`mqlake store offload`); `log` has their messages, too.",
)
@json_option
def query(sql: str, given: LakeArguments, as_of: str | None, archive: str | None, as_json: bool) -> None:
    """SQL (DuckDB's) over tables and what the log has after them: exact, and as fresh as the log.

    \b
    mqlake lake query "select tags, count(*) from Orders group by 1" /data/lake
    mqlake lake query "select max(storeTimestamp) from Orders" /data/store --warehouse /data/lake --topic Orders
    mqlake lake query "select topic, count(*) from heads group by 1" /data/store

    The views `log` and `heads` are there beside the tables: all messages of the stores, and all their records without
    bodies, which Parquet answers (`mqlake store heads`). They need no table. With --archive there is no view `heads`.
    """
    from mqlake.lake.dataset import scan
    from mqlake.lake.heads_dataset import scan_heads
    from mqlake.lake.tables.query import query as run_query

    if archive is not None and (as_of is not None or not given.has_stores_only):
        raise click.UsageError("--archive is for the view `log` of a store: give the store alone")
    moment = None if as_of is None else datetime.fromtimestamp(time_ms(as_of) / 1000, UTC)
    tables = [] if given.has_stores_only else opened(given, create=False)
    stores = (
        given.stores
        if given.has_stores_only
        else [path for table in tables for path in table.topic.stores.values()]
    )
    stores = list(dict.fromkeys(stores))
    views: dict[str, Callable[[], Any]] = {}
    if stores and not moment:
        views["log"] = lambda: scan(stores, archive=archive)
    if views and archive is None:
        views["heads"] = lambda: scan_heads(stores)
    names, rows = run_query(sql, tables, moment, views)
    if as_json:
        print_json([dict(zip(names, map(_plain, row), strict=True)) for row in rows])
    else:
        print_table(names, [[_text(value) for value in row] for row in rows])


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | dict | list | str | int | float | bool | datetime) or value is None:
        return value
    return str(value)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


@click.command()
@lake_options
@click.option("--sample", type=Whole(0), default=100, show_default=True, help="Rows compared with the log.")
@json_option
@click.pass_context
def verify(ctx: click.Context, given: LakeArguments, sample: int, as_json: bool) -> None:
    """Prove that each message is in its table once.

    Queue offsets are dense: a queue of n messages has the offsets 0 to n - 1. So no gap and no repeat in a table, and
    none between it and the log, means that nothing is missing and nothing is twice. Some rows are compared with the
    log column by column. Exit status 1 if something is wrong, or if the log no longer has any row to compare with
    (--sample 0 leaves the comparison out).
    """
    found = []
    for table in opened(given, create=False):
        with progress(f"reading {table.table.name}", in_bytes=False) as report:
            found.append(table.verify(sample=sample, report=report))
    if as_json:
        print_json([{"sound": each.is_sound, "verdict": each.verdict, **each.__dict__} for each in found])
    else:
        print_table(
            ["table", "queues", "rows", "missing", "repeated", "compared", "deleted from the log", "verdict"],
            [
                [
                    each.table,
                    len(each.queues),
                    each.rows,
                    sum(queue.missing for queue in each.queues),
                    sum(queue.repeated for queue in each.queues),
                    each.compared,
                    each.deleted,
                    each.verdict,
                ]
                for each in found
            ],
        )
        for each in found:
            for line in each.findings:
                click.echo(f"{each.table}: {line}")
            if not each.is_sound and not each.findings:
                note(
                    f"{each.table}: its queue offsets have no gap and no repeat, but the log no longer has any of its "
                    "messages, so no row was compared; give another copy of the log, or --sample 0 to count only"
                )
    if not all(each.is_sound for each in found):
        ctx.exit(EXIT_NOT_SOUND)
