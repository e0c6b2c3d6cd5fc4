"""signers: under access control signed sends still take the fast path; the slow one refuses all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.auth import state
from mqlake.auth.model import Action, Decision, Policy, PolicyType, UserStatus
from mqlake.auth.signature import sign
from mqlake.broker.controller import BrokerController
from mqlake.broker.fast import signers
from mqlake.broker.fast.fast_send import FastSend
from mqlake.message import MessageSysFlag
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand
from tests.auth.people import almost, entry
from tests.broker.fast.test_fast_send import Wire, batch, end, half, item, send, taken
from tests.broker.live import Peer, on_a_broker

AUTH = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "accessFailuresMax": "1000000",
}
ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE


def signed(frame: bytes, user: str = "alice", secret: str = "alice-secret") -> bytes:
    command = decode_frame(memoryview(frame), 0, len(frame))
    sign(command, user, secret)
    return encode_frame(command)


def signed_as(frame: bytes, signature: str) -> bytes:
    """The frame with another signature."""
    command = decode_frame(memoryview(frame), 0, len(frame))
    command.ext_fields["Signature"] = signature
    return encode_frame(command)


def answer_of(frame: bytes) -> RemotingCommand:
    return decode_frame(memoryview(frame), 0, len(frame))


class Counted:
    """The fast path of a broker, loaded, and how many messages it has stored."""

    def __init__(self, controller: BrokerController) -> None:
        fast = controller.server.guarded_fast_paths[0]
        assert isinstance(fast, FastSend)
        fast.load()
        self._fast, self._numbers = fast, taken(controller)

    def time_passes(self) -> None:
        """More than OPEN_NS, for which the times of sends are not looked at again."""
        self._fast.native.open_until = 0

    def since(self) -> int:
        stored = sum(self._numbers)
        self._numbers.clear()
        return stored


async def allow(
    controller: BrokerController, user: str, *topics: str, decision: Decision = Decision.ALLOW
) -> None:
    access = controller.broker.access
    assert access is not None
    if user not in access.state.users:
        await access.change(lambda s: state.create_user(s, user, f"{user}-secret"))
    entries = tuple(entry(f"Topic:{topic}", Action.PUB, decision=decision) for topic in topics)
    await access.change(lambda s: state.update_acl(s, f"User:{user}", [Policy(PolicyType.CUSTOM, entries)]))


def codes(answers: list[bytes]) -> list[int]:
    return [answer_of(frame).code for frame in answers]


@pytest.mark.parametrize("kind", list(SerializeType))
def test_signed_sends_take_the_fast_path(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(peer: Peer) -> None:
        controller = peer.controller
        await allow(controller, "alice", "T")
        await allow(controller, "bob", "T", "U")
        counted = Counted(controller)
        async with Wire(controller) as wire:
            first = [signed(send(opaque=1, topic=t, kind=kind), "bob", "bob-secret") for t in ("T", "U")]
            assert codes(await wire.say(b"".join(first))) == [0, 0]  # the topics are made
            counted.since()
            mine = [signed(send(b"%d" % i, opaque=i, topic="T", kind=kind)) for i in range(20)]
            assert codes(await wire.say(b"".join(mine))) == [0] * 20 and counted.since() == 20
            old = [signed(send(opaque=1, topic="T", code=10, long_names=True, kind=kind))]
            assert codes(await wire.say(old[0])) == [0] and counted.since() == 1
            many = signed(batch(item(b"one"), item(b"two"), topic="T", kind=kind))
            assert codes(await wire.say(many)) == [0] and counted.since() == 2
            # two users on one connection
            both = [
                signed(send(opaque=i, topic="T", kind=kind), u, f"{u}-secret")
                for i, u in enumerate(["alice", "bob"] * 3)
            ]
            assert codes(await wire.say(b"".join(both))) == [0] * 6 and counted.since() == 6
            # what is refused is refused by the slow path, and what precedes and follows it is stored
            mixed = [
                signed(send(opaque=1, topic="T", kind=kind)),
                signed(send(opaque=2, topic="T", kind=kind), secret="wrong"),
                send(opaque=3, topic="T", kind=kind),
                signed(send(opaque=4, topic="U", kind=kind)),
                signed(send(opaque=5, topic="T", kind=kind), "stranger", "x"),
                signed(send(opaque=6, topic="T", kind=kind)),
            ]
            answers = [answer_of(frame) for frame in await wire.say(b"".join(mixed))]
            by_opaque = {answer.opaque: answer for answer in answers}
            assert {number: answer.code for number, answer in by_opaque.items()} == {
                1: 0,
                2: 16,
                3: 16,
                4: 16,
                5: 16,
                6: 0,
            }
            assert by_opaque[2].remark == "check signature failed."
            assert by_opaque[3].remark == "username cannot be null."
            assert (
                "Topic:U" in (by_opaque[4].remark or "")
                and by_opaque[5].remark == "User:stranger is not found."
            )
            counted.since()
            # only the whole signature authenticates: compared by its beginning, one character would be enough
            right = answer_of(mine[0]).ext_fields["Signature"]
            wrong = almost(right)
            assert codes(await wire.say(b"".join(signed_as(mine[0], each) for each in wrong))) == [16] * len(
                wrong
            )
            assert counted.since() == 0
            await allow(controller, "alice", "T", decision=Decision.DENY)
            assert codes(await wire.say(mine[0])) == [16] and counted.since() == 0
            await allow(controller, "alice", "T", "U")
            assert codes(await wire.say(mine[0])) == [0] and counted.since() == 1
            access = controller.broker.access
            assert access is not None
            await access.change(lambda s: state.update_user(s, "alice", "new"))
            assert codes(await wire.say(mine[0])) == [16] and counted.since() == 0
            assert codes(await wire.say(signed(send(opaque=1, topic="T", kind=kind), secret="new"))) == [0]
            assert counted.since() == 1
            await access.change(lambda s: state.update_user(s, "alice", status=UserStatus.DISABLE))
            assert codes(await wire.say(signed(send(opaque=1, topic="T", kind=kind), secret="new"))) == [16]

    on_a_broker(tmp_path, scene, **AUTH)


def test_signed_transactions(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        controller = peer.controller
        await allow(controller, "alice", "Orders", "T")
        await allow(controller, "bob", "U")
        counted = Counted(controller)
        async with Wire(controller) as wire:
            assert codes(await wire.say(signed(send(topic="Orders")))) == [0]
            halves = [await wire.say(signed(half(opaque=i))) for i in range(3)]
            assert counted.since() >= 2
            forged = encode_frame(decode_frame(memoryview(f := end(halves[0][0], command_flag=0)), 0, len(f)))
            assert codes(await wire.say(forged)) == [16]
            foreign = signed(end(halves[0][0], command_flag=0), "bob", "bob-secret")
            assert codes(await wire.say(foreign)) == [16], "the half message's own topic counts"
            unnamed = signed(end(halves[0][0], command_flag=0, less=("topic",)), "bob", "bob-secret")
            assert codes(await wire.say(unnamed)) == [16]
            assert codes(await wire.say(signed(end(halves[0][0], command_flag=0)))) == [0]
            assert codes(await wire.say(signed(end(halves[1][0], ROLLBACK, command_flag=0)))) == [0]

    on_a_broker(tmp_path, scene, **AUTH)


def test_a_captured_send_is_refused_when_it_is_old(tmp_path: Path) -> None:
    """On both paths, with RocketMQ's code; the newer one of the same connection is stored."""

    async def scene(peer: Peer) -> None:
        controller = peer.controller
        await allow(controller, "alice", "T")
        access = controller.broker.access
        assert access is not None
        born = answer_of(send()).ext_fields["g"]
        now = int(born)
        access.clock_ms = lambda: now
        counted = Counted(controller)
        async with Wire(controller) as wire:
            captured = signed(send(topic="T"))
            assert codes(await wire.say(captured)) == [0]
            assert codes(await wire.say(captured)) == [0], "sent again at once: nothing tells it apart"
            assert counted.since() == 1, "the first one made the topic known"
            for away in (60_001, -60_001):
                now = int(born) + away
                counted.time_passes()
                (answer,) = map(answer_of, await wire.say(captured))
                assert answer.code == 16 and "the broker accepts 60 s" in (answer.remark or "")
                assert counted.since() == 0
            now = int(born) + 60_000
            counted.time_passes()
            assert codes(await wire.say(captured)) == [0] and counted.since() == 1

    on_a_broker(tmp_path, scene, **AUTH, signedSendMaxAgeSeconds="60")


