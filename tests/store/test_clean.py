import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.store.clean import (
    HOUR_MS,
    CleanCommitLogService,
    CleanConsumeQueueService,
    CleanService,
    DiskThresholds,
    DiskVerdict,
    disk_used_ratio,
    is_time_to_delete,
    judge_disk,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.running_flags import DISK_FULL, RunningFlags
from tests.waiting import PATIENCE_S

FILE_SIZE = 4096
THRESHOLDS = DiskThresholds(max_used=0.75, clean_forcibly=0.85, warning_level=0.90)


def local_ms(hour):
    """Some day of 2024 at `hour` o'clock local time, in ms."""
    return int(time.mktime((2024, 5, 6, hour, 0, 0, 0, 0, -1))) * 1000


class Store:
    """A commit log of seven files, written an hour apart, with a clock and a disk of its own."""

    def __init__(self, root, *, files=7, **settings):
        self.now = local_ms(12)
        self.used = 0.5
        self.logic_used = 0.5
        self.needed = None
        self.flags = RunningFlags()
        self.config = MessageStoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=FILE_SIZE,
            delete_commit_log_files_interval=0,
            **settings,
        )
        os.makedirs(self.config.commit_log_dir)
        for number in range(files):
            path = os.path.join(self.config.commit_log_dir, f"{number * FILE_SIZE:020d}")
            with open(path, "wb") as file:
                file.write(b"\1" * FILE_SIZE)
            written_s = (self.now - (files - number) * HOUR_MS) / 1000
            os.utime(path, (written_s, written_s))
        self.queue = MappedFileQueue(self.config.commit_log_dir, FILE_SIZE)
        self.queue.load()
        self.service = CleanCommitLogService(
            self.config,
            self.queue,
            self.flags,
            clock=lambda: self.now,
            disk_used=self.disk_used,
            needed_from=lambda: self.needed,
        )

    def disk_used(self, path):
        return self.used if path == self.config.commit_log_dir else self.logic_used

    @property
    def files(self):
        return [int(name) // FILE_SIZE for name in sorted(os.listdir(self.config.commit_log_dir))]


@pytest.fixture
def make(tmp_path):
    stores = []

    def _make(**settings):
        stores.append(Store(tmp_path, **settings))
        return stores[-1]

    yield _make
    for store in stores:
        store.queue.close()


def test_nothing_goes_at_another_hour(make):
    store = make(file_reserved_time=1)
    assert store.service.run_once().deleted == 0
    assert store.files == [0, 1, 2, 3, 4, 5, 6]


def test_at_the_hour_old_files_go(make):
    store = make(file_reserved_time=5, delete_when="03;12")
    found = store.service.run_once()
    assert found.time_up and not found.manual and found.deleted == 3
    assert store.files == [3, 4, 5, 6]
    assert store.service.run_once().deleted == 0


def test_the_last_file_stays_however_old(make):
    store = make(file_reserved_time=0, delete_when="12")
    store.now += 365 * 24 * HOUR_MS
    store.service.run_once()
    assert store.files == [6]


def test_a_round_deletes_a_batch(make):
    store = make(file_reserved_time=0, delete_when="12", delete_file_batch_max=2)
    assert store.service.run_once().deleted == 2
    assert store.service.run_once().deleted == 2
    assert store.files == [4, 5, 6]


def test_above_the_first_ratio_old_files_go_at_any_hour(make):
    store = make(file_reserved_time=6)
    store.used = 0.76
    found = store.service.run_once()
    assert found.disk.over and not found.disk.clean_immediately
    assert store.files == [2, 3, 4, 5, 6]


def test_above_the_second_ratio_young_files_go(make):
    store = make(file_reserved_time=72, delete_file_batch_max=3)
    store.used = 0.86
    assert store.service.run_once().deleted == 3
    assert not store.flags.flag_bits
    store.used = 0.84
    assert store.service.run_once().deleted == 0


def test_young_files_stay_when_force_is_not_allowed(make):
    store = make(file_reserved_time=72, clean_file_forcibly_enable=False)
    store.used = 0.99
    assert store.service.run_once().deleted == 0
    assert store.flags.flag_bits


def test_the_disk_of_the_queues_counts_too(make):
    store = make()
    store.logic_used = 0.95
    assert store.service.run_once().deleted == 6
    assert store.flags.flag_bits & DISK_FULL


@pytest.mark.parametrize("returned", [0.90, 0.86, 0.5])
def test_full_above_the_warning_level_and_writeable_as_soon_as_space_returns(make, returned):
    store = make()
    store.used = 0.91
    store.service.check_disk()
    assert store.flags.flag_bits
    (reason,) = store.flags.reasons()
    assert "91.0% used" in reason
    store.used = returned
    store.service.check_disk()
    assert not store.flags.flag_bits


def test_space_on_one_disk_does_not_hide_the_other(make):
    store = make()
    store.used, store.logic_used = 0.95, 0.1
    store.service.check_disk()
    store.used, store.logic_used = 0.1, 0.95
    store.service.check_disk()
    assert store.flags.flag_bits & DISK_FULL


def test_an_unknown_disk_changes_nothing(make):
    store = make(file_reserved_time=0)
    store.used = 0.95
    store.service.check_disk()
    store.used = store.logic_used = None
    assert not store.service.run_once().disk.over
    assert store.flags.flag_bits & DISK_FULL
    assert len(store.files) == 7


def test_asked_for_it_is_good_for_twenty_rounds(make):
    store = make(file_reserved_time=7, delete_file_batch_max=1)
    store.service.execute_delete_files_manually()
    assert store.service.run_once().deleted == 1
    assert store.files == [1, 2, 3, 4, 5, 6]
    assert [store.service.run_once().manual for _ in range(20)] == [True] * 19 + [False]


def test_thresholds_are_held_within_rocketmqs_bounds():
    low = MessageStoreConfig(
        disk_max_used_space_ratio=1, disk_space_clean_forcibly_ratio=1, disk_space_warning_level_ratio=1
    )
    high = MessageStoreConfig(
        disk_max_used_space_ratio=99, disk_space_clean_forcibly_ratio=99, disk_space_warning_level_ratio=99
    )
    assert DiskThresholds.of(MessageStoreConfig()) == THRESHOLDS
    assert DiskThresholds.of(low) == DiskThresholds(max_used=0.10, clean_forcibly=0.30, warning_level=0.35)
    unwatched = DiskThresholds.of(MessageStoreConfig(disk_check_enable=False))
    assert judge_disk(unwatched, 1.0, 0.99) == DiskVerdict(
        1.0, full=False, clean_immediately=False, over=False
    )
    assert DiskThresholds.of(high) == DiskThresholds(max_used=0.95, clean_forcibly=0.85, warning_level=0.90)


RATIO = st.one_of(st.none(), st.floats(0, 1))


@given(RATIO, RATIO)
def test_each_verdict_includes_the_milder_one(physical, logical):
    verdict = judge_disk(THRESHOLDS, physical, logical)
    assert verdict.over or not verdict.clean_immediately
    assert verdict.clean_immediately or not verdict.full
    assert judge_disk(THRESHOLDS, logical, physical) == verdict


@given(st.integers(0, 23), st.sets(st.integers(0, 23)))
def test_the_hour_is_local(hour, hours):
    assert is_time_to_delete(frozenset(hours), local_ms(hour)) == (hour in hours)


def test_a_real_disk(tmp_path):
    used = disk_used_ratio(str(tmp_path))
    assert used is not None and 0 <= used <= 1
    assert disk_used_ratio(str(tmp_path / "missing")) is None


def test_queues_and_index_follow_the_log():
    min_offset = 0
    calls = []
    service = CleanConsumeQueueService(
        lambda: min_offset,
        lambda offset: calls.append(("queues", offset)) or 2,
        lambda offset: calls.append(("index", offset)) or 1,
    )
    assert service.run_once() == 0
    min_offset = FILE_SIZE
    assert service.run_once() == 3
    assert service.run_once() == 0
    assert calls == [("queues", FILE_SIZE), ("index", FILE_SIZE)]


def test_queues_that_could_not_be_cleaned_are_cleaned_in_the_next_round():
    failures = [OSError(5, "Input/output error")]

    def delete(_):
        if failures:
            raise failures.pop()
        return 4

    service = CleanConsumeQueueService(lambda: FILE_SIZE, delete)
    with pytest.raises(OSError, match="Input/output error"):
        service.run_once()
    assert service.run_once() == 4


def test_the_thread_watches_the_disk_and_cleans(make, monkeypatch):
    monkeypatch.setattr("mqlake.store.clean.FIRST_ROUND_AFTER_MS", 0)
    store = make(clean_resource_interval=1)
    store.used = 0.95
    followed = threading.Event()
    offsets = CleanConsumeQueueService(lambda: FILE_SIZE, lambda _: followed.set() or 1)
    service = CleanService(store.config, store.service, offsets)
    service.start()
    assert store.flags.flag_bits & DISK_FULL
    assert followed.wait(PATIENCE_S)
    service.shutdown()
    assert store.files == [6]


def test_a_disk_that_stays_too_full_is_named_once(make, caplog):
    caplog.set_level("INFO")
    store = make(files=1)
    store.used = 0.8
    for _ in range(3):
        store.service.run_once()
    assert caplog.messages == ["the disk is 80.0% used, but no commit log file may go"]
    store.used = 0.5
    for _ in range(2):
        store.service.run_once()
    assert caplog.messages[1:] == ["the disk is 50.0% used, which is no longer too much"]
    store.used = 0.8
    store.service.run_once()
    assert caplog.messages[2:] == caplog.messages[:1]


def test_a_failing_round_does_not_keep_the_queues_from_theirs(make, caplog):
    store = make()
    store.used = 0.95

    def fail(*_, **__):
        raise OSError(30, "Read-only file system")

    store.queue.delete_expired_file_by_time = fail
    followed = []
    service = CleanService(
        store.config,
        store.service,
        CleanConsumeQueueService(lambda: FILE_SIZE, lambda _: followed.append(1) or 1),
    )
    service.run_once()
    assert followed and "Read-only file system" in caplog.text
    service.shutdown()


def test_deleting_begins_a_minute_after_the_start(make):
    store = make(file_reserved_time=0, clean_resource_interval=1, delete_when="12")
    checked = threading.Event()
    store.service._disk_used = lambda _: (checked.set() if service._thread.is_alive() else None) or 0.5
    service = CleanService(store.config, store.service, CleanConsumeQueueService(lambda: 0))
    service.start()
    assert checked.wait(PATIENCE_S)
    service.shutdown()
    assert len(store.files) == 7


@pytest.mark.parametrize(
    ("needed", "hours", "left"),
    [
        (None, 24, [5, 6]),
        (2 * FILE_SIZE, 24, [2, 3, 4, 5, 6]),
        (2 * FILE_SIZE + 1, 24, [2, 3, 4, 5, 6]),
        (3 * FILE_SIZE, 2, [3, 4, 5, 6]),
        (0, 2, [3, 4, 5, 6]),
        (0, 0, [5, 6]),
        (99 * FILE_SIZE, 24, [5, 6]),
    ],
)
def test_old_files_that_a_slave_needs_are_held_for_a_while(make, caplog, needed, hours, left):
    store = make(file_reserved_time=3, delete_when="12", file_held_time_for_slaves=hours)
    store.needed = needed
    for _ in range(3):
        store.service.run_once()
    assert store.files == left
    held = left[0] != 5
    assert held == (f"up to offset {needed}: it goes in" in caplog.text)
    assert caplog.text.count("it goes in") <= 1


def test_a_short_disk_holds_nothing_for_a_slave_and_says_so(make, caplog):
    store = make(file_reserved_time=72, delete_when="04")
    store.needed, store.used = 0, 0.89
    store.service.run_once()
    assert store.files == [6]
    assert (
        f"a slave that has the log up to offset 0 lost its place: the log begins at {6 * FILE_SIZE} now"
        in (caplog.text)
    )
