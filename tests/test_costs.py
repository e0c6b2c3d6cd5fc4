"""The costs of test files: their own processor time and that of the processes they started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import costs

SUITE = """
import subprocess, sys, time

def test_burns():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

def test_lets_burn():
    code = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_what_a_file_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what a suite costs is in processes: brokers, JVMs, command lines."""
    kept = tmp_path / "costs"
    monkeypatch.setenv(costs.VARIABLE, str(kept))
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.conftest import _costs as _costs\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (line,) = map(json.loads, kept.read_text().splitlines())
    assert line["file"].endswith("test_suite.py")
    assert line["children"] > 0.4 and line["cpu"] - line["children"] > 0.1
    assert "test_suite.py" in done.stdout and "in 1 files" in done.stdout


def test_the_dearest_come_first() -> None:
    lines = [json.dumps({"file": f"f{n}", "cpu": n, "children": 0, "wall": n}) for n in range(40)]
    head, first, *_, last = costs.summary(lines)
    assert "CPU" in head and first.split()[-1] == "f39" and last.split() == ["780.0", "in", "40", "files"]
    assert len(costs.summary(lines)) == costs.SHOWN + 2


def test_the_longest_by_their_time() -> None:
    files = {"waits": (0.1, 50), "burns": (30, 40), "short": (0.9, 19.9), "both": (3, 60)}
    lines = [json.dumps({"file": name, "cpu": cpu, "wall": wall}) for name, (cpu, wall) in files.items()]
    assert costs.longest(lines) == ["both", "waits", "burns"]


def test_nothing_is_kept_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(costs.VARIABLE, raising=False)
    with costs.of("f"):
        pass
    assert costs.report() == []
