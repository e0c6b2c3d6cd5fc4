from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest
import trustme

from mqlake.errors import CertificateError, ConfigError, RemotingConnectError
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.tls import TlsConfig, TlsMode, caller_context, client_context, server_context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    client = authority.issue_cert("client@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(str(directory / "client.pem"))
    return directory


def config(files: Path, mode: TlsMode, **more: str) -> TlsConfig:
    path = str(files / "server.pem")
    return TlsConfig(mode=mode, cert_path=path, key_path=path, **more)


async def ask(server: RemotingServer, client: RemotingClient, size: int = 5) -> int:
    answer = await client.call(
        f"127.0.0.1:{server.port}", RemotingCommand.create_request(1, body=bytes(size)), 60
    )
    return len(answer.body_bytes())


async def serve(tls: TlsConfig) -> RemotingServer:
    server = RemotingServer(tls=tls)
    server.processors.register(
        1, lambda connection, command: RemotingCommand.create_response(body=command.body_bytes())
    )
    await server.start("127.0.0.1", 0)
    return server


@pytest.mark.parametrize(
    ("named", "trusted", "words"),
    [
        ("example.org", "ca.pem", r"subjectAltName=IP:127\.0\.0\.1"),
        ("127.0.0.1", "other.pem", "trust the certificate itself or the authority"),
    ],
)
def test_a_certificate_that_is_not_accepted_says_what_to_do(run, tmp_path, named, trusted, words):
    authority, path = trustme.CA(), str(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    authority.issue_cert(named).private_key_and_cert_chain_pem.write_to_path(path)

    async def main():
        server = await serve(TlsConfig(mode=TlsMode.ENFORCING, cert_path=path, key_path=path))
        context = client_context(trust_cert_path=str(tmp_path / trusted))
        async with RemotingClient(tls=context) as client:
            with pytest.raises(CertificateError, match=words):
                await ask(server, client)
        await server.stop()

    run(main())


PLAIN_OK = {TlsMode.DISABLED: True, TlsMode.PERMISSIVE: True, TlsMode.ENFORCING: False}


@pytest.mark.parametrize("mode", TlsMode)
def test_modes(run, files, mode, caplog):
    async def main():
        server = await serve(config(files, mode))
        try:
            async with RemotingClient() as plain:
                if PLAIN_OK[mode]:
                    assert await ask(server, plain) == 5
                else:
                    with pytest.raises(RemotingConnectError):
                        await ask(server, plain)
            context = client_context(trust_cert_path=str(files / "ca.pem"))
            async with RemotingClient(tls=context) as secure:
                if mode is TlsMode.DISABLED:
                    with pytest.raises(RemotingConnectError):
                        await ask(server, secure)
                else:
                    assert await ask(server, secure) == 5
                    assert await ask(server, secure, 3_000_000) == 3_000_000
                    sizes = await asyncio.gather(*(ask(server, secure, i * 997) for i in range(200)))
                    assert sizes == [i * 997 for i in range(200)]
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL):
        run(main())


@pytest.mark.parametrize("secure", [False, True])
def test_turns_may_end_behind_any_frame(run, files, monkeypatch, secure):
    monkeypatch.setattr("mqlake.remoting.connection.TURN_S", -1.0)
    sizes = [i * 997 for i in range(200)]

    async def main():
        server = await serve(config(files, TlsMode.PERMISSIVE))
        context = client_context(trust_cert_path=str(files / "ca.pem")) if secure else None
        async with RemotingClient(tls=context) as client:
            assert await ask(server, client, 3_000_000) == 3_000_000
            assert await asyncio.gather(*(ask(server, client, size) for size in sizes)) == sizes
        await server.stop()

    run(main())


def test_a_client_that_trusts_somebody_else(run, files, caplog):
    async def main():
        server = await serve(config(files, TlsMode.PERMISSIVE))
        try:
            async with RemotingClient(tls=client_context()) as client:
                with pytest.raises(RemotingConnectError, match="certificate"):
                    await ask(server, client)
            async with RemotingClient(tls=client_context(verify=False)) as client:
                assert await ask(server, client) == 5
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL):
        run(main())


def test_clients_that_must_show_a_certificate(run, files, caplog):
    async def main():
        ca = str(files / "ca.pem")
        server = await serve(config(files, TlsMode.ENFORCING, client_auth="require", trust_cert_path=ca))
        try:
            known = client_context(
                trust_cert_path=ca, cert_path=str(files / "client.pem"), key_path=str(files / "client.pem")
            )
            async with RemotingClient(tls=known) as client:
                assert await ask(server, client) == 5
            async with RemotingClient(tls=client_context(trust_cert_path=ca)) as client:
                with pytest.raises(RemotingConnectError):
                    await ask(server, client)
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL):
        run(main())


