"""`mqlake store offload`: the sealed files of a log copied to a bucket."""

from __future__ import annotations

import click

from mqlake.cli.options import directory_argument, json_option
from mqlake.cli.output import as_object, count_text, print_json, progress, size_text
from mqlake.cli.store.archive import storage_option, storage_options


@click.command()
@directory_argument
@click.argument("target", metavar="TARGET")
@storage_option
@click.option("--recheck", is_flag=True, help="Also read and compare the files that are there already.")
@click.option("--dry-run", is_flag=True, help="Only show what would be copied.")
@json_option
def offload(
    directory: str, target: str, given: tuple[str, ...], recheck: bool, dry_run: bool, as_json: bool
) -> None:
    """Bring the finished files of a log to the archive at TARGET, such as s3://bucket/store.

    Each copy is read and compared. A broker may run on DIR; one with archive=TARGET does the same by itself, archives
    the newest file, too, and reads from there. Nothing is deleted: the broker's retention does that. `mqlake.lake.scan`
    and Spark read both as one log with archive=TARGET. Run it more often than files are deleted. S3 takes its keys
    from the environment and from ~/.aws.
    """
    from mqlake.store.archive.offload import offload

    options = storage_options(given)
    with progress("offloading") as report:
        found = offload(
            directory, target, storage_options=options, recheck=recheck, dry_run=dry_run, progress=report
        )
    if as_json:
        print_json({**as_object(found), "dryRun": dry_run})
        return
    files = count_text(found.copied, "file")
    click.echo(
        f"{'would copy' if dry_run else 'copied'} {files} ({size_text(found.copied_bytes)}) to {found.target}"
    )
    click.echo(f"{found.already_there} there already; the log is there from {found.begin:,} to {found.end:,}")
