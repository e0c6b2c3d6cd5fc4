"""access: codes 3001 to 3010 at a broker, in RocketMQ's codes, and what a broker with access control answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqlake.auth.config import Credentials
from mqlake.auth.model import Action, PolicyType, Resource, UserStatus, UserType
from mqlake.auth.requests import RULES
from mqlake.auth.signed_client import SignedRemotingClient
from mqlake.client.api.access_api import AccessAPI
from mqlake.errors import ConfigError, ResponseError
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.access import UserRequestHeader
from tests.auth.people import acl, entry
from tests.broker.live import Peer, on_a_broker

ADMIN = Credentials("admin", "admin-secret")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
}


def on(tmp_path: Path, scene: Any) -> None:
    on_a_broker(tmp_path, scene, **SETTINGS)


async def code_of(call: Any) -> tuple[int, str]:
    try:
        await call
    except ResponseError as error:
        return error.code, error.remark
    return 0, ""


def test_users_and_acls(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        at = peer.address
        async with SignedRemotingClient(ADMIN) as client:
            api = AccessAPI(client)
            await api.create_user(at, "alice", "pw", UserType.NORMAL)
            assert [user.name for user in await api.list_users(at)] == ["admin", "alice"]
            assert [user.name for user in await api.list_users(at, "lic")] == ["alice"]
            assert await api.list_users(at, "nobody") == [] and await api.get_user(at, "nobody") is None
            assert (await code_of(api.create_user(at, "alice", "pw", None)))[0] == 16
            assert await code_of(api.create_user(at, " ", "pw", None)) == (29, "The username is blank")
            assert (await code_of(api.delete_user(at, "admin")))[0] == 16
            await api.update_user(at, "alice", "new", status=UserStatus.DISABLE)
            alice = await api.get_user(at, "alice")
            assert alice is not None and (alice.password, alice.is_enabled) == ("new", False)
            policies = acl("alice", entry("Topic:T", Action.PUB), default=(entry("*", Action.GET),)).policies
            await api.update_acl(at, "alice", policies)
            assert await api.list_acls(at) == [
                acl("alice", *policies[0].entries, default=policies[1].entries)
            ]
            assert await api.list_acls(at, "bob") == []
            (only,) = await api.list_acls(at, "", "Topic:T")
            assert only == acl("alice", *policies[0].entries)
            await api.delete_acl(at, "alice", Resource.parse("*"), PolicyType.DEFAULT)
            assert await api.get_acl(at, "alice") == acl("alice", *policies[0].entries)
            assert (await code_of(api.update_acl(at, "bob", policies)))[0] == 16
            await api.delete_acl(at, "alice")
            assert await api.get_acl(at, "alice") is None
            await api.delete_user(at, "alice")
            assert (await code_of(api.delete_user(at, "alice"))) == (0, "")
            with pytest.raises(ResponseError, match="system error"):
                await client.call(
                    at,
                    RemotingCommand.create_request(
                        3002, UserRequestHeader(username="alice"), b'{"password":7}'
                    ),
                )
            for code in (3001, 3006):
                answer = await client.invoke(at, RemotingCommand.create_request(code, None, b"null"))
                assert answer.code == (29 if code == 3001 else 1)

    on(tmp_path, scene)


def test_an_unsigned_request_is_told_how_to_sign(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        with pytest.raises(ResponseError, match="--access-key and --secret-key") as raised:
            await AccessAPI(peer.client).list_users(peer.address)
        assert raised.value.remark == "username cannot be null."
        async with SignedRemotingClient(Credentials("admin", "wrong")) as client:
            with pytest.raises(ResponseError, match=r"check signature failed\. \(code 16\)$"):
                await AccessAPI(client).list_users(peer.address)

    on(tmp_path, scene)


def test_passwords_go_to_super_users_alone(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        async with SignedRemotingClient(ADMIN) as client:
            api = AccessAPI(client)
            await api.create_user(peer.address, "operator", "pw", UserType.NORMAL)
            entries = acl("operator", entry("Cluster:*", Action.GET, Action.UPDATE)).policies
            await api.update_acl(peer.address, "operator", entries)
            assert {user.password for user in await api.list_users(peer.address)} == {"admin-secret", "pw"}
        async with SignedRemotingClient(Credentials("operator", "pw")) as client:
            api = AccessAPI(client)
            assert {user.password for user in await api.list_users(peer.address)} == {""}
            refused = await code_of(api.create_user(peer.address, "eve", "pw", UserType.SUPER))
            assert refused == (1, "The super user can only be create by super user")
            refused = await code_of(api.update_user(peer.address, "admin", "stolen"))
            assert refused == (16, "The super user can only be update by super user")
            config = await client.invoke(
                peer.address, RemotingCommand.create_request(RequestCode.GET_BROKER_CONFIG)
            )
            assert b"secret" not in config.body_bytes() and config.code == 0

    on(tmp_path, scene)


def test_every_code_that_is_answered_has_a_rule_and_refuses_strangers(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        answered = set(peer.controller.server.processors._processors)
        assert answered - RULES.keys() == set()
        for code in sorted(answered):
            answer = await peer.ask(code)
            assert (answer.code, answer.remark) == (16, "username cannot be null."), code

    on_a_broker(tmp_path, scene, **SETTINGS, accessFailuresMax="100000")


def test_without_access_control_there_are_no_users(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.AUTH_LIST_USER)
        assert answer.code == 3 and "authenticationEnabled" in answer.remark

    on_a_broker(tmp_path, scene)


def test_a_broker_that_cannot_read_its_users_does_not_start(tmp_path: Path) -> None:
    async def nothing(peer: Peer) -> None:
        pass

    on(tmp_path, nothing)
    (path,) = tmp_path.rglob("accessControl.jsonl")
    path.write_text(path.read_text() + json.dumps({"user": 1}) + "\n")
    with pytest.raises(ConfigError, match=r"accessControl\.jsonl:3:"):
        on(tmp_path, nothing)
