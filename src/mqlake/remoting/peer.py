"""PeerConnection: the base of RocketMQ's and MetaQ's connections: turns, back-pressure, answers, idle time.

    read ─▶ _process_held() until ┬ all is handled         ─▶ read on
                                  ├ TURN_S is over          ─▶ reading pauses until the next loop iteration
                                  └ the peer does not read  ─▶ reading pauses until it does

A server stops reading from a peer that does not read its answers. A client keeps reading whatever waits to be sent:
its server may have stopped reading until it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, cast

from mqlake.errors import RemotingConnectError, RemotingTimeoutError

logger = logging.getLogger(__name__)

TURN_S = 0.005
"""Seconds for which the requests of one connection are handled before the others have their turn."""
IDLE_CHECK_S = 5.0
"""Seconds between two looks for idle connections, at most."""

AnswerT = TypeVar("AnswerT")


class PeerConnection(asyncio.BaseProtocol, Generic[AnswerT]):
    """One connection. A subclass reads bytes, and implements `_process_held` and `_flush`."""

    __slots__ = (
        "_active_at",
        "_flush_scheduled",
        "_in_batch",
        "_is_client",
        "_loop",
        "_paused",
        "_pending",
        "_resting",
        "_transport",
        "_unsent",
        "attributes",
        "closed",
        "remote_address",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_client: bool) -> None:
        self._loop = loop
        self._is_client = is_client
        self._transport: asyncio.Transport | None = None
        self._in_batch = False
        self._flush_scheduled = False
        self._paused = False
        self._resting = False
        self._pending: dict[int, asyncio.Future[AnswerT]] = {}
        self._active_at = loop.time()
        self._unsent = 0
        self.closed = False
        self.remote_address = ""
        """host:port of the peer."""
        self.attributes: dict[str, object] = {}
        """State that processors keep about the peer."""

    def _process_held(self) -> None:
        """Handles what was received while reading was paused."""
        raise NotImplementedError

    def _flush(self) -> None:
        """Writes what `send` collected, and resets `_flush_scheduled`."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes when everything is sent."""
        if self._transport is not None and not self.closed:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def active_at(self, now: float) -> float:
        """The loop's time of the last byte in either direction."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent < self._unsent:
            self._active_at = now
        self._unsent = unsent
        return self._active_at

    # --- requests of this side

    async def _ask(self, opaque: int, send: Callable[[], None], timeout_s: float) -> AnswerT:
        """Calls `send`, and waits for the answer to `opaque`. RemotingTimeoutError, RemotingConnectError."""
        answer: asyncio.Future[AnswerT] = self._loop.create_future()
        self._pending[opaque] = answer
        try:
            async with asyncio.timeout(timeout_s):
                send()
                return await answer
        except TimeoutError:
            raise RemotingTimeoutError(self.remote_address, timeout_s) from None
        finally:
            self._pending.pop(opaque, None)

    def _answered(self, opaque: int, answer: AnswerT) -> None:
        """Wakes the caller that waits for it; drops an answer that comes too late."""
        waiting = self._pending.pop(opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _schedule_flush(self) -> None:
        """Schedules a flush at the end of the batch, or of this loop iteration."""
        if not self._in_batch and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    # --- what the loop calls

    def _opened(self, transport: asyncio.BaseTransport, write_high_water: int) -> asyncio.Transport:
        self._transport = opened = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        opened.set_write_buffer_limits(write_high_water, write_high_water // 4)
        return opened

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        reason = (
            f"the connection was lost before the answer{f': {error}' if error else ''}{self._lost_hint()}"
        )
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(RemotingConnectError(self.remote_address, reason))
        self._pending.clear()

    def _lost_hint(self) -> str:
        """A possible reason for a lost connection, to append to a client's error; empty if there is none."""
        return ""

    def eof_received(self) -> bool:
        return False  # a half-closed connection is closed

    def pause_writing(self) -> None:
        if self._is_client:
            return
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._active_at = self._loop.time()
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resume)  # the transport is still in its own write

    # --- turns

    @property
    def _waits(self) -> bool:
        return self._paused or self._resting

    def rest(self) -> None:
        """Pauses reading until the next loop iteration, so that the other connections are served first."""
        if not self._resting and self._transport is not None and not self._transport.is_closing():
            self._resting = True
            self._transport.pause_reading()
            self._loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._resume()

    def _resume(self) -> None:
        """Handles the frames that had to wait, then resumes reading."""
        if self.closed or self._waits:
            return
        self._process_held()
        if not self._waits and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class IdlePeer(Protocol):
    """The part of a connection that IdleChecks needs."""

    remote_address: str

    def active_at(self, now: float) -> float: ...

    def abort(self) -> None: ...


class IdleChecks:
    """Closes connections that had no byte in either direction for `idle_s` seconds (0: never)."""

    def __init__(self, connections: Iterable[IdlePeer], idle_s: float) -> None:
        self._connections = connections
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._idle_s:
            self._timer = loop.call_later(min(IDLE_CHECK_S, self._idle_s / 4), self._check, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._connections):
            if now - connection.active_at(now) > self._idle_s:
                logger.info("%s: idle for %g s, closed", connection.remote_address, self._idle_s)
                connection.abort()
        self.start(loop)
