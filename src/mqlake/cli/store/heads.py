"""`mqlake store heads`: the heads of full log files as Parquet."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from mqlake.cli.options import directory_argument, json_option
from mqlake.cli.output import (
    as_object,
    count_text,
    note,
    note_error,
    print_json,
    print_json_line,
    progress,
    size_text,
)
from mqlake.errors import MissingPartError
from mqlake.lake.requirements import require_modules
from mqlake.store.heads import heads_in

if TYPE_CHECKING:
    from mqlake.base.progress import Progress
    from mqlake.lake.heads.compare import Comparison
    from mqlake.lake.heads.writer import HeadsReport

EXIT_DAMAGE = 1
INSTALL = "pip install 'mqlake[arrow]'"


@click.command()
@directory_argument
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory for the heads.  [default: heads in the store]",
)
@click.option(
    "--follow", is_flag=True, help="Go on until Ctrl-C, and write the heads of each file that becomes full."
)
@json_option
def heads(directory: str, out: str | None, follow: bool, as_json: bool) -> None:
    """Write the heads of the log in DIR as Parquet: of each record all but its body.

    Each full file of the log gets one file with topic, queue, offsets, sizes, times, tags and keys. Spark, DuckDB and
    Polars count, search and join them without reading the log (`mqlake.spark.heads`, `mqlake.lake.scan_heads`). Any
    store will do, RocketMQ's too, whether or not a broker runs on it: the log is only read. Heads that fit the log are
    kept, others are made again; those of deleted log files are deleted, unless --out is given. The exit status is 1 if
    a log file is damaged: it gets no heads. Needs pyarrow: pip install 'mqlake[arrow]'.
    """
    require_modules("pyarrow", command=INSTALL)
    from mqlake.lake.heads.writer import HeadsWriter

    writer = HeadsWriter(directory, out)
    if follow:
        _follow(writer, as_json=as_json)
        return
    with progress("writing heads") as report:
        found = writer.run(report)
    if as_json:
        print_json(found)
    else:
        click.echo(_text(found))
    _note_damage(found)
    if found.damaged:
        sys.exit(EXIT_DAMAGE)


def _follow(writer: Any, *, as_json: bool) -> None:
    def done(report: HeadsReport) -> None:
        if as_json:
            print_json_line(as_object(report))
        else:
            click.echo(_text(report))
        _note_damage(report)

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    note("writing the heads of log files as they become full; Ctrl-C ends it")
    writer.follow(stop, done)


def _text(report: HeadsReport) -> str:
    size = f" ({size_text(report.bytes)} for {size_text(report.log_bytes)} of log)" if report.records else ""
    deleted = f", {report.deleted} deleted" if report.deleted else ""
    return (
        f"{report.path}: {report.written} written, {report.again} made again, {report.kept} kept{deleted}; "
        f"{count_text(report.records, 'record')}{size}"
    )


def _note_damage(report: HeadsReport) -> None:
    for text in report.damaged:
        note_error(f"no heads of a damaged file: {text}; `mqlake store verify` shows all of the damage")


# ---------------------------------------------------------------------- verify and rebuild


def compared(directory: str, report: Progress) -> Comparison | None:
    """The heads in a store compared with its log; None where there are none. MissingPartError without pyarrow."""
    if not heads_in(directory):
        return None
    require_modules("pyarrow", command=INSTALL)
    from mqlake.lake.heads.compare import compare_heads

    return compare_heads(directory, report)


def made_again(directory: str, report: Progress) -> HeadsReport | None:
    """The heads in a store written anew; None where there are none, or where pyarrow is missing, which is said."""
    if not heads_in(directory):
        return None
    try:
        require_modules("pyarrow", command=INSTALL)
    except MissingPartError as error:
        note(f"the heads were not made again: {error}")
        return None
    from mqlake.lake.heads.writer import HeadsWriter

    return HeadsWriter(directory).run(report, again=True)
