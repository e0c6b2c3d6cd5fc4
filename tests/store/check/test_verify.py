"""verify: nothing to say about a whole store, file and byte of whatever is wrong, and never a change."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path

import pytest

from mqlake.base.findings import Severity
from mqlake.errors import NotAStoreError, StoreCorruptError, WrongFileSizeError
from mqlake.store.check.info import store_info
from mqlake.store.check.verify import VerifyReport, verify_store
from mqlake.store.config import MessageStoreConfig
from mqlake.store.log.log_reader import HoleKind
from mqlake.store.message_store import DefaultMessageStore, open_store
from tests.golden import CASES, unpack
from tests.store.small_store import (
    COUNT,
    SETTINGS,
    START_MS,
    change,
    contents,
    fill,
    fill_batches,
    flip,
    log_file,
    message,
    pretend_crash,
    record_at,
)
from tests.waiting import PATIENCE_S


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def verified(root: Path) -> VerifyReport:
    """The report; nothing on disk has changed for it."""
    before = contents(root)
    report = verify_store(root)
    assert contents(root) == before
    return report


def damage(report: VerifyReport) -> list[tuple[str, str, int]]:
    return [(f.kind, Path(f.path).name, f.offset) for f in report.of(Severity.DAMAGE)]


# ---------------------------------------------------------------------- whole stores


def test_whole(store: Path) -> None:
    report = verified(store)
    assert report.ok and report.findings == [] and report.holes == []
    assert report.clean_exit and report.writer is None
    assert (report.records, report.units, report.index_entries) == (COUNT, COUNT, 3 * COUNT)
    assert report.files > 2 and report.index_files > 2 and report.queues == 4
    assert report.keys_before_index == 0


@pytest.mark.parametrize("case", CASES)
def test_written_by_java(tmp_path: Path, case: str) -> None:
    golden = unpack(case, tmp_path)
    report = verify_store(golden.root, golden.config)
    assert report.ok, report.findings
    assert report.records == len(golden.expected["records"])
    assert report.units == sum(len(queue["units"]) for queue in golden.expected["queues"])


def test_batches(tmp_path: Path) -> None:
    report = verified(fill_batches(tmp_path / "store", 20, 7))
    assert report.ok and report.records == report.units == 140


def test_empty_store(tmp_path: Path) -> None:
    report = verified(fill(tmp_path / "store", count=0))
    assert report.ok and report.records == 0


def test_beside_a_running_writer(store: Path) -> None:
    with open_store(store, SETTINGS) as writer:
        assert writer.put_message(message(COUNT)).is_ok
        writer.wait_until_dispatched()
        report = verify_store(store)
        assert report.ok and report.writer is not None and not report.clean_exit
        assert report.records == COUNT + 1
    assert verified(store).ok


def test_beside_a_busy_writer(tmp_path: Path) -> None:
    """The log grows, rolls and is indexed while it is walked: nothing of that is damage or a torn tail."""
    settings = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 400_000}
    done = threading.Event()
    with open_store(tmp_path / "busy", settings) as writer:
        assert all(writer.put_message(message(number)).is_ok for number in range(100))
        writer.wait_until_dispatched()

        def put() -> None:
            for number in range(100_000):
                assert writer.put_message(message(number, body_size=number % 700)).is_ok
                if number % 10 == 0 and done.wait(0.001):
                    return

        putting = threading.Thread(target=put)
        putting.start()
        try:
            reports = [verify_store(tmp_path / "busy") for _ in range(25)]
        finally:
            done.set()
            putting.join()
    assert not [finding for report in reports for finding in report.of(Severity.DAMAGE)]
    assert not [hole for report in reports for hole in report.holes]
    assert 100 <= reports[0].records < reports[-1].records
    assert verified(tmp_path / "busy").ok


def test_a_log_that_was_cleaned_at_its_start(store: Path) -> None:
    log_file(store).unlink()
    report = verified(store)
    assert report.ok and 0 < report.records < COUNT
    assert report.min_offset == 16384


# ---------------------------------------------------------------------- the log


def test_a_flipped_body_bit_is_corruption(store: Path) -> None:
    path, position, size = record_at(store, 30)
    flip(path, position + 100)
    report = verified(store)
    assert ("corruption", path.name, position) in damage(report)
    (hole,) = report.holes
    assert hole.kind is HoleKind.CORRUPT and (hole.position, hole.size) == (position, size)
    assert [(lost.topic, lost.queue_offset) for lost in report.lost] == [("Orders", 7)]
    assert report.records == COUNT - 1


def test_zeros_over_several_records(store: Path) -> None:
    path, position, size = record_at(store, 10)
    change(path, position, bytes(3 * size))
    report = verified(store)
    assert report.lost_count == 3 and ("corruption", path.name, position) in damage(report)


def test_damage_up_to_the_end_of_a_file(store: Path) -> None:
    path, position, _ = record_at(store, 50)
    change(path, position, b"\xff" * (16384 - position))
    report = verified(store)
    (hole,) = report.holes
    assert hole.kind is HoleKind.CORRUPT and not hole.records_follow
    assert (hole.position, hole.end) == (position, 16384)
    assert report.records + report.lost_count == COUNT


def test_a_torn_tail_after_a_crash_is_a_note(store: Path) -> None:
    report = verify_store(store)
    path = log_file(store, -1)
    at = report.end_offset % 16384
    change(path, at, b"\x00\x00\x01\x00\xda\xa3\x20\xa7torn")
    pretend_crash(store)
    report = verified(store)
    assert report.ok and not report.clean_exit
    (hole,) = report.holes
    assert hole.kind is HoleKind.TORN and (hole.path, hole.position, hole.size) == (str(path), at, 12)
    assert report.of(Severity.NOTE)[0].kind == "torn tail"


def test_a_torn_tail_of_a_clean_store_is_damage(store: Path) -> None:
    path, position, _ = record_at(store, COUNT - 1)
    flip(path, position + 100)
    report = verified(store)
    (hole,) = report.holes
    assert hole.kind is HoleKind.CORRUPT and "consume queues reach" in hole.reason
    assert report.lost_count == 1


def test_stale_bytes_are_no_damage(tmp_path: Path) -> None:
    """The log was cut (as RocketMQ does, without zeroing) and written again over a part of what was there."""
    older = fill(tmp_path / "older", count=40)
    old = log_file(older).read_bytes()
    root = fill(tmp_path / "store", count=20)
    path, end = log_file(root), verify_store(root).end_offset
    change(path, end + 4, old[end + 4 :])
    change(path, end, bytes(4))
    report = verified(root)
    (hole,) = report.holes
    assert report.ok and hole.kind is HoleKind.STALE and hole.position == end
    assert report.records == 20 and report.end_offset == end


def test_a_missing_log_file_is_an_error_with_its_name(store: Path) -> None:
    log_file(store, 1).unlink()
    with pytest.raises(StoreCorruptError, match="00000000000000032768"):
        verify_store(store)


def test_a_log_file_of_another_length(store: Path) -> None:
    path = log_file(store)
    change(path, 0, b"")
    with path.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(WrongFileSizeError, match=str(path)):
        verify_store(store)


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        verify_store(tmp_path)
    with pytest.raises(NotAStoreError):
        verify_store(tmp_path / "nothing")


# ---------------------------------------------------------------------- consume queues


def test_a_file_that_is_none_of_the_log(store: Path) -> None:
    """RocketMQ's broker does not start beside it; a name that was cut short is a log file that nobody reads."""
    foreign = store / "commitlog" / "0000000000000000"
    foreign.touch()
    report = verify_store(store)
    assert [(f.kind, f.path) for f in report.of(Severity.DAMAGE)] == [("foreign file", str(foreign))]


