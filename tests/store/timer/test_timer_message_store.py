from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.formats.timer import TimerCheckpointData, TimerUnit, decode_timer_unit
from mqlake.message import (
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    MessageExtBrokerInner,
    java_hash,
)
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import PutMessageFuture, PutMessageResult, PutMessageStatus
from mqlake.store.timer.timer_checkpoint import TimerCheckpoint
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_message_store import slot_time
from mqlake.store.timer.timer_put import out_time
from mqlake.store.timer.timer_wheel import TimerWheel
from tests.clock import START_MS, Clock
from tests.golden import DIRECTORY
from tests.store.timer.timed_store import TimedStore, timed_store


def test_a_message_is_delivered_after_its_time_and_never_before(tmp_path: Path) -> None:
    with timed_store(tmp_path) as timed:
        wanted = START_MS + 5_300
        timed.put(1, wanted)
        timed.run_until(wanted - 1, step=100)
        assert timed.bodies() == []
        timed.run_until(wanted + 1000, step=100)
        (message,) = timed.delivered()
        assert wanted <= message.store_timestamp <= wanted + 1100
        assert message.queue_id == 1
        assert message.properties["TIMER_OUT_MS"] == str(START_MS + 5000)
        assert message.properties["TIMER_DEQUEUE_MS"] == str(message.store_timestamp)
        assert "REAL_TOPIC" in message.properties
        assert timed.timers.metrics.timing_counts() == {"T": 0}


def test_a_time_on_a_whole_second_is_not_early(tmp_path: Path) -> None:
    with timed_store(tmp_path) as timed:
        timed.put(1, START_MS + 3000)
        timed.run_until(START_MS + 2999, step=100)
        assert timed.bodies() == []
        timed.run_until(START_MS + 3000)
        assert timed.bodies() == [1]


@pytest.mark.parametrize("precision", [100, 500])
def test_shorter_steps(tmp_path: Path, precision: int) -> None:
    with timed_store(tmp_path, timerPrecisionMs=precision, timerRollWindowSlot=20) as timed:
        for number in range(30):
            timed.put(number, START_MS + 1000 + number * 137)
        timed.run_until(START_MS + 6000, step=50)
        found = timed.delivered()
        assert sorted(timed.bodies()) == list(range(30))
        for message in found:
            late = message.store_timestamp - int(message.properties[PROPERTY_TIMER_DELIVER_MS])
            assert 0 <= late <= precision + 50


@pytest.mark.parametrize("form", ["{topic}+K{number}", "K{number}"])
def test_recall_cancels_one_of_two(tmp_path: Path, form: str) -> None:
    with timed_store(tmp_path) as timed:
        timed.put(1, START_MS + 4000)
        timed.put(2, START_MS + 4000)
        timed.put(1, START_MS + 4000, topic="Other")
        timed.run()
        timed.recall(1, START_MS + 4000, key=form.format(topic="T", number=1))
        timed.run_until(START_MS + 6000)
        assert timed.bodies() == [2]
        assert timed.bodies("Other") == [1]
        assert timed.timers.cancelled == 1
        assert timed.timers.metrics.timing_counts() == {"T": 0, "Other": 0}


def test_beyond_the_window_a_message_rolls(tmp_path: Path) -> None:
    with timed_store(tmp_path, timerRollWindowSlot=10) as timed:
        timed.put(1, START_MS + 34_500)
        timed.put(2, START_MS + 34_500)
        timed.recall(2, START_MS + 34_500)
        timed.run_until(START_MS + 34_000)
        assert timed.bodies() == []
        assert timed.waiting() > 3
        timed.run_until(START_MS + 36_000)
        (message,) = timed.delivered()
        assert message.body == b"body 1"
        assert int(message.properties[PROPERTY_TIMER_ROLL_TIMES]) >= 3


def test_what_is_due_while_the_store_is_closed_comes_at_the_next_start(tmp_path: Path) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        for number in range(30):
            timed.put(number, START_MS + 2000 + number * 500)
        timed.run_until(START_MS + 4000)
        first = timed.bodies()
        timed.put(100, START_MS + 9000)
        timed.recall(29, START_MS + 2000 + 29 * 500)
    assert first
    clock.now += 3_600_000
    with timed_store(tmp_path, clock) as timed:
        timed.run(2)
        assert sorted(timed.bodies()) == [*range(29), 100]
        assert timed.timers.rebuilt == ""


