"""The example runs from its first cell to its last, on some of the flights."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights_on_the_log.py"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), str(tmp_path), "3000"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "3000 messages in" in printed
    assert "rows=3000" in printed and "rows=0" in printed
    for name in ("verify.html", "stats.html", "delays.png"):
        assert (tmp_path / name).stat().st_size > 1000
