"""TimerMessageStore's rounds: what each does, how long it waits, what it does about errors; its limits and figures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.formats.timer import SLOTS_TOTAL
from mqlake.message import TIMER_TOPIC
from mqlake.store.dispatch import Arrival
from mqlake.store.timer import timer_message_store as module
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_message_store import TimerMessageStore, _DamageError, _Rate
from mqlake.store.timer.timer_metrics import TimerMetrics
from tests.clock import START_MS, Clock
from tests.store.timer.timed_store import TimedStore, timed_store
from tests.waiting import PATIENCE_S


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[TimedStore]:
    with timed_store(tmp_path) as opened:
        yield opened


def dispatched(timed: TimedStore) -> None:
    timed.store.flush()
    assert timed.store.wait_until_dispatched(PATIENCE_S)


class Monotonic:
    """The seconds that the module reads."""

    def __init__(self, patch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        patch.setattr(module.time, "monotonic", lambda: self.now)


# ---------------------------------------------------------------------- the service


@pytest.mark.parametrize(("after_ms", "begins"), [(5000, 5500), (-1, 500)])
def test_delivery_begins_some_time_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_ms: int, begins: int
) -> None:
    """disappearTimeAfterStart: so long nothing comes, and then what was due meanwhile."""
    monkeypatch.setattr(TimerMessageStore, "_run", lambda self: None)
    with timed_store(tmp_path, disappearTimeAfterStart=after_ms) as timed:
        timed.put(1, START_MS + 2000)
        timed.timers.start()
        if begins > 2000:
            timed.run_until(START_MS + begins - 1, step=500)
            assert timed.bodies() == []
        timed.run_until(START_MS + max(begins, 3000))
        assert timed.bodies() == [1]


def test_who_starts_without_delivery_delivers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimerMessageStore, "_run", lambda self: None)
    with timed_store(tmp_path) as timed:
        timed.timers.is_dequeuing = False
        timed.timers.start(dequeue=False)
        assert not timed.timers.is_dequeuing
        timed.timers.start_dequeue()
        assert timed.timers.is_dequeuing and timed.timers._wake.is_set()


def test_what_the_service_does_about_errors(
    timed: TimedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is tried again soon and told once, damage is repaired at once, a fault of ours is told each time."""
    timers, waits, rebuilt = timed.timers, list[float](), list[str]()
    outcomes: list[Exception | float] = [
        OSError(28, "No space left"),
        OSError(28, "No space left"),
        _DamageError("the log is damaged"),
        ValueError("a fault"),
        0.0,
        7.0,
    ]

    def run_once() -> float:
        outcome = outcomes.pop(0)
        if not outcomes:
            timers._stop.set()
            timers._wake.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(timers, "run_once", run_once)
    monkeypatch.setattr(timers, "_rebuild", rebuilt.append)
    monkeypatch.setattr(timers._wake, "wait", waits.append)
    with caplog.at_level(logging.INFO):
        timers._run()
    assert waits == [module.RETRY_S, module.RETRY_S, 1.0, 7.0] and rebuilt == ["the log is damaged"]
    assert not timers._wake.is_set(), "it would not wait the next time"
    assert caplog.text.count("timer messages wait: ") == 1 and caplog.text.count("a fault") == 1
    assert "timer messages are handled again" in caplog.text and "the log is damaged" in caplog.text