def test_a_handshake_that_is_none_closes_that_connection(run, files, caplog):
    async def main():
        server = await serve(config(files, TlsMode.PERMISSIVE))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16" * 600)
            await reader.read()  # perhaps an alert, then the end
            writer.close()
            async with RemotingClient() as client:
                assert await ask(server, client) == 5
        finally:
            await server.stop()

    with caplog.at_level(logging.CRITICAL):
        run(main())


def test_certificates_are_not_asked_for_in_vain():
    for mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING):
        with pytest.raises(ConfigError, match=r"needs tls\.server\.certPath"):
            server_context(TlsConfig(mode=mode, client_auth="require"))
    assert server_context(TlsConfig(mode=TlsMode.DISABLED, client_auth="require")) is None


def test_configuration(files, tmp_path):
    keys = {
        "tls.server.mode": "ENFORCING",
        "tls.server.certPath": "c",
        "tls.server.keyPath": "k",
        "other": "x",
    }
    read = TlsConfig.from_properties(keys)
    assert (read.mode, read.cert_path, read.key_path) == (TlsMode.ENFORCING, "c", "k")
    with pytest.raises(ConfigError, match="TLS cannot use c, k"):
        server_context(read)
    with pytest.raises(ConfigError, match=r"needs tls\.server\.certPath"):
        server_context(TlsConfig(mode=TlsMode.ENFORCING))
    with pytest.raises(ConfigError, match="disabled, permissive or enforcing"):
        TlsConfig.from_properties({"tls.server.mode": "on"})
    with pytest.raises(ConfigError, match="none, optional or require"):
        TlsConfig.from_properties({"tls.server.need.client.auth": "maybe"})
    assert server_context(TlsConfig()) is None
    complete = config(files, TlsMode.PERMISSIVE)
    assert server_context(complete) is not None
    assert server_context(dataclasses.replace(complete, mode=TlsMode.DISABLED)) is None
    with pytest.raises(ConfigError, match="TLS cannot use"):
        client_context(trust_cert_path=str(tmp_path / "none.pem"))


def test_what_a_server_calls_others_with(run, files):
    assert caller_context(TlsConfig.from_properties({"tls.server.mode": "enforcing"})) is None
    trusting = {"tls.enable": "true"}
    checking = {**trusting, "tls.client.authServer": "true"}
    knowing = {**checking, "tls.client.trustCertPath": str(files / "ca.pem")}

    async def main() -> None:
        server = await serve(config(files, TlsMode.ENFORCING))
        for properties, reached in ((trusting, True), (checking, False), (knowing, True)):
            context = caller_context(TlsConfig.from_properties(properties))
            async with RemotingClient(tls=context) as client:
                if reached:
                    assert await ask(server, client) == 5
                else:
                    with pytest.raises(RemotingConnectError, match="certificate"):
                        await ask(server, client)
        await server.stop()

    run(main())
    with pytest.raises(ConfigError, match="nowhere"):
        caller_context(TlsConfig.from_properties({**trusting, "tls.client.certPath": "/nowhere.pem"}))


def test_certificates_are_changed_without_a_restart(run, tmp_path, caplog):
    """A broken one is reported, and the one of before still serves; a client's authority is changed as well."""
    old, new = trustme.CA(), trustme.CA()
    server_pem, trust = tmp_path / "server.pem", tmp_path / "trust.pem"

    def write(authority: trustme.CA) -> None:
        replaced = tmp_path / "replaced"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(replaced))
        replaced.replace(server_pem)
        authority.cert_pem.write_to_path(str(trust))

    def client(authority: trustme.CA) -> RemotingClient:
        ca, own = tmp_path / "ca.pem", tmp_path / "own.pem"
        authority.cert_pem.write_to_path(str(ca))
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(str(own))
        return RemotingClient(tls=client_context(trust_cert_path=str(ca), cert_path=str(own)))

    async def main():
        write(old)
        path = str(server_pem)
        server = await serve(
            TlsConfig(
                mode=TlsMode.ENFORCING,
                cert_path=path,
                key_path=path,
                trust_cert_path=str(trust),
                client_auth="require",
            )
        )
        server.tls._clock = lambda: 1e12  # it looks at each connection
        server.tls._looked_at = -1.0
        try:
            async with client(old) as before:
                assert await ask(server, before) == 5
                write(new)
                async with client(new) as after:
                    server.tls._looked_at = -1.0
                    assert await ask(server, after) == 5
                assert await ask(server, before) == 5, "a connection that is there goes on"
                server_pem.write_text("broken")
                server.tls._looked_at = -1.0
                async with client(new) as after:
                    assert await ask(server, after) == 5
                assert "still serve" in caplog.text
                async with client(old) as late:
                    with pytest.raises(RemotingConnectError):
                        await ask(server, late)
        finally:
            await server.stop()

    run(main())
