"""SignedRemotingClient: every request carries AccessKey and Signature.

    Signature = base64(HmacSHA1(secret key, the fields' values in the order of their names, then the body))

Facts: reference §3, RocketMQ's AclClientRPCHook.
"""

from __future__ import annotations

import base64
import hmac
import ssl

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def sign(command: RemotingCommand, access_key: str, secret_key: str, security_token: str = "") -> None:
    """Adds the three fields; a command that has a signature gets a new one."""
    fields = command.ext_fields
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = access_key
    if security_token:
        fields[SECURITY_TOKEN] = security_token
    text = "".join(fields[name] for name in sorted(fields)).encode()
    digest = hmac.digest(secret_key.encode(), text + command.body_bytes(), "sha1")
    fields[SIGNATURE] = base64.b64encode(digest).decode()


class SignedRemotingClient(RemotingClient):
    def __init__(
        self,
        access_key: str,
        secret_key: str,
        security_token: str = "",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(tls=tls)
        self._credentials = (access_key, secret_key, security_token)

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        sign(command, *self._credentials)
        return await super().invoke(address, command, timeout_s)

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        sign(command, *self._credentials)
        await super().invoke_oneway(address, command)
