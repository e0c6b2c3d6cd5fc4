"""dropped: what it prints and asks; what it does is tested in tests/store/test_restore_copies.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.store.test_read import mqlake
from tests.store.small_store import contents
from tests.store.test_recovery import BODIES
from tests.store.test_restore_copies import bodies, cut_off

SIZES = ["--set", "mappedFileSizeConsumeQueue=400", "--set", "maxHashSlotNum=20", "--set", "maxIndexNum=80"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    cut_off(tmp_path / "store", 20)
    return tmp_path / "store"


def copy_of(store: Path) -> str:
    [name] = [path.name for path in (store / "dropped").iterdir() if path.suffix != ".json"]
    return f"dropped/{name}"


def test_the_list_names_copies_and_changes_nothing(store: Path) -> None:
    before = contents(store)
    result = mqlake("dropped", store)
    assert result.exit_code == 0
    assert copy_of(store) in result.stdout
    assert "in place" in result.stdout
    assert "T/0: 9 messages" in result.stdout
    assert "--put-back" in result.stderr
    assert contents(store) == before


def test_as_json(store: Path) -> None:
    found = json.loads(mqlake("dropped", store, "--json").stdout)
    [copy] = found["copies"]
    assert (copy["name"], copy["messages"], copy["way"], copy["putBack"]) == (
        copy_of(store),
        9,
        "in place",
        "",
    )
    assert copy["queues"] == {"T/0": 9}


def test_a_dry_run_changes_nothing(store: Path) -> None:
    before = contents(store)
    result = mqlake("dropped", store, "--put-back", "--delete", "--dry-run")
    assert result.exit_code == 0
    assert "9 messages would be put back" in result.stdout
    assert "1 copy would be deleted" in result.stdout
    assert contents(store) == before


def test_put_back_keeps_the_copy_until_it_is_told_otherwise(store: Path) -> None:
    name = copy_of(store)
    result = mqlake("dropped", store, name, "--put-back", *SIZES)
    assert result.exit_code == 0, result.stderr
    assert "9 messages put back" in result.stdout
    assert bodies(store) == BODIES[:20] + BODIES[21:]
    assert (store / name).exists()
    assert "in place, 20" in mqlake("dropped", store).stdout
    assert "nothing to put back" in mqlake("dropped", store, "--put-back", *SIZES).stdout
    assert mqlake("dropped", store, "--delete", "--yes").exit_code == 0
    assert not (store / name).exists()
    assert "there are no copies" in mqlake("dropped", store).stdout


def test_copies_that_were_never_put_back_are_not_deleted_unasked(store: Path) -> None:
    result = mqlake("dropped", store, "--delete")
    assert result.exit_code != 0
    assert (store / copy_of(store)).exists()


def test_as_new_without_put_back_is_a_usage_error(store: Path) -> None:
    result = mqlake("dropped", store, "--as-new")
    assert result.exit_code == 2
    assert "require --put-back" in result.stderr


def test_info_and_verify_mention_the_copies(store: Path) -> None:
    for command in ("info", "verify"):
        result = mqlake(command, store)
        assert result.exit_code == 0
        assert (
            "1 copy of bytes that left the log in dropped/; `mqlake store dropped` lists them"
            in result.stdout
        )
    assert "dropped/" in json.loads(mqlake("info", store, "--json").stdout)["keptCopies"]
    mqlake("dropped", store, "--put-back", *SIZES)
    assert "dropped/" not in mqlake("info", store).stdout