def test_a_death_repeats_nothing_that_the_commit_log_has(tmp_path: Path) -> None:
    clock = Clock()
    timed = TimedStore(tmp_path, clock, {})
    for number in range(20):
        timed.put(number, START_MS + 2000 + number // 5 * 1000)
    timed.run()
    timed.timers.flush()
    timed.timers._next_flush = float("inf")
    timed.run_until(START_MS + 4000)
    delivered = timed.bodies()
    assert len(delivered) == 15
    timed.die()
    with timed_store(tmp_path, clock) as timed:
        timed.run()
        timed.run_until(START_MS + 9000)
        assert timed.bodies() == list(range(20))


@pytest.mark.parametrize("flush_ms", [1, 100_000])
def test_deaths_one_after_the_other(tmp_path: Path, flush_ms: int) -> None:
    """Each while the timers catch up with what the one before has left, with messages that are rolled and recalled:
    what waits is rolled at other times then than before."""
    for seed in range(2):
        rng, clock = random.Random(seed), Clock()
        settings = {"timerRollWindowSlot": 8, "timerPrecisionMs": 100, "timerFlushIntervalMs": flush_ms}
        put, recalled = 0, set()
        for _ in range(6):
            timed = TimedStore(tmp_path / f"{seed}", clock, settings)
            end = clock.now + rng.randrange(100, 2000)
            while clock.now < end:
                for _ in range(rng.randrange(4)):
                    due = clock.now + rng.choice((300, 1200, 2500, 4000))
                    timed.put(put, due)
                    if due - clock.now > 1500 and rng.random() < 0.3:
                        timed.recall(put, due)
                        recalled.add(put)
                    put += 1
                clock.now += rng.choice((20, 70, 150))
                if rng.random() < 0.3:
                    timed.timers.flush()
                timed.run()
            timed.die()
            clock.now += rng.choice((10, 800, 3000))
        with timed_store(tmp_path / f"{seed}", clock, **settings) as timed:
            timed.run()
            timed.run_until(clock.now + 8000, 100)
            assert sorted(timed.bodies()) == [number for number in range(put) if number not in recalled]


def _delete_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def _delete_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        path.unlink()


def _delete_first_log(root: Path) -> None:
    min((root / "timerlog").iterdir()).unlink()


def _delete_last_log(root: Path) -> None:
    max((root / "timerlog").iterdir()).unlink()


def _zero_middle(root: Path) -> None:
    with min((root / "timerlog").iterdir()).open("r+b") as file:
        file.seek(52 * 3)
        file.write(bytes(52))


def _wrong_prev(root: Path) -> None:
    with min((root / "timerlog").iterdir()).open("r+b") as file:
        file.seek(52 * 4 + 4)
        file.write((-1).to_bytes(8, "big", signed=True))


def _cut_log(root: Path) -> None:
    with max((root / "timerlog").iterdir()).open("r+b") as file:
        file.truncate(100)


def _scramble_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"\x01" * (root / "timerwheel").stat().st_size)


def _short_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(b"abc")


def _delete_checkpoint(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def _delete_all(root: Path) -> None:
    _delete_wheel(root)
    _delete_log(root)
    _delete_checkpoint(root)


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: None,
        _delete_wheel,
        _delete_log,
        _delete_first_log,
        _delete_last_log,
        _zero_middle,
        _wrong_prev,
        _cut_log,
        _scramble_wheel,
        _short_wheel,
        _delete_checkpoint,
        _delete_all,
    ],
)
def test_nothing_is_lost_with_the_timers_files(tmp_path: Path, damage: object) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock, timerRollWindowSlot=30) as timed:
        for number in range(40):
            timed.put(number, START_MS + 2000 + number * 7 % 40 * 1000)
        timed.recall(39, START_MS + 2000 + 39 * 7 % 40 * 1000)
        timed.put(90, START_MS + 80_500)
        timed.run_until(START_MS + 11_500)
        before = timed.bodies()
        assert len(before) == 10
    damage(tmp_path)  # type: ignore[operator]
    with timed_store(tmp_path, clock, timerRollWindowSlot=30) as timed:
        timed.run()
        assert timed.bodies() == before
        timed.run_until(START_MS + 50_000)
        lost_recall = {39} & set(timed.bodies())
        assert not lost_recall
        timed.run_until(START_MS + 90_000)
        assert Counter(timed.bodies()) == Counter([*range(39), 90])
        for message in timed.delivered():
            assert message.store_timestamp >= int(message.properties[PROPERTY_TIMER_DELIVER_MS])


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        for number in range(60):
            timed.put(number, START_MS + 2000 + number * 7 % 60 * 1000)
        timed.recall(59, START_MS + 2000 + 59 * 7 % 60 * 1000)
        timed.run_until(START_MS + 5_500)
        waiting = timed.timers.all_congest_num
    monkeypatch.setattr("mqlake.store.timer.timer_recovery.SCAN_MAX", 600)
    with timed_store(tmp_path, clock) as timed:
        assert timed.timers.rebuilt == ""
        assert timed.timers.all_congest_num == waiting
        timed.run_until(START_MS + 70_000)
        assert sorted(timed.bodies()) == list(range(59))


