"""GrpcServer: ports, TLS, and its end."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import grpc
import pytest
import trustme

from mqlake.broker.config import GrpcServerKind
from mqlake.errors import ConfigError, MissingPartError
from mqlake.proxy.grpcio_server import server_credentials
from mqlake.proxy.nghttp2_server import NgHttp2Server
from mqlake.proxy.server import GrpcServer, usable_kind
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code
from mqlake.remoting import tls
from mqlake.remoting.tls import TlsConfig, TlsMode
from tests.broker.live import make_controller
from tests.proxy.live import Peer, on_a_broker, resource
from tests.proxy.scripted import ScriptedBackend

pytestmark = pytest.mark.usefixtures("each_server")


def test_a_port_that_is_taken_is_named():
    async def main() -> None:
        first, second = GrpcServer(ScriptedBackend()), GrpcServer(ScriptedBackend())
        await first.start("127.0.0.1", 0)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            await second.start("127.0.0.1", first.port)
        await second.stop()
        await first.stop()
        await first.stop()

    asyncio.run(main())


def test_without_ngh2_it_is_grpcio(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    assert usable_kind(GrpcServerKind.nghttp2) is GrpcServerKind.nghttp2
    assert usable_kind(GrpcServerKind.grpcio) is GrpcServerKind.grpcio and not caplog.records
    monkeypatch.setitem(sys.modules, "mqlake.proxy.http2", None)
    assert usable_kind(GrpcServerKind.nghttp2) is GrpcServerKind.grpcio
    (record,) = caplog.records
    assert "grpcio" in record.getMessage()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match="grpcio"):
        usable_kind(GrpcServerKind.grpcio)


def test_the_kind_of_a_server(each_server: GrpcServerKind):
    async def main() -> None:
        server = GrpcServer(ScriptedBackend())
        assert server.kind is each_server
        await server.start("127.0.0.1", 0)
        assert isinstance(server.server, NgHttp2Server) == (each_server is GrpcServerKind.nghttp2)
        await server.stop()
        assert server.server is None

    asyncio.run(main())


def tls_files(directory: Path) -> tuple[TlsConfig, bytes]:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(directory / "cert.pem"), append=number > 0)
    config = TlsConfig(
        mode=TlsMode.ENFORCING, cert_path=str(directory / "cert.pem"), key_path=str(directory / "key.pem")
    )
    return config, authority.cert_pem.bytes()


def test_tls(tmp_path: Path):
    async def main() -> None:
        config, trusted = tls_files(tmp_path)
        server = GrpcServer(ScriptedBackend(), tls=config)
        await server.start("127.0.0.1", 0)
        peer = Peer(server, make_controller(tmp_path))
        request = v2.QueryRouteRequest(topic=resource("T"))
        with pytest.raises(grpc.aio.AioRpcError):
            await peer.call("QueryRoute", request, timeout_s=5)
        await peer.channel.close()
        credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
        peer.channel = grpc.aio.secure_channel(f"localhost:{server.port}", credentials)
        assert (await peer.call("QueryRoute", request)).status.code == Code.OK
        await peer.close()
        await server.stop(0.1)

    asyncio.run(main())


def test_a_new_certificate_needs_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tls, "LOOK_S", 0.0)

    async def main() -> None:
        config, _ = tls_files(tmp_path)
        server = GrpcServer(ScriptedBackend(), tls=config)
        await server.start("127.0.0.1", 0)
        request = v2.QueryRouteRequest(topic=resource("T"))
        for name in ("key.pem", "cert.pem"):
            (tmp_path / name).unlink()
        _, trusted = tls_files(tmp_path)  # of another authority
        peer = Peer(server, make_controller(tmp_path))
        await peer.channel.close()
        credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
        peer.channel = grpc.aio.secure_channel(f"localhost:{server.port}", credentials)
        assert (await peer.call("QueryRoute", request)).status.code == Code.OK
        await peer.close()
        await server.stop(0.1)

    asyncio.run(main())


def test_files_that_cannot_be_used(tmp_path: Path):
    assert server_credentials(TlsConfig()) is None
    missing = str(tmp_path / "nothing.pem")
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        server_credentials(TlsConfig(cert_path=missing, key_path=missing))
    with pytest.raises(ConfigError, match="keyPassword"):
        server_credentials(TlsConfig(cert_path=missing, key_path=missing, key_password="x"))


def test_half_open_streams_do_not_keep_it_from_stopping(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        streams = [peer.telemetry() for _ in range(3)]
        for stream in streams:
            await stream.wait_for_connection()
        async with asyncio.timeout(30):
            await peer.server.stop(0.1)

    on_a_broker(tmp_path, scene)
