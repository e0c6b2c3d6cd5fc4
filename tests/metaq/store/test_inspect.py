from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.base.findings import Severity
from mqlake.errors import FormatError, NotAStoreError, OffsetOutOfRangeError
from mqlake.metaq.store.inspect import open_data_directory, read_records, verify_data_directory
from mqlake.metaq.store.lock import DirectoryLock
from mqlake.metaq.store.message_store import MessageStore
from mqlake.metaq.store.repair import filler_record, plan_repair, repair_data_directory
from tests.metaq.records import bodies, record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three segments of three records of 50 bytes, and one in the last."""
    for partition in range(2):
        store = MessageStore(str(tmp_path), "t", partition, max_segment_size=150, unflush_threshold=0)
        for i in range(10):
            store.append(record(b"%030d" % i, i + 1))
        store.close()
    (tmp_path / "transactions").mkdir()
    return tmp_path


def segment(root: Path, offset: int) -> Path:
    return root / "t-0" / f"{offset:020d}.meta"


def damaged(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0xFF
    path.write_bytes(raw)


def test_what_is_there(root: Path) -> None:
    (root / "t-0" / f"{0:020d}.meta.zip").write_bytes(b"")
    (root / "README").write_bytes(b"")
    found = open_data_directory(str(root))
    assert [p.name for p in found.partitions] == ["t-0", "t-1"] and found.foreign == [str(root / "README")]
    first = found.partition("t", 0)
    assert (first.min_offset, first.max_offset, first.size, first.archived) == (0, 500, 500, 1)
    assert not found.in_use
    lock = DirectoryLock(str(root))
    assert open_data_directory(str(root)).in_use
    lock.release()
    with pytest.raises(NotAStoreError):
        found.partition("t", 7)


def test_records_from_anywhere(root: Path) -> None:
    files = open_data_directory(str(root)).partition("t", 0)
    assert [r.offset for r in read_records(files)] == list(range(0, 500, 50))
    assert [int(r.message.data) for r in read_records(files, 300)] == [6, 7, 8, 9]
    assert list(read_records(files, 500)) == []
    with pytest.raises(OffsetOutOfRangeError):
        next(read_records(files, 501))
    with pytest.raises(FormatError):
        list(read_records(files, 7))


def test_progress_is_told_to_the_end(root: Path) -> None:
    told: list[tuple[int, int]] = []
    report = verify_data_directory(str(root), lambda done, total: told.append((done, total)))
    assert report.ok and (report.partitions, report.segments, report.records) == (2, 8, 20)
    assert told == sorted(told) and told[-1] == (1000, 1000)


@pytest.mark.parametrize("position", range(0, 50, 7))
def test_damage_anywhere_in_a_record_is_bounded_and_repaired(root: Path, position: int) -> None:
    """Length, checksum or payload of the middle record of a closed segment; nothing covers its id and flag."""
    path = segment(root, 150)
    before = path.read_bytes()
    damaged(path, 50 + position)
    if 8 <= position < 20:
        assert verify_data_directory(str(root)).ok
        return
    report = verify_data_directory(str(root))
    (finding,) = [f for f in report.findings if f.severity is Severity.DAMAGE]
    assert (finding.path, finding.offset) == (str(path), 50) and report.records == 19
    plan = repair_data_directory(str(root))
    assert [(a.kind, a.offset, a.size) for a in plan.actions] == [("fill", 50, 50)]
    assert verify_data_directory(str(root)).ok
    after = path.read_bytes()
    assert after[:50] == before[:50] and after[100:] == before[100:]
    store = MessageStore(str(root), "t", 0)
    assert len(bodies(store.read(150, 150))) == 3
    store.close()


def test_zeros_inside_are_damage_and_at_the_end_are_not(root: Path) -> None:
    last = segment(root, 450)
    last.write_bytes(last.read_bytes() + bytes(45))
    report = verify_data_directory(str(root))
    assert report.ok and "zeros" in {finding.kind for finding in report.findings}
    path = segment(root, 150)
    path.write_bytes(bytes(150))
    assert not verify_data_directory(str(root)).ok
    plan = repair_data_directory(str(root))
    assert [(a.kind, a.offset, a.size) for a in plan.actions] == [("fill", 0, 150), ("cut", 50, 45)]
    assert verify_data_directory(str(root)).ok
    assert path.stat().st_size == 150 and last.stat().st_size == 50


@pytest.mark.parametrize("rest", [1, 19, 20, 49])
def test_a_closed_segment_that_ends_in_rubbish(root: Path, rest: int) -> None:
    path = segment(root, 150)
    raw = path.read_bytes()
    path.write_bytes(raw[: 150 - rest] + b"\x7f" * rest)
    assert not verify_data_directory(str(root)).ok
    repair_data_directory(str(root))
    assert verify_data_directory(str(root)).ok and path.stat().st_size == 150
    files = open_data_directory(str(root)).partition("t", 0)
    assert [int(r.message.data) for r in read_records(files, 300)] == [6, 7, 8, 9]


def test_nothing_is_done_while_a_broker_runs_or_without_need(root: Path) -> None:
    assert plan_repair(str(root)).actions == []
    assert repair_data_directory(str(root)).backup == ""
    lock = DirectoryLock(str(root))
    with pytest.raises(Exception, match="is in use"):
        repair_data_directory(str(root))
    lock.release()


@pytest.mark.parametrize("size", [20, 21, 37, 38, 39, 1000])
def test_a_filler_is_one_record_of_the_size(size: int) -> None:
    raw = filler_record(size, 7)
    assert len(raw) == size and len(bodies(raw)) == 1
