"""RemotingClient: one connection per broker, opened when needed and kept alive.

An idle connection gets a `version` request as a heartbeat; after three without an answer it is closed, and the next
request opens another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random

from mqlake.base.background import BackgroundWork
from mqlake.base.net import parse_address, reason_of
from mqlake.errors import RemotingConnectError, RemotingError
from mqlake.metaq.formats.command import BooleanCommand, QuitCommand, Request, Response, VersionCommand
from mqlake.metaq.wire.connection import Connection

logger = logging.getLogger(__name__)

SCHEME = "meta://"
CONNECT_S = 10.0
BEAT_S = 1.0
"""How often idle connections are looked for."""
IDLE_S = 10.0
HEARTBEAT_S = 5.0
HEARTBEATS_MISSED_MAX = 3
_INT32 = 1 << 31


class RemotingClient:
    """`invoke` from `start` to `close`. An address is `meta://host:port`."""

    def __init__(self) -> None:
        first = random.randrange(_INT32)
        self._opaques = itertools.count(first)
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._missed: dict[str, int] = {}
        self._heartbeats: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._heartbeats = asyncio.ensure_future(self._beat())

    def next_opaque(self) -> int:
        """A signed 32-bit number; repeats after 2^32 calls."""
        return (next(self._opaques) + _INT32) % (2 * _INT32) - _INT32

    async def invoke(self, address: str, request: Request, timeout_s: float) -> Response:
        """The answer, whatever its code. RemotingConnectError, RemotingTimeoutError."""
        connection = await self._connected(address)
        return await connection.invoke(request, timeout_s)

    async def ask(self, address: str, request: Request, timeout_s: float) -> BooleanCommand:
        """As invoke(), for requests that are never answered by records. RemotingError for such an answer."""
        answer = await self.invoke(address, request, timeout_s)
        if not isinstance(answer, BooleanCommand):
            raise RemotingError(f"{address}: an answer of the wrong kind")
        return answer

    async def send(self, address: str, request: Request) -> None:
        """Sends a request that has no answer. RemotingConnectError."""
        (await self._connected(address)).send(request.encode())

    async def _connected(self, address: str) -> Connection:
        task = self._connections.get(address)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().closed)):
            task = self._connections[address] = asyncio.ensure_future(self._connect(address))
        return await asyncio.shield(task)

    async def _connect(self, address: str) -> Connection:
        host, port = parse_address(address.removeprefix(SCHEME).rstrip("/"))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(Connection, host, port)
        except TimeoutError:
            raise RemotingConnectError(address, f"no connection within {CONNECT_S:g} s") from None
        except OSError as error:
            raise RemotingConnectError(address, reason_of(error)) from None
        return connection

    async def _beat(self) -> None:
        work = BackgroundWork("heartbeats", logger)
        while True:
            await asyncio.sleep(BEAT_S)
            async with work.round():
                now = asyncio.get_running_loop().time()
                for address, task in list(self._connections.items()):
                    if not task.done() or task.cancelled() or task.exception() is not None:
                        continue
                    connection = task.result()
                    if not connection.closed and now - connection.active_at(now) > IDLE_S:
                        await self._heartbeat(address, connection)

    async def _heartbeat(self, address: str, connection: Connection) -> None:
        try:
            await connection.invoke(VersionCommand(self.next_opaque()), HEARTBEAT_S)
            self._missed.pop(address, None)
        except RemotingError as error:
            self._missed[address] = self._missed.get(address, 0) + 1
            if self._missed[address] >= HEARTBEATS_MISSED_MAX:
                logger.warning("%s: %s; closed", address, error)
                self._missed.pop(address)
                connection.abort()

    async def close(self) -> None:
        """Sends `quit` to every broker and closes the connections."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        for task in self._connections.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().send(QuitCommand().encode())
                task.result().close()
            else:
                task.cancel()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)
        self._connections = {}
