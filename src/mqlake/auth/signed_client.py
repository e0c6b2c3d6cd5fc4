"""SignedRemotingClient: a RemotingClient whose requests are all signed.

client = remoting_client(credentials, tls)      credentials None: nothing is signed
"""

from __future__ import annotations

import ssl

from mqlake.auth.config import Credentials
from mqlake.auth.signature import sign
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand


class SignedRemotingClient(RemotingClient):
    def __init__(self, credentials: Credentials, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self._credentials = credentials

    def _sign(self, command: RemotingCommand) -> None:
        mine = self._credentials
        sign(command, mine.access_key, mine.secret_key, mine.security_token)

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        self._sign(command)
        return await super().invoke(address, command, timeout_s)

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        self._sign(command)
        await super().invoke_oneway(address, command)


def remoting_client(credentials: Credentials | None, tls: ssl.SSLContext | None = None) -> RemotingClient:
    """A client that signs if there is something to sign with."""
    return RemotingClient(tls=tls) if credentials is None else SignedRemotingClient(credentials, tls=tls)