def test_a_long_time_away_is_caught_up_with(tmp_path: Path) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        for number in range(300):
            timed.put(number, START_MS + 2000 + number * 611_000)
        timed.run()
    clock.now += 30 * 86_400_000
    with timed_store(tmp_path, clock) as timed:
        timed.put(1000, clock.now + 60_000)
        timed.run(2)
        assert timed.bodies() == list(range(300))
        timed.run_until(clock.now + 62_000)
        assert timed.bodies()[-1] == 1000


def test_what_the_store_refuses_is_tried_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.store.timer.timer_message_store.RETRY_S", 0.001)
    with timed_store(tmp_path) as timed:
        for number in range(5):
            timed.put(number, START_MS + 2000)
        timed.run()
        real, refusals = timed.store.async_put_message, iter(range(20))

        def put(message: MessageExtBrokerInner) -> PutMessageFuture:
            if next(refusals, None) is not None:
                return PutMessageFuture(PutMessageResult(PutMessageStatus.OS_PAGECACHE_BUSY, None, "busy"))
            return real(message)

        monkeypatch.setattr(timed.store, "async_put_message", put)
        timed.run_until(START_MS + 4000)
        assert timed.bodies() == list(range(5))


def test_properties_that_leave_no_room_are_delivered_as_they_are(tmp_path: Path) -> None:
    with timed_store(tmp_path) as timed:
        timed.put(1, START_MS + 2000, pad="x" * 32_650)
        timed.run_until(START_MS + 4000)
        (message,) = timed.delivered()
        assert "TIMER_DEQUEUE_MS" not in message.properties
        assert message.properties["pad"] == "x" * 32_650


def test_a_slave_that_becomes_master_goes_on_where_its_master_was(tmp_path: Path) -> None:
    with timed_store(tmp_path) as timed:
        timers = timed.timers
        timers.is_dequeuing = False
        for number in range(8):
            timed.put(number, START_MS + 2000 + number * 1000)
        timed.run_until(START_MS + 6500)
        assert timed.bodies() == []

        def delivered_by_the_master(number: int) -> None:
            due = START_MS + 2000 + number * 1000
            properties = {
                "UNIQ_KEY": f"K{number}",
                "REAL_TOPIC": "T",
                "TIMER_OUT_MS": str(due - 1000),
                "TIMER_DELIVER_MS": str(due),
                "TIMER_DEQUEUE_MS": str(due),
            }
            copy = MessageExtBrokerInner("T", b"body %d" % number, properties=properties, queue_id=number % 3)
            assert timed.store.put_message(copy).is_ok

        check = TimerCheckpointData(START_MS + 1000, 0, 8, 8)
        timers.set_checkpoint(check.encode())
        for number in range(2):
            delivered_by_the_master(number)
        check.last_read_time_ms = START_MS + 3000
        timers.set_checkpoint(check.encode())
        for number in range(2, 4):  # after the slave has asked for the last time
            delivered_by_the_master(number)
        timers._thread = threading.current_thread()
        timers.start_dequeue()
        timers._thread = None
        timed.run_until(START_MS + 12_000)
        assert sorted(timed.bodies()) == list(range(8))


def test_a_clock_set_back_makes_nothing_early(tmp_path: Path) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        timed.run_until(START_MS + 10_000)
        clock.now = START_MS + 4_000
        timed.put(1, START_MS + 6_500)
        timed.run_until(START_MS + 6_400, step=100)
        assert timed.bodies() == []
        timed.run_until(START_MS + 12_000)
        assert timed.bodies() == [1]


