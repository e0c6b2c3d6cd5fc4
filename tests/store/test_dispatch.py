from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqlake.formats.columns import DispatchColumns, Scan
from mqlake.message import MessageExtBrokerInner, parse_delay_levels
from mqlake.store import dispatch
from mqlake.store.config import MessageStoreConfig
from mqlake.store.dispatch import Arrival, ReputMessageService
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.commit_log import CommitLog
from mqlake.store.log.log_reader import LogChunk
from mqlake.store.running_flags import RunningFlags
from tests.waiting import PATIENCE_S, until

FILE_SIZE = 4096


class Dispatcher:
    """Notes what it is given; fails while `error` is set."""

    makes = "what it is told"

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.error: OSError | None = None
        self.failed = threading.Event()
        self.tries = 0

    def dispatch(self, scan: Scan, columns: DispatchColumns) -> None:
        assert len(columns.tags_code) == len(scan)
        self.tries += 1
        if self.error is not None:
            self.failed.set()
            raise self.error
        self.offsets += scan.physical_offset.tolist()


class Bench:
    """A commit log and the service over it; `confirmed` None: all of it."""

    def __init__(self, directory: Path) -> None:
        config = MessageStoreConfig(store_path_root_dir=str(directory), mapped_file_size_commit_log=FILE_SIZE)
        self.queue = MappedFileQueue(config.commit_log_dir, FILE_SIZE)
        self.log = CommitLog(config, self.queue, {})
        self.flags = RunningFlags()
        self.dispatcher = Dispatcher()
        self.confirmed: int | None = None
        self.is_slave = False
        self.damage: list[str] = []
        self.arrivals: list[Arrival] = []
        self.service = ReputMessageService(
            self.queue,
            [self.dispatcher],
            parse_delay_levels("1s 5s"),
            self.flags,
            confirm_offset=lambda: self.queue.max_offset if self.confirmed is None else self.confirmed,
            on_damage=self.damage.append,
            listeners=[self.arrivals.append],
            is_slave=lambda: self.is_slave,
        )

    def put(self, count: int, topic: str = "T", queue_id: int = 0) -> list[int]:
        offsets = []
        for _ in range(count):
            result = self.log.put_message(MessageExtBrokerInner(topic, b"x" * 100, queue_id=queue_id))
            assert result.append_result is not None
            offsets.append(result.append_result.wrote_offset)
        self.service.notify()
        return offsets

    def wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(60_000):
            if condition():
                return
            self.service.wait_until_dispatched(timeout_s=0.001)
        raise AssertionError("it does not come")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.service.shutdown(10)


def test_everything_in_order_over_the_borders_of_files(bench: Bench) -> None:
    before = bench.put(30)
    bench.service.start(0)
    offsets = before + bench.put(70)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.dispatcher.offsets == offsets
    assert bench.service.dispatch_behind_bytes == 0
    assert len(bench.queue.mapped_files) > 2


def test_from_where_recovery_has_come(bench: Bench) -> None:
    offsets = bench.put(20)
    bench.service.start(offsets[12])
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.dispatcher.offsets == offsets[12:]


def test_a_service_that_sleeps_is_woken_by_a_message(bench: Bench) -> None:
    came = threading.Event()
    bench.service.listeners.append(lambda _: came.set())
    bench.service.start(0)
    for _ in range(3):
        until(lambda: bench.service._sleeping, "nothing is left to dispatch")
        came.clear()
        bench.put(1)
        assert came.wait(PATIENCE_S)
    assert len(bench.dispatcher.offsets) == 3


def test_how_far_it_is_behind(bench: Bench) -> None:
    offsets = bench.put(10)
    bench.confirmed = offsets[4]
    assert bench.service.dispatch_behind_bytes == offsets[4]
    bench.service.start(0)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.service.dispatch_behind_bytes == 0
    bench.confirmed = 0  # a flush that is still to come, say
    assert bench.service.dispatch_behind_bytes == 0


