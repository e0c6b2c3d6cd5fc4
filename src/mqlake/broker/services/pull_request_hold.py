"""PullRequestHoldService: holds pulls that found no messages until some arrive or their time is over.

    pull ── nothing there ──▶ held by (topic, queue) ──▶ answered
                                 ▲            ▲
      dispatch thread ── arrivals ┘            └ sweep every 5 s: time over, client gone

The store reports arrivals on its dispatch thread, queue by queue; they are handed to the event loop together. A held
pull costs its header, a future and this entry, a few hundred bytes.

No message is missed between the read that found none and the holding: a pull is entered first, then the queue is read
again; dispatch moves the queue's end first, then looks for entered pulls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from mqlake.base.background import BackgroundWork
from mqlake.broker.broker import Broker
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.remoting.connection import Answer
from mqlake.store.dispatch import Arrival
from mqlake.store.filter import MessageFilter

logger = logging.getLogger(__name__)

SWEEP_S = 5.0
UNITS_MAX = 4096
"""Units of a queue that are tested against a filter; a pull with more of them is answered."""
ANSWERS_PER_TURN = 64
"""Pulls that are answered before the event loop serves others."""


class PullRequest:
    """One pull of a group that waits. Its filter rejects every message before the queue offset `pull_from`.

    `execute` returns what `answer` gets: the answer with the messages there are now, None if it has sent it."""

    __slots__ = ("answer", "deadline", "execute", "group", "message_filter", "pull_from")

    def __init__(
        self,
        group: str,
        pull_from: int,
        message_filter: MessageFilter | None,
        answer: asyncio.Future[Answer],
        deadline: float,
        execute: Callable[[], Answer],
    ) -> None:
        self.group = group
        self.pull_from = pull_from
        self.message_filter = message_filter
        self.answer = answer
        self.deadline = deadline
        self.execute = execute


class PullRequestHoldService:
    """The pulls of one broker that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table: dict[tuple[str, int], list[PullRequest]] = {}
        self._arrivals: deque[Arrival] = deque()
        self._crossing = False
        self._ready: deque[PullRequest] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._work = BackgroundWork("looking for what pulls wait for", logger)

    # --- life

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sweep_later()

    def shutdown(self) -> None:
        """Answers every pull; from now on no pull is held."""
        self._loop = None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for requests in self._table.values():
            self._ready.extend(requests)
        self._table.clear()
        while self._ready:
            self._answer(self._ready.popleft())

    @property
    def held_count(self) -> int:
        """Pulls that wait."""
        return sum(map(len, self._table.values()))

    @property
    def holds_any(self) -> bool:
        return bool(self._table)

    # --- pulls come

    def suspend_pull_request(self, topic: str, queue_id: int, request: PullRequest) -> None:
        """Holds a pull; the future is done when there is an answer."""
        if self._loop is None:
            self._answer(request)
            return
        self._table.setdefault((topic, queue_id), []).append(request)
        self._broker.store.messages_awaited()
        # after the entry: messages that came since the pull looked were not reported
        if self._broker.store.max_offset_in_queue(topic, queue_id) > request.pull_from:
            self.notify_message_arriving(topic, queue_id)

    # --- messages come

    def on_arrival(self, arrival: Arrival) -> None:
        """On the dispatch thread."""
        loop = self._loop
        if loop is None or (arrival.topic, arrival.queue_id) not in self._table:
            return
        self._arrivals.append(arrival)
        if not self._crossing:
            self._crossing = True
            try:
                loop.call_soon_threadsafe(self._arrived)
            except RuntimeError:  # the loop is closed: there is no client left to answer
                self._arrivals.clear()

    def _arrived(self) -> None:
        self._crossing = False  # first: what is appended from here on schedules another call
        while self._arrivals:
            arrival = self._arrivals.popleft()
            self.notify_message_arriving(arrival.topic, arrival.queue_id)

    def notify_message_arriving(self, topic: str, queue_id: int) -> None:
        """Answers the pulls of a queue for which there are messages, or whose time is over."""
        key = topic, queue_id
        # it stays entered meanwhile: dispatch reports arrivals only for entered queues
        requests = self._table.get(key)
        if requests is None:
            return
        now = asyncio.get_running_loop().time()
        max_offset = self._broker.store.max_offset_in_queue(topic, queue_id)
        # most are at the same offset: what follows it is read once
        codes_from: dict[int, set[int] | None] = {}
        waiting = []
        for request in requests:
            if request.answer.done():  # its client has gone
                continue
            if now >= request.deadline or (
                max_offset > request.pull_from
                and self._may_match(topic, queue_id, request, max_offset, codes_from)
            ):
                self._ready.append(request)
            else:
                waiting.append(request)
        if waiting:
            self._table[key] = waiting
        else:
            del self._table[key]
        self._answer_ready()

    def release(self, topic: str, queue_id: int, group: str) -> None:
        """Answers the pulls of a group that wait at a queue: an operator has set the group elsewhere."""
        requests = self._table.pop((topic, queue_id), [])
        waiting = [request for request in requests if request.group != group]
        if waiting:
            self._table[topic, queue_id] = waiting
        self._ready.extend(request for request in requests if request.group == group)
        self._answer_ready()

    def _may_match(
        self,
        topic: str,
        queue_id: int,
        request: PullRequest,
        max_offset: int,
        codes_from: dict[int, set[int] | None],
    ) -> bool:
        """True if the queue has a unit that the pull's filter lets through; else the pull need not see it."""
        message_filter, pull_from = request.message_filter, request.pull_from
        if message_filter is None or max_offset - pull_from > UNITS_MAX:
            return True
        if pull_from not in codes_from:
            codes_from[pull_from] = self._tags_codes(topic, queue_id, pull_from, max_offset)
        codes = codes_from[pull_from]
        if codes is None or any(map(message_filter.is_matched_by_consume_queue, codes)):
            return True
        request.pull_from = max_offset
        return False

    def _tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> set[int] | None:
        """The tags codes of the queue's units; None if they are not contiguous, or an extension cannot be read: then
        the pull itself reads them."""
        queue = self._broker.store.consume_queues.get(topic, queue_id)
        if queue is None:
            return None
        units = queue.get_range(start, end - start)
        if len(units) < end - start:
            return None  # an inner batch, or two files
        codes: set[int] = set(units["tags_code"].tolist())
        return None if min(codes, default=0) <= MAX_ADDRESS else codes

    # --- answers go

    def _answer_ready(self) -> None:
        for _ in range(min(ANSWERS_PER_TURN, len(self._ready))):
            self._answer(self._ready.popleft())
        if self._ready:
            asyncio.get_running_loop().call_soon(self._answer_ready)

    def _answer(self, request: PullRequest) -> None:
        if request.answer.done():
            return
        try:
            response = request.execute()
        except Exception as error:  # answered like any failure of a processor
            request.answer.set_exception(error)
        else:
            request.answer.set_result(response)

    # --- time passes

    def _sweep_later(self) -> None:
        assert self._loop is not None
        config = self._broker.config
        seconds = SWEEP_S if config.long_polling_enable else config.short_polling_time_mills / 1000
        self._sweep_timer = self._loop.call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        for topic, queue_id in list(self._table):
            with self._work.round():
                self.notify_message_arriving(topic, queue_id)
