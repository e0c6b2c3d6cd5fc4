"""Lease: the event loop's thread, lent for a moment to compiled code, which serves sends and pulls by itself.

    lock of the log ─▶ serve: [read all that are ready ─ store ─ answer ─ wait for more]… ─▶ statistics, unlock
                   └─▶ serve, in a helper's thread, for connections of its own        … ─▶┘
                        ends after LEASE_NS, or with any frame but a usual send to a known queue or a pull by a known
                        plan, or when the event loop has something else to do

What a put costs in Python (the lock, the queues' offsets, statistics, waking dispatch and flush) is paid once for all
that come in that time, and nothing else is paid for them in the interpreter. A message is in the mapped log before it
is answered, as always; the new end of the log is published at the end of the lease, so dispatch sees it up to LEASE_NS
later.

A lease may have several threads (`fastLoopThreads`). They work only while the event loop's thread is in the lease, and
end before it goes on, so everything else in the broker still belongs to the event loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import sys
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.broker.fast.fast_send import Bytes, FastSend, Int64s
from mqlake.broker.fast.helper import Helper
from mqlake.broker.metrics.rpc_latency import Rpc
from mqlake.native.loop_layout import (
    AWAKE,
    BASE,
    CODES,
    COUNT,
    ENDS_NS,
    FAILED,
    FIRST_SIZE,
    KNOWN,
    LATENCIES_AT,
    LATENCY_SIZE,
    LEASE_AT,
    LINGERS_NS,
    LONGEST_NS,
    OFFSET,
    OTHERS,
    PLACES_AT,
    POSITION,
    PUBLISHED,
    PUTS,
    QUEUES_AT,
    QUEUES_KNOWN_MAX,
    ROUNDS,
    STOP_FD,
    STOPS,
    STORED,
    THREADS,
    common_size,
)
from mqlake.native.send_layout import LAST_PLACE, QUEUE_SIZE, QUEUES, TOUCHED
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.log.appender import QueueId, Written

LEASE_NS = 30_000_000
"""While nobody else is served and no consumer waits: what a lease costs in Python, 0.15 ms, is a small part of it. The
event loop's next timer ends it, and so do other things that the loop has to do."""
COMMON_LEASE_NS = 3_000_000
"""While slaves wait for messages."""
LINGER_NS = 900_000
"""How long a lease waits for more; and how long it lasts where it does not."""
BUSY_NS, BUSY = 10_000_000, 32
"""For so long after a lease that stored so many messages more are expected: threads of the broker that have the
processor in between are no sign that clients have stopped."""
SHARED_LEASE_NS = 300_000
"""While the event loop serves other connections, too: each step of what it does for them may wait for a lease."""
SILENT_LEASE_NS, SILENT_NS = 3_000_000, 20_000_000
"""While there are other connections, but no lease has found anything to do for them for so long: what comes from them
ends a lease."""
FOREVER = 1 << 62
_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_RPCS = [
    Rpc(int(code), int(ResponseCode.SUCCESS), False, oneway) for code in _CODES for oneway in (False, True)
]
assert len(_CODES) == CODES


class Served(NamedTuple):
    """How the last round of a lease ended (see native.loop.serve)."""

    rows: int
    left: int
    messages: int
    done: int
    places: int
    transactional: int