def test_a_shutdown_that_cannot_write_says_so_and_closes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timed = TimedStore(tmp_path, Clock(), {})
    closed: list[str] = []
    for name in ("_log", "_wheel", "_checkpoint"):
        part = getattr(timed.timers, name)
        monkeypatch.setattr(part, "close", lambda name=name, close=part.close: (closed.append(name), close()))
    timed.timers.start()

    def full() -> None:
        raise OSError(28, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(timed.timers, "flush", full)
        timed.timers.shutdown()
    assert "the progress of the timers cannot be written" in caplog.text
    timed.timers.shutdown()
    assert closed == ["_log", "_wheel", "_checkpoint"]
    assert (timed.timers.all_congest_num, timed.timers.pending_within([1, 2])) == (0, [0, 0])
    assert timed.timers._slot_num(START_MS) == 0
    timed.store.shutdown()


def test_a_shutdown_writes_progress_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = TimedStore(tmp_path, Clock(), {})
    timed.timers.start()
    done: list[str] = []
    monkeypatch.setattr(timed.timers, "flush", lambda: done.append("progress"))
    monkeypatch.setattr(timed.timers.metrics, "persist", lambda: done.append("counts"))
    timed.timers.shutdown()
    assert done[-2:] == ["progress", "counts"]
    timed.store.shutdown()


def test_only_timer_messages_wake_the_service(timed: TimedStore) -> None:
    timed.timers._wake.clear()
    timed.timers._on_arrival(Arrival("T", 0, 1, 1, 100))
    assert not timed.timers._wake.is_set()
    timed.timers._on_arrival(Arrival(TIMER_TOPIC, 0, 1, 1, 100))
    assert timed.timers._wake.is_set()


# ---------------------------------------------------------------------- a round


def test_a_round_takes_some_chunks_and_then_looks_at_what_is_due(
    timed: TimedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(module, "ROUND_CHUNKS", 2)
    for number in range(10):
        timed.put(number, START_MS + 50_000)
    dispatched(timed)
    found = []
    for _ in range(4):
        wait_s = timed.timers.run_once()
        found.append((timed.timers.enqueued, timed.timers.commit_queue_offset, wait_s == 0))
    assert found == [(4, 4, True), (8, 8, True), (10, 10, False), (10, 10, False)]


@pytest.mark.parametrize(("now", "wait_ms"), [(500, 500.5), (0, 1000.5), (999, 1.5)])
def test_a_round_waits_for_the_next_step(tmp_path: Path, now: int, wait_ms: float) -> None:
    with timed_store(tmp_path, Clock(START_MS + now)) as timed:
        assert timed.timers.run_once() == pytest.approx(wait_ms / 1000)


def test_live_switches(tmp_path: Path) -> None:
    """timerStopEnqueue keeps what comes out of the wheel, timerStopDequeue in it."""
    clock = Clock()
    with timed_store(tmp_path, clock, timerStopEnqueue=True) as timed:
        timed.put(1, START_MS + 2000)
        dispatched(timed)
        clock.now = START_MS + 5500
        assert timed.timers.run_once() > 0
        assert (timed.timers.enqueued, timed.timers.offset_behind, timed.bodies()) == (0, 1, [])
    with timed_store(tmp_path, clock, timerStopDequeue=True) as timed:
        timed.put(2, START_MS + 7000)
        timed.run_until(START_MS + 9000)
        assert (timed.timers.offset_behind, timed.bodies()) == (0, [])
        assert timed.timers.read_behind_ms == 0
    with timed_store(tmp_path, clock) as timed:
        timed.run()
        assert sorted(timed.bodies()) == [1, 2]


@pytest.mark.parametrize(
    ("settings", "window_ms"),
    [
        ({}, 48 * 3_600_000),  # two thirds of what the log keeps, 72 h
        ({"fileReservedTime": 1}, 40 * 60_000),
        ({"fileReservedTime": 0}, 2000),
        ({"timerRollWindowSlot": 2}, 2000),
        ({"timerRollWindowSlot": 1}, 48 * 3_600_000),
        ({"timerRollWindowSlot": SLOTS_TOTAL - 60, "fileReservedTime": 1000}, (SLOTS_TOTAL - 60) * 1000),
        ({"timerRollWindowSlot": SLOTS_TOTAL - 59, "fileReservedTime": 1000}, (SLOTS_TOTAL - 60) * 1000),
        ({"timerRollWindowSlot": SLOTS_TOTAL - 61, "fileReservedTime": 1000}, (SLOTS_TOTAL - 61) * 1000),
    ],
)
def test_how_far_ahead_a_message_goes_into_the_wheel(
    tmp_path: Path, settings: dict[str, object], window_ms: int
) -> None:
    """Not so far that the log would have deleted it before."""
    with timed_store(tmp_path, **settings) as timed:
        assert timed.timers.roll_window_ms == window_ms


@pytest.mark.parametrize("late", [False, True])
def test_a_message_that_cannot_be_read_holds_up_no_other(
    timed: TimedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    """When it is due, or when it comes too late to be put into the wheel."""
    for number in range(3):
        timed.put(number, START_MS + 3000)
    if late:
        dispatched(timed)
        timed.clock.now += 10_000
        timed.timers.curr_read_time_ms = timed.timers.curr_write_time_ms = timed.clock.now
    else:
        timed.run()
    real, store, reads = timed.store.select_one_message_by_offset, timed.store, list[int]()

    def read(offset: int, size: int) -> memoryview | None:
        reads.append(offset)
        is_gone = offset == min(reads) and (not late or reads.count(offset) > 1)
        return None if is_gone else real(offset, size)

    monkeypatch.setattr(store, "select_one_message_by_offset", read)
    timed.run_until(timed.clock.now + 5000)
    assert sorted(timed.bodies()) == [1, 2] and timed.timers.skipped == 1
    assert caplog.text.count("is skipped: the commit log does not hold it any more") == 1


# ---------------------------------------------------------------------- progress and care


def test_progress_is_flushed_at_most_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[float] = []
    with timed_store(tmp_path, timerFlushIntervalMs=4000) as timed:
        clock, timers = Monotonic(monkeypatch, 1e6), timed.timers
        monkeypatch.setattr(timers, "flush", lambda: flushed.append(clock.now))
        timers._next_flush = 0.0
        timers._unflushed = False
        timers._flush_if_due()
        timers._unflushed = True
        for now in (1e6, 1e6 + 3.99, 1e6 + 4, 1e6 + 4.5, 1e6 + 8.1):
            clock.now = now
            timers._flush_if_due()
        monkeypatch.undo()
    assert flushed == [1e6, 1e6 + 4, 1e6 + 8.1]


@pytest.mark.parametrize("is_master", [True, False])
def test_what_is_looked_after_and_how_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_master: bool
) -> None:
    """A slave has its master's counts and does not count anew."""
    done: list[tuple[str, int]] = []
    with timed_store(tmp_path) as timed:
        timers, begun = timed.timers, 1e6
        timers.is_dequeuing = is_master
        clock = Monotonic(monkeypatch, begun)
        for owner, name in (
            (TimerMetrics, "persist"),
            (TimerLog, "delete_expired"),
            (TimerMetrics, "correct"),
        ):
            monkeypatch.setattr(
                owner, name, lambda *_, name=name, **__: done.append((name, round(clock.now - begun)))
            )
        timers._next_metrics = timers._next_clean = begun
        timers._next_recount = begun + 3600
        for second in (0, 4, 5, 6, 9, 10, 29, 30, 31, 3599, 3600, 3601):
            clock.now = begun + second
            timers._do_regular_work()
        monkeypatch.undo()
    assert [at for name, at in done if name == "persist"] == [0, 5, 10, 29, 3599]
    assert [at for name, at in done if name == "delete_expired"] == [0, 30, 3599]
    assert [at for name, at in done if name == "correct"] == ([3600] if is_master else [])


def test_what_the_progress_says(tmp_path: Path) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        timers = timed.timers
        timed.put(1, START_MS + 20_000)
        timed.run()
        timers._unflushed = True
        timers.flush()
        data = timers._checkpoint.data
        assert (data.last_timer_queue_offset, data.master_timer_queue_offset) == (1, 1)
        assert data.last_read_time_ms == timers.curr_read_time_ms == START_MS
        assert data.last_timer_log_flush_pos == timers._log.flushed == 52
        counter = data.counter
        clock.now += 1234
        timers._unflushed = True
        timers.flush()
        assert data.counter == counter, "nothing has changed"
        timers.is_dequeuing = False
        timed.put(2, START_MS + 20_000)
        timed.run()
        timers._unflushed = True
        timers.flush()
        assert (data.counter, data.timestamp) == (counter + 1, clock.now)
        assert (data.last_timer_queue_offset, data.master_timer_queue_offset) == (2, 1)
        assert timers.checkpoint_bytes() == data.encode()
        timers.is_dequeuing = True


def test_progress_that_could_not_be_written_is_written_the_next_time(
    timed: TimedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.put(1, START_MS + 20_000)
    timed.run()
    timers = timed.timers
    timers._unflushed = True

    def full() -> None:
        raise OSError(28, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(timers._wheel, "flush", full)
        with pytest.raises(OSError, match="No space left"):
            timers.flush()
    assert timers._unflushed
    timers.flush()
    assert not timers._unflushed


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_a_rebuild_while_the_service_runs_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_is_full: bool
) -> None:
    with timed_store(tmp_path) as timed:
        for number in range(20):
            timed.put(number, START_MS + 2000 + 1000 * number)
        timed.run_until(START_MS + 10_500)
        before = timed.bodies()
        assert 0 < len(before) < 20
        if disk_is_full:
            with monkeypatch.context() as patch:
                patch.setattr(timed.timers._log, "discard", _full)
                patch.setattr(module, "RETRY_S", 0.0)
                timed.timers._rebuild("the log is damaged")
            assert timed.timers.rebuilt == ""
        timed.timers._rebuild("the log is damaged")
        assert timed.timers.rebuilt
        timed.run_until(START_MS + 30_000)
        assert sorted(timed.bodies()) == list(range(20)) and timed.bodies()[: len(before)] == before


def _full() -> None:
    raise OSError(28, "No space left")


# ---------------------------------------------------------------------- figures


def test_what_was_done_is_counted(timed: TimedStore) -> None:
    for number in range(3):
        timed.put(number, START_MS + 5000)
    timed.put(3, START_MS + 5000, "U")
    timed.put(4, START_MS + 5000, "U")
    timed.recall(4, START_MS + 5000, "U")
    timed.run()
    timers = timed.timers
    assert timers.metrics.timing_counts() == {"T": 3, "U": 1}
    assert timers.enqueued_by_topic == {"T": 3, "U": 1} and timers.enqueued == 6
    assert timers.all_congest_num == 4
    timed.run_until(START_MS + 8000)
    assert timers.status() == {
        "readTime": START_MS + 8000,
        "writeTime": START_MS + 8000,
        "queueOffset": 6,
        "enqueued": 6,
        "delivered": 4,
        "cancelled": 1,
        "skipped": 0,
    }
    assert timers.delivered_by_topic == {"T": 3, "U": 1}
    assert timers.metrics.timing_counts() == {"T": 0, "U": 0}
    assert timers.all_congest_num == 0


@pytest.mark.parametrize("precision", [1000, 100])
def test_how_many_are_due_within(tmp_path: Path, precision: int) -> None:
    due = [START_MS + out for out in (3000, 3000, 4000, 7000, 12_000)]
    with timed_store(tmp_path, Clock(START_MS), timerPrecisionMs=precision) as timed:
        for number, out in enumerate(due):
            timed.put(number, out + 1)  # the step that begins then
        timed.run()
        bounds = range(-2, 15)
        found = timed.timers.pending_within(bounds)
        assert found == [sum(out < START_MS + 1000 * bound for out in due) for bound in bounds]
        timed.timers.is_dequeuing = False
        for now, late in ((4000, 0), (4001, 2), (5001, 3)):
            timed.clock.now = START_MS + now
            assert timed.timers.dequeue_behind == late
        timed.timers.is_dequeuing = True


def test_how_late_it_is(timed: TimedStore) -> None:
    timed.run()
    timers, clock = timed.timers, timed.clock
    begun = timers.curr_read_time_ms
    for late, seen in ((2000, 0), (2001, 1), (5500, 3500)):
        clock.now = begun + late
        assert timers.read_behind_ms == seen
    assert timers.runtime_info()["timerReadBehind"] == "3"
    timers.is_dequeuing = False
    assert timers.read_behind_ms == 0
    timers.is_dequeuing = True


def test_what_has_not_come_into_the_wheel_yet(timed: TimedStore) -> None:
    timers, clock = timed.timers, timed.clock
    assert (timers.enqueue_behind_ms, timers.offset_behind) == (0, 0)
    timed.run()
    stored = clock.now
    timed.put(1, START_MS + 50_000)
    timed.put(2, START_MS + 50_000)
    dispatched(timed)
    clock.now += 700
    assert (timers.enqueue_behind_ms, timers.offset_behind) == (clock.now - stored, 2)
    assert timers.runtime_info()["timerOffsetBehind"] == "2"
    timed.run()
    assert (timers.enqueue_behind_ms, timers.offset_behind) == (0, 0)
    assert timers.runtime_info()["timerCongestNum"] == "2"


def test_a_rate_is_of_whole_seconds_that_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, clock = _Rate(), Monotonic(monkeypatch, 100.2)
    rate.add(5)
    clock.now = 100.9
    rate.add(7)
    assert rate.per_second() == 0, "this second is not over"
    clock.now = 101.0
    rate.add(10)
    for now, seen in ((102.5, 2.2), (110.9, 2.2), (111.0, 1.0), (112.0, 0.0)):
        clock.now = now
        assert rate.per_second() == pytest.approx(seen)
    for second in range(40):
        clock.now = 200.0 + second
        rate.add(1)
    assert rate.per_second() == pytest.approx(1.0)


def test_rates_are_told(timed: TimedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Monotonic(monkeypatch, 1000.0)
    timed.timers.enqueue_rate.add(25)
    timed.timers.dequeue_rate.add(31)
    clock.now += 1
    info = timed.timers.runtime_info()
    monkeypatch.undo()
    assert (info["timerEnqueueTps"], info["timerDequeueTps"]) == ("2.5", "3.1")
