"""access: signed requests in, refusals with RocketMQ's codes and words out; decisions follow each change at once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqlake.auth import state as changes
from mqlake.auth.access import AccessControl, AccessDeniedError
from mqlake.auth.config import AuthConfig
from mqlake.auth.evaluator import need
from mqlake.auth.model import Action, Decision, Policy, PolicyType, Resource, UserStatus, UserType
from mqlake.auth.requests import RULES, Context
from mqlake.auth.signature import sign
from mqlake.auth.storage import Storage
from mqlake.errors import ConfigError, ResponseError
from mqlake.remoting.command import RemotingCommand
from tests.auth.people import almost, entry, in_a_loop, state

ON = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
T = need(Resource.topic("T"), Action.PUB)


def made(directory: Path, *entries: Any, **settings: str) -> AccessControl:
    storage = Storage(str(directory))
    storage.write(state(*entries))
    access = AccessControl(AuthConfig().replaced(ON | settings), storage, Context("C"))
    access.load()
    return access


def request(code: int, user: str = "alice", secret: str = "alice-secret", **fields: str) -> RemotingCommand:
    command = RemotingCommand(code, ext_fields=dict(fields))
    sign(command, user, secret)
    return command


class _Connection:
    remote_address = "10.0.0.1:4711"


def answer(access: AccessControl, command: RemotingCommand) -> str:
    """ "ok", or the remark of the refusal."""
    try:
        access.guard(_Connection(), command)  # type: ignore[arg-type]
    except AccessDeniedError as denied:
        assert denied.code == 16
        return str(denied.remark)
    return "ok"


@in_a_loop
async def test_the_last_super_user_of_people_stays(tmp_path: Path) -> None:
    """The broker's own user is a super user, too, but nobody knows its secret."""
    access = made(tmp_path, innerClientAuthenticationCredentials='{"accessKey":"inner","secretKey":"s"}')
    assert {user.name for user in access.state.supers()} == {"admin", "inner"}
    for change in (
        lambda s: changes.delete_user(s, "admin"),
        lambda s: changes.update_user(s, "admin", type_=UserType.NORMAL),
        lambda s: changes.update_user(s, "admin", status=UserStatus.DISABLE),
    ):
        with pytest.raises(ResponseError, match="apart from the broker's own"):
            await access.change(change)
    await access.change(lambda s: changes.create_user(s, "second", "pw", UserType.SUPER))
    await access.change(lambda s: changes.delete_user(s, "admin"))
    assert {user.name for user in access.state.supers()} == {"second", "inner"}


def test_the_texts_are_rocketmq_s(tmp_path: Path) -> None:
    access = made(tmp_path, entry("Topic:T", Action.PUB))
    assert answer(access, request(310, b="T")) == "ok"
    assert answer(access, RemotingCommand(310, ext_fields={"b": "T"})) == "username cannot be null."
    assert answer(access, request(310, "bob", b="T")) == "User:bob is not found."
    assert answer(access, request(310, secret="wrong", b="T")) == "check signature failed."
    refused = "User:alice has no permission to access Topic:U from 10.0.0.1, no matched policies."
    assert answer(access, request(310, b="U")) == refused
    changed = request(310, b="T")
    changed.ext_fields["b"] = "U"
    assert answer(access, changed) == "check signature failed."


def test_a_request_of_another_code_with_the_same_signature_needs_that_code_s_rights(tmp_path: Path) -> None:
    """The code is not signed (RocketMQ's protocol), so what counts is the right, not the intention."""
    access = made(tmp_path, entry("Topic:T", Action.PUB))
    replayed = request(310, b="T", topic="T")
    replayed.code = 215
    assert "Topic:T" in answer(access, replayed)


