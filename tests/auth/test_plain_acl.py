"""plain_acl: RocketMQ's own example file and rules, read again when changed, refused with file and line when broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.auth.evaluator import evaluate, need
from mqlake.auth.model import Action, Resource
from mqlake.auth.plain_acl import PlainAccess, migrated, read_file, read_files
from mqlake.auth.requests import Context
from mqlake.auth.signature import sign
from mqlake.auth.state import State
from mqlake.errors import ConfigError
from mqlake.remoting.command import RemotingCommand
from tests.broker.live import Peer, on_a_broker

EXAMPLE = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
"""conf/plain_acl.yml of RocketMQ 4.9."""


def made(directory: Path, text: str = EXAMPLE) -> PlainAccess:
    directory.mkdir(exist_ok=True)
    (directory / "plain_acl.yml").write_text(text)
    access = PlainAccess(str(directory), Context("C", lambda offset: None), 10**9)
    access.load()
    return access


def said(
    access: PlainAccess,
    code: int,
    key: str = "RocketMQ",
    ip: str = "1.1.1.1",
    secret: str = "12345678",
    **fields: str,
) -> str:
    command = RemotingCommand(code, ext_fields=dict(fields))
    if key:
        sign(command, key, secret)
    return access.refusal(command, ip)[1]


def test_the_rules_of_rocketmq_s_example(tmp_path: Path) -> None:
    access = made(tmp_path)
    assert said(access, 310, b="topicB") == ""
    assert said(access, 310, b="topicA") == "No permission for topic:topicA"
    assert said(access, 310, b="topicC") == "No permission for topic:topicC"
    assert said(access, 310, b="other") == "No default permission for topic:other"
    assert said(access, 310, b="RMQ_SYS_TRACE_TOPIC") == ""
    assert said(access, 11, topic="topicC", consumerGroup="groupC") == ""
    assert said(access, 11, topic="topicC", consumerGroup="other") == ""
    assert said(access, 11, topic="topicC", consumerGroup="groupA") == "No permission for group:groupA"
    assert said(access, 36, group="groupA") == "No permission for group:groupA"
    assert said(access, 310, key="") == "No accessKey is configured"
    assert said(access, 310, key="stranger", b="topicB") == "No acl config for stranger"
    wrong = "Check signature failed for accessKey=RocketMQ"
    assert said(access, 310, secret="wrong", b="topicB") == wrong
    for code in (17, 25, 215, 200, 207, 26, 3001, 99999):
        assert "Need admin permission" in said(access, code, topic="topicB", groupName="groupB"), code
        assert said(access, code, "rocketmq2", topic="topicB", groupName="groupB") == ""
    # from white addresses nothing is asked
    assert said(access, 25, key="", ip="10.10.103.7") == ""
    assert said(access, 25, key="rocketmq2", secret="wrong", ip="192.168.1.9") == ""
    assert "signature" in said(access, 25, key="rocketmq2", secret="wrong", ip="192.168.2.9")


@pytest.mark.parametrize(
    ("before", "after", "line", "why"),
    [
        ("accounts:", "accounts: {", 6, "expected"),
        ("  - accessKey: RocketMQ", "  - accessKey: short", 6, "7 characters"),
        ("secretKey: 12345678", "secretKey: 12345", 6, "7 characters"),
        ("topicB=PUB|SUB", "topicB", 14, "NAME=PUB"),
        ("admin: false", "admin: perhaps", 9, "true or false"),
        ("- 192.168.0.*", "- 192.168.0", 3, "not an address pattern"),
        ("192.168.1.*", "1.1.1.{1", 24, "not an address pattern"),
        ("accessKey: rocketmq2", "accessKey: RocketMQ", 22, "here twice"),
        ("    topicPerms:\n", "    topicPerms: x\n    others:\n", 12, "a list is needed"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(
    tmp_path: Path, before: str, after: str, line: int, why: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    assert before in EXAMPLE
    path.write_text(EXAMPLE.replace(before, after, 1))
    with pytest.raises(ConfigError, match=why) as refused:
        read_file(str(path))
    found = str(refused.value)
    assert found.startswith(f"{path}:") and "12345678" not in found
    assert found.startswith(f"{path}:{line}:"), found


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plain_acl\.yml is missing"):
        read_files(str(tmp_path))


def test_files_below_acl_count_too_and_the_first_wins(tmp_path: Path) -> None:
    (tmp_path / "acl" / "team").mkdir(parents=True)
    (tmp_path / "acl" / "tools.yml").write_text("accounts: nonsense")
    (tmp_path / "acl" / "team" / "a.yaml").write_text(
        "accounts:\n- {accessKey: RocketMQ, secretKey: another-secret}\n"
        "- {accessKey: team-key, secretKey: team-secret}\n"
    )
    access = made(tmp_path)
    assert said(access, 310, b="topicB") == ""
    assert said(access, 310, "team-key", secret="team-secret", b="topicB").startswith("No default permission")


def test_changes_are_read_and_broken_ones_are_not(tmp_path: Path) -> None:
    now = 0.0
    (tmp_path / "plain_acl.yml").write_text(EXAMPLE)
    access = PlainAccess(str(tmp_path), Context("C"), 10**9, lambda: now)
    access.load()

    def after(text: str) -> str:
        nonlocal now
        (tmp_path / "plain_acl.yml").write_text(text)
        os.utime(tmp_path / "plain_acl.yml", ns=(int(now), int(now) + len(text)))
        now += 6
        access._reload_if_changed()
        return said(access, 310, b="topicA")

    assert after(EXAMPLE) == "No permission for topic:topicA"
    assert after(EXAMPLE.replace("topicA=DENY", "topicA=PUB")) == ""
    assert after("accounts: [") == ""
    assert after(EXAMPLE) == "No permission for topic:topicA"


def test_keys_of_seven_characters_are_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- {accessKey: seven-7, secretKey: '1234567'}\n")
    assert list(read_file(str(path)).accounts) == ["seven-7"]


def test_a_change_counts_at_once(tmp_path: Path) -> None:
    access = made(tmp_path)
    added = "  - {accessKey: another, secretKey: another-secret}\n"
    access.change(lambda directory: Path(directory, "plain_acl.yml").write_text(EXAMPLE + added) and None)
    assert said(access, 310, "another", secret="another-secret", b="T") == "No default permission for topic:T"


def test_accounts_become_users_and_acls(tmp_path: Path) -> None:
    made(tmp_path)
    after = migrated(State(), read_files(str(tmp_path)))
    assert after.users["rocketmq2"].is_super and not after.users["RocketMQ"].is_super
    user, acl = after.users["RocketMQ"], after.acls["RocketMQ"]
    for name, action, allowed in (
        ("topicA", Action.PUB, False),
        ("topicB", Action.PUB, True),
        ("topicC", Action.SUB, True),
        ("topicC", Action.PUB, False),
        ("other", Action.PUB, False),
    ):
        assert evaluate(user, acl, need(Resource.topic(name), action), "1.1.1.1").allowed is allowed, name
    assert evaluate(user, acl, need(Resource.group("other"), Action.SUB), "1.1.1.1").allowed
    assert migrated(after, read_files(str(tmp_path))) == after


def test_a_broker_with_plain_acl(tmp_path: Path) -> None:
    directory = tmp_path / "conf"
    directory.mkdir()
    (directory / "plain_acl.yml").write_text(EXAMPLE)

    async def scene(peer: Peer) -> None:
        answer = await peer.ask(310)
        expected = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
        assert (answer.code, answer.remark) == (1, expected)
        signed = RemotingCommand.create_request(26)
        sign(signed, "rocketmq2", "12345678")
        assert (await peer.client.invoke(peer.address, signed)).code == 0
        assert peer.controller.server.guarded_fast_paths == ()

    on_a_broker(tmp_path, scene, aclEnable="true", aclDirectory=str(directory))

    async def migrating(peer: Peer) -> None:
        access = peer.controller.broker.access
        assert access is not None and access.state.users["rocketmq2"].is_super

    on_a_broker(
        tmp_path / "2",
        migrating,
        authenticationEnabled="true",
        migrateAuthFromV1Enabled="true",
        aclDirectory=str(directory),
    )
