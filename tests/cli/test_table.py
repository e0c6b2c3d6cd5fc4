"""Tables: one list of columns for people and for programs."""

from __future__ import annotations

import json

import pytest

from mqlake.cli.table import Column, Table, or_dash, two_digits

QUEUES: Table[tuple[str, int, float]] = Table(
    Column("topic", lambda row: row[0], show=or_dash),
    Column("queueId", lambda row: row[1], "queue", str),
    Column("", lambda row: row[1] * 1000, "thousands"),
    Column("putTps", lambda row: row[2], "in/s", two_digits),
    Column("hidden", lambda row: row[1] + 1, None),
)
ROWS = [("T", 1, 0.5), ("", 10, 12.345)]


def test_a_table_shows_headers_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    QUEUES.show(ROWS, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "topic  queue  thousands  in/s",
        "T      1          1,000  0.50",
        "-      10        10,000  12.35",
    ]


def test_json_has_the_values_under_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    QUEUES.show(ROWS, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "T", "queueId": 1, "putTps": 0.5, "hidden": 2},
        {"topic": "", "queueId": 10, "putTps": 12.345, "hidden": 11},
    ]


def test_without_rows_there_is_still_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    QUEUES.print([], indent=2)
    assert capsys.readouterr().out == "  topic  queue  thousands  in/s\n"


def test_zero_is_not_empty() -> None:
    assert [or_dash(value) for value in (0, 0.0, None, "", "x")] == [0, 0.0, "-", "-", "x"]
