"""NgHttp2Server: listens for gRPC clients on asyncio's transports, with nghttp2's HTTP/2.

With a certificate it speaks TLS only, and a client has to agree on `h2` by ALPN.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable

from mqlake.base.background import BackgroundWork
from mqlake.base.net import format_address, reason_of
from mqlake.errors import ConfigError
from mqlake.proxy.grpc_call import GrpcCall, opener
from mqlake.proxy.http2 import READ_SIZE, Http2Connection
from mqlake.proxy.rpc import GrpcStatus, Rpc
from mqlake.remoting.tls import ServerTls, TlsConfig, TlsMode

logger = logging.getLogger(__name__)

BACKLOG = 1024
LOOK_S = 5.0
"""Time between two looks at which connections are idle, dead or stalled."""
HANDSHAKE_S = 10.0
CLOSING_S = 1.0
"""Seconds for connections to send their last bytes when the server stops."""


class NgHttp2Server:
    def __init__(self, rpcs: Iterable[Rpc], tls: TlsConfig) -> None:
        """ConfigError if a file of `tls` cannot be used."""
        self.connections: set[Http2Connection] = set()
        self.calls: set[GrpcCall] = set()
        """Calls whose methods run."""
        self._accept = opener({rpc.path: rpc for rpc in rpcs}, self.calls)
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._tls = (
            ServerTls(tls) if tls.mode is not TlsMode.DISABLED and tls.cert_path and tls.key_path else None
        )
        self._listeners: list[asyncio.Server] = []
        self._accepting: dict[asyncio.Task[None], socket.socket] = {}
        """For each task that accepts TLS clients, its listening socket."""
        self._handshakes: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens on `port` (0: any free one), and returns it. ConfigError if that is not possible."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, address in dict.fromkeys((one[0], str(one[4][0])) for one in found):
                listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
                listener.setblocking(False)
                port = listener.getsockname()[1]
                await self._listen(listener)
        except OSError as error:
            await self._stop_listening()
            where = format_address((host, port))
            raise ConfigError(f"cannot listen on {where} for gRPC: {reason_of(error)}") from error
        self._looking = asyncio.create_task(self._look(), name="gRPC connections")
        return port

    def _new_connection(self) -> Http2Connection:
        return Http2Connection(self._accept, self._buffer, self.connections)

    async def _listen(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._listeners.append(
                await loop.create_server(self._new_connection, sock=listener, backlog=BACKLOG)
            )
        else:
            self._accepting[loop.create_task(self._accept_tls(listener, self._tls), name="gRPC TLS")] = (
                listener
            )

    async def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for accepting in self._accepting.values():
            accepting.close()

    async def _accept_tls(self, listener: socket.socket, tls: ServerTls) -> None:
        """Accepts by itself, since a server of asyncio keeps the context that it began with."""
        work = BackgroundWork("accept gRPC clients", logger)
        loop = asyncio.get_running_loop()
        while True:
            async with work.round():
                client, _ = await loop.sock_accept(listener)
                context = tls.current()
                assert context is not None
                context.set_alpn_protocols(["h2"])
                task = loop.create_task(self._shake_hands(client, context))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, client: socket.socket, context: ssl.SSLContext) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_connection, client, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:  # SSLError is one
            logger.debug("no TLS with a gRPC client: %s", error)

    async def _look(self) -> None:
        work = BackgroundWork("look at gRPC connections", logger)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            async with work.round():
                for connection in list(self.connections):
                    connection.look(loop.time())

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, and ends those that run after `grace_s`."""
        await self._stop_listening()
        waits = [*self._handshakes, *([self._looking] if self._looking is not None else ())]
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        for connection in list(self.connections):
            connection.go_away()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=grace_s)
        tasks = self._tasks()
        for call in list(self.calls):
            call.cancel(GrpcStatus.UNAVAILABLE, "the server stops")
        if tasks:
            await asyncio.wait(tasks)
        for connection in list(self.connections):
            connection.end()
        deadline = asyncio.get_running_loop().time() + CLOSING_S
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [call.task for call in self.calls if call.task is not None]