def test_a_wrong_unit(store: Path) -> None:
    path = store / "consumequeue/Orders/1/00000000000000000000"
    flip(path, 5 * 20 + 15)
    assert damage(verified(store)) == [("queue unit", path.name, 100)]


def test_units_that_are_missing(store: Path) -> None:
    path = sorted((store / "consumequeue/Payments/0").iterdir())[-1]
    change(path, 40, bytes(360))
    report = verified(store)
    assert damage(report) == [("missing units", path.name, 40)]
    pretend_crash(store)
    assert verified(store).ok  # the next start dispatches them


def test_a_queue_that_is_missing(store: Path) -> None:
    shutil.rmtree(store / "consumequeue/Payments/0")
    (finding,) = verified(store).of(Severity.DAMAGE)
    assert finding.kind == "missing units" and "50 records" in finding.text


def test_a_topic_whose_queues_are_gone(store: Path) -> None:
    """It had some when the store ended; unless topics.json knows better, in which it has been deleted since."""
    shutil.rmtree(store / "consumequeue/Payments")
    assert {finding.kind for finding in verified(store).of(Severity.DAMAGE)} == {"missing units"}
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text('{"topicConfigTable": {"Orders": {}}}')
    report = verified(store)
    assert report.ok and "deleted" in report.findings[0].text


def test_units_behind_the_end_of_the_log(store: Path) -> None:
    path = sorted((store / "consumequeue/Payments/0").iterdir())[-1]
    change(path, 200, b"".join(struct.pack(">qiq", (1 << 20) + 200 * n, 200, 0) for n in range(3)))
    report = verified(store)
    assert damage(report) == [("dangling units", path.name, 200)]
    first = int(path.name) // 20 + 10
    assert f"units {first} to {first + 2} of" in report.of(Severity.DAMAGE)[0].text


def test_a_unit_without_a_record(store: Path) -> None:
    path = sorted((store / "consumequeue/Payments/0").iterdir())[-1]
    change(path, 200, struct.pack(">qiq", 0, 200, 0))
    assert damage(verified(store)) == [("dangling units", path.name, 200)]


def test_a_consume_queue_file_of_another_length(store: Path) -> None:
    path = store / "consumequeue/Orders/1/00000000000000000000"
    with path.open("r+b") as file:
        file.truncate(390)
    kinds = {kind for kind, _, _ in damage(verified(store))}
    assert "consume queue" in kinds


