"""rebuild: what was derived comes out of the log again, byte for byte, or nothing changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mqlake.errors import ForeignFormatError, NotAStoreError, StoreCorruptError, StoreLockedError
from mqlake.store.check import rebuild as rebuild_module
from mqlake.store.check.rebuild import DERIVED, TEMPORARY, rebuild_store
from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from tests.golden import CASES, unpack
from tests.store.small_store import COUNT, SETTINGS, contents, fill, flip, log_file, pretend_crash


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def queue_files(root: Path) -> dict[str, bytes]:
    return {path: data for path, data in contents(root).items() if path.split("/")[0] in DERIVED[:3]}


def log_files(root: Path) -> dict[str, bytes]:
    return contents(root / "commitlog")


# a bit map is the broker's filter's, not the log's: the extension units of cqext had some
@pytest.mark.parametrize("case", [case for case in CASES if case != "cqext"])
def test_queues_are_javas_byte_for_byte(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    queues, log = queue_files(golden.root), log_files(golden.root)
    report = rebuild_store(golden.root, golden.config)
    assert report.records == len(golden.expected["records"])
    assert queue_files(golden.root) == queues and log_files(golden.root) == log
    assert verify_store(golden.root, golden.config).findings == []


def test_the_extension_is_made_again(tmp_path: Path) -> None:
    golden = unpack("cqext", tmp_path)
    rebuild_store(golden.root, golden.config)
    assert (golden.root / "consumequeue_ext").is_dir()
    assert verify_store(golden.root, golden.config).findings == []


def test_batch_topics_are_known_from_the_records(tmp_path: Path) -> None:
    golden = unpack("innerbatch", tmp_path)
    queues = queue_files(golden.root)
    shutil.rmtree(golden.root / "batchconsumequeue")
    rebuild_store(golden.root, golden.config)
    assert queue_files(golden.root) == queues


def test_everything_derived_is_gone(store: Path) -> None:
    queues = queue_files(store)
    for name in DERIVED:
        shutil.rmtree(store / name, ignore_errors=True)
    report = rebuild_store(store, SETTINGS)
    assert (report.records, report.topics, report.queues, report.index_entries) == (COUNT, 2, 4, 3 * COUNT)
    assert queue_files(store) == queues
    assert not (store / TEMPORARY).exists() and not (store / "abort").exists()
    assert verify_store(store, SETTINGS).findings == []


def test_light_queues_are_not_in_the_log_so_they_are_not_thrown_away(store: Path) -> None:
    """Neither rebuild nor the rebuild at a repair's end, nor a start that would go on without them."""
    shutil.copytree(store / "consumequeue/Orders/0", store / "consumequeue/%LMQ%room/0")
    (store / "consumequeue/Orders/0/00000000000000000000").write_bytes(b"garbage")
    before = contents(store)
    for refused in (lambda: rebuild_store(store), lambda: repair_store(store), lambda: open_store(store)):
        with pytest.raises(ForeignFormatError, match=r"%LMQ%room.*light queues"):
            refused()
        assert contents(store) == before


def test_garbage_in_derived_files(store: Path) -> None:
    queues = queue_files(store)
    (store / "consumequeue/Orders/0/00000000000000000000").write_bytes(b"garbage")
    next(iter((store / "index").iterdir())).write_bytes(b"garbage" * 100)
    rebuild_store(store, SETTINGS)
    assert queue_files(store) == queues and verify_store(store).ok


def test_the_store_works_afterwards(store: Path) -> None:
    rebuild_store(store)
    fill(store, COUNT, 10)
    assert verify_store(store).records == COUNT + 10 and verify_store(store).ok


def test_after_a_crash_the_abort_file_stays(store: Path) -> None:
    pretend_crash(store)
    rebuild_store(store)
    assert (store / "abort").read_text() == "999999999"


def test_progress(store: Path) -> None:
    told: list[tuple[int, int]] = []
    rebuild_store(store, progress=lambda done, total: told.append((done, total)))
    assert told and all(0 < done <= total for done, total in told)


def test_a_damaged_log_is_refused(store: Path) -> None:
    flip(log_file(store, 1), 100)
    before = contents(store)
    with pytest.raises(StoreCorruptError, match="repair"):
        rebuild_store(store)
    assert contents(store) == before


def test_a_log_without_its_end_is_refused(store: Path) -> None:
    """The consume queues reach further: making them anew would forget messages."""
    with log_file(store, -1).open("r+b") as file:
        file.seek(1000)
        file.write(bytes(15384))
    before = contents(store)
    with pytest.raises(StoreCorruptError, match="consume queues reach"):
        rebuild_store(store)
    assert contents(store) == before


def test_beside_a_writer_it_is_refused(store: Path) -> None:
    with open_store(store, SETTINGS):
        before = queue_files(store)
        with pytest.raises(StoreLockedError):
            rebuild_store(store)
        assert queue_files(store) == before


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        rebuild_store(tmp_path)
    assert contents(tmp_path) == {}


def test_no_room_changes_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(store)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rebuild_module.ConsumeQueueStore, "flush", no_room)
    with pytest.raises(OSError, match="No space"):
        rebuild_store(store)
    assert contents(store) == before


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("step", range(5))
def test_interrupted_in_the_swap_the_next_one_completes(
    store: Path, monkeypatch: pytest.MonkeyPatch, step: int, exchange: bool
) -> None:
    """The process dies before one of the renames; nothing derived is lost then, and a second rebuild ends well."""
    queues = queue_files(store)
    rename, renames = os.rename, 0

    class Died(BaseException):
        pass

    def dies(source: str, target: str) -> None:
        nonlocal renames
        renames += 1
        if renames > step:
            raise Died
        rename(source, target)

    if not exchange:
        monkeypatch.setattr(rebuild_module, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", dies)
    monkeypatch.setattr(rebuild_module, "_undo_interrupted", lambda *_: None)  # it does not clean up either
    died = False
    try:
        rebuild_store(store)
    except Died:
        died = True
    monkeypatch.undo()
    assert (store / "abort").exists() == died
    if exchange:
        assert queue_files(store) == queues
    rebuild_store(store)
    assert queue_files(store) == queues and not (store / TEMPORARY).exists()
    assert verify_store(store).ok
