"""heads: what it prints, and what verify and rebuild do where there are some."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mqlake.cli.store import heads as module
from mqlake.errors import MissingPartError
from tests.cli.store.test_read import mqlake
from tests.cli.test_main import MQLAKE, run
from tests.store.small_store import contents, fill, flip, record_at
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def full_files(root: Path) -> int:
    return len(os.listdir(root / "commitlog")) - 1


def without_pyarrow(*_: str, command: str) -> None:
    raise MissingPartError("the Python package pyarrow", command)


def test_written_and_kept(store: Path) -> None:
    before, count = contents(store), full_files(store)
    result = run("store", "heads", str(store))
    assert result.returncode == 0 and result.stderr == ""
    assert f"heads: {count} written, 0 made again, 0 kept; " in result.stdout and " of log)" in result.stdout
    after = contents(store)
    assert {name: data for name, data in after.items() if not name.startswith("heads")} == before
    found = json.loads(mqlake("heads", store, "--json").stdout)
    assert (found["written"], found["kept"], found["again"]) == (0, count, 0)
    assert contents(store) == after


def test_another_place(store: Path, tmp_path: Path) -> None:
    mqlake("heads", store, "--out", tmp_path / "out")
    assert len(os.listdir(tmp_path / "out")) == full_files(store) and not (store / "heads").exists()
    (tmp_path / "file").touch()
    result = mqlake("heads", store, "--out", tmp_path / "file")
    assert result.exit_code == 2 and "is a file" in result.output


def test_a_damaged_file(store: Path) -> None:
    path, position, _ = record_at(store, 30)
    flip(path, position + 100)
    result = run("store", "heads", str(store))
    assert result.returncode == 1 and f"{full_files(store) - 1} written" in result.stdout
    assert f"{path}: corrupt at byte {position}" in result.stderr and "`mqlake store verify`" in result.stderr


def test_what_is_no_store(tmp_path: Path) -> None:
    result = run("store", "heads", str(tmp_path / "nowhere"))
    assert result.returncode == 1 and "there is no such directory" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_without_pyarrow(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mqlake("heads", store)
    before = contents(store)
    monkeypatch.setattr(module, "require_modules", without_pyarrow)
    refused = mqlake("heads", store)
    assert refused.exit_code != 0 and "mqlake[arrow]" in refused.output
    result = mqlake("verify", store)
    assert result.exit_code == 0 and "all is well" in result.stdout
    assert result.stdout.count("they were not compared") == 1 and "mqlake[arrow]" in result.stdout
    result = mqlake("rebuild", store)
    assert result.exit_code == 0 and "the heads were not made again" in result.stderr
    heads = {name for name in before if name.startswith("heads")}
    assert {name: data for name, data in contents(store).items() if name in heads} == {
        name: before[name] for name in heads
    }


def test_verify_compares_them(store: Path) -> None:
    mqlake("heads", store)
    assert "all is well" in mqlake("verify", store).stdout
    path = sorted((store / "heads").iterdir())[0]
    flip(path, 100)
    result = run("store", "verify", str(store))
    assert result.returncode == 1 and f"{path}: byte 0: heads: its pages are damaged" in result.stdout
    assert "1 finding of damage; `mqlake store rebuild` makes heads again" in result.stderr
    found = json.loads(mqlake("verify", store, "--json").stdout)
    assert not found["ok"] and [each["kind"] for each in found["findings"]] == ["heads"]
    result = mqlake("heads", store)
    assert "0 written, 0 made again" in result.stdout  # what a look at its ends does not show
    result = mqlake("rebuild", store)
    assert f"heads of {full_files(store)} log files made again" in result.stdout
    assert mqlake("verify", store).exit_code == 0
    (store / "heads" / f"{1 << 30:020}.parquet").touch()
    result = mqlake("verify", store)
    assert result.exit_code == 0 and "their log file is gone" in result.stdout


def test_rebuild_makes_none_where_there_are_none(store: Path) -> None:
    assert json.loads(mqlake("rebuild", store, "--json").stdout)["heads"] is None
    assert not (store / "heads").exists()
    mqlake("heads", store)
    found = json.loads(mqlake("rebuild", store, "--json").stdout)
    assert found["heads"]["again"] == full_files(store)


def test_follow(store: Path) -> None:
    command = [MQLAKE, "store", "heads", str(store), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        first = json.loads(process.stdout.readline())
        count = full_files(store)
        assert first["written"] == count
        fill(store, 200, 200)
        until(lambda: len(os.listdir(store / "heads")) > count, "heads of a file that has become full")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0 and "Ctrl-C" in process.stderr.read()
