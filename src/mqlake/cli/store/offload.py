"""`mqlake store offload`: the sealed files of a log copied to a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mqlake.cli.options import directory_argument, json_option
from mqlake.cli.output import as_object, count_text, note, print_json, progress, size_text
from mqlake.cli.store.archive import storage_option, storage_options
from mqlake.cli.store.heads import INSTALL
from mqlake.errors import MissingPartError
from mqlake.lake.requirements import require_modules
from mqlake.store.archive.target import Target

if TYPE_CHECKING:
    from mqlake.lake.heads.offload import HeadsOffload


@click.command()
@directory_argument
@click.argument("target", metavar="TARGET")
@storage_option
@click.option("--recheck", is_flag=True, help="Also read and compare the files that are there already.")
@click.option("--dry-run", is_flag=True, help="Only show what would be copied.")
@click.option(
    "--heads/--no-heads",
    "with_heads",
    default=True,
    help="Also bring the heads of the files, for narrow queries.  [--heads where pyarrow is installed]",
)
@json_option
def offload(
    directory: str,
    target: str,
    given: tuple[str, ...],
    recheck: bool,
    dry_run: bool,
    with_heads: bool,
    as_json: bool,
) -> None:
    """Bring the finished files of a log to the archive at TARGET, such as s3://bucket/store.

    Each copy is read and compared. Beside them come their heads (`mqlake store heads`), of each record all but its
    body, by which queries of one key, topic or hour find what they read. A broker may run on DIR; one with
    archive=TARGET does the same by itself, archives the newest file, too, and reads from there; of heads it brings
    those that the store has. Nothing is deleted: the broker's retention does that. `mqlake.lake.scan` and Spark read
    both as one log with archive=TARGET. Run it more often than files are deleted. S3 takes its keys from the
    environment and from ~/.aws.
    """
    from mqlake.store.archive.offload import offload

    options = storage_options(given)
    with progress("offloading") as report:
        found = offload(
            directory, target, storage_options=options, recheck=recheck, dry_run=dry_run, progress=report
        )
    heads = None if dry_run or not with_heads else _offload_heads(directory, Target(target, options), recheck)
    if as_json:
        print_json({**as_object(found), "heads": heads and as_object(heads), "dryRun": dry_run})
        return
    files = count_text(found.copied, "file")
    click.echo(
        f"{'would copy' if dry_run else 'copied'} {files} ({size_text(found.copied_bytes)}) to {found.target}"
    )
    click.echo(f"{found.already_there} there already; the log is there from {found.begin:,} to {found.end:,}")
    if heads is not None:
        click.echo(f"heads of {count_text(heads.copied, 'file')} ({size_text(heads.bytes)})")


def _offload_heads(directory: str, target: Target, again: bool) -> HeadsOffload | None:
    """None without pyarrow, which is said."""
    try:
        require_modules("pyarrow", command=INSTALL)
    except MissingPartError as error:
        note(f"no heads were brought: {error}; --no-heads leaves them out")
        return None
    from mqlake.lake.heads.offload import offload_heads

    with progress("bringing heads") as report:
        found = offload_heads(directory, target, again=again, progress=report)
    for text in found.damaged:
        note(f"no heads of a damaged file: {text}; `mqlake store verify` shows all of the damage")
    return found
