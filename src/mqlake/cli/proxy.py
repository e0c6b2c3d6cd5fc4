"""`mqlake proxy`: the gRPC endpoint in front of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mqlake.auth.config import AuthConfig
from mqlake.base.open_files import raise_open_files_limit
from mqlake.broker.config import GrpcServerKind
from mqlake.cli.clients import cluster_options
from mqlake.cli.grpc_endpoint import GRPC_PORT, require_grpc, start_proxy, where_it_serves
from mqlake.cli.logs import log_options
from mqlake.cli.options import Whole, port_to_choose
from mqlake.cli.output import note_where_it_listens, print_json_line
from mqlake.cli.serve import settle
from mqlake.cli.stopping import stop_event
from mqlake.remoting.loop import run
from mqlake.remoting.tls import TlsConfig, TlsMode

if TYPE_CHECKING:
    from mqlake.client.config import ClientConfig


@click.command()
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=GRPC_PORT,
    show_default=True,
    help="Port for gRPC clients; 0 picks a free one.",
)
@click.option(
    "--host",
    default="0.0.0.0",
    show_default=True,
    help="Address to listen on; 0.0.0.0: all of this machine's.",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST[:PORT]",
    help="Address of this proxy for clients.  [the one that the client called]",
)
@click.option(
    "--grpc-server",
    type=click.Choice([kind.value for kind in GrpcServerKind]),
    default=GrpcServerKind.nghttp2.value,
    show_default=True,
    help="Who speaks gRPC. Without the package ngh2 it is grpcio.",
)
@click.option(
    "--server-cert", type=click.Path(), default="", help="PEM file: serve TLS with this certificate."
)
@click.option("--server-key", type=click.Path(), default="", help="PEM file: its key.")
@click.option(
    "--auth",
    is_flag=True,
    help="Let in only requests that a user of the cluster has signed, with that user's rights. --access-key "
    "has to be a super user.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
@cluster_options
@log_options
def proxy(
    where: ClientConfig,
    port: int,
    host: str,
    advertise: str,
    grpc_server: str,
    server_cert: str,
    server_key: str,
    auth: bool,
    as_json: bool,
) -> None:
    """Serve RocketMQ 5's gRPC clients in front of a cluster.

    The cluster is any that speaks RocketMQ's remoting protocol. Ctrl-C or SIGTERM shuts the proxy down cleanly.
    """
    require_grpc()
    if auth and where.credentials is None:
        raise click.UsageError("--auth needs --access-key and the secret of a super user, to read the users")
    tls = TlsConfig(mode=TlsMode.ENFORCING, cert_path=server_cert, key_path=server_key)
    if bool(server_cert) != bool(server_key):
        raise click.UsageError("--server-cert and --server-key go together")
    raise_open_files_limit()
    kind = GrpcServerKind(grpc_server)
    checked = AuthConfig(authentication_enabled=True, authorization_enabled=True) if auth else None
    run(_serve(where, port, host, advertise, tls if server_cert else TlsConfig(), checked, as_json, kind))


async def _serve(
    where: ClientConfig,
    port: int,
    host: str,
    advertise: str,
    tls: TlsConfig,
    auth: AuthConfig | None,
    as_json: bool,
    kind: GrpcServerKind,
) -> None:
    stop = stop_event()
    with port_to_choose("--port"):
        server = await start_proxy(where, port, host, advertise, tls, auth, kind)
    settle()
    try:
        address = where_it_serves(server, host)
        if as_json:
            print_json_line({"grpc": address, "namesrv": where.namesrv_addr})
        else:
            click.echo(f"gRPC         {address}")
            click.echo(f"in front of  {where.namesrv_addr}")
        note_where_it_listens(host, guarded=auth is not None)
        await stop.wait()
    finally:
        await server.stop()
