"""What the commands print, on a terminal and elsewhere."""

from __future__ import annotations

import pytest

from mqlake.cli.output import note_where_it_listens, print_table
from tests.cli.terminal import on_a_terminal

REPORTS = """
from mqlake.cli.output import progress
with progress("working", among_results={among}) as report:
    print("a result", flush=True)
    for done in range({reports}):
        report(done, 10)
"""


@pytest.mark.parametrize(
    ("among", "reports", "results_too", "bar"),
    [
        (False, 3, False, True),
        (False, 0, False, False),
        (True, 3, False, True),
        (True, 3, True, False),
    ],
)
def test_a_bar_comes_with_the_first_report_and_never_between_results(
    among: bool, reports: int, results_too: bool, bar: bool
) -> None:
    shown, results = on_a_terminal(REPORTS.format(among=among, reports=reports), results_too=results_too)
    assert ("working" in shown) == bar
    assert (shown if results_too else results).splitlines() == ["a result"]
    assert bar or results_too or shown == ""


def test_numbers_are_aligned_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "n", "mean"], [["a", 1, 0.5], ["long", 12345, 1234.567]])
    assert capsys.readouterr().out.splitlines() == [
        "name       n      mean",
        "a          1      0.50",
        "long  12,345  1,234.57",
    ]


@pytest.mark.parametrize(
    ("host", "guarded", "warns"),
    [("0.0.0.0", False, True), ("::", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)],
)
def test_a_server_that_is_open_to_all_says_so(
    capsys: pytest.CaptureFixture[str], host: str, guarded: bool, warns: bool
) -> None:
    note_where_it_listens(host, guarded=guarded)
    assert ("open to anyone" in capsys.readouterr().err) is warns
