"""`mqlake store dropped`: copies of bytes cut out of the log, and putting their messages back."""

from __future__ import annotations

from typing import Any

import click

from mqlake.cli.options import confirm, directory_argument, json_option, set_option, yes_option
from mqlake.cli.output import (
    as_object,
    count_text,
    note,
    print_json,
    print_table,
    progress,
    size_text,
    time_text,
)
from mqlake.store.kept_copies import forget
from mqlake.store.restore_copies import PutBack, Way, look_at_copies, put_back


@click.command()
@directory_argument
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--put-back", "restore", is_flag=True, help="Put the messages back into the log.")
@click.option(
    "--as-new", is_flag=True, help="With --put-back: always store them as new messages, never in place."
)
@click.option("--again", is_flag=True, help="With --put-back: include copies that were put back before.")
@click.option("--delete", is_flag=True, help="Delete the copies, after --put-back if both are given.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@set_option
@json_option
def dropped(
    directory: str,
    names: tuple[str, ...],
    restore: bool,
    as_new: bool,
    again: bool,
    delete: bool,
    dry_run: bool,
    yes: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """List bytes that were cut out of the log, and put their messages back.

    Recovery keeps bytes worth keeping that it truncates or fences off in DIR/dropped/, and repair keeps the bytes it
    changes in DIR/repair-<time>/. NAME is a copy as listed (default: all). Without --put-back and --delete nothing is
    modified, and a writer may run.

    Messages go back in place, with their old offsets, if the log still ends where the copy began; otherwise they are
    stored as new messages at the end of their queues. The copies stay until --delete.
    """
    if (as_new or again) and not restore:
        raise click.UsageError("--as-new and --again require --put-back")
    copies = look_at_copies(directory, settings, names)
    if dry_run or not (restore or delete):
        _report(
            copies, "would be put back" if restore else "", delete=delete, dry_run=dry_run, as_json=as_json
        )
        return
    if delete:
        lost = sum(looked.messages for looked in copies if not (restore or looked.copy.put_back))
        never = f", with {count_text(lost, 'message')} never put back" if lost else ""
        confirm(f"Delete {_copies(copies)}{never}", yes=yes, as_json=as_json)
    done = copies
    if restore:
        with progress("putting back", in_bytes=False) as report_progress:
            done = put_back(directory, settings, names, as_new=as_new, again=again, progress=report_progress)
    if delete:
        for looked in copies:
            forget(looked.copy)
    _report(done, "put back" if restore else "", delete=delete, dry_run=False, as_json=as_json)


def _copies(copies: list[PutBack]) -> str:
    return f"{len(copies)} {'copy' if len(copies) == 1 else 'copies'}"


def _report(copies: list[PutBack], done: str, *, delete: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {"dryRun": dry_run, "deleted": delete and not dry_run, "copies": [_object(c) for c in copies]}
        )
        return
    if not copies:
        click.echo("nothing to put back" if done else "there are no copies")
        return
    rows = [
        (
            looked.copy.name,
            looked.copy.physical_offset,
            size_text(looked.copy.size),
            time_text(looked.copy.kept_at),
            looked.messages,
            looked.copy.put_back or looked.way.value,
        )
        for looked in copies
    ]
    print_table(("copy", "physical offset", "size", "kept at", "messages", "put back"), rows)
    for looked in copies:
        click.echo(f"\n{looked.copy.name}: {looked.copy.why}")
        for queue, count in looked.queues.items():
            click.echo(f"  {queue}: {count_text(count, 'message')}")
        if looked.in_log:
            click.echo(f"  {count_text(looked.in_log, 'message')} more are in the log")
    messages = sum(c.messages for c in copies if c.way is not Way.NOTHING)
    if done:
        click.echo(f"\n{count_text(messages, 'message')} {done}")
    if delete:
        click.echo(f"{_copies(copies)} {'would be ' if dry_run else ''}deleted")
    elif not done and any(c.messages and not c.copy.put_back for c in copies):
        note("`--put-back` puts the messages back, `--put-back --dry-run` shows how")


def _object(looked: PutBack) -> dict[str, Any]:
    found: dict[str, Any] = as_object(looked)
    del found["records"]
    return {**found.pop("copy"), **found}