def test_more_users_and_queues_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signers, "SIGNERS_MAX", 2)
    monkeypatch.setattr(signers, "ALLOWED_MAX", 2)

    async def scene(peer: Peer) -> None:
        controller = peer.controller
        names = ["alice", "bob", "carol", "dan"]
        for name in names:
            await allow(controller, name, "T", "U", "V")
        await allow(controller, "dan", "V", decision=Decision.DENY)
        counted = Counted(controller)
        async with Wire(controller) as wire:
            for topic in ("T", "U", "V"):
                assert codes(await wire.say(signed(send(topic=topic)))) == [0]
            counted.since()
            for _ in range(3):
                each = [signed(send(topic=t), n, f"{n}-secret") for t in ("T", "U", "V") for n in names[:3]]
                assert codes(await wire.say(b"".join(each))) == [0] * 9 and counted.since() == 9
                dan = [signed(send(topic=t), "dan", "dan-secret") for t in ("T", "V", "U")]
                assert codes(await wire.say(b"".join(dan))) == [0, 16, 0] and counted.since() >= 1

    on_a_broker(tmp_path, scene, **AUTH)


def test_without_access_control_a_signature_does_no_harm(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        fast = peer.controller.server.fast_paths[0]
        assert isinstance(fast, FastSend)
        fast.load()
        async with Wire(peer.controller) as wire:
            frames = [send(opaque=1), signed(send(opaque=2)), send(opaque=3)]
            assert codes(await wire.say(b"".join(frames))) == [0, 0, 0]

    on_a_broker(tmp_path, scene)