def test_units_that_lead_beyond_the_commit_log_are_cut(tmp_path: Path) -> None:
    clock = Clock()
    with timed_store(tmp_path, clock) as timed:
        timed.put(1, START_MS + 5000)
        timed.run()
        end = timed.store.max_phy_offset
        timed.put(2, START_MS + 5000)
        timed.run()
    # a power cut took the second message; what came then has its place
    with (tmp_path / "commitlog" / "0".zfill(20)).open("r+b") as file:
        file.seek(end)
        file.write(bytes(4096))
    for name in ("consumequeue", "index"):
        for path in (tmp_path / name).rglob("*"):
            if path.is_file():
                path.unlink()
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "queue-ends.json").unlink()
    with timed_store(tmp_path, clock) as timed:
        assert timed.waiting() == 1
        timed.put(3, START_MS + 5000)
        timed.put(4, START_MS + 6000)
        timed.run_until(START_MS + 8000)
        assert timed.bodies() == [1, 3, 4]
        assert timed.timers.skipped == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40_000)),
        st.tuples(st.just("recall"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(1, 8_000)),
        st.tuples(st.sampled_from(["reopen", "die"]), st.integers(0, 5_000)),
    ),
    max_size=20,
)


@settings(max_examples=12, deadline=None)
@given(actions=ACTIONS)
def test_as_a_list_of_due_times_says(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """Any sequence of puts, recalls, waits and restarts against a plain list."""
    root, clock = tmp_path_factory.mktemp("timers"), Clock()
    options = {"timerRollWindowSlot": 12}
    timed = TimedStore(root, clock, options)
    due: dict[int, int] = {}
    maybe: set[int] = set()
    for kind, amount in actions:
        if kind == "put":
            due[len(due)] = clock.now + amount
            timed.put(len(due) - 1, clock.now + amount)
        elif kind == "recall" and due:
            number = amount % len(due)
            if due[number] > clock.now:
                timed.recall(number, due[number])
                if due[number] - clock.now > 1100:
                    due[number] = -1
                else:
                    maybe.add(number)  # its step may be read already
        elif kind == "wait":
            timed.run_until(clock.now + amount, step=700)
        elif kind in ("reopen", "die"):
            timed.close() if kind == "reopen" else timed.die()
            clock.now += amount
            timed = TimedStore(root, clock, options)
    timed.run()
    timed.run_until(clock.now + 60_000, step=900)
    wanted = {number for number, time_ms in due.items() if time_ms >= 0}
    found = Counter(timed.bodies())
    timed_out = [message for message in timed.delivered() if "TIMER_OUT_MS" in message.properties]
    timed.close()
    assert wanted - maybe <= set(found) <= wanted
    assert set(found.values()) <= {1}
    for message in timed_out:
        assert message.store_timestamp >= int(message.properties[PROPERTY_TIMER_DELIVER_MS])


def test_the_golden_of_java_is_what_mqlake_makes(tmp_path: Path) -> None:
    """From the messages that RocketMQ's broker got, with the write times that it had: its log and its wheel."""
    golden = json.loads((DIRECTORY / "timers.json").read_text())
    files = [bytes.fromhex(text) for text in golden["timerlog"].values()]
    javas = [unit for data in files for at in range(0, 208, 52) if (unit := decode_timer_unit(data, at))]
    log = TimerLog(str(tmp_path / "timerlog"), len(files[0]))
    wheel = TimerWheel(str(tmp_path / "timerwheel"), 1000)
    for unit, queued in zip(javas, golden["queue"], strict=True):
        properties = queued["properties"]
        out = out_time(int(properties["TIMER_DELIVER_MS"]), 1000)
        assert str(out) == properties["TIMER_OUT_MS"]
        due, rolls = slot_time(out, unit.write_time, golden["rollWindow"] * 1000, 1000)
        is_delete = "TIMER_DEL_UNIQKEY" in properties
        magic = 1 + 2 * rolls + 4 * is_delete
        slot = wheel.get(due)
        made = TimerUnit(
            slot.last,
            magic,
            unit.write_time,
            due - unit.write_time,
            queued["offset"],
            queued["size"],
            java_hash("T"),
        )
        position = log.append(made)
        first = position if slot.first < 0 else slot.first
        wheel.put(due, first, position, slot.num + (-1 if is_delete else 1))
    log.write()
    wheel.flush()
    assert {path.name: path.read_bytes().hex() for path in (tmp_path / "timerlog").iterdir()} == golden[
        "timerlog"
    ]
    written = (tmp_path / "timerwheel").read_bytes()
    for place, text in golden["timerwheel"].items():
        assert written[int(place) : int(place) + 32].hex() == text
    assert sum(map(bool, written)) == sum(map(bool, bytes.fromhex("".join(golden["timerwheel"].values()))))
    log.close()
    wheel.close()


# ---------------------------------------------------------------------- work that was interrupted is not done


DUE = START_MS + 20_000
QUIET: dict[str, object] = {
    "flushIntervalCommitLog": 600_000,
    "flushCommitLogThoroughInterval": 600_000,
    "flushIntervalConsumeQueue": 600_000,
    "timerFlushIntervalMs": 600_000,
}
"""Nothing is flushed but by a test."""
DURABLE_STEPS: dict[str, tuple[type, str]] = {
    "the copies": (DefaultMessageStore, "flush"),
    "the timer log": (TimerLog, "flush"),
    "the wheel": (TimerWheel, "flush"),
    "the progress": (TimerCheckpoint, "flush"),
}


def refuse_after(
    monkeypatch: pytest.MonkeyPatch, store: DefaultMessageStore, count: int, then: Callable[[], None]
) -> None:
    """The store takes `count` more messages; `then` is called when it refuses one."""
    put = store.async_put_message
    left = [count]

    def refusing(message: object) -> object:
        if left[0]:
            left[0] -= 1
            return put(message)  # type: ignore[arg-type]
        then()
        return PutMessageFuture(
            PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, None, "the disk is full")
        )

    monkeypatch.setattr(store, "async_put_message", refusing)


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize(
    ("what", "end"),
    [
        ("a slot", "shut down"),
        ("a slot", "no longer master"),
        ("a chunk of what is due already", "shut down"),
    ],
)
def test_what_was_interrupted_is_not_counted_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, taken: int, end: str
) -> None:
    """The store takes nothing any more, and the service ends: the rest is delivered after the next start, once."""
    root = tmp_path / "store"
    late = what != "a slot"
    clock = Clock(START_MS + 500)
    opened = TimedStore(root, clock, QUIET)
    if not late:
        fill_slot(opened)
        opened.run()
        clock.now = DUE + 3000
    else:
        opened.timers.curr_read_time_ms = 0  # behind: nothing is in the wheel yet
        fill_slot(opened)
        opened.store.flush()
        assert opened.store.wait_until_dispatched(60)
        clock.now = DUE + 3000
        opened.timers.curr_read_time_ms = opened.timers.curr_write_time_ms = DUE + 3000

    def stop() -> None:
        if end == "shut down":
            opened.timers._stop.set()
        else:
            opened.timers.is_dequeuing = False

    with monkeypatch.context() as patch:
        refuse_after(patch, opened.store, taken, stop)
        read_time, offset = opened.timers.curr_read_time_ms, opened.timers.commit_queue_offset
        opened.timers.run_once()
        if late:
            assert opened.timers.commit_queue_offset == offset
        else:
            assert read_time <= opened.timers.curr_read_time_ms <= DUE
    opened.close()
    again = TimedStore(root, clock, QUIET)
    again.run(2)
    assert Counter(again.bodies()) == Counter(range(5))
    again.close()


