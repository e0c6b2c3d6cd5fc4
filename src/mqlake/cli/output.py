"""Output of commands: tables, JSON and progress.

Results go to stdout, everything else to stderr. A table is as wide as its contents, never cut to a terminal;
progress shows only on a terminal, and rich is imported only then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from mqlake.base.names import camel_case
from mqlake.base.net import is_every_address
from mqlake.base.progress import Progress, no_progress

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def as_object(value: Any) -> Any:
    """A value as JSON can hold it: dataclasses as objects with names in camelCase, enums as their values, bytes in
    hexadecimal."""
    if dataclasses.is_dataclass(value):
        return {
            camel_case(field.name): as_object(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): as_object(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_object(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def print_json(value: Any) -> None:
    """One JSON document, made by as_object()."""
    import orjson

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
        click.echo(text, err=True)


def note_where_it_listens(host: str) -> None:
    """Warns if a server is open to other machines; there is no access control yet."""
    if is_every_address(host):
        note(
            "listening on every address of this machine, open to anyone who can reach it; "
            "--host 127.0.0.1 keeps others out"
        )


def size_text(size: float) -> str:
    """1536 → `1.5 KiB`."""
    for unit in UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {UNITS[-1]}"


def count_text(count: int, thing: str, things: str = "") -> str:
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def time_text(timestamp_ms: int) -> str:
    """ISO 8601 in local time with milliseconds; `-` for 0 or less, the number for a time beyond the calendar."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds")


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
