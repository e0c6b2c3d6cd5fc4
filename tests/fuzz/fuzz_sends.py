"""Whatever a producer may send, given to two brokers, one with the compiled way and one without: the same answers.

python -m tests.fuzz.fuzz_sends sends [libFuzzer's options and corpus]
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.broker.controller import BrokerController
    from mqlake.broker.fast.fast_send import FastSend
    from mqlake.broker.requests import send_message
    from mqlake.remoting.codes import SerializeType
    from mqlake.remoting.connection import Connection

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

    def close(self) -> None:
        for controller in self._brokers:
            self._loop.run_until_complete(controller.stop())
        self._loop.close()
        self._directory.cleanup()

    def run(self, data: bytes) -> None:
        self._loop.run_until_complete(self._run(data))
        self.runs += 1

    async def _run(self, data: bytes) -> None:
        said = [await self._answers(controller, data) for controller in self._brokers]
        assert said[0] == said[1]
        ends = [controller.broker.store.max_phy_offset for controller in self._brokers]
        assert ends[0] == ends[1]

    async def _answers(self, controller: BrokerController, data: bytes) -> bytes:
        """What a connection answers to what one read brings, and whether it was closed then."""
        connection, transport = Connection(controller.server, self._loop), _Transport()
        connection.connection_made(transport)
        connection.remote_address = "127.0.0.1:1"
        room = connection.get_buffer(-1)
        room[: len(data)] = data
        connection.buffer_updated(len(data))
        await asyncio.sleep(0)
        while controller.server.in_flight:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        answers = bytes(transport.written).replace(b"7F000001%08X" % controller.port, b"-" * 16)
        return answers + (b"closed" if transport.closing else b"")


def sends(data: bytes, running: list[_Brokers] = []) -> None:  # noqa: B006 - made once
    """The same answers. The first byte says what the others are: frames, or the body of a batch between two sends."""
    if running and running[0].runs >= RUNS_A_DIRECTORY:
        running.pop().close()
    if not running:
        running.append(_Brokers())
    if data[:1] != b"f":
        kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
        data = b"".join((send(opaque=1, kind=kind), batch(data[1:], opaque=2, kind=kind), send(opaque=3)))
    else:
        data = data[1:]
    running[0].run(data)


TARGETS: dict[str, Callable[[bytes], None]] = {sends.__name__: sends}


def seeds(_name: str) -> Iterator[bytes]:
    for kind in KINDS:
        yield bytes([kind]) + item()
        yield bytes([kind]) + b"".join(item(bytes(n), own(n), flag=n) for n in range(8))
        yield b"f" + send(kind=kind) + batch(item(), item(), kind=kind)
        yield b"f" + send(code=10, long_names=True, kind=kind)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    # what brokers draw by lot is the same on both
    send_message.create_uniq_id = lambda: "A" * 32
    send_message.random.randrange = lambda stop: stop - 1
    fuzz(TARGETS, seeds)
