from __future__ import annotations

import asyncio

import pytest

from mqlake.errors import RemotingConnectError
from mqlake.metaq.client import remoting
from mqlake.metaq.client.remoting import RemotingClient
from mqlake.metaq.formats.command import BooleanCommand, Request, VersionCommand
from mqlake.metaq.wire.connection import Connection
from mqlake.metaq.wire.server import MetaServer
from tests.metaq.brokers import HOST


def test_opaques_are_signed_32_bit_numbers_that_come_again_late() -> None:
    async def test() -> None:
        client = RemotingClient()
        client._opaques = iter([2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32])  # type: ignore[assignment]
        assert [client.next_opaque() for _ in range(5)] == [2**31 - 2, 2**31 - 1, -(2**31), -1, 0]

    asyncio.run(test())


def test_a_connection_is_shared_made_again_and_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting, "BEAT_S", 0.02)
    monkeypatch.setattr(remoting, "IDLE_S", 0.0)
    monkeypatch.setattr(remoting, "HEARTBEAT_S", 0.05)

    async def test() -> None:
        asked: list[Request] = []
        mute = False

        def handle(connection: Connection, request: Request) -> None:
            asked.append(request)
            if not mute:
                connection.respond(200, "", request.opaque)

        server = MetaServer(handle)
        await server.start(HOST, 0)
        client = RemotingClient()
        client.start()
        address = f"meta://{HOST}:{server.port}"
        answers = await asyncio.gather(
            *(client.invoke(address, VersionCommand(client.next_opaque()), 5) for _ in range(10))
        )
        assert all(isinstance(answer, BooleanCommand) for answer in answers) and len(server.connections) == 1
        while len(asked) < 11:  # it asks by itself when there is nothing else to do
            await asyncio.sleep(0.01)
        next(iter(server.connections)).abort()
        with pytest.raises(RemotingConnectError, match=r"lost|closed"):
            await client.invoke(address, VersionCommand(client.next_opaque()), 5)
        await client.invoke(address, VersionCommand(client.next_opaque()), 5)
        mute = True
        while server.connections:  # three heartbeats without an answer
            await asyncio.sleep(0.01)
        mute = False
        await client.invoke(address, VersionCommand(client.next_opaque()), 5)
        await server.stop()
        with pytest.raises(RemotingConnectError):
            await client.invoke(address, VersionCommand(1), 5)
        with pytest.raises(RemotingConnectError, match="not an address"):
            await client.invoke("meta://nowhere", VersionCommand(1), 5)
        await client.close()

    asyncio.run(test())
