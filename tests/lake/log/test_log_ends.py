"""The end of a log is looked for from where it was before, as long as that is the same log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqlake.lake.log.log_ends import TAIL, known_end, remember
from mqlake.lake.log.splits import LogFile, log_files
from mqlake.lake.log.storage import Storage
from mqlake.store import open_store
from mqlake.store.log import log_reader
from tests.spark.stores import SETTINGS, messages, write_store

ONE_FILE = {"mappedFileSizeCommitLog": 1 << 20}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", **ONE_FILE)
    return tmp_path / "store"


def planned(storage: Storage) -> list[LogFile]:
    files = log_files(storage, known_end(storage))
    remember(storage, files)
    return files


def test_what_is_new_is_walked_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, starts = Storage(str(root)), []
    scan = log_reader.scan_records
    monkeypatch.setattr(log_reader, "scan_records", lambda *a, **b: starts.append(a[3]) or scan(*a, **b))
    assert known_end(storage) == 0
    (first,) = planned(storage)
    assert starts[0] == 0
    starts.clear()
    assert planned(storage) == [first]
    assert starts == [first.limit]
    with open_store(root, {**SETTINGS, **ONE_FILE}) as store:
        assert store.put_message(next(messages())).is_ok
    starts.clear()
    (grown,) = planned(storage)
    assert starts[0] == first.limit < grown.limit
    assert grown == log_files(storage)[0]


@pytest.mark.parametrize("position", [-1, -TAIL])
def test_another_log_is_walked_from_its_beginning(root: Path, position: int) -> None:
    storage = Storage(str(root))
    (file,) = planned(storage)
    assert known_end(storage) == file.end_offset
    with open(file.file, "r+b") as log:
        log.seek(file.limit + position)
        byte = log.read(1)[0]
        log.seek(file.limit + position)
        log.write(bytes([byte ^ 1]))
    assert known_end(storage) == 0
    planned(storage)
    shutil.copy(file.file, f"{file.file}.copy")
    shutil.move(f"{file.file}.copy", file.file)
    assert known_end(storage) == 0
    planned(storage)
    Path(file.file).unlink()
    assert known_end(storage) == 0
    remember(storage, [])
    assert known_end(storage) == 0