class Stake:
    """What a lease has of one share of the connections: the arrays to serve them with, and the queues that are known
    to these."""

    def __init__(
        self,
        fast_send: FastSend,
        numbers: Int64s,
        octets: Bytes,
        pull_tables: tuple[Int64s, Bytes],
    ) -> None:
        self.fast_send = fast_send
        self.numbers, self.octets, self.pull_tables = numbers, octets, pull_tables
        self.received = octets.view()
        self.received.flags.writeable = False
        self.epoll = -1
        self.cells = numbers.data
        self.parts: object = None
        """Those of the FastSend to which the queues are known."""
        self.queues: list[QueueId] = []
        self.rows = 0
        """Of the last round."""
        self.was_busy = False
        """Whether anything was read in the last lease."""
        self.served: Served | None = None
        self.helper: Helper | None = None
        """None for the thread of the event loop."""
        self._queue_numbers: Int64s = np.empty(0, np.int64)

    def forget(self) -> None:
        """What the last lease brought."""
        self.rows, self.was_busy, self.served = 0, False, None
        self.cells[LEASE_AT + ROUNDS] = -1

    @property
    def has_begun(self) -> bool:
        """Whether compiled code has read anything since."""
        return self.cells[LEASE_AT + ROUNDS] >= 0

    def know(self, places: int) -> None:
        """The first `places` queues that the columns name as TOUCHED are known from now on."""
        known = places if places <= QUEUES_KNOWN_MAX else 0
        self._queue_numbers = self.fast_send.columns[TOUCHED, :known].copy()
        self.queues = self.fast_send.queues_touched(known)
        self.parts, self.fast_send.places_of = self.fast_send.parts, None

    def begin(self, *, ends_ns: int, lingers: bool, others: int, stop: int) -> None:
        """Has the columns name the known queues, and says what is given."""
        fast_send, cells, known = self.fast_send, self.cells, len(self.queues)
        if fast_send.places_of is not self:  # others have used the columns
            fast_send.places_of = self
            fast_send.columns[TOUCHED, :known] = self._queue_numbers
            fast_send.parts[QUEUES].reshape(-1, QUEUE_SIZE)[self._queue_numbers, LAST_PLACE] = range(known)
        cells[LEASE_AT + KNOWN] = known
        cells[LEASE_AT + ENDS_NS] = ends_ns
        cells[LEASE_AT + LINGERS_NS] = LINGER_NS if lingers else 0
        cells[LEASE_AT + OTHERS] = others
        cells[LEASE_AT + STOP_FD] = stop

    def serve(self, kernels: ModuleType, out: Bytes, common: Int64s) -> None:
        """In this thread."""
        parts = self.fast_send.parts
        self.take(
            kernels.serve(
                self.epoll,
                out,
                self.fast_send.record_max,
                self.numbers,
                self.octets,
                parts.numbers,
                parts.octets,
                *self.pull_tables,
                common,
            )
        )

    def take(self, result: Sequence[int]) -> None:
        self.served = Served(*result)
        self.rows = self.served.rows
        self.was_busy = self.rows > 0 or self.cells[LEASE_AT + ROUNDS] > 1

    def measure(self) -> None:
        latencies = self.fast_send.latencies
        if latencies is None:
            return
        rows: list[list[int]] = self.numbers[LATENCIES_AT:PLACES_AT].reshape(-1, LATENCY_SIZE).tolist()
        for rpc, row in zip(_RPCS, rows, strict=True):
            for count, elapsed in zip(row[::2], row[1::2], strict=True):
                if count:
                    latencies.record(rpc, elapsed // count, count)


class Lease:
    """Leases of one FastLoop, which has these stakes; each lease has one or more of them."""

    def __init__(
        self,
        stakes: Sequence[Stake],
        *,
        is_waited_for: Callable[[Collection[QueueId]], bool],
        is_alone: Callable[[], bool],
    ) -> None:
        """`is_waited_for` says whether a consumer waits for messages of one of these queues, `is_alone` whether the
        event loop has no other connections."""
        self._stakes = stakes
        self.common: Int64s = np.zeros(common_size(len(stakes)), np.int64)
        self._cells = self.common.data
        self._rows = self.common[QUEUES_AT:].reshape(4, -1)
        self._store = stakes[0].fast_send.store_of_broker
        self._is_waited_for = is_waited_for
        self._is_alone = is_alone
        self._queues: list[QueueId] = []
        """Of all stakes."""
        self._known_to: list[list[QueueId]] = []
        self._ended_ns = 0
        """When the last lease ended."""
        self._interrupted_ns = 0
        """When the event loop last had something else to do at the end of a lease."""
        self._stop = os.eventfd(0, os.EFD_NONBLOCK)
        """Readable when the lease is to end."""
        weakref.finalize(self, os.close, self._stop)  # another thread may be just about to write to it
        self.others = _descriptor_of(asyncio.get_running_loop())
        """What is readable when the event loop has something to do; -1 if it does not say."""
        self.time_left_ns = 0
        """Until the event loop has to do something that no descriptor says: 0 if there is something now."""
        self._time_left = _time_left_of(asyncio.get_running_loop())
        self._poll = None
        if self.others >= 0:
            self._poll = select.poll()
            self._poll.register(self.others, select.POLLIN)
        self.stored = 0
        """How many messages the last lease stored."""

    def look_ahead(self) -> None:
        """Asks the event loop for the time that is left, before this turn gives it more to do."""
        self.time_left_ns = self._time_left()

    @property
    def may_begin(self) -> bool:
        """True if puts are answered at once, and have the time of the system's clock."""
        return self._store.answers_at_once and self._store.clock_ms is now_ms

    @property
    def has_just_ended(self) -> bool:
        """True if more is to be expected, as there was something a moment ago."""
        return time.monotonic_ns() - self._ended_ns < (BUSY_NS if self.stored >= BUSY else LINGER_NS)

    def run(self, kernels: ModuleType, stakes: Sequence[Stake]) -> bool:
        """One lease, of the first stake in this thread and of the others in their helpers'; what it brought is in
        them, which have forgotten the last one. False, and nothing was read, when the store takes nothing in this
        way."""
        self._gather()
        queues, cells, rows = self._queues, self._cells, self._rows
        # compiled code waits for more only where more has come lately
        lingers = self.others >= 0 and self.has_just_ended and not self._is_waited_for(queues)
        lasts = self._lasts(lingers)
        replicas = self._store.replicas
        has_slaves = replicas is not None and replicas.needed_from() is not None
        self.stored, known = 0, len(queues)

        def write(
            mapped_file: MappedFile,
            queue_offsets: Sequence[int],
            store_timestamp: int,  # noqa: ARG001 - compiled code asks the clock
        ) -> Written:
            position = mapped_file.wrote_position
            cells[POSITION] = cells[PUBLISHED] = position
            cells[BASE], cells[THREADS], cells[AWAKE] = mapped_file.file_from_offset, len(stakes), len(stakes)
            cells[STORED] = cells[FAILED] = 0
            rows[COUNT:, :known] = 0
            rows[OFFSET, :known] = queue_offsets
            most = COMMON_LEASE_NS if has_slaves else LEASE_NS
            ends_ns, others = time.monotonic_ns() + min(lasts, most, self.time_left_ns), self.others
            for stake in stakes:
                stake.begin(ends_ns=ends_ns, lingers=lingers, others=others, stop=self._stop)
                others = -1  # one thread watches the event loop
            self._serve(kernels, stakes, mapped_file.array)
            self.stored = cells[STORED]
            counts, sizes, puts = rows[COUNT : PUTS + 1, :known].tolist()
            return Written(
                self.stored,
                cells[POSITION] - position,
                cells[FIRST_SIZE],
                counts,
                sizes,
                puts,
                max(stake.cells[LEASE_AT + LONGEST_NS] for stake in stakes),
            )

        if cells[STOPS]:  # of the last lease; from here on somebody may want the lock
            cells[STOPS] = 0
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._stop)
        self._store.async_put_many(queues, write, self._end_soon)
        self._note_end()
        if self.stored:
            for stake in stakes:
                stake.measure()
        return stakes[0].served is not None

    def _lasts(self, lingers: bool) -> int:
        """How many nanoseconds a lease lasts at most."""
        if self._is_alone():
            return LEASE_NS if lingers else LINGER_NS
        is_silent = lingers and time.monotonic_ns() - self._interrupted_ns > SILENT_NS
        return SILENT_LEASE_NS if is_silent else SHARED_LEASE_NS

    def _note_end(self) -> None:
        self._ended_ns = time.monotonic_ns()
        if self._poll is not None and self._poll.poll(0):
            self._interrupted_ns = self._ended_ns

    def _end_soon(self) -> None:
        """Somebody else wants to put."""
        self._cells[STOPS] = 1
        os.eventfd_write(self._stop, 1)

    def _serve(self, kernels: ModuleType, stakes: Sequence[Stake], out: Bytes) -> None:
        first, *others = stakes
        begun: list[Stake] = []
        try:
            for stake in others:
                if stake.helper is not None:
                    stake.helper.begin(out, stake.fast_send.parts, stake.fast_send.record_max)
                    begun.append(stake)
            first.serve(kernels, out, self.common)
        except BaseException:
            self._cells[FAILED] = self._cells[STOPS] = 1
            raise
        finally:
            _wait_for(begun)

    def _gather(self) -> None:
        """Every queue that is known to a stake, and which column of the lease's is its own."""
        stakes, known_to = self._stakes, self._known_to
        for stake in stakes:
            if stake.fast_send.parts is not stake.parts:
                stake.know(0)
        if len(known_to) == len(stakes) and all(a.queues is b for a, b in zip(stakes, known_to, strict=True)):
            return
        self._known_to = [stake.queues for stake in stakes]
        columns: dict[QueueId, int] = {}
        for stake in stakes:
            places = [columns.setdefault(queue, len(columns)) for queue in stake.queues]
            stake.numbers[PLACES_AT : PLACES_AT + len(places)] = places
        self._queues = list(columns)