def test_not_beyond_what_is_confirmed(bench: Bench) -> None:
    offsets = bench.put(10)
    bench.confirmed = offsets[4]
    bench.service.start(0)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.dispatcher.offsets == offsets[:4]
    assert not bench.service.wait_until_dispatched(bench.queue.max_offset, timeout_s=0.01)
    bench.confirmed = None
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.dispatcher.offsets == offsets


def test_a_disk_that_refuses_is_tried_again_and_stops_the_writers_meanwhile(bench: Bench) -> None:
    bench.dispatcher.error = OSError(28, "No space left on device")
    offsets = bench.put(10)
    bench.service.start(0)
    assert bench.dispatcher.failed.wait(PATIENCE_S)
    bench.wait_for(lambda: bench.flags.is_logics_queue_error)
    assert bench.flags.flag_bits
    assert bench.flags.reasons() == ["writing what it is told failed: [Errno 28] No space left on device"]
    bench.dispatcher.error = None
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert not bench.flags.flag_bits
    assert bench.dispatcher.offsets == offsets


def test_who_waits_for_a_disk_that_refuses_does_not_make_it_busy(bench: Bench) -> None:
    bench.dispatcher.error = OSError(28, "No space left on device")
    bench.put(10)
    bench.service.start(0)
    assert bench.dispatcher.failed.wait(PATIENCE_S)
    assert not bench.service.wait_until_dispatched(timeout_s=0.3)
    assert bench.dispatcher.tries < 12  # when it is told of the wait, and after 50 ms, 100, 200 …
    bench.dispatcher.error = None


def test_shutdown_does_not_wait_for_a_disk_that_refuses(bench: Bench) -> None:
    bench.dispatcher.error = OSError(28, "No space left on device")
    bench.put(10)
    bench.service.start(0)
    assert bench.dispatcher.failed.wait(PATIENCE_S)
    tries = bench.dispatcher.tries
    assert not bench.service.shutdown(timeout_s=600)
    assert bench.dispatcher.tries <= tries + 3
    assert bench.service.reput_from_offset == 0, "what was not taken is left to the next start"


def test_damage_in_the_log_ends_it(bench: Bench) -> None:
    offsets = bench.put(10)
    view = bench.queue.mapped_files[0].view
    view[offsets[6] + 4] ^= 0xFF
    bench.service.start(0)
    assert not bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert bench.dispatcher.offsets == offsets[:6]
    [damage] = bench.damage
    assert f"byte {offsets[6]}: magic" in damage
    assert not bench.service.shutdown(timeout_s=1)


def test_listeners_hear_of_each_queue(bench: Bench) -> None:
    bench.put(7, "A")
    bench.put(5, "B")
    bench.service.start(0)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    counts = {topic: sum(a.count for a in bench.arrivals if a.topic == topic) for topic in "AB"}
    assert counts == {"A": 7, "B": 5}
    assert max(a.next_offset for a in bench.arrivals if a.topic == "A") == 7


@pytest.mark.parametrize("rounds", [1, 2, 9], ids=["few", "few of each", "many"])
def test_what_listeners_are_told_of_a_queue(bench: Bench, rounds: int) -> None:
    """Where the queue goes on, how many messages came, and how many bytes they have."""
    bench.put(3, "A", 5)  # before the service begins: not its business
    start = bench.queue.max_offset
    for number in range(rounds):
        for topic, queue_id in (("A", 5), ("A", 0), ("A", 1), ("B", 1)):
            bench.put(1 + (number + queue_id) % 2, topic, queue_id)
    bench.service.start(start)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    size = 91 + 1 + 100
    for topic, queue_id in (("A", 5), ("A", 0), ("A", 1), ("B", 1)):
        count = sum(1 + (number + queue_id) % 2 for number in range(rounds))
        told = [a for a in bench.arrivals if (a.topic, a.queue_id) == (topic, queue_id)]
        assert sum(a.count for a in told) == count
        assert all(a.size == a.count * size for a in told)
        assert [a.next_offset for a in told] == sorted(a.next_offset for a in told)
        assert told[-1].next_offset == count + 3 * (queue_id == 5)
    assert {(a.topic, a.queue_id) for a in bench.arrivals} == {("A", 5), ("A", 0), ("A", 1), ("B", 1)}


