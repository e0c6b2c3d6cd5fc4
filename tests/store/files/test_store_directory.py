from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import ForeignFormatError, NotAStoreError
from mqlake.store.files.store_directory import (
    STORE_ENTRIES,
    check_is_store,
    foreign_files,
    refuse_light_queues,
    refuse_rocksdb,
)


@pytest.mark.parametrize("must_exist", [True, False])
def test_a_store(tmp_path: Path, must_exist: bool) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "00000000000000000000").touch()
    (tmp_path / "lost+found").mkdir()  # its own file system
    check_is_store(str(tmp_path), must_exist=must_exist)


@pytest.mark.parametrize("entry", sorted({*STORE_ENTRIES} - {"commitlog"}))
def test_a_store_without_messages(tmp_path: Path, entry: str) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / entry).mkdir()
    check_is_store(str(tmp_path), must_exist=True)


@pytest.mark.parametrize("foreign", [[], ["readme.txt"], ["lost+found"], ["0000"]])
def test_an_empty_place_to_mount_a_disk_is_no_store(tmp_path: Path, foreign: list[str]) -> None:
    """It would pass for a store in which all is well, while the messages are on a disk that is not there."""
    (tmp_path / "commitlog").mkdir()
    for name in foreign:
        (tmp_path / "commitlog" / name).touch()
    check_is_store(str(tmp_path), must_exist=False)
    with pytest.raises(NotAStoreError, match=r"commitlog has no log file.* mount it first"):
        check_is_store(str(tmp_path), must_exist=True)


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for name in ("00000000000000000000", "readme.txt", "0000000000000000000a"):
        (tmp_path / name).touch()
    assert foreign_files(str(tmp_path)) == [
        str(tmp_path / "0000000000000000000a"),
        str(tmp_path / "readme.txt"),
    ]


def test_a_new_or_empty_directory_becomes_one(tmp_path: Path) -> None:
    check_is_store(str(tmp_path / "new"), must_exist=False)
    check_is_store(str(tmp_path), must_exist=False)
    (tmp_path / "lock").touch()  # as far as a first start came that failed
    check_is_store(str(tmp_path), must_exist=False)


def test_what_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="no such directory"):
        check_is_store(str(tmp_path / "nowhere"), must_exist=True)
    (tmp_path / "lock").touch()
    with pytest.raises(NotAStoreError, match="a store is a directory"):
        check_is_store(str(tmp_path / "lock"), must_exist=True)
    with pytest.raises(NotAStoreError, match=r"no commitlog directory in it\)$"):
        check_is_store(str(tmp_path), must_exist=True)


@pytest.mark.parametrize("must_exist", [True, False])
def test_the_directory_of_a_server_is_not_one_but_names_its_stores(tmp_path: Path, must_exist: bool) -> None:
    for name in ("broker-1", "broker-0", "namesrv"):
        (tmp_path / name / ("" if name == "namesrv" else "commitlog")).mkdir(parents=True)
    with pytest.raises(NotAStoreError, match=r"in it\); a store is in .*/broker-0, and 1 more$"):
        check_is_store(str(tmp_path), must_exist=must_exist)


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(NotAStoreError, match="name an empty or new directory"):
        check_is_store(str(tmp_path), must_exist=False)


@pytest.mark.parametrize("must_exist", [True, False])
def test_what_is_no_directory_or_another_kind_of_store(tmp_path: Path, must_exist: bool) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match="a store is a directory"):
        check_is_store(str(tmp_path / "file"), must_exist=must_exist)
    (tmp_path / "raft" / "dledger-n0").mkdir(parents=True)
    (tmp_path / "raft" / "commitlog").mkdir()
    with pytest.raises(ForeignFormatError, match="DLedger"):
        check_is_store(str(tmp_path / "raft"), must_exist=must_exist)


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("consumequeue", "storeType"),
        ("consumequeue_rocksdb", "storeType"),
        ("config/topics", "configManagerVersion"),
    ],
)
def test_what_rocketmq_keeps_in_rocksdb_is_refused_by_name(tmp_path: Path, place: str, what: str) -> None:
    (tmp_path / "rocksdbstore").mkdir()  # RocketMQ 5.5 makes it in any case
    (tmp_path / "rocksdbstore" / "CURRENT").touch()
    (tmp_path / "config" / "users").mkdir(parents=True)
    (tmp_path / "config" / "users" / "CURRENT").touch()
    refuse_rocksdb(str(tmp_path))
    (tmp_path / place).mkdir(parents=True)
    refuse_rocksdb(str(tmp_path))
    (tmp_path / place / "CURRENT").write_text("MANIFEST-000004")
    with pytest.raises(ForeignFormatError, match=f"{place}.*{what}.*RocksDB"):
        refuse_rocksdb(str(tmp_path))


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("config/lmqConsumerOffset.json", "config/lmqConsumerOffset.json"),
        ("consumequeue/%LMQ%room-7/0", "consumequeue/%LMQ%room-7:"),
    ],
)
def test_a_store_with_light_queues_is_refused_by_name(tmp_path: Path, place: str, named: str) -> None:
    (tmp_path / "consumequeue" / "LMQ" / "0").mkdir(parents=True)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").touch()
    refuse_light_queues(str(tmp_path))
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(ForeignFormatError, match=f"{named}.*light queues .*offsetTable"):
        refuse_light_queues(str(tmp_path))
    if place.startswith("consumequeue"):
        (tmp_path / "consumequeue" / "%LMQ%room-8").mkdir()
        with pytest.raises(ForeignFormatError, match="%LMQ%room-7 and 1 more:"):
            refuse_light_queues(str(tmp_path))
