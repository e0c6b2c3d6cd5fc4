"""GrpcioServer: listens for gRPC clients with grpcio's own server on asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from mqlake.base.net import format_address
from mqlake.errors import ConfigError
from mqlake.proxy.rpc import (
    IDLE_MS,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MESSAGE_SIZE_MAX,
    GrpcStatus,
    Rpc,
    RpcAbortedError,
)
from mqlake.remoting.tls import ServerTls, TlsConfig, TlsMode

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)
"""Half-open connections are found by pings; clients may ping as often as they do without being sent away."""
_CODES = {GrpcStatus(code.value[0]): code for code in grpc.StatusCode if code.value[0] in list(GrpcStatus)}


class GrpcioServer:
    def __init__(self, rpcs: Iterable[Rpc], tls: TlsConfig) -> None:
        """ConfigError if a file of `tls` cannot be used."""
        self._rpcs = list(rpcs)
        self._credentials = server_credentials(tls)
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens on `port` (0: any free one), and returns it. ConfigError if that is not possible."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((handler(self._rpcs),))
        address = format_address((host, port))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address} for gRPC: {error}") from error
        if port == 0:
            raise ConfigError(f"cannot listen on {address} for gRPC: is the address in use?")
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, and ends those that run after `grace_s`."""
        if self._server is not None:
            server, self._server = self._server, None  # grpcio wants it collected while its loop is there
            await server.stop(grace_s)


def handler(rpcs: list[Rpc]) -> grpc.GenericRpcHandler:
    """All RPCs, for a grpc.aio server."""
    return grpc.method_handlers_generic_handler(
        rpcs[0].service, {rpc.name: _method_handler(rpc) for rpc in rpcs}
    )


def _method_handler(rpc: Rpc) -> grpc.RpcMethodHandler[Any, Any]:
    coders: dict[str, Any] = {"request_deserializer": rpc.decode, "response_serializer": rpc.encode}
    if rpc.many_requests:
        return grpc.stream_stream_rpc_method_handler(_aborting(rpc.method), **coders)
    if rpc.many_answers:
        return grpc.unary_stream_rpc_method_handler(_aborting(rpc.method), **coders)
    return grpc.unary_unary_rpc_method_handler(_aborting(rpc.method), **coders)


def _aborting(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except RpcAbortedError as error:
            await context.abort(_CODES[error.status], error.details)

    return call


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
    """Makes the configuration of files that ServerTls has read. OSError if they have gone since."""
    key, certificate = _content(tls.key_path), _content(tls.cert_path)
    trusted = _content(tls.trust_cert_path) if tls.trust_cert_path else None
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=trusted)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
