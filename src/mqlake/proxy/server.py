"""GrpcServer: listens for gRPC clients, and gives their RPCs to a MessagingService.

server = GrpcServer(LocalBackend(controller))
await server.start("0.0.0.0", 8081)
server.port
await server.stop()
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from mqlake.base.background import BackgroundWork
from mqlake.base.net import format_address
from mqlake.errors import ConfigError
from mqlake.proxy.access import Authenticator
from mqlake.proxy.backend import Backend
from mqlake.proxy.renew import PERIOD_S
from mqlake.proxy.service import MessagingService
from mqlake.remoting.tls import ServerTls, TlsConfig, TlsMode

if TYPE_CHECKING:
    from mqlake.proxy.metrics import ProxyMetrics

logger = logging.getLogger(__name__)

MESSAGE_SIZE_MAX = 130 * 1024 * 1024
IDLE_MS = 120_000
"""A connection without an RPC is closed after so long."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
"""Half-open connections are found by pings; clients may ping as often as they do without being sent away."""


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
        self._server: grpc.aio.Server | None = None
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self, host: str = "0.0.0.0", port: int = 0) -> None:
        """Listens on `port` (0: any free one). ConfigError if that is not possible."""
        await self._backend.start()
        await self.service.start()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self.service.handler(),))
        address = format_address((host, port))
        credentials = server_credentials(self._tls)
        try:
            if credentials is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address} for gRPC: {error}") from error
        if self.port == 0:
            raise ConfigError(f"cannot listen on {address} for gRPC: is the address in use?")
        self.service.routes.port = self.port
        await server.start()
        self._server = server
        self._housekeeping = asyncio.create_task(self._keep_house(), name="gRPC housekeeping")

    async def _keep_house(self) -> None:
        work = BackgroundWork("housekeeping of the gRPC endpoint", logger)
        while True:
            await asyncio.sleep(PERIOD_S)
            async with work.round():
                await self.service.housekeeping()

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accepts no more RPCs, lets those in flight finish for `grace_s`. Idempotent."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
            self._housekeeping = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace_s)
        await self.service.close()
        await self._backend.close()


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials | None:
    """None without TLS. ConfigError if a file cannot be used.

    The files are looked at again when a client connects, as those of the other protocol.
    """
    if tls.mode is TlsMode.DISABLED or not tls.cert_path or not tls.key_path:
        return None
    if tls.key_password:
        raise ConfigError("tls.server.keyPassword: the gRPC endpoint needs a key without a password")
    files = ServerTls(tls)
    served = files.context

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        if files.current() is served:
            return None
        served = files.context
        return _certificates(tls)

    return grpc.dynamic_ssl_server_credentials(
        _certificates(tls),
        changed,
        require_client_authentication=tls.client_auth == "require" and bool(tls.trust_cert_path),
    )


def _certificates(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    """Of files that ServerTls has read. OSError if they have gone since."""
    key, certificate = _content(tls.key_path), _content(tls.cert_path)
    trusted = _content(tls.trust_cert_path) if tls.trust_cert_path else None
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=trusted)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
