"""FastLoop: connections of clients, all that are ready read and answered by compiled code in one step.

    Connection ── its first sends or pulls took the fast path ──▶ EpollTransport: its socket in an epoll of this loop
    epoll of a LoopShare ─┬▶ Lease: rounds in compiled code alone, for a moment, all shares at once
                          └▶ a round of it, where there can be no lease

A read of one send costs more in the interpreter and in the event loop's transport than to store it, and producers that
wait for each answer send one a read; the same goes for the pulls of consumers that read on. So such a connection is
taken from the event loop, which sees one descriptor for all of them, and is served together with the others that are
ready: in a lease where puts are answered at once, else (SYNC_FLUSH, replicas that are waited for) in a round. A
connection that is not at rest (unsent answers, a long half frame, a paused reader) is Python's until it is again.

With `fastLoopThreads` of more than 1 the connections are shared out among so many threads (loop_share), of which the
first is the event loop's own and the others help it in its leases (helper).

Linux only, as native.loop, without TLS or plain_acl.yml; others stay with the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import select
import sys
import time
from collections.abc import Callable, Collection, Sequence
from types import ModuleType

from mqlake import native
from mqlake.broker.fast.fast_pull import FastPull
from mqlake.broker.fast.fast_send import FastSend, host_number
from mqlake.broker.fast.helper import Helper
from mqlake.broker.fast.lease import Lease
from mqlake.broker.fast.loop_share import LoopShare
from mqlake.remoting.connection import Connection, Endpoint, FastPath
from mqlake.remoting.epoll_transport import EpollTransport
from mqlake.store.log.appender import QueueId

logger = logging.getLogger(__name__)

TAKEN_BEFORE_MOVING = 16
"""Runs of sends, or of pulls, that FastSend and FastPull take of a connection before it is moved here."""
_TAKEN = "runs taken"
WAIT_MAX_S = 0.001
"""After so long without a turn the connections here have one between two of the event loop's others: of these a
thousand may be ready in one iteration, with a read of a long frame each."""


class FastLoop:
    """The connections of `endpoint` whose sends the first of `fast_sends` takes; there is one for each thread."""

    def __init__(
        self,
        endpoint: Endpoint,
        fast_sends: Sequence[FastSend],
        is_waited_for: Callable[[Collection[QueueId]], bool] = lambda queues: False,
    ) -> None:
        self.endpoint = endpoint
        self.shares = [LoopShare(fast_send) for fast_send in fast_sends]
        self._kernels: ModuleType | None = None
        self._lease: Lease | None = None
        self._is_waited_for = is_waited_for
        self._ready: select.epoll | None = None
        """Says which shares are to be served; each is reported once, until it is watched again: what the event loop
        has to do while it is served are other things."""
        self._messages = 0
        self._turned_s = 0.0
        """When the last turn ended, or somebody looked whether there is one to have; 0 in one."""
        for fast_send in fast_sends:
            fast_send.on_taken = self._on_taken
        fast_sends[0].on_load = self._load

    def serve_pulls(self, fast_pulls: Sequence[FastPull]) -> None:
        """Has the pulls of its connections that these know answered by compiled code, too; one for each thread."""
        for share, fast_pull in zip(self.shares, fast_pulls, strict=True):
            share.serve_pulls(fast_pull)
            fast_pull.on_taken = self._on_taken
        fast_pulls[0].on_load = self._load_pulls

    @property
    def transports(self) -> dict[int, EpollTransport]:
        """Of all shares, by descriptor."""
        return {fd: transport for share in self.shares for fd, transport in share.transports.items()}

    @property
    def messages(self) -> int:
        """How many were stored."""
        return self._messages + sum(share.messages for share in self.shares)

    @property
    def is_loaded(self) -> bool:
        return self._kernels is not None

    @staticmethod
    def is_possible() -> bool:
        return sys.platform == "linux" and sys.byteorder == "little" and sys.maxsize > 2**32

    # --- loading

    def _load(self) -> None:
        """Called when the first FastSend has loaded its kernels."""
        kernels = native.module("loop")
        if kernels is None:
            return
        others = self.shares[1:]
        for share in others:
            share.fast_send.load()
        for share in self.shares:
            share.load(kernels)
        for share in others:
            share.fast_paths = self._fast_paths_of(share)
        self._kernels = kernels

    def _load_pulls(self) -> None:
        """Called when the first FastPull has loaded its kernels."""
        for share in self.shares[1:]:
            if share.fast_pull is not None:
                share.fast_pull.load()
        self.shares[0].fast_send.load()

    def _fast_paths_of(self, share: LoopShare) -> tuple[FastPath, ...]:
        """The endpoint's, with those of the share in place of the first one's. Under a guard no other connections come
        here than those whose fast paths check requests themselves."""
        first, endpoint = self.shares[0], self.endpoint
        paths = endpoint.fast_paths if endpoint.guard is None else endpoint.guarded_fast_paths
        own: dict[object, FastPath | None] = {
            first.fast_send: share.fast_send,
            first.fast_pull: share.fast_pull,
        }
        return tuple(own.get(path) or path for path in paths)

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
            or (self.endpoint.guard is not None and not self.shares[0].fast_send.checks_signatures)
        ):
            return
        share = min(self.shares, key=lambda share: len(share.transports))
        if not share.is_open:
            self._open(share)
        share.take_over(connection, host)

    def _turn_between(self) -> None:
        """Called after each turn of a connection."""
        if self._ready is None or not self._turned_s or time.monotonic() - self._turned_s < WAIT_MAX_S:
            return
        self._turned_s = time.monotonic()
        if ready := self._ready.poll(0):
            try:
                self._turn(ready)
            except Exception as error:  # no fault of the connection after whose turn this is
                context = {"message": "a turn failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def _open(self, share: LoopShare) -> None:
        """Has the event loop look after a share, which has its first connection."""
        assert self._kernels is not None
        loop = asyncio.get_running_loop()
        if self._lease is None:
            self._lease = Lease(
                [each.stake for each in self.shares],
                is_waited_for=self._is_waited_for,
                is_alone=self._is_alone,
            )
            self._ready = select.epoll()
            loop.add_reader(self._ready.fileno(), self.turn)
            self.endpoint.after_turn = self._turn_between
        assert self._ready is not None
        self._ready.register(share.open(), select.EPOLLIN | select.EPOLLONESHOT)
        if share is not self.shares[0]:
            name = f"FastLoop-{self.shares.index(share) + 1}"
            share.stake.helper = Helper(self._kernels, name, share.stake, self._lease.common)

    def _is_alone(self) -> bool:
        here = 0
        for share in self.shares:
            here += len(share.transports)
        return len(self.endpoint.connections) == here

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for share in self.shares:
            share.close()
        if self._ready is not None:
            loop.remove_reader(self._ready.fileno())
            self._ready.close()
            self._ready = None
        self._lease = None

    # --- turns

    def turn(self) -> int:
        """One lease, or rounds where there can be none; how many connections were ready in the last round."""
        assert self._ready is not None
        return self._turn(self._ready.poll(0))

    def _turn(self, ready: Sequence[tuple[int, int]]) -> int:
        """The same where `ready` is what the epoll of all shares has said."""
        self._turned_s = 0.0
        if self._lease is not None:
            self._lease.look_ahead()
        shares = self._shares_to_serve({epoll for epoll, _ in ready})
        # all of them are asked: each keeps up with the broker's settings
        takes = [share.takes_sends for share in shares]
        if self.endpoint.going_away:
            takes = [False] * len(shares)
        try:
            only_pulls = len(shares) == 1 and shares[0].only_pulls
            if all(takes) and not only_pulls and (rows := self._serve(shares)) is not None:
                return rows
            others, left_ns = -1, 0
            if only_pulls and self._lease is not None:
                others, left_ns = self._lease.others, self._lease.time_left_ns
            return sum(
                share.rounds(takes=may, others=others, time_left_ns=left_ns)
                for share, may in zip(shares, takes, strict=True)
            )
        finally:
            self._watch(shares)
            self._turned_s = time.monotonic()

    def _shares_to_serve(self, ready: Collection[int]) -> list[LoopShare]:
        """Those with connections that are ready, and those whose connections are expected to be in a moment."""
        assert self._ready is not None and self._lease is not None
        shares = []
        for share in self.shares:
            if not share.is_open:
                continue
            if share.stake.epoll in ready:
                shares.append(share)
            elif share.stake.was_busy and self._lease.has_just_ended:
                self._ready.modify(share.stake.epoll, select.EPOLLONESHOT)  # its thread looks after it
                shares.append(share)
        return shares

    def _watch(self, shares: Sequence[LoopShare]) -> None:
        if self._ready is not None:
            for share in shares:
                self._ready.modify(share.stake.epoll, select.EPOLLIN | select.EPOLLONESHOT)

    def _serve(self, shares: Sequence[LoopShare]) -> int | None:
        """One lease, and all that follows from it; how many connections were ready in its last round. None: there can
        be none now."""
        kernels, lease = self._kernels, self._lease
        assert kernels is not None and lease is not None
        if not shares or not lease.may_begin:
            return None
        for share in shares:
            share.stake.forget()
        try:
            for share in shares:
                share.begin_pulls()
            try:
                has_served = lease.run(kernels, [share.stake for share in shares])
            finally:
                for share in shares:
                    share.end_pulls()
        except Exception:
            if not any(share.stake.has_begun for share in shares):
                # nothing was read: a round meets the same error, and closes the connections that wait
                logger.exception("a lease could not begin")
                return None
            for share in shares:  # what was read of these, and not answered, is not known
                share.hang_up()
            raise
        if not has_served:
            return None
        self._leased(lease.stored)
        return sum(share.after_lease(lease.stored) for share in shares)

    def _leased(self, messages: int) -> None:
        """A lease has stored so many."""
        self._messages += messages
