"""`mqlake metaq store info | dump | verify | repair`."""

from __future__ import annotations

import os
import sys

import click

from mqlake.base.findings import Severity
from mqlake.cli.options import Whole, confirm, directory_argument, json_option, yes_option
from mqlake.cli.output import (
    as_object,
    count_text,
    note_error,
    print_fields,
    print_json,
    print_json_line,
    print_table,
    progress,
    size_text,
)
from mqlake.metaq.store.inspect import open_data_directory, read_records, verify_data_directory
from mqlake.metaq.store.repair import RepairPlan, plan_repair, repair_data_directory

EXIT_DAMAGE = 1
SHOWN_BYTES = 60


@click.group()
def store() -> None:
    """Inspect, check and repair a data directory.

    DIR is a broker's dataPath: the directory that contains the <topic>-<partition> directories.
    """


@store.command()
@directory_argument
@json_option
def info(directory: str, as_json: bool) -> None:
    """Show the partitions, their segments and offsets."""
    found = open_data_directory(directory)
    if as_json:
        print_json(
            {
                "path": found.path,
                "inUse": found.in_use,
                "partitions": [
                    {**as_object(each), "minOffset": each.min_offset, "maxOffset": each.max_offset}
                    for each in found.partitions
                ],
                "foreign": found.foreign,
            }
        )
        return
    size = sum(each.size for each in found.partitions)
    print_fields(
        [
            ("data directory", f"{found.path}{' (in use)' if found.in_use else ''}"),
            ("partitions", f"{count_text(len(found.partitions), 'partition')}, {size_text(size)}"),
        ]
    )
    if found.partitions:
        click.echo()
        print_table(
            ["partition", "segments", "first offset", "end", "bytes", "archived"],
            [
                (each.name, len(each.segments), each.min_offset, each.max_offset, each.size, each.archived)
                for each in found.partitions
            ],
        )
    for path in [*found.foreign, *(path for each in found.partitions for path in each.foreign)]:
        click.echo(f"foreign  {path}")


@store.command()
@directory_argument
@click.argument("topic")
@click.argument("partition", type=Whole(0))
@click.option("--offset", type=Whole(0), help="Begin at the message with this offset.  [the first]")
@click.option("-c", "--count", type=Whole(1), help="Print at most so many messages.  [all]")
@json_option
def dump(
    directory: str, topic: str, partition: int, offset: int | None, count: int | None, as_json: bool
) -> None:
    """Print the messages of a partition."""
    files = open_data_directory(directory).partition(topic, partition)
    for i, record in enumerate(read_records(files, offset)):
        if i == count:
            break
        message = record.message
        text = message.data.decode("utf-8", "backslashreplace")
        if as_json:
            print_json_line(
                {
                    "offset": record.offset,
                    "size": record.size,
                    "id": message.id,
                    "flag": message.flag,
                    "attribute": message.attribute,
                    "data": text,
                }
            )
        else:
            attribute = f"  [{message.attribute}]" if message.attribute is not None else ""
            cut = f"{text[:SHOWN_BYTES]}…" if len(text) > SHOWN_BYTES else text
            click.echo(f"{record.offset:>12}  {record.size:>8}  {message.id}{attribute}  {cut!r}")


@store.command()
@directory_argument
@json_option
def verify(directory: str, as_json: bool) -> None:
    """Check every record; modify nothing. Exit status 1 if there is damage."""
    with progress("verifying") as report_progress:
        report = verify_data_directory(directory, report_progress)
    if as_json:
        print_json({"ok": report.ok, **as_object(report)})
    else:
        print_fields(
            [
                ("data directory", f"{report.path}{' (in use)' if report.in_use else ''}"),
                ("partitions", f"{report.partitions:,}, {count_text(report.segments, 'segment')}"),
                ("records", f"{report.records:,} ({size_text(report.record_bytes)})"),
            ]
        )
        for severity, title in ((Severity.DAMAGE, "damage"), (Severity.NOTE, "notes")):
            found = [finding for finding in report.findings if finding.severity is severity]
            if found:
                click.echo(f"\n{title}")
                for finding in found:
                    click.echo(f"  {finding}")
        if report.ok:
            click.echo("\nall is well")
        else:
            note_error(
                f"{count_text(report.damage_count, 'finding')} of damage; "
                "`mqlake metaq store repair --dry-run` shows what can be done"
            )
    if not report.ok:
        sys.exit(EXIT_DAMAGE)


@store.command()
@directory_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@json_option
def repair(directory: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Repair what keeps a directory from opening or stops its readers.

    Torn tails are cut off, damage is replaced by a record of the same size, segments before a gap are moved away. The
    original bytes are kept in a directory repair_<time> beside the partitions. No broker may be running.
    """
    plan = plan_repair(directory)
    if not dry_run and plan.actions:
        if not yes and not as_json:
            _print_actions(plan)
        confirm(f"Repair {directory} (--dry-run only shows how)", yes=yes, as_json=as_json)
        plan = repair_data_directory(directory)
    if as_json:
        print_json(plan)
        return
    _print_actions(plan)
    if not plan.actions:
        click.echo("there is nothing to repair")
    elif plan.backup:
        click.echo(
            f"\n{count_text(len(plan.actions), 'repair')} done; the old bytes are in {os.path.abspath(plan.backup)}"
        )
    else:
        click.echo(f"\n{count_text(len(plan.actions), 'repair')} to do; nothing was modified")


def _print_actions(plan: RepairPlan) -> None:
    for action in plan.actions:
        click.echo(
            f"{action.kind}  {action.path}: byte {action.offset}, {action.size:,} bytes: {action.text}"
        )
