"""`mqlake lake rewind | compact | expire | orphans`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from mqlake.cli.lake.shared import LakeArguments, age_option, lake_options, opened
from mqlake.cli.options import Whole, confirm, json_option, size_option, time_ms, yes_option
from mqlake.cli.output import count_text, note, print_json, print_table, progress, size_text
from mqlake.errors import TableError


def _before(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@click.command()
@lake_options
@click.option(
    "--to-version", type=Whole(0), metavar="N", help="A snapshot's id (Iceberg), or a version (Delta)."
)
@click.option(
    "--to-time", metavar="TIME", help="The last version committed by then: ISO 8601, or ms since 1970."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("--force", is_flag=True, help="Also if the log no longer has what would be appended again.")
@yes_option
@json_option
def rewind(
    given: LakeArguments,
    to_version: int | None,
    to_time: str | None,
    dry_run: bool,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Take tables back to an earlier version, rows and position; the next run appends what follows again."""
    if (to_version is None) == (to_time is None):
        raise click.UsageError("Use either --to-version or --to-time.")
    tables = opened(given, create=False)
    moment: int | datetime = to_version if to_version is not None else datetime.now(UTC)
    if to_time is not None:
        moment = datetime.fromtimestamp(time_ms(to_time) / 1000, UTC)
    plans = [(table, table.rewind_plan(moment)) for table in tables]
    if as_json:
        print_json([plan for _, plan in plans])
    else:
        print_table(
            ["table", "from version", "to version", "rows that leave", "rows that stay"],
            [[p.table, str(p.current), str(p.version), p.rows, p.left] for _, p in plans],
        )
    for _, plan in plans:
        if plan.lost and not force:
            raise TableError(f"{plan.lost}; --force rewinds all the same, and those messages are gone then")
    if dry_run:
        return
    confirm(f"rewind {count_text(len(plans), 'table')}", yes=yes, as_json=as_json)
    for table, plan in plans:
        table.rewind(plan)


@click.command()
@lake_options
@size_option("--file-bytes", "128m", "Size of the files that are made; those below a third of it are small.")
@json_option
def compact(given: LakeArguments, file_bytes: int, as_json: bool) -> None:
    """Make large data files of small ones, a day at a time. Runs may go on meanwhile."""
    found = []
    for table in opened(given, create=False):
        with progress(f"compacting {table.table.name}") as report:
            before, after = table.table.compact(file_bytes, report)
        found.append({"table": table.table.name, "before": before, "after": after})
    if as_json:
        print_json(found)
    else:
        print_table(["table", "files before", "after"], [list(each.values()) for each in found])


@click.command()
@lake_options
@age_option("--older-than", "7d", "Versions of this age, as 12h.")
@click.option("--keep", type=Whole(1), default=20, show_default=True, help="Versions kept at least.")
@json_option
def expire(given: LakeArguments, older_than: float, keep: int, as_json: bool) -> None:
    """Forget old versions, and delete the files that only they have.

    A query that began before may still read them: keep an hour at least.
    """
    moment = _before(older_than)
    found = []
    for table in opened(given, create=False):
        with progress(f"expiring {table.table.name}", in_bytes=False) as report:
            versions, files = table.table.expire(moment, keep, report)
        found.append({"table": table.table.name, "versions": versions, "files": files})
    if as_json:
        print_json(found)
    else:
        print_table(["table", "versions", "files deleted"], [list(each.values()) for each in found])


@click.command()
@lake_options
@age_option("--older-than", "1d", "Files of this age, as 12h.")
@click.option("--delete", is_flag=True, help="Delete them; without it they are listed.")
@yes_option
@json_option
def orphans(given: LakeArguments, older_than: float, delete: bool, yes: bool, as_json: bool) -> None:
    """List, or delete, files in the tables' directories that no version refers to: what killed runs left.

    A run writes files before it commits them: keep the age above the time a step takes.
    """
    moment = _before(older_than)
    found = []
    for table in opened(given, create=False):
        with progress(f"looking through {table.table.name}", in_bytes=False) as report:
            found += [(table.table.name, *each) for each in table.table.orphans(moment, report)]
    if as_json:
        print_json([{"table": name, "path": path, "bytes": size} for name, path, size in found])
    else:
        for name, path, size in found:
            click.echo(f"{name}  {size_text(size)}  {path}")
        if not found:
            note("no table has files that no version refers to")
    if delete and found:
        confirm(f"delete {count_text(len(found), 'file')}", yes=yes, as_json=as_json)
        from mqlake.lake.tables.files import delete_paths

        with progress("deleting", in_bytes=False) as report:
            deleted = delete_paths([path for _, path, _ in found], report)
        note(f"{count_text(deleted, 'file')} deleted")