@pytest.mark.parametrize("code", sorted(RULES))
def test_nothing_is_open_to_a_user_without_rights(tmp_path: Path, code: int) -> None:
    """Every code with a request that names a topic and a group in all usual ways."""
    access = made(tmp_path)
    fields = {
        **dict.fromkeys(("topic", "b"), "T"),
        **dict.fromkeys(
            ("consumerGroup", "group", "groupName", "compareGroup", "destGroup", "srcGroup"), "G"
        ),
    }
    command = RemotingCommand(code, ext_fields=fields)
    command.body = (
        b'{"topic":"T","consumerGroup":"G","group":"G","groupName":"G","acks":[{"t":"T","c":"G"}],'
        b'"topicConfigList":[{"topicName":"T"}],"groupConfigList":[{"groupName":"G"}],"mqSet":[{"topic":"T"}],'
        b'"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T"}]}]}'
    )
    access.context = Context("C", lambda offset: "T")
    sign(command, "alice", "alice-secret")
    assert "no permission" in answer(access, command)
    sign(command, "admin", "admin-secret")
    assert answer(access, command) == "ok"


def test_an_unknown_code_is_for_super_users(tmp_path: Path) -> None:
    access = made(tmp_path, entry("*", Action.ALL))
    assert "only super users" in answer(access, request(99999))
    assert answer(access, request(99999, "admin", "admin-secret")) == "ok"


@in_a_loop
async def test_changes_count_at_once_and_are_on_disk(tmp_path: Path) -> None:
    access = made(tmp_path)
    seen = []
    access.on_change.append(lambda: seen.append(access.version))
    assert answer(access, request(310, b="T")) != "ok"
    allow = [Policy(PolicyType.CUSTOM, (entry("Topic:T", Action.PUB),))]
    await access.change(lambda s: changes.update_acl(s, "User:alice", allow))
    assert answer(access, request(310, b="T")) == "ok"
    deny = [Policy(PolicyType.CUSTOM, (entry("Topic:T", Action.PUB, decision=Decision.DENY),))]
    await access.change(lambda s: changes.update_acl(s, "User:alice", deny))
    assert answer(access, request(310, b="T")).endswith("the decision is deny.")
    await access.change(lambda s: changes.update_user(s, "alice", status=UserStatus.DISABLE))
    assert answer(access, request(310, b="T")) == "User:alice is disabled."
    assert Storage(str(tmp_path)).load() == access.state
    assert len(seen) == 3 and seen == sorted(set(seen))


@in_a_loop
async def test_a_change_that_the_disk_refuses_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = made(tmp_path)
    before = access.state

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(access.storage, "write", full)
    with pytest.raises(OSError):
        await access.change(lambda s: changes.create_user(s, "bob", "x"))
    assert access.state is before


def test_the_first_users_are_made_once_and_never_changed(tmp_path: Path) -> None:
    settings = {"initAuthenticationUser": '{"username":"root","password":"first"}'}
    first = made(tmp_path, **settings)
    assert first.state.users["root"].is_super
    other = AuthConfig().replaced(ON | {"initAuthenticationUser": '{"username":"root","password":"second"}'})
    again = AccessControl(other, Storage(str(tmp_path)), Context("C"))
    again.load()
    assert again.state.users["root"].password == "first"


def test_damage_stops_the_start(tmp_path: Path) -> None:
    access = made(tmp_path)
    with open(access.storage.path, "a", encoding="utf-8") as file:
        file.write("{\n")
    with pytest.raises(ConfigError, match=r"accessControl\.jsonl:4:"):
        access.load()


def test_white_lists_and_their_limits(tmp_path: Path) -> None:
    access = made(tmp_path, authenticationWhitelist="105,206", authorizationWhitelist="206")
    unsigned = RemotingCommand(206)
    assert answer(access, unsigned) == "ok"
    assert answer(access, request(206)) == "ok"
    # white-listed for authentication alone: a name without a good signature has nobody's rights
    claimed = RemotingCommand(105, ext_fields={"topic": "T", "AccessKey": "admin"})
    assert answer(access, claimed).startswith("Authorization failed.")
    assert answer(access, request(105, "admin", "admin-secret", topic="T")) == "ok"


def test_authentication_alone_lets_every_user_do_everything(tmp_path: Path) -> None:
    access = made(tmp_path, authorizationEnabled="false")
    assert answer(access, request(25)) == "ok"
    assert answer(access, request(25, secret="wrong")) == "check signature failed."


