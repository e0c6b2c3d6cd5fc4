"""GrpcServer: listens for gRPC clients, and gives their RPCs to a MessagingService.

server = GrpcServer(LocalBackend(controller))
await server.start("0.0.0.0", 8081)
server.port
await server.stop()
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable

from mqlake.base.net import format_address
from mqlake.errors import ConfigError
from mqlake.proxy.access import Authenticator
from mqlake.proxy.backend import Backend
from mqlake.proxy.http2.calls import opener
from mqlake.proxy.http2.connection import Http2Connection
from mqlake.proxy.metrics import ProxyMetrics
from mqlake.proxy.renew import PERIOD_S
from mqlake.proxy.service import MessagingService
from mqlake.remoting.tls import ServerTls, TlsConfig, TlsMode

logger = logging.getLogger(__name__)

TICK_S = 10.0
_ENDED_S = 0.02
"""Time between two looks whether all calls have ended."""


class GrpcServer:
    def __init__(
        self,
        backend: Backend,
        *,
        tls: TlsConfig | None = None,
        advertised: tuple[str, int] | None = None,
        authenticator: Authenticator | None = None,
        metrics: ProxyMetrics | None = None,
    ) -> None:
        self.service = MessagingService(
            backend, advertised=advertised, authenticator=authenticator, metrics=metrics
        )
        if metrics is not None:
            metrics.clients = self.service.clients.table.values()
        self.port = 0
        """Where it listens, from `start` on."""
        self._backend = backend
        self._tls = tls or TlsConfig()
        self._server: asyncio.Server | None = None
        self._connections: set[Http2Connection] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str = "0.0.0.0", port: int = 0) -> None:
        """Listens on `port` (0: any free one). ConfigError if that is not possible."""
        context = serving_context(self._tls)
        await self._backend.start()
        opened = opener(self.service.methods())
        address = format_address((host, port))
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Http2Connection(opened, self._connections), host, port, ssl=context, backlog=1024
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {address} for gRPC: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self.service.routes.port = self.port
        self._tasks = [
            asyncio.create_task(self._repeat(PERIOD_S, self.service.housekeeping), name="gRPC housekeeping"),
            asyncio.create_task(self._repeat(TICK_S, self._tick), name="gRPC connections"),
        ]

    async def _repeat(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except Exception:
                logger.exception("housekeeping of the gRPC endpoint failed, tried again later")

    async def _tick(self) -> None:
        for connection in list(self._connections):
            connection.tick(TICK_S)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accepts no more RPCs, lets those in flight finish for `grace_s`. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            await self._end_connections(grace_s)
        await self.service.close()
        await self._backend.close()

    async def _end_connections(self, grace_s: float) -> None:
        for connection in list(self._connections):
            connection.refuse_more()
        end = time.monotonic() + grace_s
        while any(connection.streams for connection in self._connections) and time.monotonic() < end:
            await asyncio.sleep(_ENDED_S)
        for connection in list(self._connections):
            connection.leave()
        end = time.monotonic() + _CLOSING_S
        while self._connections and time.monotonic() < end:
            await asyncio.sleep(_ENDED_S)
        for connection in list(self._connections):
            connection.abort()


_CLOSING_S = 1.0
"""How long a client may take to read what it was still sent."""


def serving_context(tls: TlsConfig) -> ssl.SSLContext | None:
    """The context of a listening socket, None without TLS. ConfigError if a file cannot be used.

    Its files are looked at again when a client connects, as those of the other protocol.
    """
    if tls.mode is TlsMode.DISABLED or not tls.cert_path or not tls.key_path:
        return None
    files = ServerTls(tls)
    context = files.current()
    assert context is not None
    context.set_alpn_protocols(["h2"])

    def follow(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        newest = files.current()
        if newest is not None and newest is not connection.context:
            newest.set_alpn_protocols(["h2"])
            connection.context = newest

    context.sni_callback = follow
    return context
