"""Where the threads of a lease store: each is given room of its own, and what they wrote is seen in the log's order."""

from __future__ import annotations

import select
import socket
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from mqlake import native
from mqlake.broker.metrics.rpc_latency import BUCKETS_MS, RpcLatencies
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH
from mqlake.native.loop_layout import (
    AWAKE,
    ENDS_NS,
    FIRST_SIZE,
    KNOWN,
    LATENCY_BOUNDS_MS,
    LATENCY_SIZE,
    LEASE_AT,
    LINGERS_NS,
    NUMBERS_SIZE,
    OFFSET,
    OTHERS,
    PLACES_AT,
    POSITION,
    PUBLISHED,
    QUEUES_AT,
    STOP_FD,
    STORED,
    common_size,
)
from mqlake.native.send_layout import (
    CODE,
    COLUMNS,
    FRAME_SIZE,
    MESSAGES,
    NEXT_OFFSET,
    ONEWAY,
    PARTS,
    PLACE,
    ROWS,
    SENDS_MAX,
    SIZE,
)
from tests.waiting import PATIENCE_S

loop = native.module("loop")
assert loop is not None
Int64s = npt.NDArray[np.int64]
LOG_SIZE = 4096


class Thread:
    """One of a lease, with sends of so many messages each in its columns, to two queues in turn; a message has 100
    bytes. Its queues are those in the columns 3 and 1 of the lease's."""

    def __init__(self, *sends: int) -> None:
        self.loop_numbers: Int64s = np.zeros(NUMBERS_SIZE, np.int64)
        self.loop_numbers[LEASE_AT + KNOWN] = 2
        self.loop_numbers[PLACES_AT : PLACES_AT + 2] = 3, 1
        self.numbers: Int64s = np.zeros(2 * PARTS + ROWS * SENDS_MAX, np.int64)
        self.numbers[[2 * COLUMNS, 2 * COLUMNS + 1]] = 2 * PARTS, len(self.numbers)
        self.columns = self.numbers[2 * PARTS :].reshape(ROWS, SENDS_MAX)
        self.count = sum(sends)
        self.columns[SIZE, : self.count] = 100
        n = 0
        for number, messages in enumerate(sends):
            self.columns[[FRAME_SIZE, MESSAGES, PLACE], n] = 100 * messages, messages, number % 2
            n += messages

    def reserve(self, common: Int64s) -> tuple[int, int, int]:
        began = time.time_ns()
        count, position, size, store_timestamp = loop.reserve(
            LOG_SIZE, self.count, self.loop_numbers, self.numbers, common
        )
        assert began // 1_000_000 <= store_timestamp <= time.time_ns() // 1_000_000
        return int(count), int(position), int(size)

    def publish(self, log: npt.NDArray[np.uint8], common: Int64s, reserved: tuple[int, int, int]) -> None:
        count, position, size = reserved
        loop.publish(log, position, size, count, self.numbers, common)


@pytest.fixture
def common() -> Int64s:
    numbers: Int64s = np.zeros(common_size(2), np.int64)
    numbers[[POSITION, PUBLISHED]] = 1000
    numbers[QUEUES_AT:].reshape(4, -1)[OFFSET, :4] = 10, 20, 30, 40
    return numbers


def offsets(common: Int64s) -> list[int]:
    return common[QUEUES_AT:].reshape(4, -1)[OFFSET, :4].tolist()


def test_each_gets_room_of_its_own(common: Int64s) -> None:
    one, other = Thread(1, 3, 1), Thread(2)
    assert one.reserve(common) == (5, 1000, 500)
    assert one.columns[NEXT_OFFSET, :2].tolist() == [40, 20]
    assert other.reserve(common) == (2, 1500, 200)
    assert other.columns[NEXT_OFFSET, :2].tolist() == [42, 23]
    assert offsets(common) == [10, 23, 30, 44]
    assert common[POSITION] == 1700 and common[PUBLISHED] == 1000 and common[STORED] == 0