def test_a_listener_that_fails_does_not_stop_it(bench: Bench) -> None:
    def fail(_: Arrival) -> None:
        raise ValueError("of its own")

    bench.service.listeners.insert(0, fail)
    bench.put(5)
    bench.service.start(0)
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
    assert sum(arrival.count for arrival in bench.arrivals) == 5


class _SeenEvent(threading.Event):
    """Notes whether it was set when it was waited on."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_on = threading.Event()
        self.was_set: list[bool] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.was_set.append(self.is_set())
        self.waited_on.set()
        return super().wait(timeout)


def test_a_service_with_nothing_to_do_waits_for_a_message(bench: Bench) -> None:
    bench.service._wake = wake = _SeenEvent()
    bench.service.start(0)
    assert wake.waited_on.wait(PATIENCE_S)


def test_notifying_costs_nothing_while_a_round_is_under_way(bench: Bench) -> None:
    set_by_it: list[bool] = []

    def notify(_: Arrival) -> None:
        bench.service.notify()
        set_by_it.append(bench.service._wake.is_set())

    bench.service.listeners.append(notify)
    bench.service.start(0)
    until(lambda: bench.service._sleeping, "nothing is left to dispatch")
    bench.put(1)
    until(lambda: set_by_it, "the message is dispatched")
    assert set_by_it == [False]


def test_shutdown_ends_after_the_round_that_is_under_way(bench: Bench) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: Arrival) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    bench.service.listeners.append(hold)
    bench.service.start(0)
    bench.put(1)
    assert entered.wait(PATIENCE_S)
    ends = threading.Thread(target=bench.service.shutdown, args=(0,))
    ends.start()
    until(lambda: bench.service._stopped, "the shutdown has waited for its time")
    assert ends.is_alive() and bench.service._thread.is_alive()
    go_on.set()
    ends.join(PATIENCE_S)
    assert not ends.is_alive() and not bench.service._thread.is_alive()


def test_shutdown_waits_for_what_is_left(bench: Bench) -> None:
    """A round is under way, and more has come that it does not see."""
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: Arrival) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    bench.service.listeners.append(hold)
    bench.service.start(0)
    offsets = bench.put(1)
    assert entered.wait(PATIENCE_S)
    offsets += bench.put(50)
    done: list[bool] = []
    ends = threading.Thread(target=lambda: done.append(bench.service.shutdown(PATIENCE_S)))
    ends.start()
    until(lambda: bench.service._hurry.is_set(), "the shutdown waits")
    assert not bench.service._stopped
    go_on.set()
    ends.join(PATIENCE_S)
    assert done == [True]
    assert bench.dispatcher.offsets == offsets


def test_shutdown_wakes_a_service_that_sleeps_again(bench: Bench) -> None:
    """It was woken to dispatch what is left, and has found nothing, before it is told to stop."""
    service = bench.service

    class Late(threading.Condition):
        def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            found = super().wait_for(predicate, timeout)
            until(lambda: service._sleeping and not service._wake.is_set(), "it sleeps again")
            return found

    service.start(0)
    bench.put(1)
    assert service.wait_until_dispatched(timeout_s=PATIENCE_S)
    service._progress = Late()
    ends = threading.Thread(target=service.shutdown, args=(PATIENCE_S,), daemon=True)
    ends.start()
    ends.join(PATIENCE_S)
    assert not ends.is_alive() and not service._thread.is_alive()


def test_a_service_that_was_woken_sleeps_again(bench: Bench) -> None:
    bench.service._wake = wake = _SeenEvent()
    bench.service.start(0)
    for number in range(1, 4):
        until(lambda: bench.service._sleeping, "nothing is left to dispatch")
        bench.put(1)
        until(lambda number=number: len(wake.was_set) > number, "it has dispatched, and sleeps")  # type: ignore[misc]
    assert len(bench.dispatcher.offsets) == 3
    assert wake.was_set.count(True) <= 3, "at most one wake-up a message is left over"
    until(lambda: bench.service._sleeping and not wake.is_set(), "no wake-up is left over for ever")


def test_only_the_round_that_somebody_waited_for_is_hurried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqlake.store.dispatch.RELAXED_S", 3600)
    service = bench.service
    service._hurry = hurry = _SeenEvent()
    service.is_awaited = lambda: False
    service.awaited()  # before there is anything to wait for
    bench.put(1)
    service.start(0)
    for number in range(1, 4):
        until(lambda number=number: len(hurry.was_set) == number, "a round, then a pause")  # type: ignore[misc]
        assert not hurry.was_set[-1]
        bench.put(1)
        service.awaited()
    until(lambda: len(hurry.was_set) == 4, "the last one's round")
    assert len(bench.dispatcher.offsets) == 4
    service.is_awaited = lambda: True
    assert service.wait_until_dispatched(timeout_s=PATIENCE_S)


def test_a_service_that_was_hurried_gathers_again_though_it_never_sleeps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take the interpreter from the event loop for every few messages, for as long as some come."""
    service = bench.service
    service._hurry = hurry = _SeenEvent()
    more = [20]

    def put_more(_: Arrival) -> None:
        if more[0]:
            more[0] -= 1
            bench.put(1)

    service.listeners.append(put_more)
    monkeypatch.setattr(dispatch, "LONE_GATHER_S", 0.001)
    service._hurry.set()
    bench.put(1)
    service.start(0)
    until(lambda: service._sleeping, "nothing is left")
    assert len(bench.dispatcher.offsets) == 21
    assert hurry.was_set[0] and not any(hurry.was_set[1:])


