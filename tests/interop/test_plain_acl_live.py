"""plain_acl.yml (ACL 1.0) at the last broker of RocketMQ that reads it, 5.3.2, and at ours: a table of requests,
accounts and source addresses, and the changes that operators make by request."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mqlake.auth.signature import sign
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.command import RemotingCommand
from tests.interop.brokers import JavaBroker, MqlakeBroker
from tests.interop.java_peer import ACL1_VERSION
from tests.interop.test_access_live import PROBES, PULL, SEND
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.java
ACCOUNTS = """\
globalWhiteRemoteAddresses: [127.0.0.3]
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- accessKey: alice-1
  secretKey: alice-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [T=PUB|SUB, P=PUB, S=SUB, denied=DENY, odd=PUB|ANY]
  groupPerms: [G=SUB, H=DENY, pubbed=PUB]
- accessKey: carol-1
  secretKey: carol-secret
  whiteRemoteAddress: ''
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [denied=DENY, S=SUB]
- {accessKey: nobody-1, secretKey: nobody-secret}
- {accessKey: white-1, secretKey: white-secret, whiteRemoteAddress: '127.0.0.{2,4}'}
"""
HOME, WHITE, GLOBAL = "127.0.0.1", "127.0.0.2", "127.0.0.3"
SECRETS = {
    "operator": "operator-secret",
    "alice-1": "alice-secret",
    "carol-1": "carol-secret",
    "nobody-1": "nobody-secret",
    "white-1": "white-secret",
}
CALLERS = [
    *((name, secret, HOME) for name, secret in SECRETS.items() if name != "white-1"),
    ("alice-1", "wrong", HOME),
    ("stranger", "stranger-secret", HOME),
    ("", "", HOME),
    ("white-1", "wrong", WHITE),
    ("alice-1", "wrong", WHITE),
    ("", "", GLOBAL),
]
ADMIN_HERE = {21, 26, 28, 43, 45, 201, 204, 222, 305, 306, 315, 317, 3001, 3004, 3005, 3010}
ANY_ACCOUNT_THERE = ADMIN_HERE | {14, 29, 30, 31, 32, 41, 46, 202, 203, 208, 300, 351, 352, 361}
TABLE = [
    *PROBES,
    *((310, {**SEND, "b": topic}, None) for topic in ("P", "S", "odd", "RMQ_SYS_TRACE_TOPIC")),
    *((11, {**PULL, "topic": topic, "consumerGroup": group}, None) for topic, group in (
        ("P", "G"), ("S", "G"), ("T", "pubbed"), ("denied", "G"))),
    (25, {}, None),
]  # fmt: skip
Key = tuple[str, str, str, int, str]


class _JavaBroker(JavaBroker):
    """Without a name server, which nobody asks here."""

    def start(self) -> None:
        self._broker = self._java("org.apache.rocketmq.broker.BrokerStartup", "broker.conf", self._jvm)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    directory = tmp_path_factory.mktemp("acl1-java")
    conf = directory / "BrokerStartup" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    with _JavaBroker(directory, {"aclEnable": "true"}, version=ACL1_VERSION) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    directory = tmp_path_factory.mktemp("acl1-mqlake")
    (directory / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {"aclEnable": "true", "aclDirectory": str(directory), "accessFailuresMax": "1000000"}
    with MqlakeBroker(directory, settings) as broker:
        yield broker


class Caller:
    """A connection from one address."""

    def __init__(self, address: str, source: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S, (source, 0))
        self._received = b""

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(
        self, name: str, secret: str, code: int, ext: dict[str, str], body: object = None
    ) -> RemotingCommand:
        data = None if body is None else json.dumps(body).encode()
        command = RemotingCommand.create_request(code, None, data or (b"body" if code == 310 else None))
        command.ext_fields |= ext
        if name:
            sign(command, name, secret)
        self._socket.sendall(encode_frame(command))
        while (answer := self._read()).opaque != command.opaque or not answer.is_response:
            pass  # a broker also asks its clients
        return answer

    def _read(self) -> RemotingCommand:
        while not (end := frame_end(memoryview(self._received), 0, len(self._received))):
            data = self._socket.recv(65536)
            assert data, "the connection was closed"
            self._received += data
        frame, self._received = self._received[:end], self._received[end:]
        return decode_frame(memoryview(frame), 0, end)


def verdict(answer: RemotingCommand) -> str:
    """What access control said, without the line of Java's source; or that it let the request pass."""
    remark = answer.remark or ""
    if "AclException: " not in remark:
        return "passed"
    text = remark.partition("AclException: ")[2]
    return text.partition(", org.apache.")[0].strip()


def verdicts(address: str) -> dict[Key, str]:
    found = {}
    for name, secret, source in CALLERS:
        with Caller(address, source) as caller:
            for code, ext, body in TABLE:
                what = ext.get("b") or ext.get("topic") or ext.get("consumerGroup") or ext.get("group") or ""
                kind = "forged" if secret == "wrong" else ""
                key = (name, kind, source, code, f"{what}/{ext.get('consumerGroup', '')}")
                found[key] = verdict(caller.ask(name, secret, code, ext, body))
    return found


