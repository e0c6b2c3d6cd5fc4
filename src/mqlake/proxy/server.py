"""GrpcServer: listens for gRPC clients, with nghttp2 or with grpcio, and gives their RPCs to a MessagingService.

server = GrpcServer(LocalBackend(controller))
await server.start("0.0.0.0", 8081)
server.port
await server.stop()
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING

from mqlake.base.background import BackgroundTask, repeat
from mqlake.broker.config import GrpcServerKind
from mqlake.errors import MissingPartError
from mqlake.proxy.access import Authenticator
from mqlake.proxy.backend import Backend
from mqlake.proxy.renew import PERIOD_S
from mqlake.proxy.service import MessagingService
from mqlake.remoting.tls import TlsConfig

if TYPE_CHECKING:
    from mqlake.proxy.grpcio_server import GrpcioServer
    from mqlake.proxy.metrics import ProxyMetrics
    from mqlake.proxy.nghttp2_server import NgHttp2Server

logger = logging.getLogger(__name__)


class GrpcServer:
    def __init__(
        self,
        backend: Backend,
        *,
        kind: GrpcServerKind | None = None,
        tls: TlsConfig | None = None,
        advertised: tuple[str, int] | None = None,
        authenticator: Authenticator | None = None,
        metrics: ProxyMetrics | None = None,
    ) -> None:
        """`kind`: None for `default_kind`."""
        self.service = MessagingService(
            backend, advertised=advertised, authenticator=authenticator, metrics=metrics
        )
        if metrics is not None:
            metrics.clients = self.service.clients.table.values()
        self.port = 0
        """The port it listens on, from `start` on."""
        self._backend = backend
        self._tls = tls or TlsConfig()
        self.kind = usable_kind(kind or default_kind)
        self.server: NgHttp2Server | GrpcioServer | None = None
        self._housekeeping = BackgroundTask(self._keep_house, "gRPC housekeeping")

    async def start(self, host: str = "0.0.0.0", port: int = 0) -> None:
        """Listens on `port` (0: any free one). ConfigError if that is not possible."""
        await self._backend.start()
        await self.service.start()
        server = self._new_server()
        self.port = await server.start(host, port)
        self.service.routes.port = self.port
        self.server = server
        self._housekeeping.start()

    def _new_server(self) -> NgHttp2Server | GrpcioServer:
        if self.kind is GrpcServerKind.nghttp2:
            from mqlake.proxy.nghttp2_server import NgHttp2Server

            return NgHttp2Server(self.service.rpcs(), self._tls)
        from mqlake.proxy.grpcio_server import GrpcioServer

        return GrpcioServer(self.service.rpcs(), self._tls)

    async def _keep_house(self) -> None:
        await repeat("housekeeping of the gRPC endpoint", logger, PERIOD_S, self.service.housekeeping)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accepts no more RPCs, lets those in flight finish for `grace_s`. Idempotent."""
        await self._housekeeping.stop()
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop(grace_s)
        await self.service.close()
        await self._backend.close()


default_kind = GrpcServerKind.nghttp2
"""The kind of servers that are told none."""


def usable_kind(kind: GrpcServerKind) -> GrpcServerKind:
    """Returns `kind`, or grpcio's if the package ngh2 is not there for it, which is logged. MissingPartError."""
    if kind is GrpcServerKind.nghttp2:
        try:
            importlib.import_module("mqlake.proxy.http2")
        except ImportError as error:
            logger.warning("gRPC is served by grpcio, which takes more processor time: %s", error)
            kind = GrpcServerKind.grpcio
    if kind is GrpcServerKind.grpcio and importlib.util.find_spec("grpc") is None:
        raise MissingPartError(
            "the Python package grpcio", "pip install 'mqlake[grpc]'", why="for grpcServer=grpcio"
        )
    return kind
