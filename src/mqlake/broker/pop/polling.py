"""PopLongPollingService: pops and notifications that found nothing wait for messages or the end of their time.

    POP_MESSAGE, NOTIFICATION ── nothing there ──▶ waiting by (topic, group, queue; -1: any) ──▶ executed again
                                                         ▲               ▲
                  dispatch thread ── arrivals ───────────┘               └ time over

A waiter is executed again completely and may wait again with its remaining time. When messages arrive one waiter of
each group is woken, the one whose time is over first; a pop that leaves messages behind wakes the next.

No message is missed between the read that found none and the waiting: a waiter is entered first, then the queues are
looked at again; dispatch moves a queue's end first, then looks for waiters.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mqlake.base.background import BackgroundWork
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX, normal_topic
from mqlake.remoting.connection import Answer, Connection
from mqlake.store.dispatch import Arrival

logger = logging.getLogger(__name__)

ANY_QUEUE = -1
EARLIER_MS = 50
"""A request is answered this long before its time is over, as its client may give up then."""
SWEEP_S = 0.005
"""Least pause between two looks at the deadlines."""
GONE_MS = 5_000
"""How often those are looked for whose clients are gone."""
WOKEN_PER_TURN = 64
SPARE_MAX = 1024

Key = tuple[str, str, int]
"""Topic, group, queue id or ANY_QUEUE."""


class Wait(Enum):
    WAITS = "waits"
    FULL = "full"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits until `deadline_ms`. `execute(is_over)` answers it, or enters it again."""

    connection: Connection | None
    key: Key
    deadline_ms: int
    answer: asyncio.Future[Answer]
    execute: Callable[[Waiter, bool], None]
    is_waiting: bool = False

    def __lt__(self, other: Waiter) -> bool:
        return self.deadline_ms < other.deadline_ms

    @property
    def is_gone(self) -> bool:
        """True if nobody waits for the answer any more."""
        return self.answer.done() or (self.connection is not None and self.connection.closed)


