"""Turns, back-pressure, answers and idle time, with a transport that records what it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from mqlake.errors import RemotingConnectError, RemotingTimeoutError
from mqlake.remoting.peer import IDLE_CHECK_S, IdleChecks, PeerConnection


class Recorded(asyncio.Transport):
    """Says what was called, and how many bytes the peer has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []
        self.unsent = 0
        self.closing = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append((high, low))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.calls.append("close")
        self.closing = True

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Peer(PeerConnection[str]):
    """Flushes into the calls of its transport; the held requests are `handle`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_client: bool = False) -> None:
        super().__init__(loop, is_client=is_client)
        self.wire = Recorded()
        self.remote_address = "192.0.2.1:9876"
        self.handle: Callable[[], None] = lambda: None
        self._opened(self.wire, 1000)
        self.wire.calls.clear()

    def _process_held(self) -> None:
        self.wire.calls.append("handle")
        self.handle()

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.wire.calls.append("flush")


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time is set by hand, and whose timers wait in `timers`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.timers: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay, callback, *args, context=None):  # type: ignore[no-untyped-def]
        self.timers.append((delay, callback, args))
        return asyncio.TimerHandle(self.now + delay, callback, args, self)

    def next_check(self) -> None:
        ((_, callback, args),) = self.timers
        self.timers.clear()
        callback(*args)


@pytest.fixture
def clock():
    loop = Clock()
    yield loop
    loop.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """One loop iteration."""
    loop.run_until_complete(asyncio.sleep(0))


def test_reading_goes_on_when_a_quarter_waits(clock):
    peer = Peer(clock)
    peer._opened(peer.wire, 1 << 20)
    assert peer.wire.calls == [(1 << 20, 1 << 18)]


class TestAnswers:
    def test_reach_the_request_that_waits(self, clock):
        peer, sent = Peer(clock), []

        async def scene() -> list[str]:
            one = asyncio.ensure_future(peer._ask(1, lambda: sent.append(1), 60.0))
            two = asyncio.ensure_future(peer._ask(2, lambda: sent.append(2), 60.0))
            await asyncio.sleep(0)
            peer._answered(2, "second")
            peer._answered(1, "first")
            return [await one, await two]

        assert clock.run_until_complete(scene()) == ["first", "second"]
        assert sent == [1, 2]
        peer._answered(1, "once more")  # too late: dropped
        assert not peer._pending

    def test_that_never_come_are_a_timeout(self):
        async def scene() -> None:
            peer = Peer(asyncio.get_running_loop())
            with pytest.raises(RemotingTimeoutError, match=r"192\.0\.2\.1:9876"):
                await peer._ask(7, lambda: None, 0.0)
            assert not peer._pending

        asyncio.run(scene())

    def test_a_lost_connection_is_an_error_of_each(self, clock):
        peer = Peer(clock)

        async def scene() -> None:
            waiting = [asyncio.ensure_future(peer._ask(n, lambda: None, 60.0)) for n in range(3)]
            await asyncio.sleep(0)
            peer._answered(0, "in time")
            peer._pending[0] = done = clock.create_future()
            done.set_result("in time")  # answered, its caller not awake yet
            peer.connection_lost(ConnectionResetError("reset by peer"))
            assert peer.closed and not peer._pending
            assert await waiting[0] == "in time"
            for each in waiting[1:]:
                with pytest.raises(RemotingConnectError, match=r"before the answer: reset by peer"):
                    await each

        clock.run_until_complete(scene())

    def test_a_half_closed_connection_is_closed(self, clock):
        assert Peer(clock).eof_received() is False


class TestFlush:
    def test_once_for_all_that_was_collected(self, clock):
        peer = Peer(clock)
        peer._schedule_flush()
        peer._schedule_flush()
        assert peer.wire.calls == []
        turn(clock)
        assert peer.wire.calls == ["flush"]
        peer._schedule_flush()
        turn(clock)
        assert peer.wire.calls == ["flush", "flush"]

    def test_is_left_to_the_end_of_a_batch(self, clock):
        peer = Peer(clock)
        peer._in_batch = True
        peer._schedule_flush()
        turn(clock)
        assert peer.wire.calls == []

    def test_before_a_close(self, clock):
        peer = Peer(clock)
        peer.close()
        assert peer.wire.calls == ["flush", "close"]
        peer.connection_lost(None)
        peer.close()
        assert peer.wire.calls == ["flush", "close"]

    def test_not_before_an_abort(self, clock):
        peer = Peer(clock)
        peer.abort()
        assert peer.wire.calls == ["abort"]

    def test_without_a_connection_there_is_nothing_to_close(self, clock):
        peer = PeerConnection[str](clock, is_client=True)
        peer.close()
        peer.abort()
        peer.pause_writing()
        assert peer.active_at(0.0) == 100.0


class TestBackPressure:
    def test_a_peer_that_does_not_read_is_not_read_from(self, clock):
        peer = Peer(clock)
        peer.pause_writing()
        assert peer.wire.calls == ["pause"]
        turn(clock)
        assert peer.wire.calls == ["pause"]
        peer.resume_writing()
        assert peer.wire.calls == ["pause"]  # the transport is in the middle of its own write
        turn(clock)
        assert peer.wire.calls == ["pause", "handle", "resume"]

    def test_a_client_reads_on(self, clock):
        peer = Peer(clock, is_client=True)
        peer.pause_writing()
        peer.resume_writing()
        turn(clock)
        assert peer.wire.calls == []

    def test_held_requests_may_fill_the_buffer_again(self, clock):
        peer = Peer(clock)
        peer.pause_writing()
        peer.handle = peer.pause_writing
        peer.resume_writing()
        turn(clock)
        assert peer.wire.calls == ["pause", "handle", "pause"]

    def test_a_closing_connection_is_left_alone(self, clock):
        peer = Peer(clock)
        peer.wire.closing = True
        peer.pause_writing()
        peer.rest()
        assert peer.wire.calls == []
        peer.resume_writing()
        turn(clock)
        assert peer.wire.calls == ["handle"]  # what was received is handled, nothing more is read

    def test_a_closed_connection_handles_nothing(self, clock):
        peer = Peer(clock)
        peer.pause_writing()
        peer.resume_writing()
        peer.connection_lost(None)
        turn(clock)
        assert peer.wire.calls == ["pause"]


class TestTurns:
    def test_rest_until_the_next_iteration(self, clock):
        peer = Peer(clock)
        peer.rest()
        peer.rest()
        assert peer.wire.calls == ["pause"] and peer._waits
        turn(clock)
        assert peer.wire.calls == ["pause", "handle", "resume"] and not peer._waits

    def test_long_work_rests_again_and_again(self, clock):
        peer = Peer(clock)
        left = [peer.rest, peer.rest, lambda: None]
        peer.handle = lambda: left.pop(0)()
        peer.rest()
        for _ in range(5):
            turn(clock)
        assert peer.wire.calls == ["pause", "handle", "pause", "handle", "pause", "handle", "resume"]

    def test_a_rest_does_not_end_back_pressure(self, clock):
        peer = Peer(clock)
        peer.pause_writing()
        peer.rest()
        turn(clock)
        assert peer.wire.calls == ["pause", "pause"]
        peer.resume_writing()
        turn(clock)
        assert peer.wire.calls == ["pause", "pause", "handle", "resume"]


class TestIdle:
    def test_bytes_that_leave_are_a_sign_of_life(self, clock):
        peer = Peer(clock)
        assert peer.active_at(101.0) == 100.0
        peer.wire.unsent = 500
        assert peer.active_at(102.0) == 100.0  # it grew: nothing has left
        assert peer.active_at(103.0) == 100.0
        peer.wire.unsent = 499
        assert peer.active_at(104.0) == 104.0
        assert peer.active_at(105.0) == 104.0
        clock.now = 106.0
        peer.resume_writing()
        assert peer.active_at(107.0) == 106.0

    def test_closes_what_was_idle_for_longer(self, clock, caplog):
        one, two = Peer(clock), Peer(clock)
        checks = IdleChecks([one, two], 120.0)
        checks.start(clock)
        assert clock.timers[0][0] == IDLE_CHECK_S
        clock.now = 220.0
        clock.next_check()
        assert one.wire.calls == two.wire.calls == []  # 120 s and no more
        clock.now = 220.5
        two.resume_writing()
        with caplog.at_level(logging.INFO):
            clock.next_check()
        assert (one.wire.calls, two.wire.calls) == (["abort"], [])
        assert "192.0.2.1:9876: idle for 120 s, closed" in caplog.text
        assert len(clock.timers) == 1

    def test_is_looked_for_four_times_in_a_short_limit(self, clock):
        IdleChecks([], 2.0).start(clock)
        assert [delay for delay, _, _ in clock.timers] == [0.5]

    def test_never_without_a_limit(self, clock):
        IdleChecks([], 0.0).start(clock)
        assert clock.timers == []

    def test_ends_with_the_server(self, clock):
        checks = IdleChecks([], 2.0)
        checks.start(clock)
        timer = checks._timer
        checks.stop()
        assert timer is not None and timer.cancelled()
        checks.stop()  # once is enough
