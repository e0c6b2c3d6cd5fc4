"""A link that can fail: a TCP proxy, whose state holds for the connections there are and those to come.

up      bytes pass
slow    so many bytes a second in each direction
hung    nothing passes and nobody is told: a half-open connection, or a network that drops packets
cut     connections are reset, new ones are closed at once
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable
from typing import Literal

from mqlake.store.ha.protocol import HELLO_FRAME

State = Literal["up", "slow", "hung", "cut"]

PIECE = 16 * 1024
LINGER_0 = struct.pack("ii", 1, 0)
"""Closing sends a reset."""


class Link:
    """From `port`, which start() takes, to `target` (host, port)."""

    def __init__(self, target: tuple[str, int], *, slow_bytes_per_s: int = 50_000) -> None:
        self.target = target
        self.port = 0
        self.slow_bytes_per_s = slow_bytes_per_s
        self.connections = 0
        self._state: State = "up"
        self._changed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def state(self) -> State:
        return self._state

    def set(self, state: State) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
        if state == "cut":
            for writer in self._open:
                _reset(writer)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self.carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.set("cut")
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b""
    ) -> None:
        """One connection to its end; `first` has been read of it already."""
        self._open.add(writer)
        try:
            while self._state == "hung":
                await self._changed.wait()
            if self._state == "cut":
                return
            there, back = await asyncio.open_connection(*self.target)
            self._open.add(back)
            self.connections += 1
            back.write(first)
            tasks = [
                asyncio.create_task(self._pass(reader, back)),
                asyncio.create_task(self._pass(there, writer)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._open.discard(back)
            back.close()
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                while self._state == "hung":
                    await self._changed.wait()
                if self._state == "slow":
                    await asyncio.sleep(len(data) / self.slow_bytes_per_s)
                writer.write(data)
                await writer.drain()


class HALinks:
    """In front of the port for slaves of one replica: a link for each other one, which its hello tells apart."""

    def __init__(self, port: int, target: tuple[str, int], replicas: Iterable[int]) -> None:
        self.links = {replica: Link(target) for replica in replicas}
        self._port = port
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)

    async def close(self) -> None:
        for link in self.links.values():
            await link.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await reader.readexactly(HELLO_FRAME.size)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        _, _, replica, _ = HELLO_FRAME.unpack(hello)
        await self.links[replica].carry(reader, writer, hello)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    writer.transport.abort()
