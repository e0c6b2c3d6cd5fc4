"""`mqlake store diff` and `mqlake store truncate`: two stores that should be one, and how to make them so."""

from __future__ import annotations

import click

from mqlake.cli.options import Whole, confirm, directory_argument, json_option, set_option, yes_option
from mqlake.cli.output import as_object, count_text, print_json, print_table, progress, size_text
from mqlake.store.check.diff import StoreDiff, diff_stores
from mqlake.store.truncate import Truncation, truncate

EXIT_DIFFERENT = 1


@click.command()
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option(
    "--prefix",
    is_flag=True,
    help="B is a slave of A: its log may end earlier, and either may begin later; but B may not go on after A's end.",
)
@click.option("--no-queues", is_flag=True, help="Compare the logs only.")
@json_option
@click.pass_context
def diff(ctx: click.Context, a: str, b: str, prefix: bool, no_queues: bool, as_json: bool) -> None:
    """Compare two stores byte by byte: a master and its slave, a copy and its original.

    A and B are the roots of stores; brokers may run on them. Exit status 1 means that they differ.
    """
    with progress("comparing") as report:
        found = diff_stores(a, b, queues=not no_queues, prefix=prefix, progress=report)
    if as_json:
        print_json({**as_object(found), "equal": found.is_equal})
    else:
        _print(found)
    if not found.is_equal:
        ctx.exit(EXIT_DIFFERENT)


def _print(found: StoreDiff) -> None:
    for path, (start, end) in ((found.a, found.a_range), (found.b, found.b_range)):
        click.echo(f"{path}: offsets {start:,} to {end:,}")
    if found.differences:
        print_table(
            ("what", "difference", "store", "offset", "size", "file", "position"),
            [
                (
                    each.what,
                    each.kind.value,
                    each.store or "both",
                    each.offset,
                    each.size,
                    each.file,
                    each.position,
                )
                for each in found.differences
            ],
        )
    if found.more_differences:
        click.echo(f"and {found.more_differences:,} more")
    if found.is_equal and (less := found.a_range[1] - found.b_range[1]):
        click.echo(f"{found.b} ends {size_text(less)} earlier")
    verdict = "no difference" if found.is_equal else "they differ"
    click.echo(
        f"{verdict}: {size_text(found.compared_bytes)} of log and "
        f"{count_text(found.compared_units, 'unit')} of consume queues compared"
    )


@click.command("truncate")
@directory_argument
@click.option(
    "--to",
    "offset",
    type=Whole(0),
    required=True,
    help="Physical offset at which the log shall end; a record begins there.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be cut.")
@yes_option
@set_option
@json_option
def truncate_command(
    directory: str, offset: int, dry_run: bool, yes: bool, settings: dict[str, str], as_json: bool
) -> None:
    """Cut the end off a log: for a slave that is ahead of its master, or has other messages.

    No broker may run on DIR. What is cut is copied to DIR/dropped/ first; `mqlake store dropped` lists it.
    """
    planned = truncate(directory, offset, settings, dry_run=True)
    if planned.size and not dry_run:
        confirm(f"Cut {_text(planned)} off {directory}", yes=yes, as_json=as_json)
        with progress("recovering") as report:
            planned = truncate(directory, offset, settings, progress=report)
    if as_json:
        print_json({**as_object(planned), "size": planned.size, "dryRun": dry_run})
        return
    if not planned.size:
        click.echo(f"the log ends at offset {offset:,} already")
        return
    click.echo(f"{'would cut' if dry_run else 'cut'} {_text(planned)}")
    for path in planned.copies:
        click.echo(f"kept in {path}")


def _text(cut: Truncation) -> str:
    records = count_text(cut.records, "record")
    return f"{size_text(cut.size)} ({records}) from offset {cut.offset:,} to {cut.log_end:,}"
