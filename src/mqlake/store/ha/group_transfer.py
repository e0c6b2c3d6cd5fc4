"""GroupTransferService: puts that wait until enough slaves have them.

    put_request(future, need_ack) ─┐                        ┌─ PUT_OK, all that one report covers in one hand-over
    acknowledged(...)  ────────────┼─▶ need_ack - 1 slaves ─┤
    tick(now) ─────────────────────┘   have its end?        └─ FLUSH_SLAVE_TIMEOUT at its deadline

The master itself counts as one. Each put has a deadline of its own: a wake-up too many or a slow neighbour costs it
nothing of its time. No thread of its own: who has news calls in.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence

from mqlake.store.ha.protocol import Clock
from mqlake.store.results import PutMessageFuture, PutMessageStatus, wake_all

_Waiting = tuple[int, int, float, PutMessageFuture]
"""End of the put's bytes, a number, deadline, the put."""


class GroupTransferService:
    """`ack_offsets()` gives what each slave has acknowledged; `timeout_s()` is slaveTimeout."""

    def __init__(
        self,
        ack_offsets: Callable[[], Sequence[int]],
        timeout_s: Callable[[], float],
        *,
        clock: Clock = time.monotonic,
        wake: Callable[[], None] = lambda: None,
        reason: Callable[[int, int], str] = lambda need, slaves: (
            f"{need} replicas are asked for (inSyncReplicas), and {slaves} slaves are connected"
        ),
    ) -> None:
        """`reason(need, slaves)`: why a put was not replicated in time."""
        self._ack_offsets = ack_offsets
        self._timeout_s = timeout_s
        self._clock = clock
        self._wake = wake
        self._reason = reason
        self._lock = threading.Lock()
        self._number = itertools.count()
        self._waiting: dict[int, list[_Waiting]] = {}
        """By the replicas they need; a heap each, by offset."""
        self._next_deadline = float("inf")
        self._stopped = False

    @property
    def is_waiting(self) -> bool:
        return any(self._waiting.values())

    def put_request(self, future: PutMessageFuture, need_ack: int, timeout_s: float | None = None) -> None:
        """Finishes `future` when need_ack - 1 slaves have everything before its next_offset."""
        self.put_requests([future], need_ack, timeout_s)

    def put_requests(
        self, futures: Sequence[PutMessageFuture], need_ack: int, timeout_s: float | None = None
    ) -> None:
        """As put_request(), for those that one flush has brought to the disk."""
        deadline = self._clock() + (self._timeout_s() if timeout_s is None else timeout_s)
        with self._lock:
            heap = self._waiting.setdefault(need_ack, [])
            for future in futures:
                heapq.heappush(heap, (future.next_offset, next(self._number), deadline, future))
            sooner = deadline < self._next_deadline
            self._next_deadline = min(self._next_deadline, deadline)
            stopped = self._stopped
        if stopped:
            self.shutdown()
        elif self.acknowledged() and sooner:
            self._wake()

    def acknowledged(self) -> bool:
        """A slave has acknowledged more: finishes the puts that have enough now. Returns True if any still wait."""
        acks = sorted(self._ack_offsets(), reverse=True)
        done: list[PutMessageFuture] = []
        with self._lock:
            for need, heap in self._waiting.items():
                reached = _reached(acks, need)
                while heap and heap[0][0] <= reached:
                    done.append(heapq.heappop(heap)[3])
            waiting = self.is_waiting
            if not waiting:
                self._next_deadline = float("inf")
        _finish(done, PutMessageStatus.PUT_OK, "")
        return waiting

    def tick(self, now: float) -> None:
        """Answers the puts whose time is over."""
        if now < self._next_deadline:
            return
        late: list[tuple[int, PutMessageFuture]] = []
        with self._lock:
            for need, heap in self._waiting.items():
                late += [(need, entry[3]) for entry in heap if entry[2] <= now]
                heap[:] = [entry for entry in heap if entry[2] > now]
                heapq.heapify(heap)
            deadlines = [entry[2] for heap in self._waiting.values() for entry in heap]
            self._next_deadline = min(deadlines, default=float("inf"))
        acks = sorted(self._ack_offsets(), reverse=True)
        for need in {need for need, _ in late}:
            futures = [future for other, future in late if other == need]
            ok = [future for future in futures if future.next_offset <= _reached(acks, need)]
            _finish(ok, PutMessageStatus.PUT_OK, "")
            reason = self._reason(need, len(acks))
            slow = [future for future in futures if future.next_offset > _reached(acks, need)]
            _finish(
                slow, PutMessageStatus.FLUSH_SLAVE_TIMEOUT, f"not replicated within slaveTimeout: {reason}"
            )

    @property
    def next_time(self) -> float:
        return self._next_deadline

    def shutdown(self) -> None:
        """Answers all that wait; whatever comes later is answered at once."""
        with self._lock:
            self._stopped = True
            rest = [entry[3] for heap in self._waiting.values() for entry in heap]
            self._waiting.clear()
            self._next_deadline = float("inf")
        _finish(rest, PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "the broker stops")


def _reached(acks: Sequence[int], need_ack: int) -> int:
    """Returns the offset that need_ack - 1 slaves have; `acks` from the largest."""
    if need_ack <= 1:
        return 1 << 62
    return acks[need_ack - 2] if len(acks) >= need_ack - 1 else -1


def _finish(futures: list[PutMessageFuture], status: PutMessageStatus, reason: str) -> None:
    waiters = []
    for future in futures:
        waiters += future.finish(status, reason)
    if waiters:
        wake_all(waiters)