@pytest.mark.parametrize(("code", "name"), [(10, "bornTimestamp"), (310, "g"), (320, "g"), (325, "g")])
def test_old_sends_are_refused_where_that_is_wanted(tmp_path: Path, code: int, name: str) -> None:
    access = made(tmp_path, signedSendMaxAgeSeconds="30", authorizationEnabled="false")
    access.clock_ms = lambda: 1_000_000
    times = {970_000: True, 969_999: False, 1_030_000: True, 1_030_001: False, "": False, "soon": False}
    for time, is_taken in times.items():
        said = answer(access, request(code, **{name: str(time)}))
        assert said == "ok" if is_taken else "the broker accepts 30 s" in said
    assert "says no time" in answer(access, request(code))
    assert answer(access, request(11)) == "ok", "other requests say no time"


def test_grpc_and_http(tmp_path: Path) -> None:
    access = made(tmp_path, entry("Topic:T", Action.PUB))
    access.clock_ms = lambda: 1767225600_000
    date = "20260101T000000Z"
    digest = hmac.new(b"alice-secret", date.encode(), hashlib.sha1).hexdigest()
    header = f"MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature={digest}"
    user = access.authenticate_grpc(header, date, "10.0.0.1")
    assert user is not None and user.name == "alice"
    access.authorize(user, [T], "10.0.0.1", "SendMessageRequest")
    for authorization, given, text in (
        (header, None, "datetime is null"),
        (None, date, "authentication header is null"),
        ("Bearer x", date, "authentication header is incorrect"),
        (header, "20260101T000001Z", "check signature failed"),
        (header[: -len(digest)] + digest[:2], date, "check signature failed"),
        (header[:-2], date, "check signature failed"),
        (header + "00", date, "check signature failed"),
    ):
        with pytest.raises(AccessDeniedError, match=text):
            access.authenticate_grpc(authorization, given, "10.0.0.1")
    day = 86_400_000
    assert access.authenticate_grpc(header, date, "10.0.0.1", "X", access.clock_ms() + day) == user
    for away, text in ((day + 1, "is 86400 s old"), (-day - 1, "is -86400 s old")):
        with pytest.raises(AccessDeniedError, match=text):
            access.authenticate_grpc(header, date, "10.0.0.1", "X", access.clock_ms() + away)
    basic = "Basic " + base64.b64encode(b"alice:alice-secret").decode()
    alice = access.authenticate_basic(basic, "10.0.0.1", "metrics")
    with pytest.raises(AccessDeniedError, match="Cluster:C"):
        access.may_administer(alice, Action.GET, "10.0.0.1", "metrics")
    for wrong in (
        None,
        "Basic !",
        "Basic " + base64.b64encode(b"alice:x").decode(),
        "Bearer x",
        *(
            "Basic " + base64.b64encode(f"alice:{password}".encode()).decode()
            for password in almost("alice-secret")
        ),
    ):
        with pytest.raises(AccessDeniedError):
            access.authenticate_basic(wrong, "10.0.0.1", "metrics")


@in_a_loop
async def test_an_address_with_too_many_refusals_loses_its_connection(tmp_path: Path) -> None:
    access = made(tmp_path, accessFailuresMax="3")
    closed = []
    connection: Any = SimpleNamespace(remote_address="10.0.0.1:1", close=lambda: closed.append(1))
    for _ in range(5):
        with pytest.raises(AccessDeniedError):
            access.guard(connection, request(310, secret="wrong", b="T"))
    await asyncio.sleep(0)
    assert len(closed) == 2


def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not a good one, not a wrong one, and not one that somebody gave as the name."""
    with caplog.at_level(logging.DEBUG):
        access = made(tmp_path, initAuthenticationUser='{"username":"root","password":"root-secret"}')
        answer(access, request(310, b="T"))
        answer(access, request(310, secret="wrong-secret", b="T"))
        answer(access, request(310, user="swapped-secret", secret="alice", b="T"))
    text = caplog.text
    assert "access refused" in text and "secret" not in text.replace(str(tmp_path), "")
