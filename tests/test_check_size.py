"""The core's size is added up from what is installed, and held to its bound."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tools import check_size
from tools.check_size import CORE_MB_MAX, KNOWN, MB, core_of, faults, size_of

ROOT = Path(__file__).resolve().parents[1]


def test_the_core_is_what_is_known_and_holds_no_extra() -> None:
    core = core_of("mqlake")
    assert core <= KNOWN
    assert {"lark", "numpy", "mqlake"} <= core
    assert not core & {"pyspark", "pandas", "kazoo", "numba", "cython"}


def test_sizes_are_those_of_the_files() -> None:
    import lark

    said = subprocess.check_output(
        [
            "find",
            str(Path(lark.__file__).parent),
            "-name",
            "*.pyc",
            "-prune",
            "-o",
            "-type",
            "f",
            "-printf",
            "%s\n",
        ],
        text=True,
    )
    package = sum(map(int, said.split()))
    assert package <= size_of("lark") <= package + 100_000  # and the metadata


def test_growth_is_a_fault() -> None:
    assert faults({"numpy": CORE_MB_MAX * MB}) == []
    assert len(faults({"numpy": CORE_MB_MAX * MB, "click": 1})) == 1
    assert "tensorflow (0.5 MB) is new" in faults({"tensorflow": MB // 2})[0]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["check_size.py"])
    assert check_size.main() == 0
    assert capsys.readouterr().out.startswith("size: the core takes ")
    monkeypatch.setattr(check_size, "CORE_MB_MAX", 1)
    assert check_size.main() == 1
    assert "more than 1" in capsys.readouterr().err
