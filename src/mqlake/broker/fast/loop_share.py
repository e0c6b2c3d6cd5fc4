"""LoopShare: the connections that one thread of the fast loop serves, and what Python does for them.

    epoll ─┬▶ Lease: rounds in compiled code alone, for a moment                             ─▶ after_lease
           └▶ receive ─▶ columns of all ─▶ FastSend.store: one put ─▶ answer: a send() each     `round`
                └─▶ any other frame, a long half frame, a peer that is gone or does not read ─▶ its Connection, as ever

Everything here happens in the event loop's thread, while no lease lasts.
"""

from __future__ import annotations

import logging
import select
from types import ModuleType

import numpy as np

from mqlake.broker.fast.fast_pull import FastPull
from mqlake.broker.fast.fast_send import Bytes, FastSend, Int64s
from mqlake.broker.fast.lease import Stake
from mqlake.broker.fast.pull_lease import PullLease
from mqlake.errors import ProtocolError
from mqlake.native import pull_layout
from mqlake.native.loop_layout import (
    BY_KERNEL,
    BY_PYTHON,
    DONE,
    END,
    EVENTS_MAX,
    FD,
    FDS_MAX,
    FIRST,
    FREE_AT,
    HANDLE,
    HEARD,
    HELD,
    HOST,
    LEASE_AT,
    MODE,
    NUMBERS_SIZE,
    OCTETS_SIZE,
    OTHERS,
    PARTS_AT,
    PEER_SIZE,
    PEERS_AT,
    ROW_SIZE,
    ROWS_AT,
    SLOT,
    SLOT_SIZE,
    SLOTS_MAX,
    START,
    STOP_FD,
    WHAT,
)
from mqlake.native.send_layout import QUEUE_MESSAGES, QUEUE_PUTS
from mqlake.remoting.codec import frame_end
from mqlake.remoting.connection import Connection, FastPath
from mqlake.remoting.epoll_transport import EpollTransport
from mqlake.store.log.appender import Appended
from mqlake.store.results import PutMessageFuture

logger = logging.getLogger(__name__)

PULLS_NS = 20_000_000
"""How long compiled code answers pulls before Python has its turn, if nothing else comes: without the log's lock."""
ROUNDS_MAX = 8
"""Rounds in a row before the event loop has its turn."""


