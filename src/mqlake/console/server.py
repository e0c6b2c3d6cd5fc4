"""Serves the console on the running event loop, from start() to stop()."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import uvicorn

from mqlake.base.net import format_address, reason_of
from mqlake.console.app import Console, ConsoleConfig
from mqlake.errors import ConfigError

STOP_S = 5
"""Streams that are open then are cut."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the loop."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


class ConsoleServer:
    def __init__(self, config: ConsoleConfig) -> None:
        self.console = Console(config)
        self.address = ""
        """host:port, once it is started."""
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Port 0 picks a free one. ConfigError if it cannot listen."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {format_address((host, port))}: {reason_of(error)}"
            ) from error
        self.address = format_address(listening.getsockname()[:2])
        config = uvicorn.Config(
            self.console.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            loop="none",
            ws="none",
            timeout_graceful_shutdown=STOP_S,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([listening]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)
        if self._task.done():
            await self._task
            raise ConfigError("the console did not start")

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self.console.closing.set()
            self._server.should_exit = True
            await self._task
