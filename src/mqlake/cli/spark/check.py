"""`mqlake spark verify | rebuild | diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqlake.cli.options import directory_argument, json_option, set_option
from mqlake.cli.output import as_object, count_text, note_error, print_json, print_table, size_text, time_text
from mqlake.cli.spark.shared import Where, check_stores, job, spark_options

if TYPE_CHECKING:
    from mqlake.spark.jobs.diff import Difference

EXIT_DAMAGE = 1
EXIT_DIFFERENT = 1
SHOWN = 20


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--html", type=click.Path(dir_okay=False), help="Write a report with figures and charts to this file."
)
@set_option
@json_option
@spark_options
def verify(
    directories: tuple[str, ...], html: str | None, settings: dict[str, str], as_json: bool, where: Where
) -> None:
    """Verify stores in parallel, as `mqlake store verify` does; modify nothing.

    The exit status is 1 if anything is damaged.
    """
    check_stores(*directories)
    with job(where, "verifying") as spark:
        from mqlake.spark.jobs.verify import verify_stores

        report = verify_stores(spark, *directories, settings=settings)
    if html is not None:
        from mqlake.spark.jobs.verify_page import verify_page

        Path(html).write_text(verify_page(report), encoding="utf-8")
    if as_json:
        print_json({"ok": report.ok, **as_object(report)})
    else:
        print_table(
            ["store", "records", "bytes", "queues", "units", "index entries", "damage"],
            [
                [
                    store.path,
                    store.records,
                    store.record_bytes,
                    store.queues,
                    store.units,
                    store.index_entries,
                    store.damage_count,
                ]
                for store in report.stores
            ],
        )
        click.echo()
        print_table(
            ["topic", "queues", "records", "bytes", "store"],
            [[each.topic, each.queues, each.records, each.bytes, each.path] for each in report.topics],
        )
        for store in report.stores:
            for finding in store.findings:
                click.echo(f"{finding.severity.value}: {finding}")
        if report.ok:
            read = sum(store.record_bytes for store in report.stores)
            click.echo(f"\nall is well ({size_text(read)}, {report.seconds:.1f} s)")
    if not report.ok:
        if not as_json:
            damages = sum(store.damage_count for store in report.stores)
            note_error(
                f"{count_text(damages, 'finding')} of damage; "
                "`mqlake store repair --dry-run` shows what can be done"
            )
        sys.exit(EXIT_DAMAGE)


@click.command()
@directory_argument
@click.option("--trust-log", is_flag=True, help="Trust the log even where the queues contradict it.")
@set_option
@json_option
@spark_options
def rebuild(directory: str, trust_log: bool, settings: dict[str, str], as_json: bool, where: Where) -> None:
    """Rebuild consume queues and index from the log, in parallel.

    Writes the same bytes as `mqlake store rebuild`, and replaces the old files when complete. No writer may run. A
    damaged log is refused: repair it first. So is a log that its consume queues prove wrong, unless --trust-log is
    given.
    """
    check_stores(directory)
    with job(where, "rebuilding") as spark:
        from mqlake.spark.jobs.rebuild import rebuild as rebuild_job

        report = rebuild_job(spark, directory, settings, trust_log=trust_log)
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"rebuilt from {count_text(report.records, 'record')}: {count_text(report.queues, 'queue')} of "
            f"{count_text(report.topics, 'topic')}, {report.index_entries:,} index entries in "
            f"{count_text(report.index_files, 'file')}; {report.seconds:.1f} s"
        )


@click.command()
@click.argument("first", metavar="DIR", type=click.Path())
@click.argument("second", metavar="OTHER", type=click.Path())
@click.option(
    "--physical", is_flag=True, help="Compare as replicas: same physical offsets, same store times."
)
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@json_option
@spark_options
def diff(
    first: str, second: str, physical: bool, topics: tuple[str, ...], as_json: bool, where: Where
) -> None:
    """Compare two stores: missing ranges and different messages, earliest first.

    The exit status is 1 if there is a difference.
    """
    check_stores(first, second)
    with job(where, "comparing") as spark:
        from mqlake.spark.jobs.diff import describe
        from mqlake.spark.jobs.diff import diff as diff_job

        options = {"topics": list(topics)} if topics else {}
        found = diff_job(spark, first, second, physical=physical, **options)
        summary = describe(found)
    if as_json:
        print_json({"same": not found, "differences": found})
    else:
        for each in found[:SHOWN]:
            click.echo(_difference_line(each))
        if len(found) > SHOWN:
            click.echo(f"… and {len(found) - SHOWN:,} more (--json lists all)")
        click.echo(summary)
    if found:
        sys.exit(EXIT_DIFFERENT)


def _difference_line(each: Difference) -> str:
    if each.reason is not None:
        return f"{each.what}: {each.reason}"
    last = f" to {each.last_offset}" if each.last_offset > each.first_offset else ""
    stored = time_text(each.first_store_timestamp or 0)
    where = f"{each.topic}/{each.queue_id}@{each.first_offset}{last}"
    return f"{each.what}: {where}, {count_text(each.messages, 'message')}, {stored}"
