"""Output of commands: tables, JSON and progress.

Results go to stdout, everything else to stderr. A table is as wide as its contents, never cut to a terminal;
progress shows only on a terminal, and rich is imported only then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from mqlake.base.net import is_every_address
from mqlake.base.progress import Progress, no_progress
from mqlake.base.rendering import as_object as as_object
from mqlake.base.rendering import count_text as count_text
from mqlake.base.rendering import size_text as size_text
from mqlake.base.rendering import time_text as time_text
from mqlake.cli.formats import is_yaml, yaml_text
from mqlake.cli.terminal import visible


def print_json(value: Any) -> None:
    """One JSON document, made by as_object(); YAML where that is asked for."""
    import orjson

    if is_yaml():
        click.echo(yaml_text(as_object(value)), nl=False)
        return
    click.echo(orjson.dumps(as_object(value), option=orjson.OPT_INDENT_2).decode())


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """A command's result: `value` as JSON, or `text`."""
    if as_json:
        print_json(value)
    else:
        click.echo(text)


def print_json_line(value: Any) -> None:
    """One JSON document on one line."""
    import orjson

    click.echo(orjson.dumps(value).decode())


def note(text: str) -> None:
    """Prints to stderr; a closed stderr is not an error."""
    with contextlib.suppress(OSError):
        click.echo(visible(text) if sys.stderr.isatty() else text, err=True)


def note_error(text: str) -> None:
    """Begins as click's own errors do."""
    note(f"Error: {text}")


def note_where_it_listens(host: str, *, guarded: bool = False) -> None:
    """Warns if a server is open to other machines; `guarded`: it has access control."""
    if is_every_address(host) and not guarded:
        note(
            "listening on every address of this machine, open to anyone who can reach it; "
            "--host 127.0.0.1 keeps others out"
        )


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, indent: int = 0) -> None:
    """Columns two spaces apart; a column of numbers is aligned to the right, fractions have two digits."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for line in [list(header), *cells]:
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ]
        click.echo((" " * indent + "  ".join(padded)).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_fields(fields: Sequence[tuple[str, object]], *, indent: int = 0) -> None:
    """`name  value` lines."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        click.echo(f"{' ' * indent}{name.ljust(width)}  {text}".rstrip())


@contextlib.contextmanager
def progress(description: str, *, in_bytes: bool = True, among_results: bool = False) -> Iterator[Progress]:
    """A progress bar on stderr while the `with` lasts; nothing unless stderr is a terminal.

    It appears with the first report and disappears at the end. A total of 0 is unknown. `among_results`: results
    are printed meanwhile, so a terminal that shows them gets no bar.
    """
    if not sys.stderr.isatty() or (among_results and sys.stdout.isatty()):
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        (DownloadColumn(binary_units=True), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    )
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # stdout is not part of the bar
    )
    task = bar.add_task(description, total=None)

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total or None)
        bar.start()

    try:
        yield report
    finally:
        bar.stop()
