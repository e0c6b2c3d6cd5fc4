"""`mqlake store archive`: what an archive has, whether it is whole, and repair."""

from __future__ import annotations

import click

from mqlake.cli.options import directory_argument, json_option
from mqlake.cli.output import (
    as_object,
    count_text,
    note,
    print_fields,
    print_json,
    progress,
    size_text,
    time_text,
)
from mqlake.errors import ConfigError, NotThereError
from mqlake.store.archive.check import ArchiveReport, describe, repair, verify
from mqlake.store.archive.manifest import read_manifest
from mqlake.store.archive.target import Target

EXIT_DAMAGED = 1

target_argument = click.argument("target", metavar="TARGET")
storage_option = click.option(
    "--storage-option",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    help="For the file system, such as endpoint_url=http://127.0.0.1:9000; may be repeated.",
)


def storage_options(given: tuple[str, ...]) -> dict[str, str]:
    """ConfigError."""
    options = dict(each.split("=", 1) for each in given if "=" in each)
    if len(options) != len(given):
        raise ConfigError("--storage-option takes KEY=VALUE, each key once")
    return options


@click.group()
def archive() -> None:
    """Look at an archive, verify it, repair it.

    TARGET is what `archive` names in broker.conf, such as s3://bucket/store or file:///data/archive.
    """


@archive.command("info")
@target_argument
@storage_option
@json_option
def info(target: str, given: tuple[str, ...], as_json: bool) -> None:
    """Show which part of which log is there."""
    place = Target(target, storage_options(given))
    manifest = read_manifest(place)
    if manifest is None:
        raise NotThereError(f"{target}: there is no archive")
    _show(describe(place, manifest), as_json)


@archive.command("verify")
@target_argument
@click.option("--read", is_flag=True, help="Read everything and compare its SHA-256, not only sizes.")
@storage_option
@json_option
@click.pass_context
def verify_command(
    ctx: click.Context, target: str, read: bool, given: tuple[str, ...], as_json: bool
) -> None:
    """Check that all is there that the manifest names. Exit status 1: something is damaged or gone."""
    with progress("verifying") as report_progress:
        report = verify(Target(target, storage_options(given)), read=read, progress=report_progress)
    _show(report, as_json)
    if report.troubles:
        ctx.exit(EXIT_DAMAGED)


@archive.command("repair")
@target_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@storage_option
@json_option
def repair_command(target: str, dry_run: bool, given: tuple[str, ...], as_json: bool) -> None:
    """Make again what can be made from the files of the log; leave out what is gone.

    Units that are damaged are made again from their file, a manifest that is gone from all files. Objects that nothing
    names, which a crash leaves, are deleted. Stop the broker first.
    """
    with progress("repairing") as report_progress:
        report = repair(Target(target, storage_options(given)), dry_run=dry_run, progress=report_progress)
    _show(report, as_json)


@archive.command("queues")
@target_argument
@directory_argument
@storage_option
@json_option
def queues(target: str, directory: str, given: tuple[str, ...], as_json: bool) -> None:
    """Make the consume queues and the index of DIR again, also of messages that only the archive has.

    For a store whose queues were lost, or that Java's broker has had: it deletes what points before its log. Stop the
    broker first.
    """
    from mqlake.store.archive_restore import make_queues_again

    with progress("making queues") as report_progress:
        manifest = make_queues_again(
            target, directory, storage_options=storage_options(given), progress=report_progress
        )
    if as_json:
        print_json({"store": directory, "archive": target, "begin": manifest.begin, "end": manifest.end})
        return
    click.echo(f"{directory}: its queues go back to physical offset {manifest.begin:,}")


def _show(report: ArchiveReport, as_json: bool) -> None:
    if as_json:
        print_json(as_object(report))
        return
    print_fields(
        [
            ("archive", report.archive),
            ("log", f"{report.begin} to {report.end} ({size_text(report.end - report.begin)})"),
            ("objects", f"{count_text(report.objects, 'object')}, {size_text(report.bytes)}"),
            (
                "messages",
                f"{time_text(report.first_store_timestamp)} to {time_text(report.last_store_timestamp)}",
            ),
            ("saved", time_text(report.saved_timestamp)),
            *([("checked", size_text(report.checked_bytes))] if report.checked_bytes else []),
        ]
    )
    for start, end in report.holes:
        note(f"offsets {start} to {end} are missing: they were deleted before they were archived")
    for trouble in report.troubles:
        note(trouble)
    for name in report.orphans:
        note(f"nothing names {name}")
    for text in report.repaired:
        note(text)