def kind(text: str) -> str:
    """A verdict without the resource, which depends on the order in which a broker looks at several."""
    return re.sub(r"(topic|group):\S*", "", text)


@pytest.mark.nightly
def test_both_brokers_decide_alike_but_for_what_any_account_may_there(
    theirs: JavaBroker, ours: MqlakeBroker
) -> None:
    """RocketMQ looks at a short list of codes; any other needs a good signature there, and its permission here."""
    there, here = verdicts(theirs.address), verdicts(ours.address)
    assert there.keys() == here.keys()
    differing = {key for key in here if kind(here[key]) != kind(there[key])}
    assert {key: (there[key], here[key]) for key in differing if there[key] != "passed"} == {}
    assert {key[3] for key in differing} == ANY_ACCOUNT_THERE
    # white addresses, the admin account and wrong signatures: no difference at all
    assert {key[0] for key in differing} == {"alice-1", "carol-1", "nobody-1"}
    refused = {here[key].partition(":")[0] for key in here}
    need_admin = {17, 25, 200, 207, 215} | ADMIN_HERE
    texts = (f"Need admin permission for request code={code}, but accessKey=" for code in need_admin)
    assert refused == {
        "passed",
        "No accessKey is configured",
        "No acl config for stranger",
        "Check signature failed for accessKey=alice-1",
        *(
            f"No {default}permission for {kind}"
            for default in ("", "default ")
            for kind in ("topic", "group")
        ),
        *(f"{text}{name} is not" for text in texts for name in ("alice-1", "carol-1", "nobody-1")),
    }


NEW = {"accessKey": "new-user-1", "secretKey": "new-secret"}
CHANGES: list[tuple[int, dict[str, str]]] = [
    (50, {**NEW, "admin": "false", "defaultTopicPerm": "DENY", "topicPerms": "T=PUB,U=PUB|SUB", "groupPerms": "G=SUB"}),
    (50, {**NEW, "admin": "false", "topicPerms": "V=SUB"}),
    (50, {**NEW, "accessKey": "white-2", "whiteRemoteAddress": "10.0.0.*", "admin": "true"}),
    (50, {"accessKey": "new-user-1", "topicPerms": "V=SUB"}),
    (50, {"accessKey": "short", "secretKey": "longer-secret"}),
    (50, {"secretKey": "longer-secret"}),
    (50, {**NEW, "topicPerms": "T=FLY"}),
    (50, {**NEW, "topicPerms": "T"}),
    (50, {**NEW, "whiteRemoteAddress": "1.2.3.{"}),
    (51, {"accessKey": "carol-1"}),
    (51, {"accessKey": "nobody-there"}),
    (51, {}),
    (53, {"globalWhiteAddrs": "127.0.0.5,10.1.1.*"}),
    (53, {"globalWhiteAddrs": "127.0.0.3", "aclFileFullPath": "/nowhere/x.yml"}),
    (53, {}),
]  # fmt: skip


def changed(broker: JavaBroker | MqlakeBroker, path: Path) -> tuple[list[int], dict[str, object]]:
    """The codes of the changes, and what is then in the file."""
    with Caller(broker.address, HOME) as caller:
        codes = [caller.ask("operator", "operator-secret", *change).code for change in CHANGES]
        assert caller.ask("alice-1", "alice-secret", *CHANGES[0]).code == 1, "no admin account"
    document = yaml.safe_load(path.read_text())
    for account in document["accounts"]:
        for name in [name for name, value in account.items() if value in (None, "", False, [])]:
            del account[name]  # what Java writes out and is not needed
    del document["dataVersion"][0]["timestamp"]
    return codes, document


@pytest.mark.nightly
def test_both_change_their_files_alike(theirs: JavaBroker, ours: MqlakeBroker) -> None:
    """Last: both brokers have other accounts afterwards."""
    there = changed(theirs, theirs.directory / "BrokerStartup" / "conf" / "plain_acl.yml")
    here = changed(ours, Path(ours.config["aclDirectory"]) / "plain_acl.yml")
    assert here == there
    with Caller(ours.address, HOME) as caller:
        assert caller.ask("operator", "operator-secret", 53, {"globalWhiteAddrs": "1.2.3.{"}).code == 211
        assert (
            verdict(caller.ask("carol-1", "carol-secret", 310, {**SEND, "b": "T"}))
            == "No acl config for carol-1"
        )
        assert caller.ask("new-user-1", "new-secret", 310, {**SEND, "b": "U"}).code == 1
        versions = caller.ask("operator", "operator-secret", 52, {})
        assert json.loads(versions.ext_fields["version"])["counter"] == here[1]["dataVersion"][0]["counter"]  # type: ignore[index]
        listed = caller.ask("operator", "operator-secret", 54, {}).body_bytes()
        assert b"new-secret" not in listed and b'"globalWhiteAddrs":["127.0.0.5","10.1.1.*"]' in listed
