"""plain_access: codes 50 to 54; their answers beside RocketMQ's are in tests/interop/test_plain_acl_live.py."""

from __future__ import annotations

import json
from pathlib import Path

from mqlake.auth.config import Credentials
from mqlake.auth.signed_client import SignedRemotingClient
from mqlake.remoting.command import RemotingCommand
from tests.auth.test_plain_acl import EXAMPLE
from tests.broker.live import Peer, on_a_broker

ADMIN = Credentials("rocketmq2", "12345678")
NEW = {"accessKey": "orders-1", "secretKey": "orders-secret"}


def request(code: int, **fields: str) -> RemotingCommand:
    command = RemotingCommand.create_request(code)
    command.ext_fields |= fields
    return command


def test_a_change_counts_at_once_and_survives(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(EXAMPLE)

    async def scene(peer: Peer) -> None:
        async with (
            SignedRemotingClient(ADMIN) as admin,
            SignedRemotingClient(Credentials(*NEW.values())) as new,
        ):

            async def ask(client: SignedRemotingClient, command: RemotingCommand) -> RemotingCommand:
                return await client.invoke(peer.address, command)

            minimum = {"topic": "orders", "queueId": "0"}
            assert "No acl config" in str((await ask(new, request(31, **minimum))).remark)
            assert (await ask(admin, request(50, **NEW, topicPerms="orders=SUB"))).code == 0
            assert "AclException" not in str((await ask(new, request(31, **minimum))).remark)
            assert "Need admin" in str((await ask(new, request(50, **NEW))).remark)
            listed = json.loads((await ask(admin, request(54))).body_bytes())
            accounts = {each["accessKey"]: each for each in listed["plainAccessConfigs"]}
            assert accounts["orders-1"]["topicPerms"] == ["orders=SUB"]
            assert "orders-secret" not in json.dumps(listed)
            versions = json.loads((await ask(admin, request(52))).ext_fields["allAclFileVersion"])
            assert {each["counter"] for each in versions.values()} == {1}
            assert (await ask(admin, request(51, accessKey="orders-1"))).code == 0
            assert "No acl config" in str((await ask(new, request(31, **minimum))).remark)
            assert (await ask(admin, request(51, accessKey="orders-1"))).code == 210
            assert (await ask(admin, request(53, globalWhiteAddrs="127.0.0.*"))).code == 0
            assert "AclException" not in str((await peer.ask(31)).remark), "unsigned, from a white address"

    on_a_broker(tmp_path, scene, aclEnable="true", aclDirectory=str(tmp_path))


def test_without_plain_acl_there_are_no_accounts(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(50)
        assert answer.code == 3 and "aclEnable is off" in str(answer.remark)

    on_a_broker(tmp_path, scene)
