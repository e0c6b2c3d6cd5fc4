"""`mqlake compile`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import mqlake
from mqlake.broker import ahead
from mqlake.cli.main import cli
from mqlake.compiled import cache, directories, load


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mqlake", "compile", *arguments], capture_output=True, text=True, check=False
    )


def test_what_one_process_has_compiled_no_other_compiles_again() -> None:
    first = run("--json")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert Path(found["directory"]).is_dir()
    second = run("--json")
    assert json.loads(second.stdout)["functions"] == 0
    assert (
        run().stdout
        == f"everything is compiled already; new machine code would be kept in {found['directory']}\n"
    )


@pytest.fixture
def one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there is to compile, and the only place to keep it."""
    assert load("mqlake.compiled.kernels.primitives")  # compiles a function for itself
    monkeypatch.setattr(cache, "directories", lambda source: iter([str(tmp_path / "code")]))
    directories.is_writable.cache_clear()

    @cache.compiled
    def double(number):  # type: ignore[no-untyped-def]
        return number * 2

    def step() -> None:
        assert double(2) == 4

    monkeypatch.setattr(ahead, "compile_all", step)
    for place in ("mqlake.broker.ahead.compile_put", "mqlake.metaq.formats.scan.compile_scan"):
        monkeypatch.setattr(place, lambda: None)
    monkeypatch.setattr(ahead, "_compile_broker", lambda: None)


@pytest.mark.usefixtures("one_function")
def test_it_says_how_many_functions_it_compiled_and_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqlake.compiled.kernels import primitives

    monkeypatch.setattr(primitives.load64, "_cache", cache.KernelCache(primitives.load64.py_func))
    said = CliRunner().invoke(cli, ["compile"]).output
    assert said.startswith("compiled 1 functions in ")
    assert said.endswith(f"they are kept in {tmp_path / 'code'}\n")
    assert len(list((tmp_path / "code").glob("*.nb?"))) == 2


def test_without_a_place_for_machine_code_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from mqlake.compiled.kernels import primitives

    monkeypatch.setattr(cache, "directories", lambda source: iter([]))
    monkeypatch.setattr(primitives.load64, "_cache", cache.KernelCache(primitives.load64.py_func))
    done = CliRunner().invoke(cli, ["compile"])
    assert done.exit_code == 1
    assert "set NUMBA_CACHE_DIR" in done.output


def test_where_nothing_may_be_compiled_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqlake, "NO_JIT", True)
    done = CliRunner().invoke(cli, ["compile"])
    assert done.exit_code == 1
    assert "MQLAKE_NO_JIT=1" in done.output


def test_without_a_numba_that_works_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "load", lambda name: None)
    done = CliRunner().invoke(cli, ["compile"])
    assert done.exit_code == 3
    assert "numba" in done.output
