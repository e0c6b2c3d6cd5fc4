"""Two checkouts side by side, and the lines that need no peer."""

from __future__ import annotations

import json
from pathlib import Path

import bench.__main__
import pytest
from bench.__main__ import main
from bench.against import LINES, ROOT, TOLERATED, Compared, against
from bench.measure import Progress, Round

from tests.bench.tiny import TINY


@pytest.mark.parametrize("name", [name for name in LINES if name not in ("send-1", "pull-1")])
def test_lines_without_a_peer_do_the_same_work_each_round(tmp_path: Path, name: str) -> None:
    side = LINES[name](tmp_path / name, TINY)
    try:
        rounds = [side.round() for _ in range(2)]
    finally:
        side.close()
    assert rounds[0].amount == rounds[1].amount > 0
    assert all(each.cpu_seconds >= 0 and each.seconds > 0 for each in rounds)


def test_two_checkouts_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has nothing but the package, and lacks the room that one line needs."""
    monkeypatch.setattr(bench.__main__, "QUICK", TINY)
    other, report = tmp_path / "other", tmp_path / "report.json"
    package = other / "src" / "mqlake"
    package.mkdir(parents=True)
    for each in (ROOT / "src" / "mqlake").iterdir():
        if each.name not in ("spark", "__pycache__"):
            (package / each.name).symlink_to(each)
    arguments = ["--quick", "--against", str(other), "--json", str(report), "--dir", str(tmp_path)]
    status = main([*arguments, "--only", "count-columns", "--only", "scan-128"])
    (line,) = json.loads(report.read_text())["lines"]
    assert line["name"] == "scan-128"
    assert len(line["rounds"]) == TINY.rounds
    assert status == (line["cpu_ratio"] > TOLERATED)
    shown = capsys.readouterr().out
    assert "count-columns    left out: " in shown
    assert "scan-128         CPU" in shown


def test_another_directory_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkout"):
        against(tmp_path, ["scan-128"], TINY, tmp_path, Progress(quiet=True), print)


def test_more_than_three_percent_of_cpu_time_is_flagged() -> None:
    def rounds(*cpu_ms: float) -> list[Round]:
        return [Round(1000, 1, each / 1000) for each in cpu_ms]

    slower = Compared.of("x", rounds(104, 104, 104), rounds(100, 10, 100))
    assert slower.cpu_ratio == pytest.approx(1.04)
    assert slower.best_cpu_ratio == pytest.approx(10.4)
    assert "SLOWER" in str(slower)
    assert "SLOWER" not in str(Compared.of("x", rounds(102), rounds(100)))
    assert "faster" in str(Compared.of("x", rounds(50), rounds(100)))
