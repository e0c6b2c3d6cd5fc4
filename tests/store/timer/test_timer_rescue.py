"""The cleaner has to delete files of the commit log in which timer messages wait: they are stored again before."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mqlake.store.clean import CleanRound
from mqlake.store.config import MessageStoreConfig
from tests.clock import START_MS, Clock
from tests.store.timer.timed_store import TimedStore, timed_store

HOUR_MS = 3_600_000
SHORT, FULL = 0.87, 0.95


def filled(opened: TimedStore, *, files: int = 4) -> None:
    """Timer messages, one of them recalled, at the log's begin, and other messages until it has some files."""
    for number in range(6):
        opened.put(number, START_MS + HOUR_MS + number * 1000)
    opened.recall(2, START_MS + HOUR_MS + 2000)
    opened.run()
    number = 100
    while len(opened.store.commit_log_files.mapped_files) < files:
        opened.put(number, START_MS - 1, "Filler")
        number += 1
    opened.run()


def clean(opened: TimedStore, used: float) -> CleanRound:
    service = opened.store._clean_commit_log_service
    service._disk_used = lambda _: used
    return service.run_once()


def test_what_waits_in_a_file_is_stored_again_before_it_goes(tmp_path: Path):
    with timed_store(tmp_path, clock := Clock()) as opened:
        filled(opened)
        assert clean(opened, SHORT).deleted == 0  # it asks first
        opened.run(2)
        assert (opened.timers.rescue.moved, opened.timers.rescue.lost) == (7, 0)
        assert clean(opened, SHORT).deleted >= 1
        assert opened.store.min_phy_offset > 0
        assert opened.timers.metrics.timing_counts()["T"] == 5
        opened.run_until(START_MS + HOUR_MS + 20_000, 600_000)
        assert sorted(opened.bodies()) == [0, 1, 3, 4, 5]
        assert (opened.timers.skipped, opened.timers.rescue.lost) == (0, 0)
        assert opened.timers.metrics.timing_counts().get("T", 0) == 0
        for message in opened.delivered():
            assert message.store_timestamp >= START_MS + HOUR_MS
        assert clock.now > START_MS


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_knows_what_was_moved(tmp_path: Path, killed: bool):
    clock = Clock()
    opened = TimedStore(tmp_path, clock, {})
    filled(opened)
    clean(opened, SHORT)
    opened.run(2)
    clean(opened, SHORT)
    (opened.die if killed else opened.close)()
    with timed_store(tmp_path, clock) as opened:
        opened.run_until(START_MS + HOUR_MS + 20_000, 600_000)
        assert sorted(opened.bodies()) == [0, 1, 3, 4, 5]
        assert opened.timers.skipped == 0


def test_a_copy_that_the_store_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with timed_store(tmp_path) as opened:
        filled(opened)
        clean(opened, SHORT)
        store_one, count = opened.timers._store_one, 0

        def sometimes(message):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            return count % 3 != 0 and store_one(message)

        monkeypatch.setattr(opened.timers, "_store_one", sometimes)
        for _ in range(4):
            opened.run()
            opened.timers.run_once()
        assert opened.timers.rescue.moved == 7
        monkeypatch.undo()
        clean(opened, SHORT)
        opened.run_until(START_MS + HOUR_MS + 20_000, 600_000)
        assert sorted(opened.bodies()) == [0, 1, 3, 4, 5]


def test_a_full_disk_does_not_wait_and_says_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with timed_store(tmp_path) as opened:
        filled(opened)
        with caplog.at_level(logging.ERROR):
            assert clean(opened, FULL).deleted >= 1
            clean(opened, 0.1)  # there is space again
            opened.timers._next_clean = 0.0
            opened.run()
        assert opened.timers.rescue.lost == 7
        assert "7 timer messages are lost" in caplog.text
        opened.run_until(START_MS + HOUR_MS + 20_000, 600_000)
        assert (opened.bodies(), opened.timers.skipped) == ([], 0)


def test_nobody_waits_for_ever(tmp_path: Path):
    with timed_store(tmp_path) as opened:
        filled(opened)
        assert not any(clean(opened, SHORT).deleted for _ in range(30))
        assert clean(opened, SHORT).deleted


def test_a_slave_waits_for_nothing(tmp_path: Path):
    with timed_store(tmp_path) as opened:
        filled(opened)
        opened.timers.is_dequeuing = False
        assert clean(opened, SHORT).deleted >= 1


def test_old_files_go_as_ever(tmp_path: Path):
    settings = {"fileReservedTime": 1, "deleteWhen": ";".join(f"{hour:02}" for hour in range(24))}
    assert MessageStoreConfig.from_mapping(settings).file_reserved_time == 1
    with timed_store(tmp_path, Clock(), **settings) as opened:
        filled(opened)
        opened.clock.now += 10**12  # files are of today by their own times
        assert clean(opened, SHORT).deleted >= 1
