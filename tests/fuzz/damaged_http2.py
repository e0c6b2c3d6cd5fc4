"""HTTP/2 sessions with damaged frames, given to the server's connection without a socket.

    python -m tests.fuzz.damaged_http2 FRAMES [SEED]

A session is made from its seed: a failure names the seed, and `run(1, seed)` makes it again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import resource
import struct
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

from mqlake.proxy import http2
from mqlake.proxy.grpc_call import GrpcCall, logger
from mqlake.proxy.http2 import READ_SIZE, Headers, Http2Connection
from mqlake.proxy.rpc import Rpc
from tests.fuzz.keeping_transport import KeepingTransport
from tests.proxy.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    frame,
    head,
    literals,
    message,
    reset,
    window,
)

SERVICE = "test.Service"
HELD_MAX = http2.HELD_MAX
ECHO, WAIT, MANY, CHAT, NOTHING = (
    f"/{SERVICE}/{name}".encode() for name in ("Echo", "Wait", "Many", "Chat", "Nothing")
)
GROWTH_MAX = 48 << 20
"""Of the process' memory, from the first tenth of a run to its end."""
HELD_MOST = 128 * 1024
"""Of a connection: more than the bodies of a session, all of them doubled."""
HELD_MAX_SMALL = 2000
"""Half of the sessions have streams that wait for their turn."""
KINDS = 16
DAMAGED_SHARE = 0.2
"""Of the frames of a session."""


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def wait(request: bytes, _: Any) -> bytes:
    await asyncio.Event().wait()
    return request


async def many(request: bytes, context: Any) -> None:
    for _ in range(len(request)):
        await context.write(bytes(9000))


async def chat(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


def _rpc(name: str, method: Any, **kinds: bool) -> Rpc:
    return Rpc(SERVICE, name, bytes, bytes, method, **kinds)


RPCS = {
    rpc.path: rpc
    for rpc in (
        _rpc("Echo", echo),
        _rpc("Wait", wait),
        _rpc("Many", many, many_answers=True),
        _rpc("Chat", chat, many_requests=True, many_answers=True),
    )
}


# --- sessions


def frames_of_call(chance: random.Random, stream: int) -> list[bytes]:
    """A call as clients send it, in some of the ways that HTTP/2 allows."""
    path = chance.choice((ECHO, ECHO, WAIT, MANY, CHAT, CHAT, NOTHING))
    more = (
        [(b"grpc-timeout", chance.choice((b"1m", b"5S", b"1H", b"99999999n")))]
        if chance.random() < 0.3
        else []
    )
    fields = head(path, *more)
    if chance.random() < 0.2:
        cut = chance.randrange(len(fields))
        found = [
            frame(HEADERS, 0, stream, fields[:cut]),
            frame(CONTINUATION, END_HEADERS, stream, fields[cut:]),
        ]
    else:
        found = [frame(HEADERS, END_HEADERS, stream, fields)]
    body = b"".join(
        message(chance.randbytes(chance.choice((0, 1, 20, 3000))))
        for _ in range(chance.randint(1, 3 if path == CHAT else 1))
    )
    for _ in range(chance.randint(0, 3)):
        cut = chance.randrange(len(body) + 1)
        found.append(frame(DATA, 0, stream, body[:cut]))
        body = body[cut:]
    end = chance.random()
    if end < 0.7:
        found.append(frame(DATA, END_STREAM, stream, body))
    elif end < 0.8:
        found.append(frame(DATA, 0, stream, body))
        found.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, literals([(b"a", b"b")])))
    elif end < 0.9:
        found.append(reset(stream))
    return found


