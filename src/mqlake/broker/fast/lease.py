"""Lease: the event loop's thread, lent to compiled code for a moment in which it serves sends alone.

    lock of the log ─▶ serve: [read all that are ready ─ store ─ answer ─ wait for more]… ─▶ statistics, unlock
                        ends after LEASE_NS, or with anything that is not a usual send to a queue that is known,
                        or when the event loop has something else to do

What a put costs in Python (the lock, the queues' offsets, statistics, waking dispatch and flush) is paid once for all
that come in that time, and nothing else is paid for them in the interpreter. A message is in the mapped log before it
is answered, as any other; that the log is longer now is said at the end, so dispatch sees it up to LEASE_NS later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.broker.fast.fast_send import Bytes, FastSend, Int64s
from mqlake.broker.metrics.rpc_latency import Rpc
from mqlake.compiled.kernels.loop_layout import (
    BASE,
    CODES,
    FIRST_SIZE,
    KNOWN,
    LASTS_NS,
    LATENCIES_AT,
    LATENCY_SIZE,
    LEASE_AT,
    LINGERS,
    OTHERS,
    POSITION,
    STORED,
)
from mqlake.compiled.kernels.send_layout import (
    LAST_PLACE,
    NEXT_OFFSET,
    QUEUE_MESSAGES,
    QUEUE_PUTS,
    QUEUE_SIZE,
    QUEUES,
    TOUCHED,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.store.log.commit_log import QueueId, WrittenMany

LEASE_NS = 900_000
"""Less than a millisecond, so that the time of a put, which statistics count in whole ones, is still 0."""
SHARED_LEASE_NS = 300_000
"""While the event loop serves other connections, too: each step of what it does for them may wait for a lease."""
QUEUES_KNOWN_MAX = 128
"""Queues whose next offsets are looked up for each lease; with one more, all are forgotten."""
_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_RPCS = [
    Rpc(int(code), int(ResponseCode.SUCCESS), False, oneway) for code in _CODES for oneway in (False, True)
]
assert len(_CODES) == CODES


class Served(NamedTuple):
    """How the last round of a lease ended (see kernels.loop.serve)."""

    rows: int
    left: int
    messages: int
    done: int
    places: int
    transactional: int


class Lease:
    """Leases of one FastLoop, whose `numbers` these are."""

    def __init__(
        self,
        fast_send: FastSend,
        numbers: Int64s,
        *,
        is_waited_for: Callable[[Collection[QueueId]], bool],
        is_alone: Callable[[], bool],
    ) -> None:
        """`is_waited_for` says whether a consumer waits for messages of one of these queues, `is_alone` whether the
        event loop has no other connections."""
        self._fast_send = fast_send
        self._numbers = numbers
        self._cells = numbers.data
        self._is_waited_for = is_waited_for
        self._is_alone = is_alone
        self.parts: object = None
        """Those of the FastSend to which the queues are known."""
        self._queues: list[QueueId] = []
        self._queue_numbers: Int64s = np.empty(0, np.int64)
        self._ended_ns = 0
        self._others = _descriptor_of(asyncio.get_running_loop())
        self.stored = 0
        """How many messages the last lease stored."""
        self.rows = 0
        """Of its last round."""

    @property
    def may_begin(self) -> bool:
        """True if puts are answered at once, and have the time of the system's clock."""
        store = self._fast_send.store_of_broker
        return store.answers_at_once and store.clock_ms is now_ms

    def run(
        self,
        kernels: ModuleType,
        epoll: int,
        received: Bytes,
        octets: Bytes,
        pull_numbers: Int64s,
        pull_octets: Bytes,
    ) -> Served | None:
        """One lease; None, and nothing was read, when the store takes nothing in this way."""
        fast_send, parts = self._fast_send, self._fast_send.parts
        if parts is not self.parts:
            self.parts = parts
            self.know(0)
        queues, at, cells = self._queues, LEASE_AT, self._cells
        served: Served | None = None
        self.stored = self.rows = 0

        def write(
            out: Bytes,
            position: int,
            base_offset: int,
            queue_offsets: Sequence[int],
            store_timestamp: int,  # noqa: ARG001 - compiled code asks the clock
        ) -> WrittenMany:
            nonlocal served
            known = len(queues)
            if fast_send.places_of is not self:  # others have used the columns
                fast_send.places_of = self
                fast_send.columns[TOUCHED, :known] = self._queue_numbers
                parts[QUEUES].reshape(-1, QUEUE_SIZE)[self._queue_numbers, LAST_PLACE] = range(known)
            fast_send.columns[NEXT_OFFSET, :known] = queue_offsets
            cells[at + POSITION] = position
            cells[at + BASE] = base_offset
            cells[at + KNOWN] = known
            served = Served(
                *kernels.serve(
                    epoll,
                    out,
                    fast_send.record_max,
                    received,
                    self._numbers,
                    octets,
                    parts.numbers,
                    parts.octets,
                    pull_numbers,
                    pull_octets,
                )
            )
            self.stored, self.rows = cells[at + STORED], served.rows
            counts, sizes, puts = fast_send.columns[QUEUE_MESSAGES : QUEUE_PUTS + 1, :known].tolist()
            return WrittenMany(
                self.stored, cells[at + POSITION] - position, cells[at + FIRST_SIZE], counts, sizes, puts
            )

        # compiled code waits for more only where more has come lately
        alone = self._is_alone()
        lingers = self._others >= 0 and time.monotonic_ns() - self._ended_ns < LEASE_NS
        cells[at + LINGERS] = lingers and not self._is_waited_for(queues)
        cells[at + OTHERS] = self._others
        cells[at + LASTS_NS] = LEASE_NS if alone else SHARED_LEASE_NS
        fast_send.store_of_broker.async_put_many(queues, write)
        self._ended_ns = time.monotonic_ns()
        if served is not None and self.stored:
            self._measure()
        return served

    def know(self, places: int) -> None:
        """The first `places` queues that the columns name as TOUCHED are known from now on."""
        known = places if places <= QUEUES_KNOWN_MAX else 0
        self._queue_numbers = self._fast_send.columns[TOUCHED, :known].copy()
        self._queues = self._fast_send.queues_touched(known)
        self._fast_send.places_of = None

    def _measure(self) -> None:
        latencies = self._fast_send.latencies
        if latencies is None:
            return
        rows: list[list[int]] = self._numbers[LATENCIES_AT:].reshape(-1, LATENCY_SIZE).tolist()
        for rpc, (count, elapsed, slow_count, slow_elapsed) in zip(_RPCS, rows, strict=True):
            if count:
                latencies.record(rpc, elapsed // count, count)
            if slow_count:
                latencies.record(rpc, slow_elapsed // slow_count, slow_count)


def _descriptor_of(loop: Any) -> int:
    """What is readable when the event loop has something to do; -1 if it does not say."""
    backend = getattr(loop, "_get_backend_id", None) or getattr(
        getattr(loop, "_selector", None), "fileno", None
    )
    return int(backend()) if callable(backend) else -1