class LoopShare:
    """Connections whose sends `fast_send` takes, which is this share's alone, as its `pulls` are."""

    def __init__(self, fast_send: FastSend) -> None:
        self.transports: dict[int, EpollTransport] = {}
        """By descriptor."""
        self.messages = 0
        """How many were stored."""
        self.fast_send = fast_send
        self.fast_paths: tuple[FastPath, ...] | None = None
        """Its own, where they are not those of the endpoint."""
        self._rows_at_hand = self._unsent = 0
        self._epoll: select.epoll | None = None
        self.pulls: PullLease | None = None
        self.only_pulls = self._had_pulls = False
        """Whether the last round of pulls or sends brought no sends, and whether the last one answered pulls."""
        self.fast_pull: FastPull | None = None

    def serve_pulls(self, fast_pull: FastPull) -> None:
        """Has the pulls of its connections that `fast_pull` knows answered by compiled code, too."""
        self.fast_pull, self.pulls = fast_pull, PullLease(fast_pull)

    def load(self, kernels: ModuleType) -> None:
        """Makes the arrays."""
        self._kernels = kernels
        pull_tables: tuple[Int64s, Bytes] = (
            np.zeros(pull_layout.NUMBERS_SIZE, np.int64),
            np.empty(0, np.uint8),
        )
        if self.fast_pull is not None:
            pull_tables = self.fast_pull.tables
        self._numbers = np.zeros(NUMBERS_SIZE, np.int64)
        self._octets = np.zeros(OCTETS_SIZE, np.uint8)
        self._view = self._octets.data
        self._rows = self._numbers[ROWS_AT:FREE_AT].reshape(EVENTS_MAX, ROW_SIZE)
        self._peers = self._numbers[PEERS_AT:LEASE_AT].reshape(FDS_MAX, PEER_SIZE)
        self._free = self._numbers[FREE_AT:PEERS_AT]
        self._free[0] = SLOTS_MAX
        self._free[1:] = range(SLOTS_MAX)
        self.stake = Stake(self.fast_send, self._numbers, self._octets, pull_tables)

    @property
    def takes_sends(self) -> bool:
        """True if usual sends may be taken now."""
        assert self.fast_send.kernels is not None
        return self.fast_send.takes_sends(self.fast_send.kernels)

    # --- which connections are here

    @property
    def is_open(self) -> bool:
        return self._epoll is not None

    def open(self) -> int:
        """Makes the epoll, before the first connection; its descriptor."""
        self._epoll = select.epoll()
        self.stake.epoll = self._epoll.fileno()
        return self.stake.epoll

    def take_over(self, connection: Connection, host: int) -> None:
        """A connection that is at rest, from a client whose address is `host`."""
        assert self._epoll is not None
        transport = EpollTransport.take_over(
            self._epoll,
            connection,
            on_change=self._on_change,
            on_close=self._on_close,
            had_bytes=self._had_bytes,
        )
        if transport is None:
            return
        connection.fast_paths = self.fast_paths
        if transport.fd < FDS_MAX:
            self._peers[transport.fd] = 0
            self._peers[transport.fd, HOST] = host
            self._on_change(transport)

    def _on_change(self, transport: EpollTransport) -> None:
        fd = transport.fd
        self.transports[fd] = transport
        if fd < FDS_MAX:
            self._peers[fd, MODE] = BY_KERNEL if transport.is_at_rest else BY_PYTHON

    def _on_close(self, transport: EpollTransport) -> None:
        fd = transport.fd
        del self.transports[fd]
        if fd < FDS_MAX:
            self._take_half(fd)
            self._peers[fd, MODE] = BY_PYTHON

    def _had_bytes(self, transport: EpollTransport) -> bool:
        fd = transport.fd
        if fd >= FDS_MAX or not self._peers[fd, HEARD]:
            return False
        self._peers[fd, HEARD] = 0
        return True

    def hang_up(self) -> None:
        """Closes the connections."""
        for transport in list(self.transports.values()):
            transport.abort()

    def close(self) -> None:
        self.hang_up()
        if self._epoll is not None and self.stake.helper is not None:
            self.stake.helper.close()
            self.stake.helper = None
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    # --- a lease

    def begin_pulls(self) -> None:
        """Compiled code that is called from here on answers pulls by itself."""
        if self.pulls is not None:
            self.pulls.begin()

    def end_pulls(self) -> None:
        if self.pulls is None:
            return
        if (rest := self.pulls.end(self._connection_of)) is not None:
            fd, data = rest
            self.transports[fd].write(data.data)
        self._had_pulls = self.pulls.answered > 0

    def _note(self, sends: int) -> None:
        """What the last round brought; other requests change nothing."""
        if sends or self._had_pulls:
            self.only_pulls = not sends

    def _connection_of(self, fd: int) -> Connection:
        return self.transports[fd].connection

    def after_lease(self, stored: int) -> int:
        """All that follows from a lease, which stored so many messages; how many connections were ready in its last
        round."""
        stake, fast_send = self.stake, self.fast_send
        assert stake.served is not None
        rows, left, count, done, places, transactional = stake.served
        self._note(stored + count)
        if count and not done:  # to queues that are not known, or of transactions
            fast_send.columns[QUEUE_MESSAGES : QUEUE_PUTS + 1, :places] = 0
            done, unsent = self._store(rows, count, places, transactional)
            left += unsent
            if fast_send.parts is stake.parts:
                stake.know(places)
        return self._finish(rows, left, count, done)

    # --- rounds

    def rounds(self, *, takes: bool, others: int = -1, time_left_ns: int = 0) -> int:
        """Some, where there can be no lease, or one for a while, where only pulls came lately and `others` is readable
        when the event loop has something to do, which it will have in `time_left_ns`; how many connections were ready
        in the last one."""
        rows = 0
        lasts_ns = min(PULLS_NS, time_left_ns) if others >= 0 else 0
        self.stake.cells[LEASE_AT + OTHERS], self.stake.cells[LEASE_AT + STOP_FD] = others, -1
        for _ in range(ROUNDS_MAX):
            rows = self._round(takes, lasts_ns)
            if rows < 2 or lasts_ns:  # after one alone there is hardly ever another
                break
        return rows

    def _store(self, rows: int, count: int, places: int, transactional: int) -> tuple[int, int]:
        """Stores the messages in the columns, and has them answered; (how many messages, to how many connections not
        everything could be sent)."""
        fast_send = self.fast_send
        assert fast_send.kernels is not None
        self._rows_at_hand, self._unsent = rows, 0
        try:
            done = fast_send.store(
                self._answer, fast_send.kernels, self.stake.received, count, places, transactional
            )
        except Exception:
            self.abandon(rows)
            raise
        self.messages += done
        return done, self._unsent

    def _round(self, takes: bool, lasts_ns: int) -> int:
        """One read of each connection that is ready, and all that follows from it; how many there were. As many reads
        as bring only pulls until `lasts_ns` are over."""
        fast_send, kernels, stake = self.fast_send, self._kernels, self.stake
        parts, fast_send.places_of = fast_send.parts, None
        rows: int
        self.begin_pulls()
        try:
            rows, left, count, places, transactional = kernels.receive_until(
                stake.epoll,
                takes,
                fast_send.record_max,
                self._numbers,
                self._octets,
                parts.numbers,
                parts.octets,
                *stake.pull_tables,
                lasts_ns,
            )
        finally:
            self.end_pulls()
        self._note(count)
        done = 0
        if count:
            done, unsent = self._store(rows, count, places, transactional)
            left += unsent
        return self._finish(rows, left, count, done)

    def _finish(self, rows: int, left: int, count: int, done: int) -> int:
        """What compiled code left of `rows` connections, and the messages after the first `done` of `count`, are for
        Python; returns `rows`."""
        if done < count:
            left += self._give_back(rows, done)
        if left:
            self._do_the_rest(rows)
        return rows

    def abandon(self, rows: int) -> None:
        """Closes the connections whose sends were not answered, as their own transports would."""
        for fd, first, end in self._rows[:rows, [FD, FIRST, END]].tolist():
            if first < end:
                self.transports[fd].abort()

    def _answer(
        self, done: int, answers: memoryview, appended: Appended, flush: PutMessageFuture | None
    ) -> None:
        parts, rows = self.fast_send.parts, self._rows_at_hand
        if flush is None:
            self._unsent = self._kernels.answer(rows, done, self._numbers, parts.numbers, parts.octets)
            return
        later, start = [], 0
        for fd, first, end in self._rows[:rows, [FD, FIRST, END]].tolist():
            end = min(end, done)
            if first < end:
                stop = self.fast_send.answer_end(end)
                later.append((self.transports[fd].connection, first, end, bytes(answers[start:stop])))
                start = stop
        self.fast_send.answer_later(later, flush, appended)

    def _give_back(self, rows: int, done: int) -> int:
        """Leaves the sends that were not stored, and what came after them, to their connections; how many."""
        left = 0
        for row in self._rows[:rows]:
            fd, first, end = row[[FD, FIRST, END]].tolist()
            if end > max(done, first):
                row[START] = self.fast_send.frame_start(max(done, first))
                row[WHAT] = HANDLE
                self._take_half(fd)  # it is part of that
                left += 1
        return left

    def _take_half(self, fd: int) -> memoryview:
        """The half frame that is held of a connection, which is not any more."""
        slot, size = self._peers[fd, [SLOT, HELD]].tolist()
        if not slot:
            return self._view[:0]
        self._peers[fd, [SLOT, HELD]] = 0
        self._free[1 + self._free[0]] = slot - 1
        self._free[0] += 1
        start = PARTS_AT + SLOT_SIZE * (slot - 1)
        return self._view[start : start + size]

    def _hold_half(self, fd: int, start: int, stop: int) -> int:
        """Holds the half frame at the end of what a connection has to handle, if there is a place for it: else the
        connection would not be at rest before it catches up with its peer. Where it begins."""
        view, at = self._view, start
        try:
            while end := frame_end(view, at, stop):
                at = end
        except ProtocolError:  # the connection meets it, too
            return stop
        size = stop - at
        is_long = size >= 4 and int.from_bytes(view[at : at + 4], "big") > SLOT_SIZE - 4
        if not 0 < size < SLOT_SIZE or is_long or fd >= FDS_MAX or not self._free[0]:
            return stop
        self._free[0] -= 1
        slot = int(self._free[1 + self._free[0]])
        self._peers[fd, [SLOT, HELD]] = slot + 1, size
        place = PARTS_AT + SLOT_SIZE * slot
        view[place : place + size] = view[at:stop]
        return at

    def _do_the_rest(self, rows: int) -> None:
        """What compiled code left of the connections."""
        left = self._rows[:rows].tolist()
        answers = self.fast_send.answers
        for fd, *_, start, stop in left:  # all of them first: what comes after makes other answers
            if start < stop:
                self.transports[fd].write(bytes(answers[start:stop]))
        for fd, _, _, start, stop, what, *_ in left:
            transport = self.transports.get(fd)
            if transport is None or what == DONE:  # or closed by what another one said
                continue
            if what == HANDLE:
                transport.feed(self._view[start : self._hold_half(fd, start, stop)])
                continue
            if fd < FDS_MAX and self._peers[fd, SLOT]:
                transport.feed(self._take_half(fd))
            transport.ready()