def whole_session(chance: random.Random) -> list[bytes]:
    """Calls that overlap, and the frames that belong to no call."""
    calls = [frames_of_call(chance, 2 * number + 1) for number in range(chance.randint(1, 6))]
    found = [frame(SETTINGS, ACK)]
    opened = 0
    while any(calls):
        number = chance.choice([number for number, frames in enumerate(calls[: opened + 1]) if frames])
        opened = max(opened, number + 1)
        found.append(calls[number].pop(0))
        if found[-1][3] == HEADERS and not found[-1][4] & END_HEADERS:
            found.append(calls[number].pop(0))  # nothing may come between
        if chance.random() < 0.15:
            found.append(connection_frame(chance, opened))
    return found


def connection_frame(chance: random.Random, calls: int) -> bytes:
    return chance.choice(
        (
            frame(PING, 0, 0, chance.randbytes(8)),
            frame(SETTINGS, 0, 0, struct.pack(">HI", 4, chance.choice((0, 1, 70_000, 1 << 24)))),
            window(chance.randrange(1, 1 << 16)),
            window(chance.randrange(1, 1 << 16), 2 * chance.randrange(calls) + 1),
            frame(2, 0, 2 * chance.randrange(calls) + 1, bytes(4) + b"\x10"),
        )
    )


# --- damage


def damaged(chance: random.Random, one: bytes) -> bytes:
    """The frame with one thing wrong."""
    kind = chance.randrange(10)
    data = bytearray(one)
    if kind == 0:
        return one[: chance.randrange(len(one))]
    if kind == 1:  # shorter, and it says so
        payload = one[9 : 9 + chance.randrange(len(one) - 8)]
        return struct.pack(">I", len(payload))[1:] + one[3:9] + payload
    if kind == 2:
        data[:3] = struct.pack(">I", max(0, len(one) - 9 + chance.choice((-1, 1, 5, 16_385, 1 << 23))))[1:]
    elif kind == 3:
        data[3] = chance.randrange(KINDS)
    elif kind == 4:
        data[4] = chance.randrange(256)
    elif kind == 5:
        data[5:9] = struct.pack(">I", chance.choice((0, 1, 2, 3, 5, 7, 9, 99, 0x7FFFFFFF, 0xFFFFFFFF)))
    elif kind == 6:
        data += chance.randbytes(chance.randint(1, 30))
    elif kind == 7 and len(one) > 9:  # in the payload, which may well be a header's or a message's
        data[chance.randrange(9, len(data))] ^= 1 << chance.randrange(8)
    elif kind == 8 and len(one) > 9:
        data[chance.randrange(9, min(len(data), 16))] = chance.randrange(256)
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def damage(chance: random.Random, frames: list[bytes]) -> list[tuple[bytes, bool]]:
    """Some frames changed, doubled, left out or moved, and whether it was done to this one."""
    found: list[tuple[bytes, bool]] = []
    for one in frames:
        way = chance.randrange(12)
        if chance.random() >= DAMAGED_SHARE:
            found.append((one, False))
        elif way == 0:
            found.append((one + one, True))
        elif way == 1:
            found.append((b"", True))
        elif way == 2:
            found.insert(chance.randrange(len(found) + 1), (one, True))
        else:
            found.append((damaged(chance, one), True))
    return found


# --- the server's side