class PopLongPollingService:
    def __init__(
        self,
        clock_ms: Callable[[], int],
        size: Callable[[], int],
        size_in_total: Callable[[], int],
        *,
        furthest_first: bool = False,
    ) -> None:
        """`size()`: waiters of one key, `size_in_total()`: of all. `furthest_first`: wake the one with most time."""
        self._clock_ms = clock_ms
        self._size = size
        self._size_in_total = size_in_total
        self._furthest_first = furthest_first
        self._waiting: dict[Key, list[Waiter]] = {}
        self._keys: dict[str, dict[str, set[int]]] = {}
        """Topic → group → queue ids with waiters."""
        self._by_deadline: list[Waiter] = []
        """A heap; those that do not wait any more stay until they are looked for."""
        self._count = 0
        self._ready: deque[tuple[Waiter, bool]] = deque()
        self._arrivals: deque[Arrival] = deque()
        self._crossing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._work = BackgroundWork("answers to those whose time is over", logger)
        self._timer_at = 0
        self._gone_at = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def shutdown(self) -> None:
        """Answers all; from now on none waits."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiters = [waiter for waiting in self._waiting.values() for waiter in waiting]
        self._waiting.clear()
        self._by_deadline.clear()
        self._keys.clear()
        self._count = 0
        for waiter in waiters:
            waiter.is_waiting = False
            if not waiter.is_gone:
                waiter.execute(waiter, True)

    def polling_num(self, key: Key) -> int:
        """Requests that wait at a key."""
        return sum(not waiter.is_gone for waiter in self._waiting.get(key, ()))

    def __len__(self) -> int:
        return self._count

    # --- requests come

    def wait(self, waiter: Waiter, may_be_more: Callable[[], bool]) -> Wait:
        """Enters a waiter. `may_be_more()` returns True if there is something for it now."""
        if self._loop is None or waiter.deadline_ms <= self._clock_ms():
            return Wait.OVER
        waiting = self._waiting.get(waiter.key)
        if self._count >= self._size_in_total() or (
            waiting is not None and len(waiting) >= self._size() and not self._drop_gone(waiter.key)
        ):
            return Wait.FULL
        if waiting is None or waiter.key not in self._waiting:
            waiting = self._waiting[waiter.key] = []
            topic, group, queue_id = waiter.key
            self._keys.setdefault(topic, {}).setdefault(group, set()).add(queue_id)
        waiter.is_waiting = True
        heapq.heappush(waiting, waiter)
        self._count += 1
        self._by_deadline_too(waiter)
        self._set_timer(waiter.deadline_ms)
        if may_be_more():
            self.wake(waiter.key)
        return Wait.WAITS

    def _by_deadline_too(self, waiter: Waiter) -> None:
        heap = self._by_deadline
        heapq.heappush(heap, waiter)
        if len(heap) > 2 * self._count + SPARE_MAX:
            self._by_deadline = [waiter for waiter in heap if waiter.is_waiting]
            heapq.heapify(self._by_deadline)

    def _drop_all_gone(self) -> None:
        """Else each would keep its closed connection, for as long as its client wanted to wait."""
        for key in list(self._waiting):
            if self._drop_gone(key):
                self._tidy(key)
        self._by_deadline = [waiter for waiter in self._by_deadline if waiter.is_waiting]
        heapq.heapify(self._by_deadline)

    def _drop_gone(self, key: Key) -> bool:
        """True if there were waiters nobody waits for."""
        waiting = self._waiting[key]
        left = [waiter for waiter in waiting if not waiter.is_gone]
        for waiter in waiting:
            waiter.is_waiting = not waiter.is_gone
        gone = len(waiting) - len(left)
        self._count -= gone
        heapq.heapify(left)
        self._waiting[key] = left
        return gone > 0

    # --- messages come

    def on_arrival(self, arrival: Arrival) -> None:
        """On the dispatch thread."""
        loop = self._loop
        if loop is None or not (
            arrival.topic in self._keys or arrival.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        ):
            return
        self._arrivals.append(arrival)
        if not self._crossing:
            self._crossing = True
            try:
                loop.call_soon_threadsafe(self._arrived)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._arrivals.clear()

    def _arrived(self) -> None:
        self._crossing = False
        while self._arrivals:
            arrival = self._arrivals.popleft()
            topic = arrival.topic
            if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                self._retry_arrived(topic)
            for group, queue_ids in list(self._keys.get(topic, {}).items()):
                for queue_id in (ANY_QUEUE, arrival.queue_id):
                    if queue_id in queue_ids:
                        self.wake((topic, group, queue_id))

    def _retry_arrived(self, retry_topic: str) -> None:
        """A message of a pop retry topic is for any waiter of its topic and group."""
        for topic, groups in list(self._keys.items()):
            if not retry_topic.endswith(topic):
                continue
            for group in list(groups):
                if normal_topic(retry_topic, group) == topic:
                    self.wake_group(topic, group)

    def wake_group(self, topic: str, group: str) -> None:
        """Wakes one waiter of a group, wherever it waits."""
        queue_ids = self._keys.get(topic, {}).get(group)
        if queue_ids:
            self.wake((topic, group, ANY_QUEUE if ANY_QUEUE in queue_ids else next(iter(queue_ids))))

    def wake(self, key: Key) -> None:
        waiting = self._waiting.get(key)
        while waiting:
            if self._furthest_first:
                waiter = max(waiting)
                waiting.remove(waiter)
                heapq.heapify(waiting)
            else:
                waiter = heapq.heappop(waiting)
            self._count -= 1
            waiter.is_waiting = False
            if not waiter.is_gone:
                self._execute_soon(waiter, is_over=False)
                break
        self._tidy(key)

    def _tidy(self, key: Key) -> None:
        if self._waiting.get(key):
            return
        self._waiting.pop(key, None)
        topic, group, queue_id = key
        groups = self._keys.get(topic)
        if groups is not None and group in groups:
            groups[group].discard(queue_id)
            if not groups[group]:
                del groups[group]
            if not groups:
                del self._keys[topic]

    # --- answers go

    def _execute_soon(self, waiter: Waiter, *, is_over: bool) -> None:
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._execute_ready)
        self._ready.append((waiter, is_over))

    def _execute_ready(self) -> None:
        for _ in range(min(WOKEN_PER_TURN, len(self._ready))):
            waiter, is_over = self._ready.popleft()
            if not waiter.is_gone:
                waiter.execute(waiter, is_over)
        if self._ready:
            asyncio.get_running_loop().call_soon(self._execute_ready)

    # --- time passes

    def _set_timer(self, deadline_ms: int) -> None:
        if self._loop is None or (self._timer is not None and self._timer_at <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline_ms
        delay_s = (deadline_ms - self._clock_ms()) / 1000
        # wall clocks are set: look again after a second at the latest
        self._timer = self._loop.call_later(min(max(delay_s, SWEEP_S), 1.0), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock_ms()
        if not 0 <= now - self._gone_at < GONE_MS:
            self._gone_at = now
            self._drop_all_gone()
        heap = self._by_deadline
        with self._work.round():
            while heap and (heap[0].deadline_ms <= now or not heap[0].is_waiting):
                waiter = heapq.heappop(heap)
                if not waiter.is_waiting:
                    continue
                waiter.is_waiting = False
                self._count -= 1
                self._waiting[waiter.key].remove(waiter)
                heapq.heapify(self._waiting[waiter.key])
                self._tidy(waiter.key)
                if not waiter.is_gone:
                    self._execute_soon(waiter, is_over=True)
        if heap:
            self._set_timer(heap[0].deadline_ms)
