from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mqlake.errors import OffsetOutOfRangeError, StoreClosedError, StoreCorruptError, StoreFencedError
from mqlake.metaq.config.values import DeletePolicy
from mqlake.metaq.store.group_commit import GroupCommitService
from mqlake.metaq.store.message_store import Location, MessageStore
from tests.metaq.records import bodies, record
from tests.waiting import PATIENCE_S

GROUP = {"unflush_threshold": 0}
HOUR_MS = 3_600_000


def names(store: MessageStore) -> list[str]:
    return sorted(os.listdir(store.directory))


def filled(path: Path, count: int = 10, **options: object) -> MessageStore:
    """Segments of three records of 50 bytes each."""
    store = MessageStore(str(path), "t", 0, max_segment_size=150, **{**GROUP, **options})  # type: ignore[arg-type]
    for i in range(count):
        store.append(record(b"%030d" % i, i + 1))
    return store


def test_directories_and_segments_as_the_original_makes_them(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.directory == str(tmp_path / "t-0")
    assert names(store) == [f"{offset:020d}.meta" for offset in (0, 150, 300, 450)]
    assert (store.min_offset, store.max_offset, store.append_offset, store.size) == (0, 500, 500, 500)
    assert store.message_count == 10
    store.close()
    again = filled(tmp_path, 0)
    assert (again.max_offset, again.message_count) == (500, 1)
    assert again.append(record(b"")) == Location(500, 20)


def test_a_segment_that_is_full_to_the_byte_rolls_and_one_message_may_be_larger(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path), "t", 0, max_segment_size=100, **GROUP)
    store.append(record(b"x" * 80))
    assert [segment.start for segment in store.segments] == [0, 100]
    store.append(record(b"x" * 1000))
    store.append(record(b""))
    assert [segment.start for segment in store.segments] == [0, 100, 1120]
    assert store.max_offset == 1140


def test_offsets_before_in_and_behind(tmp_path: Path) -> None:
    store = filled(tmp_path, offset_if_create=1000)
    assert (store.min_offset, store.max_offset) == (1000, 1500)
    assert names(store) == [f"{offset:020d}.meta" for offset in (1000, 1150, 1300, 1450)]
    for offset, start in ((1000, 1000), (1149, 1000), (1150, 1150), (1499, 1450)):
        segment = store.find_segment(offset)
        assert segment is not None and segment.start == start == store.nearest_offset(offset)
    assert store.find_segment(1500) is None and store.slice(9999, 10) is None
    assert store.nearest_offset(1500) == store.nearest_offset(10**12) == 1500
    assert store.nearest_offset(999) == store.nearest_offset(-5) == 1000
    with pytest.raises(OffsetOutOfRangeError):
        store.slice(999, 10)
    assert store.read(999, 10) == store.read(1500, 10) == b""


def test_a_slice_is_cut_by_bytes_and_never_spans_segments(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert bodies(store.read(50, 10_000)) == [b"%030d" % 1, b"%030d" % 2]
    assert len(store.read(50, 60)) == 60
    assert len(store.read(149, 60)) == 1
    found = store.slice(450, 10_000)
    assert found is not None and found.size == 50


def test_without_group_commit_messages_show_after_the_threshold(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path), "t", 0, unflush_threshold=3)
    told: list[Location | None] = []
    for _ in range(3):
        store.append(record(b"x"), lambda location, error: told.append(location))
    assert told == [Location(0, 21), Location(21, 21), Location(42, 21)], "answered when written"
    assert (store.max_offset, store.append_offset, store.find_segment(0)) == (0, 63, None)
    store.append(record(b"x"))
    assert store.max_offset == 84
    store.append(record(b"x"))
    assert store.max_offset == 84
    store.flush()
    assert store.max_offset == 105


def test_without_group_commit_messages_show_after_the_interval(tmp_path: Path) -> None:
    store = MessageStore(str(tmp_path), "t", 0, unflush_interval_ms=0)
    store._last_flush_ms -= 1
    store.append(record(b"x"))
    assert store.max_offset == 21


def test_group_commit_answers_after_the_fsync_whatever_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = GroupCommitService()
    store = MessageStore(str(tmp_path), "t", 0, **GROUP, group_commit=service)
    syncing, go, done = threading.Event(), threading.Event(), threading.Semaphore(0)
    synced: list[int] = []
    real = os.fdatasync

    def slow(fd: int) -> None:
        syncing.set()
        assert go.wait(PATIENCE_S)
        real(fd)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    told: list[tuple[Location | None, int, int]] = []

    def callback(location: Location | None, _: Exception | None) -> None:
        told.append((location, len(synced), store.max_offset))
        done.release()

    store.append(record(b"x" * 600 * 1024), callback)
    assert syncing.wait(PATIENCE_S)
    for _ in range(5):
        store.append(record(b"y"), callback)
    assert told == []
    go.set()
    for _ in range(6):
        assert done.acquire(timeout=PATIENCE_S)
    assert told[0] == (Location(0, 614420), 1, 614420)
    assert {each[1] for each in told[1:]} == {2}, "five messages, one fsync"
    store.close()
    service.close()


