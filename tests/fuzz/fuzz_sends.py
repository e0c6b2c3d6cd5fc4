"""Whatever a producer may send, given to two brokers, one with the compiled way and one without: the same answers.

python -m tests.fuzz.fuzz_sends sends|loop [libFuzzer's options and corpus]

`sends`: as one read of a connection; `loop`: by a socket of the compiled loop, in two reads. The other broker gets the
same reads: what has not been answered when damaged bytes close the connection never is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.broker.controller import BrokerController
    from mqlake.broker.fast.fast_send import FastSend
    from mqlake.broker.requests import send_message
    from mqlake.message import ids
    from mqlake.remoting.codes import SerializeType
    from mqlake.remoting.connection import Connection
    from mqlake.remoting.epoll_transport import EpollTransport

from tests.broker.fast.test_fast_send import batch, item, own, send
from tests.broker.live import make_controller
from tests.fuzz.fuzz_frames import _Transport, fuzz

RUNS_A_DIRECTORY = 5000
KINDS = list(SerializeType)


class _Brokers:
    """Bytes are given to them beside their ports. Their directories are made anew at times."""

    def __init__(self) -> None:
        self.runs = 0
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._directory = tempfile.TemporaryDirectory(dir=os.getcwd())
        self._brokers = [make_controller(Path(self._directory.name) / name) for name in ("fast", "plain")]
        self._loop.run_until_complete(self._start(*self._brokers))

    async def _start(self, fast: BrokerController, plain: BrokerController) -> None:
        for controller in (fast, plain):
            await controller.start()
        fast_path = fast.server.fast_paths[0]
        assert isinstance(fast_path, FastSend)
        await asyncio.to_thread(fast_path.load)
        plain.server.fast_paths = ()
        await self._answers(fast, send()), await self._answers(plain, send())
        [self.loop] = (loop for loop in fast.fast_loops if loop.endpoint is fast.server)

    def close(self) -> None:
        for controller in self._brokers:
            self._loop.run_until_complete(controller.stop())
        self._loop.close()
        self._directory.cleanup()

    def run(self, data: bytes, cut: int | None = None) -> None:
        self._loop.run_until_complete(self._run(data, cut))
        self.runs += 1

    async def _run(self, data: bytes, cut: int | None) -> None:
        fast, plain = self._brokers
        if cut is None:
            said, expected = await self._answers(fast, data), await self._answers(plain, data)
        else:
            reads = data[:cut], data[cut:]
            said = await self._answers_of_loop(fast, *reads)
            expected = await self._answers(plain, *reads)
        assert said == expected, (said, expected, data, cut)
        ends = [controller.broker.store.max_phy_offset for controller in self._brokers]
        assert ends[0] == ends[1]

    async def _answers(self, controller: BrokerController, *reads: bytes) -> bytes:
        """What a connection answers to what reads bring, and whether it was closed then."""
        connection, transport = Connection(controller.server, self._loop), _Transport()
        connection.connection_made(transport)
        connection.remote_address = "127.0.0.1:1"
        for data in filter(None, reads):
            room = connection.get_buffer(-1)
            room[: len(data)] = data
            connection.buffer_updated(len(data))
            await asyncio.sleep(0)
            while controller.server.in_flight:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            if transport.closing:
                break
        connection.connection_lost(None)
        return self._comparable(controller, bytes(transport.written)) + (
            b"closed" if transport.closing else b""
        )

    async def _answers_of_loop(self, controller: BrokerController, *reads: bytes) -> bytes:
        """The same, of a socket of the compiled loop."""
        peer, sock = socket.socketpair()
        connection = Connection(controller.server, self._loop)
        await self._loop.connect_accepted_socket(lambda: connection, sock)
        connection.remote_address = "127.0.0.1:1"
        connection._undecided = False
        self.loop.move(connection)
        assert isinstance(connection.transport, EpollTransport)
        peer.setblocking(False)
        for data in filter(None, reads):
            with contextlib.suppress(BrokenPipeError):
                peer.send(data)
            while self.loop.turn():
                await asyncio.sleep(0)
            while controller.server.in_flight:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        answers, closed = b"", connection.closed
        with contextlib.suppress(BlockingIOError):
            while more := peer.recv(1 << 20):
                answers += more
        peer.close()
        connection.abort()
        await asyncio.sleep(0)
        return self._comparable(controller, answers) + (b"closed" if closed else b"")

    @staticmethod
    def _comparable(controller: BrokerController, answers: bytes) -> bytes:
        return answers.replace(b"7F000001%08X" % controller.port, b"-" * 16)


def _brokers(running: list[_Brokers] = []) -> _Brokers:  # noqa: B006 - made once
    if running and running[0].runs >= RUNS_A_DIRECTORY:
        running.pop().close()
    if not running:
        running.append(_Brokers())
    return running[0]


def _frames(data: bytes) -> bytes:
    """The first byte says what the others are: frames, or the body of a batch between two sends."""
    if data[:1] != b"f":
        kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
        return b"".join((send(opaque=1, kind=kind), batch(data[1:], opaque=2, kind=kind), send(opaque=3)))
    return data[1:]


def sends(data: bytes) -> None:
    """The same answers."""
    _brokers().run(_frames(data))


def loop(data: bytes) -> None:
    """The same answers; the last byte says where the first read ends."""
    frames = _frames(data)
    _brokers().run(frames, len(frames) * (data[-1] if data else 0) // 255)


TARGETS: dict[str, Callable[[bytes], None]] = {sends.__name__: sends, loop.__name__: loop}


def seeds(_name: str) -> Iterator[bytes]:
    for kind in KINDS:
        yield bytes([kind]) + item()
        yield bytes([kind]) + b"".join(item(bytes(n), own(n), flag=n) for n in range(8))
        yield b"f" + send(kind=kind) + batch(item(), item(), kind=kind)
        yield b"f" + send(code=10, long_names=True, kind=kind)
        yield b"f" + 2 * send(properties="KEYS\1k\2", kind=kind)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    # what brokers draw by lot is the same on both
    ids.create_uniq_id = lambda: "A" * 32
    send_message.random.randrange = lambda stop: stop - 1
    fuzz(TARGETS, seeds)
