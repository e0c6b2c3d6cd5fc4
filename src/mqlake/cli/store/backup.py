"""`mqlake store backup` and `mqlake store restore`."""

from __future__ import annotations

import click

from mqlake.cli.options import directory_argument, json_option, set_option
from mqlake.cli.output import as_object, count_text, note, print_json, progress, size_text
from mqlake.store.backup import back_up, restore

EXIT_DAMAGED = 1


@click.command("backup")
@directory_argument
@click.option("--to", metavar="BACKUP", type=click.Path(), required=True, help="Directory of the backup.")
@click.option(
    "--prune", is_flag=True, help="Drop from the backup the files that the store has deleted as old."
)
@click.option("--overwrite", is_flag=True, help="Follow the store although BACKUP has another log.")
@set_option
@json_option
@click.pass_context
def backup_command(
    ctx: click.Context,
    directory: str,
    to: str,
    prune: bool,
    overwrite: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Back up the store in DIR, also while a broker runs on it.

    The first backup copies the log and the configuration; each further one to the same BACKUP copies what is new.
    Every copy is read back and compared. Exit status 1: the store has damage in what was copied (it is copied as it
    is; see `mqlake store verify`).
    """
    with progress("backing up") as report_progress:
        report = back_up(directory, to, settings, overwrite=overwrite, prune=prune, progress=report_progress)
    if as_json:
        print_json(as_object(report))
    else:
        click.echo(
            f"{to}: offsets {report.start:,} to {report.end:,} in {count_text(report.files, 'file')}; "
            f"{size_text(report.copied_bytes)} copied, {size_text(report.kept_bytes)} there already"
        )
    for place in report.damage:
        note(f"damage in the store: {place}")
    if report.damage:
        ctx.exit(EXIT_DAMAGED)


@click.command("restore")
@click.argument("backup", metavar="BACKUP", type=click.Path())
@click.option(
    "--to", metavar="DIR", type=click.Path(), required=True, help="Directory of the store, new or empty."
)
@set_option
@json_option
def restore_command(backup: str, to: str, settings: dict[str, str], as_json: bool) -> None:
    """Make a store from a backup: its messages, topics, groups and their offsets, users and acls.

    Every file is compared with its checksum. Queues and index are made from the log, so that the broker starts at once.
    """
    with progress("restoring") as report_progress:
        report = restore(backup, to, settings, progress=report_progress)
    if as_json:
        print_json(as_object(report))
        return
    click.echo(
        f"{to}: offsets {report.start:,} to {report.end:,} in {count_text(report.files, 'file')}, "
        f"{size_text(report.bytes)}; ready for a broker"
    )