# ---------------------------------------------------------------------- index


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


@pytest.mark.parametrize(
    ("position", "kind"),
    [
        (20, "index header"),  # begin offset
        (32, "index header"),  # slots in use
        (40 + 4 * 3, "index chain"),  # a slot
        (40 + 80 + 20 * 5, "index entry"),  # a hash
        (40 + 80 + 20 * 5 + 10, "index entry"),  # an offset
        (40 + 80 + 20 * 5 + 13, "index time"),  # a time
        (40 + 80 + 20 * 5 + 19, "index chain"),  # an entry before
    ],
)
def test_a_flipped_bit_in_the_index(store: Path, position: int, kind: str) -> None:
    path = index_file(store)
    flip(path, position, bit=2)
    found = damage(verified(store))
    assert (kind, path.name) in {(found_kind, name) for found_kind, name, _ in found}


def test_an_index_file_that_is_missing_in_the_middle(store: Path) -> None:
    index_file(store, 1).unlink()
    (finding,) = verified(store).of(Severity.DAMAGE)
    assert finding.kind == "index missing" and "79 keys" in finding.text


def test_index_files_that_were_cleaned(store: Path) -> None:
    index_file(store, 0).unlink()
    report = verified(store)
    assert report.ok and 70 < report.keys_before_index < 80


def test_the_newest_index_file_after_a_crash_is_not_trusted(store: Path) -> None:
    flip(index_file(store, -1), 40 + 80 + 20 + 3)
    assert not verified(store).ok
    pretend_crash(store)
    assert verified(store).ok


# ---------------------------------------------------------------------- checkpoint


def test_a_checkpoint_ahead_of_the_log(store: Path) -> None:
    latest = verify_store(store).last_store_timestamp
    change(store / "checkpoint", 0, struct.pack(">q", latest + 3_600_000))
    assert damage(verified(store)) == [("checkpoint", "checkpoint", 0)]


def test_a_clock_that_was_set_back_while_the_store_was_open(tmp_path: Path) -> None:
    """The checkpoint has the newest time, which the last message has not."""
    root, day_ms = tmp_path / "store", 86_400_000
    now = [START_MS]
    config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(root)})
    store = DefaultMessageStore(config, clock_ms=lambda: now[0])
    store.load()
    store.start()
    for number, now[0] in enumerate([START_MS, START_MS + day_ms, START_MS + 1]):
        assert store.put_message(message(number)).is_ok
        store.flush()
    assert store.wait_until_dispatched(PATIENCE_S)
    store.shutdown()
    report = verified(root)
    assert report.ok and not report.findings and report.last_store_timestamp >= START_MS + day_ms


def test_a_checkpoint_that_is_no_time(store: Path) -> None:
    change(store / "checkpoint", 8, struct.pack(">q", -5))
    assert damage(verified(store)) == [("checkpoint", "checkpoint", 8)]


def test_no_checkpoint_is_a_note(store: Path) -> None:
    (store / "checkpoint").unlink()
    report = verified(store)
    assert report.ok and [f.kind for f in report.findings] == ["checkpoint"]


# ---------------------------------------------------------------------- every byte


def test_every_flipped_byte_of_a_record_is_found_or_harmless(tmp_path: Path) -> None:
    """Body, sizes, offsets, tags and keys are found; what nothing vouches for (hosts, times) is the rest."""
    root = fill(tmp_path / "store", count=12)
    path, position, size = record_at(root, 5)
    unvouched = {*range(16, 20), *range(36, 84)}  # flag; sysFlag to the prepared offset
    for at in range(size):
        flip(path, position + at, bit=1)
        report = verify_store(root)
        if not report.ok:
            is_of_index = at > size - 80  # keys and properties: an entry of the index may be named
            places = {(f.path, f.offset) for f in report.of(Severity.DAMAGE)}
            assert is_of_index or (str(path), position) in places, at
        else:
            text = path.read_bytes()[position : position + size]
            assert at in unvouched or at > size - 80, (at, text)
        flip(path, position + at, bit=1)
    assert verify_store(root).ok


def test_what_is_derived_may_be_behind_while_a_store_runs(store: Path) -> None:
    """Nothing is to be done about it: the writer, or the next start, adds what is missing."""
    index = index_file(store, -1)
    index.write_bytes(bytes(index.stat().st_size))
    pretend_crash(store)
    report = verified(store)
    assert report.ok
    (behind,) = [finding for finding in report.findings if finding.kind == "index missing"]
    assert behind.severity is Severity.NOTE
    assert "yet" in behind.text and "rebuild" not in behind.text


def test_files_are_counted_as_info_counts_them(store: Path) -> None:
    """Beside a writer there is one that was allocated ahead; two figures for one log look like a fault."""
    assert verify_store(store).files == len(store_info(store).log_files)
    last = max((store / "commitlog").iterdir())
    size = SETTINGS["mappedFileSizeCommitLog"]
    (store / "commitlog" / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    pretend_crash(store)
    assert (
        verify_store(store).files == len(store_info(store).log_files) == len(list(last.parent.iterdir())) - 1
    )
