"""The gRPC endpoint as commands start it: in the process of a broker, or in front of a cluster."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

from mqlake.base.net import format_address, is_every_address
from mqlake.errors import MissingPartError
from mqlake.remoting.tls import TlsConfig

if TYPE_CHECKING:
    from mqlake.auth.config import AuthConfig
    from mqlake.broker.config import GrpcServerKind
    from mqlake.broker.controller import BrokerController
    from mqlake.client.config import ClientConfig
    from mqlake.proxy.metrics import ProxyMetrics
    from mqlake.proxy.server import GrpcServer

GRPC_PORT = 8081
INSTALL = "pip install 'mqlake[grpc]'"


def grpc_is_installed() -> bool:
    try:
        import google.protobuf  # noqa: F401
    except ImportError:
        return False
    return any(importlib.util.find_spec(package) is not None for package in ("ngh2", "grpc"))


def require_grpc() -> None:
    """MissingPartError."""
    if not grpc_is_installed():
        raise MissingPartError("the Python package grpcio", INSTALL, why="for gRPC clients")


async def start_beside(controller: BrokerController) -> GrpcServer:
    """The gRPC endpoint of a broker that has started. ConfigError if it cannot listen; MissingPartError."""
    require_grpc()
    from mqlake.broker.config import parse_advertised
    from mqlake.proxy.access import AccessAuthenticator
    from mqlake.proxy.local import LocalBackend
    from mqlake.proxy.server import GrpcServer

    config = controller.broker.config
    metrics: ProxyMetrics | None = None
    if controller.metrics is not None and controller.metrics.registry is not None:
        from mqlake.proxy.metrics import ProxyMetrics

        metrics = ProxyMetrics(cluster=config.broker_cluster_name, node_id=config.broker_name, mode="local")
        controller.metrics.registry.register(metrics)
    advertised = parse_advertised(config.advertise)
    access = controller.broker.access
    server = GrpcServer(
        LocalBackend(controller),
        kind=config.grpc_server,
        tls=config.tls,
        advertised=(advertised.host or config.broker_ip1, advertised.grpc_port)
        if advertised.host or advertised.grpc_port
        else None,
        authenticator=None if access is None else AccessAuthenticator(access),
        metrics=metrics,
    )
    await server.start(config.bind_address, config.grpc_server_port)
    return server


def where_it_serves(server: GrpcServer, host: str) -> str:
    return format_address(("127.0.0.1" if is_every_address(host) else host, server.port))


async def start_proxy(
    where: ClientConfig,
    port: int,
    host: str,
    advertise: str,
    tls: TlsConfig,
    auth: AuthConfig | None = None,
    kind: GrpcServerKind | None = None,
) -> GrpcServer:
    """`auth`: let in only users of the cluster, whose secrets `where` has to be allowed to read. ConfigError if it
    cannot listen, or `advertise` is no address."""
    from mqlake.auth.signed_client import remoting_client
    from mqlake.broker.config import parse_advertised
    from mqlake.client.api.name_servers import parse_addresses
    from mqlake.proxy.access import ClusterAuthenticator
    from mqlake.proxy.remote import RemoteBackend
    from mqlake.proxy.server import GrpcServer

    told = parse_advertised(advertise)
    new_client = functools.partial(remoting_client, where.credentials, where.tls)
    backend = RemoteBackend(parse_addresses(where.namesrv_addr), new_client)
    server = GrpcServer(
        backend,
        kind=kind,
        tls=tls,
        advertised=(told.host, told.grpc_port or told.port) if told.host else None,
        authenticator=None if auth is None else ClusterAuthenticator(auth, backend),
    )
    try:
        await server.start(host, port)
    except BaseException:
        await server.stop()
        raise
    return server
