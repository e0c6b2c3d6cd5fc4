"""Two brokers, one with the compiled way and one without, to which bytes are given beside their ports."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import cast

from mqlake.broker.controller import BrokerController
from mqlake.broker.fast.fast_send import FastSend
from mqlake.broker.requests import send_message
from mqlake.message import ids
from mqlake.remoting.connection import Connection
from tests.broker.fast.test_fast_send import send
from tests.broker.live import make_controller
from tests.fuzz.keeping_transport import KeepingTransport

USUAL = send()


def draw_alike() -> None:
    """What brokers draw by lot is the same on both, from now on."""
    ids.create_uniq_id = lambda: "A" * 32
    send_message.random.randrange = lambda stop: stop - 1


class TwoBrokers:
    """Bytes are given to them beside their ports. Their directories are made anew at times."""

    def __init__(self, directory: str | None = None) -> None:
        """`directory`: of the stores' directory; the current one without it."""
        self.runs = 0
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._directory = tempfile.TemporaryDirectory(dir=directory or os.getcwd())
        self._brokers = [
            # what asks producers about half messages writes to the log when it likes
            make_controller(Path(self._directory.name) / name, transactionCheckInterval="3600000")
            for name in ("fast", "plain")
        ]
        self._loop.run_until_complete(self._start(*self._brokers))

    async def _start(self, fast: BrokerController, plain: BrokerController) -> None:
        for controller in (fast, plain):
            await controller.start()
        fast_path = fast.server.fast_paths[0]
        assert isinstance(fast_path, FastSend)
        await asyncio.to_thread(fast_path.load)
        plain.server.fast_paths = ()
        await self._answers(fast, send()), await self._answers(plain, send())

    @property
    def fast(self) -> BrokerController:
        return self._brokers[0]

    def close(self) -> None:
        for controller in self._brokers:
            self._loop.run_until_complete(controller.stop())
        self._loop.close()
        self._directory.cleanup()

    def run(self, data: bytes, cut: int | None = None) -> None:
        self._loop.run_until_complete(self._run(data, cut))
        self.runs += 1

    def give(self, data: bytes, cut: int | None = None) -> None:
        """To the one with compiled code alone, whatever it answers."""
        reads = (data,) if cut is None else (data[:cut], data[cut:])
        self._loop.run_until_complete(self._answers(self.fast, *reads))
        self.runs += 1

    async def _run(self, data: bytes, cut: int | None) -> None:
        fast, plain = self._brokers
        reads = (data,) if cut is None else (data[:cut], data[cut:])
        said, expected = await self._answers(fast, *reads), await self._answers(plain, *reads)
        assert said == expected, (said, expected, data, cut)
        ends = [controller.broker.store.max_phy_offset for controller in self._brokers]
        assert ends[0] == ends[1]

    async def _answers(self, controller: BrokerController, *reads: bytes) -> bytes:
        """What a connection answers to what reads bring, and whether it was closed then."""
        connection, transport = Connection(controller.server, self._loop), KeepingTransport()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.remote_address = "127.0.0.1:1"
        # of whoever has sent a usual one, native code reads what follows
        for data in filter(None, (USUAL, *reads)):
            reader = cast(asyncio.BufferedProtocol, transport.get_protocol())
            room = cast(memoryview, reader.get_buffer(-1))
            room[: len(data)] = data
            reader.buffer_updated(len(data))
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

    @staticmethod
    def _comparable(controller: BrokerController, answers: bytes) -> bytes:
        return answers.replace(b"7F000001%08X" % controller.port, b"-" * 16)
