"""FastLoop: connections of clients, all that are ready read and answered by compiled code in one step.

    Connection ── its first sends or pulls took the fast path ──▶ EpollTransport: its socket in an epoll of this loop
    epoll ─┬▶ Lease: rounds in compiled code alone, for a moment
           └▶ receive ─▶ columns of all ─▶ FastSend.store: one put ─▶ answer: a send() each
                └─▶ any other frame, a long half frame, a peer that is gone or does not read ─▶ its Connection, as ever

A read of one send costs more in the interpreter and in the event loop's transport than to store it, and producers that
wait for each answer send one a read; the same goes for the pulls of consumers that read on. So such a connection is
taken from the event loop, which sees one descriptor for all of them, and is served together with the others that are
ready: in a lease where puts are answered at once, else (SYNC_FLUSH, replicas that are waited for) in a round. A
connection that is not at rest (unsent answers, a long half frame, a paused reader) is Python's until it is again.

Linux only, as kernels.loop, without TLS or plain_acl.yml; others stay with the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import select
import sys
from collections.abc import Callable, Collection
from types import ModuleType

import numpy as np

from mqlake.broker.fast.fast_pull import FastPull
from mqlake.broker.fast.fast_send import Bytes, FastSend, Int64s, host_number
from mqlake.broker.fast.lease import Lease
from mqlake.broker.fast.pull_lease import PullLease
from mqlake.compiled import load
from mqlake.compiled.kernels import pull_layout
from mqlake.compiled.kernels.loop_layout import (
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
    PARTS_AT,
    PEER_SIZE,
    PEERS_AT,
    ROW_SIZE,
    ROWS_AT,
    SLOT,
    SLOT_SIZE,
    SLOTS_MAX,
    START,
    WHAT,
)
from mqlake.compiled.kernels.send_layout import QUEUE_MESSAGES, QUEUE_PUTS
from mqlake.remoting.connection import Connection, Endpoint
from mqlake.remoting.epoll_transport import EpollTransport
from mqlake.store.log.commit_log import AppendedMany, QueueId
from mqlake.store.results import PutMessageFuture

logger = logging.getLogger(__name__)

TAKEN_BEFORE_MOVING = 16
"""Runs of sends, or of pulls, that FastSend and FastPull take of a connection before it is moved here."""
_TAKEN = "runs taken"
ROUNDS_MAX = 8
"""Rounds in a row before the event loop has its turn."""


class FastLoop:
    """The connections of `endpoint` whose sends `fast_send` takes."""

    def __init__(
        self,
        endpoint: Endpoint,
        fast_send: FastSend,
        is_waited_for: Callable[[Collection[QueueId]], bool] = lambda queues: False,
    ) -> None:
        self.transports: dict[int, EpollTransport] = {}
        """By descriptor."""
        self.messages = 0
        """How many were stored."""
        self.endpoint = endpoint
        self._fast_send = fast_send
        self._kernels: ModuleType | None = None
        self._epoll: select.epoll | None = None
        self._lease: Lease | None = None
        self._is_waited_for = is_waited_for
        self._rows_at_hand = self._unsent = 0
        fast_send.on_load, fast_send.on_taken = self._load, self._on_taken
        self._pulls: PullLease | None = None
        self._pull_tables: tuple[Int64s, Bytes] = (
            np.zeros(pull_layout.NUMBERS_SIZE, np.int64),
            np.empty(0, np.uint8),
        )

    def serve_pulls(self, fast_pull: FastPull) -> None:
        """Has the pulls of its connections that `fast_pull` knows answered by compiled code, too."""
        self._pulls, self._pull_tables = PullLease(fast_pull), fast_pull.tables
        fast_pull.on_load, fast_pull.on_taken = self._fast_send.load_soon, self._on_taken

    @property
    def is_loaded(self) -> bool:
        return self._kernels is not None

    @staticmethod
    def is_possible() -> bool:
        return sys.platform == "linux" and sys.byteorder == "little" and sys.maxsize > 2**32

    def _load(self) -> None:
        kernels = load("mqlake.compiled.kernels.loop")
        if kernels is None:
            return
        self._numbers = np.zeros(NUMBERS_SIZE, np.int64)
        self._octets = np.zeros(OCTETS_SIZE, np.uint8)
        self._received = self._octets.view()
        self._received.flags.writeable = False
        self._view = self._octets.data
        self._rows = self._numbers[ROWS_AT:FREE_AT].reshape(EVENTS_MAX, ROW_SIZE)
        self._peers = self._numbers[PEERS_AT:LEASE_AT].reshape(FDS_MAX, PEER_SIZE)
        self._free = self._numbers[FREE_AT:PEERS_AT]
        self._free[0] = SLOTS_MAX
        self._free[1:] = range(SLOTS_MAX)
        parts = self._fast_send.parts
        arrays = self._received, self._numbers, self._octets, parts.numbers, parts.octets, *self._pull_tables
        with select.epoll() as empty:
            kernels.receive(empty.fileno(), False, 0, *arrays, 0)
            kernels.serve(empty.fileno(), np.zeros(4, np.uint8), 0, *arrays)
        kernels.answer(0, 0, self._numbers, parts.numbers, parts.octets)
        self._kernels = kernels

    # --- which connections are here

    def _on_taken(self, connection: Connection) -> None:
        """FastSend or FastPull has taken a run of this connection."""
        taken = connection.attributes[_TAKEN] = int(connection.attributes.get(_TAKEN, 0)) + 1  # type: ignore[call-overload]
        if taken % TAKEN_BEFORE_MOVING == 0 and self.is_loaded:
            asyncio.get_running_loop().call_soon(self.move, connection)  # its read is to end first

    def move(self, connection: Connection) -> None:
        """Takes a connection over, if it is one that can be here and is at rest."""
        host = host_number(connection)
        if (
            not self.is_loaded
            or host is None
            or not connection.is_at_rest
            or isinstance(connection.transport, EpollTransport)
            or (self.endpoint.guard is not None and not self._fast_send.checks_signatures)
        ):
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._lease = Lease(
                self._fast_send,
                self._numbers,
                is_waited_for=self._is_waited_for,
                is_alone=lambda: len(self.endpoint.connections) == len(self.transports),
            )
            asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.turn)
        transport = EpollTransport.take_over(
            self._epoll,
            connection,
            on_change=self._on_change,
            on_close=self._on_close,
            had_bytes=self._had_bytes,
        )
        if transport is not None and transport.fd < FDS_MAX:
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

    def close(self) -> None:
        for transport in list(self.transports.values()):
            transport.abort()
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    # --- rounds

    def turn(self) -> int:
        """One lease, or rounds where there can be none; how many connections were ready in the last round."""
        takes = self._takes_sends
        if takes and (served := self._serve()) is not None:
            return served
        rows = 0
        for _ in range(ROUNDS_MAX):
            rows = self._round(takes)
            if rows < 2:  # after one alone there is hardly ever another
                break
        return rows

    @property
    def _takes_sends(self) -> bool:
        fast_send = self._fast_send
        assert fast_send.kernels is not None
        return not self.endpoint.going_away and fast_send.takes_sends(fast_send.kernels)

    def _serve(self) -> int | None:
        """One lease, and all that follows from it; how many connections were ready in its last round. None: there can
        be none now."""
        kernels, epoll, lease, fast_send = self._kernels, self._epoll, self._lease, self._fast_send
        assert kernels is not None and epoll is not None and lease is not None
        if not lease.may_begin:
            return None
        try:
            self._begin_pulls()
            try:
                served = lease.run(kernels, epoll.fileno(), self._received, self._octets, *self._pull_tables)
            finally:
                self._end_pulls()
        except Exception:
            if not lease.rows:
                # nothing was read: a round meets the same error, and closes the connections that wait
                logger.exception("a lease could not begin")
                return None
            self._abandon(lease.rows)
            raise
        if served is None:
            return None
        rows, left, count, done, places, transactional = served
        self._leased(lease.stored)
        if count and not done:  # to queues that are not known, or of transactions
            fast_send.columns[QUEUE_MESSAGES : QUEUE_PUTS + 1, :places] = 0
            done, unsent = self._store(rows, count, places, transactional)
            left += unsent
            if fast_send.parts is lease.parts:
                lease.know(places)
        if done < count:
            left += self._give_back(rows, done)
        if left:
            self._do_the_rest(rows)
        return rows

    def _begin_pulls(self) -> None:
        """Compiled code that is called from here on answers pulls by itself."""
        if self._pulls is not None:
            self._pulls.begin()

    def _end_pulls(self) -> None:
        if self._pulls is not None and (rest := self._pulls.end(self._connection_of)) is not None:
            fd, data = rest
            self.transports[fd].write(data.data)

    def _connection_of(self, fd: int) -> Connection:
        return self.transports[fd].connection

    def _leased(self, messages: int) -> None:
        """A lease has stored so many."""
        self.messages += messages

    def _store(self, rows: int, count: int, places: int, transactional: int) -> tuple[int, int]:
        """Stores the messages in the columns, and has them answered; (how many messages, to how many connections not
        everything could be sent)."""
        fast_send = self._fast_send
        assert fast_send.kernels is not None
        self._rows_at_hand, self._unsent = rows, 0
        try:
            done = fast_send.store(
                self._answer, fast_send.kernels, self._received, count, places, transactional
            )
        except Exception:
            self._abandon(rows)
            raise
        self.messages += done
        return done, self._unsent

    def _round(self, takes: bool) -> int:
        """One read of each connection that is ready, and all that follows from it; how many there were."""
        fast_send, kernels, epoll = self._fast_send, self._kernels, self._epoll
        assert kernels is not None and epoll is not None
        parts, fast_send.places_of = fast_send.parts, None
        rows: int
        self._begin_pulls()
        try:
            rows, left, count, places, transactional = kernels.receive(
                epoll.fileno(),
                takes,
                fast_send.record_max,
                self._received,
                self._numbers,
                self._octets,
                parts.numbers,
                parts.octets,
                *self._pull_tables,
                0,
            )
        finally:
            self._end_pulls()
        if count:
            done, unsent = self._store(rows, count, places, transactional)
            left += unsent
            if done < count:
                left += self._give_back(rows, done)
        if left:
            self._do_the_rest(rows)
        return rows

    def _abandon(self, rows: int) -> None:
        """Closes the connections whose sends were not answered, as their own transports would."""
        for fd, first, end in self._rows[:rows, [FD, FIRST, END]].tolist():
            if first < end:
                self.transports[fd].abort()

    def _answer(
        self, done: int, answers: memoryview, appended: AppendedMany, flush: PutMessageFuture | None
    ) -> None:
        assert self._kernels is not None
        parts, rows = self._fast_send.parts, self._rows_at_hand
        if flush is None:
            self._unsent = self._kernels.answer(rows, done, self._numbers, parts.numbers, parts.octets)
            return
        later, start = [], 0
        for fd, first, end in self._rows[:rows, [FD, FIRST, END]].tolist():
            end = min(end, done)
            if first < end:
                stop = self._fast_send.answer_end(end)
                later.append((self.transports[fd].connection, first, end, bytes(answers[start:stop])))
                start = stop
        self._fast_send.answer_later(later, flush, appended)

    def _give_back(self, rows: int, done: int) -> int:
        """Leaves the sends that were not stored, and what came after them, to their connections; how many."""
        left = 0
        for row in self._rows[:rows]:
            fd, first, end = row[[FD, FIRST, END]].tolist()
            if end > max(done, first):
                row[START] = self._fast_send.frame_start(max(done, first))
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

    def _do_the_rest(self, rows: int) -> None:
        """What compiled code left of the connections."""
        left = self._rows[:rows].tolist()
        answers = self._fast_send.answers
        for fd, *_, start, stop in left:  # all of them first: what comes after makes other answers
            if start < stop:
                self.transports[fd].write(bytes(answers[start:stop]))
        for fd, _, _, start, stop, what, *_ in left:
            transport = self.transports.get(fd)
            if transport is None or what == DONE:  # or closed by what another one said
                continue
            if what == HANDLE:
                transport.feed(self._view[start:stop])
                continue
            if fd < FDS_MAX and self._peers[fd, SLOT]:
                transport.feed(self._take_half(fd))
            transport.ready()
