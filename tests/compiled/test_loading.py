"""When compiled code is loaded, and that a process goes on where it cannot be."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake import compiled
from mqlake.compiled import COLLECT_AFTER, Worth, cache, loading
from tests.compiled.container import SOURCE

PROGRAM = """
import logging, os, sys
logging.basicConfig(format="%(message)s")
{setting}
import numpy as np
from mqlake.compiled import load
from mqlake.formats import columns
from mqlake.metaq.formats.scan import scan_records
columns._records.left = 0
print(columns.twin().__name__.split(".")[-1], load("mqlake.compiled.kernels.metaq"))
print(len(columns.scan_records(np.zeros(64, np.uint8), 0, 64, 0)))
print(len(scan_records(np.zeros(64, np.uint8), 0, 64)))
"""
MISSING = "sys.modules['numba'] = None"
TOO_OLD = """
import types
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise SystemError("initialization of _internal failed")
sys.meta_path.insert(0, Broken())
"""
NO_LLVM = "sys.modules['llvmlite'] = None"


def run(setting: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(SOURCE.parent), "MQLAKE_NO_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setting=setting)],
        env=environment,
        cwd=Path("/"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("setting", [MISSING, TOO_OLD, NO_LLVM])
def test_without_a_numba_that_works_plain_python_goes_on_with_one_warning(setting: str) -> None:
    done = run(setting)
    assert done.stdout.splitlines() == ["plain None", "0", "3"]
    assert done.stderr.count("numba does not work here") == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "setting", ["os.environ['MQLAKE_NO_JIT'] = '1'", "os.environ['NUMBA_DISABLE_JIT'] = '1'"]
)
def test_what_was_asked_for_is_not_warned_of(setting: str) -> None:
    done = run(setting)
    assert done.stdout.splitlines() == ["plain None", "0", "3"]
    assert done.stderr == ""


def test_a_numba_that_imports_and_does_not_compile_is_no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("LLVM ERROR")

    monkeypatch.setattr(cache, "prove", fail)
    warnings: list[Exception] = []
    monkeypatch.setattr(compiled, "_warn", warnings.append)
    assert compiled._works.__wrapped__() is False
    assert [str(warning) for warning in warnings] == ["LLVM ERROR"]


class TestWorth:
    def test_is_reached_by_work_added_up_and_stays(self) -> None:
        worth = Worth(10)
        assert [worth.count(n) for n in (4, 5, 0, 1, 0, 1)] == [False, False, False, True, True, True]
        assert worth.left == 0

    def test_takes_more_where_machine_code_cannot_be_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "has_any", lambda source: False)
        worth = Worth(10)
        assert worth.count(10) is False
        assert worth.count(10 * compiled.UNKEPT - 11) is False
        assert worth.count(1) is True
        assert Worth(10).count(10 * compiled.UNKEPT) is True
        assert Worth(10, within_s=60).count(10) is True

    def test_of_a_rate_forgets_what_is_long_past(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        worth = Worth(3, within_s=1.0)
        found = []
        for now[0] in (100.0, 100.9, 101.1, 101.2, 102.0, 999.0):
            found.append(worth.count(1))
        assert found == [False, False, False, False, True, True]


def test_the_collector_leaves_out_what_has_been_loaded() -> None:
    usual = gc.get_threshold()
    gc.freeze()  # as a broker does
    before = gc.get_freeze_count()
    try:
        with loading():
            assert gc.get_threshold() == (COLLECT_AFTER, *usual[1:])
            with loading():  # another thread's
                kept: list[list[int]] = [[] for _ in range(1000)]
            assert gc.get_threshold()[0] == COLLECT_AFTER
            assert gc.get_freeze_count() < before + len(kept) // 2
        assert gc.get_threshold() == usual
        assert gc.get_freeze_count() > before + len(kept) // 2
    finally:
        gc.unfreeze()


def test_the_collector_leaves_out_nothing_of_processes_that_do_not_ask_for_it() -> None:
    gc.unfreeze()
    with loading():
        pass
    assert gc.get_freeze_count() == 0


def test_a_load_that_fails_changes_nothing_for_the_collector() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ImportError), loading():
        raise ImportError
    gc.unfreeze()
    assert gc.get_threshold() == usual
