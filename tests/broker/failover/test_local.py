"""A store is the same member as long as it has everything that it acknowledged, and another one else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake.broker.failover.local import Local
from mqlake.errors import FailoverError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files import store_lock
from mqlake.store.message_store import open_store


def config_of(root: Path) -> MessageStoreConfig:
    return MessageStoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20)


def loaded(root: Path) -> Local:
    local = Local(config_of(root))
    local.load()
    return local


def took_part(root: Path, flush: str = "ASYNC_FLUSH") -> Local:
    with open_store(root, {"mappedFileSizeCommitLog": 1 << 20, "flushDiskType": flush}):
        local = loaded(root)
        local.save(3)
    return local


def test_a_store_that_ended_cleanly_is_the_one_it_was(tmp_path: Path) -> None:
    before = took_part(tmp_path)
    after = loaded(tmp_path)
    assert (after.epoch, after.node) == (3, before.node)
    assert after.member(2) == (2, before.node)


def test_a_copy_and_an_emptied_directory_are_others(tmp_path: Path) -> None:
    before = took_part(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = loaded(tmp_path / "b")
    assert copy.epoch == 3
    assert copy.node != before.node
    shutil.rmtree(tmp_path / "a")
    emptied = loaded(tmp_path / "a")
    assert (emptied.epoch, emptied.node == before.node) == (0, False)


@pytest.mark.parametrize(("flush", "is_the_same"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
def test_a_store_whose_machine_went_down_is_the_same_only_if_it_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, is_the_same: bool
) -> None:
    with open_store(tmp_path, {"mappedFileSizeCommitLog": 1 << 20, "flushDiskType": flush}):
        before = loaded(tmp_path)
        before.save(3)
        # its process dies: the abort file stays. The machine stays up
        assert loaded(tmp_path).node == before.node
        monkeypatch.setattr(store_lock, "boot_id", lambda: "another boot")
        assert (loaded(tmp_path).node == before.node) == is_the_same


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    took_part(tmp_path)
    (tmp_path / "failover.json").write_text('{"epoch": 3')
    with pytest.raises(FailoverError, match=r"failover\.json is damaged: delete it"):
        loaded(tmp_path)