def fill_slot(opened: TimedStore) -> None:
    for number in range(5):
        opened.put(number, DUE)


def test_the_progress_is_written_after_what_it_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    opened = TimedStore(tmp_path / "store", Clock(), QUIET)
    opened.put(0, DUE)
    opened.run()
    for name, (owner, method) in DURABLE_STEPS.items():
        real = getattr(owner, method)

        def call(self: object, *args: object, _real: object = real, _name: str = name) -> object:
            order.append(_name)
            return _real(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(owner, method, call)
    opened.timers._unflushed = True
    opened.timers.flush()
    assert list(dict.fromkeys(order)) == list(DURABLE_STEPS)
    monkeypatch.undo()
    opened.close()


def test_what_a_death_left_unaccounted_is_searched_for_once(tmp_path: Path) -> None:
    """Else each later start would read the commit log from there again, ever further."""
    root, clock = tmp_path / "store", Clock()
    opened = TimedStore(root, clock, QUIET)
    fill_slot(opened)
    opened.run()
    clock.now = DUE + 3000
    opened.run()
    assert len(opened.bodies()) == 5
    opened.die()
    again = TimedStore(root, clock, QUIET)
    assert again.timers.recovered.copies
    again.put(5, DUE + 6000)
    again.run_until(DUE + 10_000)
    assert not again.timers.recovered.copies
    again.close()
    third = TimedStore(root, clock, QUIET)
    assert not third.timers.recovered.copies
    third.run()
    assert Counter(third.bodies()) == Counter(range(6))
    third.close()
