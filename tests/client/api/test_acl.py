from __future__ import annotations

from mqlake.client.api.acl import sign
from mqlake.remoting.command import RemotingCommand


def test_signatures() -> None:
    """What RocketMQ's AclClientRPCHook (5.3.3) makes of the same command."""
    command = RemotingCommand(10, ext_fields={"b": "v2", "a": "v1"}, body=b"body")
    for _ in range(2):  # a second time, as for a retry
        sign(command, "key", "secret")
        assert command.ext_fields == {
            "a": "v1",
            "b": "v2",
            "AccessKey": "key",
            "Signature": "/fcHhhYM3aWRwxsneFw0WPOV89g=",
        }
