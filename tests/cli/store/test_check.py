"""verify, rebuild, repair: exit statuses and what they print; what they do is tested in tests/store."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest

from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from tests.cli.store.test_read import mqlake
from tests.cli.test_main import run
from tests.store.small_store import (
    COUNT,
    SETTINGS,
    change,
    contents,
    fill,
    flip,
    log_file,
    pretend_crash,
    record_at,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


@pytest.fixture
def damaged(store: Path) -> tuple[Path, Path, int]:
    """The store, the file and the byte where a record is damaged."""
    path, position, _ = record_at(store, 30)
    flip(path, position + 100)
    return store, path, position


def test_verify_a_whole_store(store: Path) -> None:
    result = mqlake("verify", store)
    assert result.exit_code == 0 and "all is well" in result.stdout and result.stderr == ""


def test_verify_names_file_and_offset(damaged: tuple[Path, Path, int]) -> None:
    store, path, position = damaged
    before = contents(store)
    result = run("store", "verify", str(store))
    assert result.returncode == 1 and contents(store) == before
    assert f"{path}: byte {position}: corruption: " in result.stdout and "body CRC" in result.stdout
    assert "lost: 1 message" in result.stdout and "Orders/1@7" in result.stdout
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_verify_as_json(damaged: tuple[Path, Path, int]) -> None:
    store, path, position = damaged
    result = mqlake("verify", store, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["ok"] and found["records"] == COUNT - 1
    assert {
        "severity": "damage",
        "kind": "corruption",
        "path": str(path),
        "offset": position,
    }.items() <= next(finding.items() for finding in found["findings"] if finding["kind"] == "corruption")
    assert found["lost"][0]["queueOffset"] == 7 and found["holes"][0]["kind"] == "corruption"


def test_verify_notes_what_a_crash_leaves(store: Path) -> None:
    end = verify_store(store).end_offset
    change(sorted((store / "commitlog").iterdir())[-1], end % 16384, b"\0\0\1\0\xda\xa3\x20\xa7torn")
    pretend_crash(store)
    result = mqlake("verify", store)
    assert result.exit_code == 0 and "torn tail" in result.stdout and "not closed cleanly" in result.stdout


def test_rebuild(store: Path) -> None:
    result = mqlake("rebuild", store)
    assert result.exit_code == 0 and "rebuilt from 200 records" in result.stdout
    found = json.loads(mqlake("rebuild", store, "--json").stdout)
    assert (found["records"], found["queues"], found["indexEntries"]) == (COUNT, 4, 3 * COUNT)


def test_rebuild_refuses_a_damaged_log(damaged: tuple[Path, Path, int]) -> None:
    store, path, position = damaged
    result = mqlake("rebuild", store)
    assert result.exit_code == 1 and f"{path}: corrupt at byte {position}" in result.stderr


def test_repair(damaged: tuple[Path, Path, int]) -> None:
    store, path, position = damaged
    before = contents(store)
    dry = mqlake("repair", store, "--dry-run")
    assert dry.exit_code == 0 and contents(store) == before
    assert "would be done" in dry.stdout and f"fill: {path}: byte {position}" in dry.stdout
    assert "Orders/1@7" in dry.stdout
    result = mqlake("repair", store, "--yes")
    assert result.exit_code == 0 and f"fill: {path}: byte {position}" in result.stdout
    assert "all is well now" in result.stdout and str(store / "repair-") in result.stdout
    assert mqlake("verify", store).exit_code == 0
    assert mqlake("repair", store, "--yes").stdout == "nothing to repair\n"


def test_repair_waits_for_the_word_about_flushed_messages_that_are_gone(store: Path) -> None:
    path = log_file(store, -1)
    path.write_bytes(bytes(path.stat().st_size))
    before = contents(store)
    for options in (["--dry-run"], ["--yes"], ["--dry-run", "--json"]):
        result = mqlake("repair", store, *options)
        assert result.exit_code == 1 and f"{path}: corrupt at byte 0: messages are gone" in result.stderr
        assert "--accept-loss" in result.stderr and contents(store) == before
    result = mqlake("verify", store)
    assert result.exit_code == 1 and f"{path}: byte 0: lost end: messages are gone" in result.stdout
    result = mqlake("repair", store, "--yes", "--accept-loss")
    assert result.exit_code == 0 and "accept loss: " in result.stdout and "Orders/0 50" in result.stdout
    assert "all is well now" in result.stdout


def test_repair_as_json(damaged: tuple[Path, Path, int]) -> None:
    store, _, position = damaged
    dry = json.loads(mqlake("repair", store, "--dry-run", "--json").stdout)
    assert dry["dryRun"] and [a["kind"] for a in dry["plan"]["actions"]] == ["fill", "rebuild"]
    found = json.loads(mqlake("repair", store, "--yes", "--json").stdout)
    assert found["after"]["ok"] and found["plan"]["actions"][0]["offset"] == position
    assert Path(found["copies"]).is_dir() and found["rebuild"]["records"] == COUNT


@pytest.mark.parametrize("answer", ["n", "y"])
def test_repair_asks_on_a_terminal(damaged: tuple[Path, Path, int], answer: str) -> None:
    store, path, position = damaged
    before = path.read_bytes()
    unasked = mqlake("repair", store)  # its input is no terminal
    why = "Nothing was done, since there is no terminal to ask on: add --yes to confirm"
    assert (unasked.exit_code, unasked.stderr) == (2, f"Error: Repair {store}? {why}\n")
    assert "would be done:" in unasked.stdout and path.read_bytes() == before
    ours, theirs = pty.openpty()
    with open(ours, "w") as terminal:
        os.set_inheritable(theirs, True)
        terminal.write(f"{answer}\n")
        terminal.flush()
        result = run("store", "repair", str(store), stdin=theirs)
        os.close(theirs)
    assert f"byte {position}" in result.stdout and f"Repair {store}? [y/N]" in result.stderr
    assert result.returncode == (0 if answer == "y" else 1)
    assert (path.read_bytes() == before) == (answer == "n")


@pytest.mark.parametrize(
    "command", [["rebuild"], ["repair"], ["repair", "--dry-run"], ["append", "--topic", "T"]]
)
def test_beside_a_writer(store: Path, command: list[str]) -> None:
    with open_store(store, SETTINGS):
        name, *more = command
        result = run("store", name, str(store), *more, stdin=-3)
        assert result.returncode == 1 and "in use" in result.stderr and result.stderr.count("\n") == 1
    assert verify_store(store).ok
