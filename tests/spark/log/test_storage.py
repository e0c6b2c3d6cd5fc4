"""The same store, read where fsspec finds it: in memory, which stands for any object store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from mqlake.errors import NotAStoreError, StoreCorruptError, WrongFileSizeError
from mqlake.spark.log import splits
from mqlake.spark.log.splits import Damage, open_window, plan, walk
from mqlake.spark.log.storage import Storage
from tests.spark.arrow.test_unpack import rows
from tests.spark.log.test_splits import SPLIT_SIZES
from tests.spark.stores import decoded, log_files, seen


@pytest.fixture
def remote(every_kind: Path) -> Iterator[Storage]:
    """A copy of a store in the memory file system."""
    fs = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    fs.put(str(every_kind) + "/", root + "/", recursive=True)
    yield Storage(f"memory:/{root}")
    fs.rm(root, recursive=True)


def read(storage: Storage, split_size: int) -> list[int]:
    found: list[int] = []
    for split in plan(storage, split_size):
        for each in walk(split, open_window(split)):
            assert not isinstance(each, Damage), each
            found += each.physical_offset.tolist()
    return found


@pytest.mark.parametrize("split_size", SPLIT_SIZES)
@pytest.mark.parametrize("margin", [1 << 20, 16])
def test_the_same_records(
    every_kind: Path, remote: Storage, monkeypatch: pytest.MonkeyPatch, split_size: int, margin: int
) -> None:
    monkeypatch.setattr(splits, "REMOTE_MARGIN", margin)
    assert read(remote, split_size) == [message.physical_offset for message in decoded(every_kind)]
    assert [split.end for split in plan(remote, split_size)] == [
        split.end for split in plan(str(every_kind), split_size)
    ]


def test_the_end_is_found_piece_by_piece(
    every_kind: Path, remote: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plan(str(every_kind))[-1].limit
    monkeypatch.setattr(splits, "DEFAULT_SPLIT_SIZE", 100)
    assert plan(remote, 64 << 20)[-1].limit == expected


def test_rows_and_filters(every_kind: Path, remote: Storage) -> None:
    found = rows(Path("/"), path=remote.root, topics="Topic-1")
    expected = [m.physical_offset for m in seen(every_kind) if m.topic == "Topic-1"]
    assert [row["physicalOffset"] for row in found] == expected
    assert {row["path"] for row in found} == {remote.root}


def test_no_store_there() -> None:
    with pytest.raises(NotAStoreError, match="memory://nowhere"):
        plan(Storage("memory://nowhere"))


def test_a_file_cut_short_and_a_file_missing(every_kind: Path, remote: Storage) -> None:
    fs = fsspec.filesystem("memory")
    path = f"{remote.root}/commitlog/{log_files(every_kind)[1].name}"
    fs.pipe_file(path, fs.cat_file(path)[:-5])
    with pytest.raises(WrongFileSizeError, match="16379 bytes"):
        plan(remote)
    fs.rm_file(path.removeprefix("memory:/"))
    with pytest.raises(StoreCorruptError, match="a file between them is missing"):
        plan(remote)
