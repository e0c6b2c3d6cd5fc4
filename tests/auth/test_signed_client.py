"""signed_client: each request is signed, and only where there is something to sign with."""

from __future__ import annotations

from mqlake.auth.config import Credentials
from mqlake.auth.signature import is_signed_with
from mqlake.auth.signed_client import SignedRemotingClient, remoting_client
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.server import RemotingServer
from tests.auth.people import in_a_loop


@in_a_loop
async def test_requests_arrive_signed() -> None:
    seen: list[RemotingCommand] = []

    def keep(_: Connection, command: RemotingCommand) -> RemotingCommand:
        command.body = command.body_bytes()
        seen.append(command)
        return RemotingCommand.create_response()

    server = RemotingServer()
    server.processors.register_default(keep)
    await server.start("127.0.0.1", 0)
    address = f"127.0.0.1:{server.port}"
    async with SignedRemotingClient(Credentials("alice", "secret", "token")) as client:
        await client.invoke(address, RemotingCommand.create_request(1, body=b"one"))
        await client.invoke_oneway(address, RemotingCommand.create_request(2, body=b"two"))
        await client.invoke(address, RemotingCommand.create_request(3))
    async with remoting_client(None) as plain:
        assert type(plain) is RemotingClient
        await plain.invoke(address, RemotingCommand.create_request(4))
    await server.stop()
    assert [command.code for command in seen] == [1, 2, 3, 4]
    assert [is_signed_with(command, "secret") for command in seen] == [True, True, True, False]
    assert seen[0].ext_fields["SecurityToken"] == "token"
