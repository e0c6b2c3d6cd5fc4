"""MetaServer: listens, and passes the requests of all connections to one handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mqlake.base.net import reason_of
from mqlake.errors import ConfigError
from mqlake.metaq.wire.connection import BODY_MAX, Connection, Handler
from mqlake.remoting.files_kept import FilesKept
from mqlake.remoting.peer import IdleChecks

logger = logging.getLogger(__name__)

BACKLOG = 4096
IDLE_S = 300.0
"""Connections without traffic for this long are closed, as in the original."""


class MetaServer:
    """`start`, then `port` is known; `stop` at the end."""

    def __init__(
        self,
        on_request: Handler,
        *,
        on_close: Callable[[Connection], None] | None = None,
        idle_s: float = IDLE_S,
        body_max: int = BODY_MAX,
    ) -> None:
        self.connections: set[Connection] = set()
        self.port = 0
        """Known from `start` on."""
        self._on_request = on_request
        self._on_close = on_close
        self._body_max = body_max
        self._server: asyncio.Server | None = None
        self._idle_checks = IdleChecks(self.connections, idle_s)
        self._files_kept = FilesKept()

    async def start(self, host: str, port: int) -> None:
        """Listens on `port` (0: any free one). ConfigError if that is not possible."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(
                    self._on_request,
                    on_open=self._opened,
                    on_close=self._closed,
                    body_max=self._body_max,
                ),
                host,
                port,
                backlog=BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {reason_of(error)}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._idle_checks.start(loop)

    def _opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._files_kept.refuses(connection, connection.socket_fd):
            connection.abort()

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Accepts no more connections; closes the open ones when all is sent, or after `grace_s`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._idle_checks.stop()
        for connection in list(self.connections):
            connection.close()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()
