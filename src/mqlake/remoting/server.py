"""RemotingServer: listens, and hands requests to processors.

server = RemotingServer()
server.processors.register(RequestCode.HEART_BEAT, lambda connection, command: ...)
await server.start("0.0.0.0", 0)
server.port                      the port that was free
await server.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

from mqlake.base.net import reason_of
from mqlake.errors import ConfigError
from mqlake.remoting.connection import Connection, Endpoint, Limits
from mqlake.remoting.files_kept import FilesKept
from mqlake.remoting.tls import ServerTls, TlsConfig

BACKLOG = 4096


class RemotingServer(Endpoint):
    """Register processors, then `start`. `on_open` and `on_close` are called for each connection."""

    def __init__(self, limits: Limits | None = None, tls: TlsConfig | None = None) -> None:
        """ConfigError when the TLS files cannot be used."""
        super().__init__(limits)
        tls = tls or TlsConfig()
        self.tls_mode = tls.mode
        self.tls = ServerTls(tls)
        self.refuses_descriptor = FilesKept().refuses
        self.port = 0
        """The port it listens on, from `start` (or the first `bind`) on."""
        self._servers: dict[str, asyncio.Server] = {}
        """By address."""

    async def start(self, host: str = "0.0.0.0", port: int = 0) -> None:
        """Listens on `port` (0: any free one). ConfigError when that is not possible."""
        await self.bind(host, port)
        await self.listen()

    async def bind(self, host: str = "0.0.0.0", port: int = 0, *, alone: bool = False) -> None:
        """Takes the port, one more if it has others, and refuses connections until `listen`. ConfigError.

        Two servers can bind one port, of which only the first to listen gets it. With `alone`, as with a free port (0),
        nobody else can, and a port that somebody has bound counts as taken; so does one of which connections are left.
        """
        loop = asyncio.get_running_loop()
        address = f"{host}:{port}"

        def accepted() -> Connection:
            return Connection(self, loop)

        with _telling_what_is_wrong(address):
            if alone or not port:
                sock = await _bound_alone(host, port)
                server = await loop.create_server(accepted, sock=sock, backlog=BACKLOG, start_serving=False)
            else:
                server = await loop.create_server(
                    accepted, host, port, backlog=BACKLOG, reuse_address=True, start_serving=False
                )
        self._servers[address] = server
        self.port = self.port or server.sockets[0].getsockname()[1]

    async def listen(self) -> None:
        """Serves, from now on, on the ports that `bind` took. ConfigError."""
        assert self._servers
        for address, server in self._servers.items():
            with _telling_what_is_wrong(address):
                for bound in server.sockets:
                    with socket.socket(fileno=os.dup(bound.fileno())) as same:
                        # connections take it over, and those that are left are in no restart's way
                        same.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        same.listen(BACKLOG)  # uvloop does not say that another one listens
                await server.start_serving()
        self.idle_checks.start(asyncio.get_running_loop())

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accepts no more connections, lets requests in flight finish for `grace_s`, then closes all connections.

        New requests are answered GO_AWAY if their client knows that code, so that it goes elsewhere.
        """
        self.going_away = True
        self.idle_checks.stop()
        for server in self._servers.values():
            server.close()
        if self.in_flight:
            await asyncio.wait(self.in_flight, timeout=grace_s)
        for connection in list(self.connections):
            connection.close()
        await self._closed(grace_s)
        for connection in list(self.connections):
            connection.abort()
        await self._closed(grace_s)
        self._servers.clear()

    async def _closed(self, timeout_s: float) -> None:
        """Until every connection is closed, or the time is over."""
        if not self.connections:
            return
        gone = asyncio.Event()

        def look(_: Connection) -> None:
            if not self.connections:
                gone.set()

        self.on_close.append(look)
        try:
            async with asyncio.timeout(timeout_s):
                await gone.wait()
        except TimeoutError:
            pass
        finally:
            self.on_close.remove(look)


@contextlib.contextmanager
def _telling_what_is_wrong(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {reason_of(error)}") from error


async def _bound_alone(host: str, port: int) -> socket.socket:
    """A socket without SO_REUSEADDR, which would let others bind its port until it listens."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as create_server does
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