@pytest.mark.parametrize(("free", "fitting"), [(500, 5), (499, 4), (400, 4), (399, 1), (99, 0)])
def test_as_many_whole_sends_as_fit(common: Int64s, free: int, fitting: int) -> None:
    thread = Thread(1, 3, 1)
    position = LOG_SIZE - END_FILE_MIN_BLANK_LENGTH - free
    common[[POSITION, PUBLISHED]] = position
    assert thread.reserve(common) == (fitting, position, 100 * fitting)
    assert common[POSITION] == position + 100 * fitting
    of_first, of_second = {5: (2, 3), 4: (1, 3), 1: (1, 0), 0: (0, 0)}[fitting]
    assert offsets(common) == [10, 20 + of_second, 30, 40 + of_first]


def test_nothing_is_seen_before_what_lies_before_it(common: Int64s) -> None:
    log = np.zeros(LOG_SIZE, np.uint8)
    one, other = Thread(1, 1), Thread(3)
    one.publish(log, common, one.reserve(common))
    assert common[PUBLISHED] == 1200 and np.flatnonzero(log).tolist() == [1003, 1103]
    log[:] = 0
    first, second = one.reserve(common), other.reserve(common)
    publishing = threading.Thread(target=other.publish, args=(log, common, second), daemon=True)
    publishing.start()
    publishing.join(0.05)  # it asks again and again by then
    assert not log.any() and publishing.is_alive()
    one.publish(log, common, first)
    publishing.join(PATIENCE_S)
    assert not publishing.is_alive()
    sizes = np.flatnonzero(log).tolist()
    assert sizes == [1203, 1303, 1403, 1503, 1603] and log[sizes].tolist() == [100] * 5
    assert common[[PUBLISHED, STORED, FIRST_SIZE]].tolist() == [1700, 7, 100]


def test_who_has_nothing_waits_for_as_long_as_others_have(common: Int64s) -> None:
    """Only when all of them wait does the lease end after LINGERS_NS, which is nothing here."""
    thread, heard = Thread(), list[bool]()
    thread.loop_numbers[[LEASE_AT + OTHERS, LEASE_AT + STOP_FD, LEASE_AT + LINGERS_NS]] = -1, -1, 0
    with select.epoll() as epoll:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            epoll.register(ours, select.EPOLLIN)

            def rest() -> None:
                heard.append(loop.rest(epoll.fileno(), 10**9 * 60, thread.loop_numbers, common))

            common[AWAKE] = 1
            rest()
            assert heard == [False] and common[AWAKE] == 1
            common[AWAKE] = 2
            resting = threading.Thread(target=rest, daemon=True)
            resting.start()
            resting.join(0.05)
            theirs.send(b"a send")
            resting.join(PATIENCE_S)
            assert heard == [False, True] and common[AWAKE] == 2
    assert thread.loop_numbers[LEASE_AT + ENDS_NS] == 0


def test_latencies_are_counted_as_the_histogram_has_them() -> None:
    assert [bound - 1 for bound in LATENCY_BOUNDS_MS] == list(BUCKETS_MS)
    thread = Thread(1, 2)
    thread.columns[CODE, :3], thread.columns[ONEWAY, :3] = 310, 0
    counted = np.zeros((6, LATENCY_SIZE), np.int64)
    latencies = RpcLatencies()
    for bound in LATENCY_BOUNDS_MS:
        for elapsed in (bound * 10**6 - 1, bound * 10**6):
            loop.count_latencies(thread.numbers, thread.count, elapsed, counted)
            latencies.record(None, elapsed, 2)  # type: ignore[arg-type]
    [expected] = latencies.histograms.values()
    assert counted[2, ::2].tolist() == expected.counts
    assert counted[2, 1::2].sum() == expected.sum_ns
    assert not counted[[0, 1, 3, 4, 5]].any()
