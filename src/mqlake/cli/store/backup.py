"""`mqlake store backup` and `mqlake store restore`."""

from __future__ import annotations

import click

from mqlake.cli.options import directory_argument, json_option, set_option
from mqlake.cli.output import as_object, count_text, note, print_json, progress, size_text, time_text
from mqlake.cli.store.archive import storage_option, storage_options
from mqlake.errors import ConfigError
from mqlake.store.backup import back_up, restore

EXIT_DAMAGED = 1


@click.command("backup")
@directory_argument
@click.option("--to", metavar="BACKUP", type=click.Path(), required=True, help="Directory of the backup.")
@click.option(
    "--prune", is_flag=True, help="Drop from the backup the files that the store has deleted as old."
)
@click.option("--verify", is_flag=True, help="Read all of BACKUP and compare it with its checksums.")
@click.option("--overwrite", is_flag=True, help="Follow the store although BACKUP has another log.")
@set_option
@json_option
@click.pass_context
def backup_command(
    ctx: click.Context,
    directory: str,
    to: str,
    prune: bool,
    verify: bool,
    overwrite: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Back up the store in DIR, also while a broker runs on it.

    The first backup copies the log and the configuration; each further one to the same BACKUP copies what is new.
    Every copy is read back and compared; so is each time one of the files that are there already, in turn. A damaged
    one is copied again. Exit status 1: the backup was damaged, or the store is in what was copied (it is copied as it
    is; see `mqlake store verify`).
    """
    with progress("backing up") as report_progress:
        report = back_up(
            directory,
            to,
            settings,
            overwrite=overwrite,
            prune=prune,
            verify=verify,
            progress=report_progress,
        )
    if as_json:
        print_json(as_object(report))
    else:
        click.echo(
            f"{to}: offsets {report.start:,} to {report.end:,} in {count_text(report.files, 'file')}; "
            f"{size_text(report.copied_bytes)} copied, {size_text(report.kept_bytes)} there already, "
            f"{size_text(report.checked_bytes)} of it compared"
        )
    for place in report.damage:
        note(f"damage in the store: {place}")
    for place in report.mended:
        note(f"damage in the backup, copied again: {place}")
    for place in report.damaged_copies:
        note(f"damage in the backup, and the store no longer has the original: {place}")
    if report.damage or report.mended or report.damaged_copies:
        ctx.exit(EXIT_DAMAGED)


@click.command("restore")
@click.argument("backup", metavar="[BACKUP]", required=False, type=click.Path())
@click.option("--from", "source", metavar="URL", help="An archive, such as s3://bucket/store, and no backup.")
@click.option(
    "--to",
    "--store",
    "to",
    metavar="DIR",
    type=click.Path(),
    required=True,
    help="Directory of the store, new or empty.",
)
@storage_option
@set_option
@json_option
def restore_command(
    backup: str | None,
    source: str | None,
    to: str,
    given: tuple[str, ...],
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Make a store from a backup, or with --from from an archive: its messages, topics, groups and their offsets, users
    and acls.

    Every file of a backup is compared with its checksum. Queues and index are made from the log, so that the broker
    starts at once. Of an archive only the newest file of the log is fetched; the broker, with archive=URL, reads the
    others there when somebody asks for them.
    """
    if (backup is None) == (source is None):
        raise ConfigError("name a BACKUP, or an archive with --from")
    if source is not None:
        _restore_archive(source, to, storage_options(given), as_json)
        return
    assert backup is not None
    with progress("restoring") as report_progress:
        report = restore(backup, to, settings, progress=report_progress)
    if as_json:
        print_json(as_object(report))
        return
    click.echo(
        f"{to}: offsets {report.start:,} to {report.end:,} in {count_text(report.files, 'file')}, "
        f"{size_text(report.bytes)}; ready for a broker"
    )


def _restore_archive(source: str, to: str, options: dict[str, str], as_json: bool) -> None:
    from mqlake.store.archive_restore import restore_archive

    with progress("restoring") as report_progress:
        report = restore_archive(source, to, storage_options=options, progress=report_progress)
    if as_json:
        print_json(as_object(report))
        return
    click.echo(
        f"{to}: offsets {report.begin:,} to {report.end:,}, of which those from {report.log_begin:,} on are here "
        f"({size_text(report.fetched_bytes)} fetched); ready for a broker with archive={report.archive}"
    )
    click.echo(
        f"The newest message in the archive is of {time_text(report.last_store_timestamp)}; what was "
        "acknowledged after "
        f"{time_text(report.saved_timestamp)} is not in it, and lost with the old machine"
    )
