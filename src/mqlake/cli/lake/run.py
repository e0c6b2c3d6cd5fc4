"""`mqlake lake run`."""

from __future__ import annotations

from typing import Any

import click

from mqlake.cli.lake.shared import Given, making_options, size_option
from mqlake.cli.options import json_option
from mqlake.cli.output import note, print_json, print_table, progress, size_text


@click.command()
@making_options
@size_option("--step-bytes", "1g", "Bytes of log that a commit takes at most.")
@size_option("--file-bytes", "128m", "Size of a data file at which the next one begins.")
@click.option(
    "--allow-gaps", is_flag=True, help="Go on where messages were deleted before the table had them."
)
@json_option
def run(given: Given, step_bytes: int, file_bytes: int, allow_gaps: bool, as_json: bool) -> None:
    """Append what the log has and the tables lack, each message once, whatever is killed when.

    How far a table is, is part of each of its commits: run it again, as often as you like, or two at a time.

    \b
    mqlake lake run /data/store --warehouse /data/lake --topic Orders
    mqlake lake run /data/lake                            the topics of its lake.toml
    """
    from mqlake.lake.tables.step import LocalEngine, TableReport
    from mqlake.lake.tables.topic import RunOptions, TopicTable, add_report, steps

    lake = given.lake()
    options = RunOptions(step_bytes, file_bytes, not allow_gaps)
    tables = [TopicTable.open(lake.lake, topic, options) for topic in lake.topics.values()]
    totals = {each.topic.topic: TableReport(each.topic.topic, each.table.name) for each in tables}
    with progress("reading") as report:
        for step in steps(tables, LocalEngine(), report=report):
            for each in step.tables:
                add_report(totals[each.topic], each)
    show(list(totals.values()), as_json=as_json)


def show(reports: list[Any], *, as_json: bool) -> None:
    if as_json:
        print_json(reports)
        return
    if not reports:
        note("the lake has no topics: mqlake lake add")
        return
    print_table(
        ["topic", "table", "rows", "undecoded", "files", "size", "commits"],
        [
            [
                each.topic,
                each.table,
                each.rows,
                each.undecoded,
                each.files,
                size_text(each.bytes),
                each.commits,
            ]
            for each in reports
        ],
    )