def test_many_threads(tmp_path: Path) -> None:
    service = GroupCommitService()
    store = MessageStore(str(tmp_path), "t", 0, **GROUP, max_segment_size=2000, group_commit=service)
    told: list[Location] = []

    def callback(location: Location | None, _: Exception | None) -> None:
        assert location is not None and store.read(location.offset, location.length)
        told.append(location)

    def put(writer: int) -> None:
        for i in range(100):
            store.append(record(b"%d-%d" % (writer, i), writer * 1000 + i + 1), callback)

    threads = [threading.Thread(target=put, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    service.close()
    assert len(told) == 400
    again = MessageStore(str(tmp_path), "t", 0)
    found, offset = [], 0
    while (part := again.slice(offset, 1 << 20)) is not None:
        found += bodies(part.read(1 << 20))
        offset += part.size
    assert len(found) == 400
    assert [body for body in found if body.startswith(b"2-")] == [b"2-%d" % i for i in range(100)]


def test_an_fsync_that_fails_fences_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 2)

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    told: list[Exception | None] = []
    store.append(record(b"x"), lambda location, error: told.append(error))
    assert isinstance(told[0], StoreFencedError) and "Input/output" in str(told[0])
    monkeypatch.undo()
    for act in (lambda: store.append(record(b"y")), store.flush):
        with pytest.raises(StoreFencedError):
            act()
    assert store.max_offset == 100 and len(store.read(0, 1000)) == 100
    store.close()
    with pytest.raises(StoreClosedError):
        store.append(record(b"y"))


def test_a_new_segment_that_cannot_be_made_fences_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    (tmp_path / "t-0" / f"{150:020d}.meta").mkdir()
    told: list[Exception | None] = []
    store.append(record(b"%030d" % 3), lambda location, error: told.append(error))
    assert isinstance(told[0], StoreFencedError)
    with pytest.raises(StoreFencedError):
        store.append(record(b"y"))


def test_a_callback_that_fails_is_nobody_elses(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)

    def fails(*_: object) -> None:
        raise RuntimeError

    store.append(record(b"x"), fails)
    told: list[Location | None] = []
    store.append(record(b"x"), lambda location, error: told.append(location))
    assert len(told) == 1


def test_close_tells_those_who_wait(tmp_path: Path) -> None:
    service = GroupCommitService(threads=1)
    busy = threading.Event()
    service.submit(lambda: busy.wait(PATIENCE_S) and None)
    store = MessageStore(str(tmp_path), "t", 0, **GROUP, group_commit=service)
    told: list[Location | None] = []
    store.append(record(b"x"), lambda location, error: told.append(location))
    threading.Timer(0.05, busy.set).start()
    store.close()
    service.close()
    assert told == [Location(0, 21)]
    assert MessageStore(str(tmp_path), "t", 0).max_offset == 21


def test_only_the_last_segment_is_recovered(tmp_path: Path) -> None:
    filled(tmp_path).close()
    last, first = (tmp_path / "t-0" / f"{offset:020d}.meta" for offset in (450, 0))
    first.write_bytes(b"x" * 150)
    last.write_bytes(last.read_bytes() + b"half a rec")
    store = filled(tmp_path, 0)
    assert (store.truncated, store.max_offset) == (10, 500)
    assert store.read(0, 150) == b"x" * 150
    store.close()
    last.write_bytes(last.read_bytes() + b"half a rec")
    assert filled(tmp_path, 0, fast_boot=True).max_offset == 510


def test_a_gap_between_segments_is_named(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "t-0" / f"{150:020d}.meta").unlink()
    with pytest.raises(StoreCorruptError, match=r"0000\.meta: corrupt at byte 150: .*begins at 300"):
        filled(tmp_path)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for name in ("00000000000000000007.meta.arc", "x.meta", "README"):
        (tmp_path / "t-0" / name).write_bytes(b"?")
    store = filled(tmp_path, 1)
    assert store.min_offset == 0 and len(names(store)) == 4


@pytest.mark.parametrize(
    ("policy", "suffix"),
    [
        (DeletePolicy("delete", HOUR_MS), None),
        (DeletePolicy("archive", HOUR_MS), ".arc"),
        (DeletePolicy("archive", HOUR_MS, True), ".zip"),
    ],
)
def test_old_segments_go_and_the_last_stays(tmp_path: Path, policy: DeletePolicy, suffix: str | None) -> None:
    store = filled(tmp_path, delete_policy=policy)
    now_ms = 10 * HOUR_MS
    for name, age_ms in zip(names(store), (2 * HOUR_MS, HOUR_MS + 1, HOUR_MS, 5 * HOUR_MS), strict=True):
        os.utime(tmp_path / "t-0" / name, ns=(0, (now_ms - age_ms) * 1_000_000))
    reader = store.slice(0, 150)
    gone = store.run_delete_policy(now_ms)
    assert [os.path.basename(path) for path in gone] == [f"{offset:020d}.meta" for offset in (0, 150)]
    assert (store.min_offset, store.max_offset) == (300, 500)
    assert reader is not None and len(reader.read(150)) == 150, "who reads is not disturbed"
    kept = [f"{offset:020d}.meta" for offset in (300, 450)]
    archived = [f"{offset:020d}.meta{suffix}" for offset in (0, 150)] if suffix else []
    assert names(store) == sorted(kept + archived)
    store.close()
    assert filled(tmp_path, 0).min_offset == 300


def test_without_a_policy_all_stays(tmp_path: Path) -> None:
    assert filled(tmp_path).run_delete_policy(1 << 60) == []
