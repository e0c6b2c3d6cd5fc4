"""signed_pulls: under access control pulls still take the fast path, and nothing gets around the check by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqlake.auth import state
from mqlake.auth.model import Action, Decision, Policy, PolicyType
from mqlake.auth.signature import sign
from mqlake.broker.fast.fast_pull import FastPull
from mqlake.broker.fast.signed_pulls import without_signature
from mqlake.remoting.codes import RequestCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from tests.auth.people import almost, entry
from tests.broker.live import Peer, on_a_broker, pull_header
from tests.waiting import until_async

AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
}


def pull(offset: int, kind: SerializeType, topic: str = "T", **fields: str) -> RemotingCommand:
    command = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, pull_header(topic, offset))
    command.ext_fields |= fields
    command.serialize_type = kind
    return command


class Signed:
    """A peer whose pulls are counted where they take the fast path."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        _, fast, _ = peer.controller.server.guarded_fast_paths  # those that check requests, no other
        assert isinstance(fast, FastPull)
        self.taken = 0
        real = fast._answer

        def counting(*arguments: Any) -> bool:
            done = real(*arguments)
            self.taken += done
            return done

        fast._answer = counting  # type: ignore[method-assign]

    async def ask(self, command: RemotingCommand, secret: str | None = "alice-secret") -> tuple[int, int]:
        """(code of the answer, whether the fast path gave it)."""
        if secret is not None:
            sign(command, "alice", secret)
        before = self.taken
        answer = await self.peer.client.invoke(self.peer.address, command)
        return answer.code, self.taken - before


async def prepare(peer: Peer) -> Signed:
    access = peer.controller.broker.access
    assert access is not None
    entries = (entry("Topic:T", Action.PUB, Action.SUB), entry("Group:*", Action.SUB))
    await access.change(lambda s: state.create_user(s, "alice", "alice-secret"))
    await access.change(lambda s: state.update_acl(s, "User:alice", [Policy(PolicyType.CUSTOM, entries)]))
    send = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, body=b"body")
    send.ext_fields |= dict(
        zip(
            "abcdefghijklm",
            ["g", "T", "TBW102", "1", "0", "0", "1", "0", "", "0", "false", "0", "false"],
            strict=True,
        )
    )
    sign(send, "alice", "alice-secret")
    for _ in range(3):
        assert (await peer.client.invoke(peer.address, send)).code == 0
    await until_async(lambda: peer.controller.broker.store.dispatch_behind_bytes == 0)
    return Signed(peer)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_signed_pulls_take_the_fast_path_until_something_changes(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(peer: Peer) -> None:
        signed = await prepare(peer)
        for offset in (0, 1, 2, 1):
            assert await signed.ask(pull(offset, kind)) == (0, 1)
        assert await signed.ask(pull(0, kind), "wrong") == (16, 0)
        assert await signed.ask(pull(0, kind), None) == (16, 0)
        assert await signed.ask(pull(0, kind, "U")) == (16, 0)
        stolen = pull(0, kind)
        sign(stolen, "alice", "alice-secret")
        stolen.ext_fields["queueOffset"] = "1"  # another message under the same signature
        assert await signed.ask(stolen, None) == (16, 0)
        right = stolen.ext_fields["Signature"]
        for wrong in (right[:1], right[:27], right + "A", *almost(right)[-28::9]):
            forged = pull(0, kind)
            forged.ext_fields |= {"AccessKey": "alice", "Signature": wrong}
            assert await signed.ask(forged, None) == (16, 0), wrong
        odd = pull(0, kind, percent="100%d%s%")
        assert await signed.ask(odd) == (0, 1)
        access = peer.controller.broker.access
        assert access is not None
        deny = [Policy(PolicyType.CUSTOM, (entry("Topic:T", Action.SUB, decision=Decision.DENY),))]
        await access.change(lambda s: state.update_acl(s, "User:alice", deny))
        assert await signed.ask(pull(1, kind)) == (16, 0)
        allow = [Policy(PolicyType.CUSTOM, (entry("Topic:T", Action.SUB),))]
        await access.change(lambda s: state.update_acl(s, "User:alice", allow))
        assert await signed.ask(pull(1, kind)) == (0, 1)
        await access.change(lambda s: state.update_user(s, "alice", "new-secret"))
        assert await signed.ask(pull(1, kind)) == (16, 0)
        assert await signed.ask(pull(1, kind), "new-secret") == (0, 1)

    on_a_broker(tmp_path, scene, **AUTH)


def test_a_signature_is_found_only_where_there_is_one() -> None:
    good = b'{"extFields":{"Signature":"AAAAAAAAAAAAAAAAAAAAAAAAAAA=","a":"1"}}'
    assert without_signature(good) == (good.replace(b"A" * 27, b"=" * 27), b"A" * 27 + b"=")
    for other in (b"{}", good + good, good.replace(b"AAA=", b"AA=="), good.replace(b'":"A', b'": "A')):
        assert without_signature(other) == (other, b"")