def _wait_for(stakes: Sequence[Stake]) -> None:
    """Until the helpers of all these are done, also where one has failed."""
    failures = []
    for stake in stakes:
        assert stake.helper is not None
        try:
            stake.take(stake.helper.end())
        except RuntimeError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _descriptor_of(loop: Any) -> int:
    """What is readable when the event loop has something to do; -1 if it does not say."""
    backend = getattr(loop, "_get_backend_id", None) or getattr(
        getattr(loop, "_selector", None), "fileno", None
    )
    return int(backend()) if callable(backend) else -1


def _time_left_of(loop: Any) -> Callable[[], int]:
    """What tells the nanoseconds until a timer of the event loop is due, 0 while callbacks wait; FOREVER if there is
    none, or the loop does not say."""
    if type(loop).__module__ == "uvloop":
        left = _time_left_of_uvloop(loop)
        if left is not None:
            return left
    if not (hasattr(loop, "_ready") and hasattr(loop, "_scheduled")):
        return lambda: FOREVER

    def time_left() -> int:
        if loop._ready:
            return 0
        return max(0, int((loop._scheduled[0]._when - loop.time()) * 1e9)) if loop._scheduled else FOREVER

    return time_left


def _time_left_of_uvloop(loop: Any) -> Callable[[], int] | None:
    """The same from libuv itself, which asks it in each turn; None where that cannot be called."""
    try:
        module = sys.modules["uvloop.loop"]
        timeout_ms = ctypes.PyDLL(str(module.__file__)).uv_backend_timeout
        capsule = module.libuv_get_loop_t_ptr(loop)
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    except (KeyError, AttributeError, OSError):
        return None
    get_pointer.argtypes, get_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    timeout_ms.argtypes, timeout_ms.restype = (ctypes.c_void_p,), ctypes.c_int
    pointer = ctypes.c_void_p(get_pointer(capsule, None))

    def time_left(
        asked: Callable[[ctypes.c_void_p], int] = timeout_ms, pointer: ctypes.c_void_p = pointer
    ) -> int:
        left = asked(pointer)
        return left * 1_000_000 if left >= 0 else FOREVER

    return time_left