class Transport(KeepingTransport):
    """Written bytes are kept if they are wanted."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self._keeps = keeps
        self.reads = True

    def write(self, data: Any) -> None:
        if self._keeps:
            self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Driver:
    """Gives sessions to connections, and looks whether anything is left of them."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_SIZE))
        self.connections: set[Http2Connection] = set()
        self.running: set[GrpcCall] = set()
        self.made: list[GrpcCall] = []
        self.alive: weakref.WeakSet[Http2Connection] = weakref.WeakSet()
        self.given = 0
        """Damaged frames that a connection has taken before it was closed."""
        self.wrong: list[str] = []
        """What the loop or the log was told."""

    def accept(self, connection: Http2Connection, stream: int, headers: Headers, ended: bool) -> GrpcCall:
        call = GrpcCall(connection, stream, headers, ended, RPCS, self.running)
        self.made.append(call)
        return call

    async def session(self, seed: int, *, whole: bool = False) -> bytearray:
        """The bytes that a session is answered with, if it is whole."""
        chance = random.Random(seed)
        http2.HELD_MAX = HELD_MAX_SMALL if seed % 2 else HELD_MAX
        frames = whole_session(chance)
        pieces = [(one, False) for one in frames] if whole else damage(chance, frames)
        connection, transport = Http2Connection(self.accept, self.buffer, self.connections), Transport(whole)
        self.alive.add(connection)
        connection.connection_made(transport)
        taken = await self._give(
            chance, connection, transport, PREFACE + b"".join(one for one, _ in pieces), whole
        )
        taken -= len(PREFACE)
        for one, is_damaged in pieces:
            if taken < 0:
                break
            self.given += is_damaged
            taken -= len(one)
        for _ in range(10 if whole else chance.randrange(3)):
            await asyncio.sleep(0)
        assert 0 <= connection.held <= HELD_MOST, connection.held
        connection.connection_lost(None)
        await self._nothing_is_left(connection)
        return transport.written

    async def _give(
        self,
        chance: random.Random,
        connection: Http2Connection,
        transport: Transport,
        data: bytes,
        whole: bool,
    ) -> int:
        """How many bytes it took before it was closed."""
        begun_with = len(data)
        while data and not transport.closing:
            size = min(chance.choice((1, 9, 50, 700, READ_SIZE, READ_SIZE)), len(data))
            self.buffer[:size] = data[:size]
            connection.get_buffer(-1)
            connection.buffer_updated(size)
            data = data[size:]
            what = 0.0 if whole else chance.random()
            if what > 0.95:
                connection.pause_writing()
                await asyncio.sleep(0)
                connection.resume_writing()
            elif what > 0.9:
                connection.look(connection.loop.time() + chance.choice((30, 61, 90, 300)))
            elif what < 0.5:
                await asyncio.sleep(0)
        return begun_with - len(data)

    async def _nothing_is_left(self, connection: Http2Connection) -> None:
        for _ in range(100):
            if all(call.task is None or call.task.done() for call in self.made):
                break
            await asyncio.sleep(0)
        assert not self.running, self.running
        assert not self.connections
        left = (connection.streams, connection._withheld, connection._writers, connection._to_reset)
        assert not any(left) and not connection.held, (left, connection.held)
        for call in self.made:
            assert call.over and (call.task is None or call.task.done()), call._rpc
            assert call._timer is None and not call._held and not call._messages, call._rpc
        self.made.clear()
        assert not self.wrong, self.wrong[0]


class _Heard(logging.Handler):
    def __init__(self, wrong: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._wrong = wrong

    def emit(self, record: logging.LogRecord) -> None:
        self._wrong.append(self.format(record))


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(frames: int, seed: int = 0, *, note: Callable[[str], None] = lambda _: None) -> int:
    """Gives sessions until so many damaged frames have been taken; how many sessions. AssertionError names the seed."""

    async def main() -> int:
        driver = Driver()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: driver.wrong.append(str(context)))
        heard = _Heard(driver.wrong)
        logger.addHandler(heard)
        before, sessions = 0, 0
        try:
            while driver.given < frames:
                try:
                    await driver.session(seed + sessions)
                except Exception as error:
                    raise AssertionError(f"seed {seed + sessions}: {error!r}") from error
                sessions += 1
                if not before and driver.given > frames // 10:
                    before = memory()
                if not sessions % 10_000:
                    note(f"{sessions} sessions, {driver.given} damaged frames")
        finally:
            logger.removeHandler(heard)
            http2.HELD_MAX = HELD_MAX
        await asyncio.sleep(0)  # the last flush that was due
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        assert not driver.alive, f"{len(driver.alive)} connections are still there"
        assert memory() - before < GROWTH_MAX, f"memory has grown by {memory() - before} bytes"
        return sessions

    return asyncio.run(main())


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0]), note=print), "sessions")