def test_what_is_confirmed_but_not_there_yet_does_not_make_it_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is being rolled: its blank is still to come. The service looks again after a while."""
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        time.sleep(0.001)

    monkeypatch.setattr(dispatch, "time", SimpleNamespace(thread_time=time.thread_time, sleep=sleep))
    [offset] = bench.put(1)
    end = bench.queue.max_offset
    bench.confirmed = end + 100
    scans: list[int] = []
    whole = bench.service._reader.scan

    def scan(start: int, stop: int) -> Iterator[LogChunk]:
        scans.append(start)
        return whole(start, stop)

    monkeypatch.setattr(bench.service._reader, "scan", scan)
    bench.service.start(0)
    until(lambda: len(sleeps) > 5, "it has looked again and again")
    assert len(scans) <= len(sleeps) + 2
    assert set(scans) == {0, end} and set(sleeps) == {dispatch.GATHER_S}
    assert bench.dispatcher.offsets == [offset]
    bench.confirmed = None


def test_few_messages_that_somebody_waits_for_are_gathered_for_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GATHER_S", "GATHER_MAX_S"):
        monkeypatch.setattr(dispatch, name, 3600)
    monkeypatch.setattr(dispatch, "LONE_GATHER_S", 0.001)
    bench.service.start(0)
    for number in range(1, 4):
        bench.put(1)
        until(lambda number=number: len(bench.dispatcher.offsets) == number, "it is dispatched")  # type: ignore[misc]
    until(lambda: bench.service._sleeping, "nothing is left to dispatch")
    bench.put(dispatch.LONE + 1)
    until(lambda: len(bench.dispatcher.offsets) == 3 + dispatch.LONE + 1, "they are dispatched")
    bench.put(1)
    assert len(bench.dispatcher.offsets) == 3 + dispatch.LONE + 1
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(("is_slave", "pause"), [(False, "RELAXED_S"), (True, "SLAVE_RELAXED_S")])
def test_a_round_that_nobody_waits_for_ends_when_somebody_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_slave: bool, pause: str
) -> None:
    monkeypatch.setattr(f"mqlake.store.dispatch.{pause}", 3600)
    bench.is_slave = is_slave
    bench.service.is_awaited = lambda: False
    bench.service.start(0)
    bench.put(1)
    bench.wait_for(lambda: bench.service._relaxed)
    later = bench.put(1)
    assert len(bench.dispatcher.offsets) == 1
    bench.service.awaited()
    bench.wait_for(lambda: bench.dispatcher.offsets[1:] == later)
    bench.wait_for(lambda: bench.service._relaxed)
    bench.service.is_awaited = lambda: True
    assert bench.service.wait_until_dispatched(timeout_s=PATIENCE_S)
