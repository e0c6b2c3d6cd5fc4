"""signed_acks: under access control acknowledgements are still stored together, and nothing gets around the check."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mqlake.auth import state
from mqlake.auth.model import Action, Decision, Policy, PolicyType
from mqlake.auth.signature import sign
from mqlake.broker.fast.signed_acks import SignedAcks
from mqlake.message import TIMER_TOPIC
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from tests.auth.people import entry
from tests.broker.fast.test_fast_ack import ack
from tests.broker.fast.test_signed_pulls import AUTH, prepare
from tests.broker.live import Peer, on_a_broker
from tests.broker.pop.popping import SMALL_TIMES, Popped, Popper


class Alice:
    """A peer that signs, as alice."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def ask(
        self, code: int, header: CommandHeader | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        command = RemotingCommand.create_request(code, header, body)
        sign(command, "alice", "alice-secret")
        return await self.peer.client.invoke(self.peer.address, command)


def signed(popped: Popped, name: str = "alice", secret: str = "alice-secret") -> RemotingCommand:
    request = ack(popped)
    sign(request, name, secret)
    return request


async def together(peer: Peer, *requests: RemotingCommand) -> tuple[list[int], int]:
    """The codes of requests that are written at once, and how many records they became."""
    store = peer.controller.broker.store
    await peer.dispatched()  # the checkpoint of a pop comes to the same queue
    before = store.max_offset_in_queue(TIMER_TOPIC, 0)
    connection = await peer.client.connection(peer.address)
    answers = await asyncio.gather(*(connection.invoke(request) for request in requests))
    await peer.dispatched()
    return [answer.code for answer in answers], store.max_offset_in_queue(TIMER_TOPIC, 0) - before


def test_signed_acknowledgements_become_one_record_and_no_other_passes(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await prepare(peer)
        access = peer.controller.broker.access
        assert access is not None
        await access.change(lambda s: state.create_user(s, "bob", "bob-secret"))
        popped = (await Popper(Alice(peer)).pop(invisible_time=60_000)).messages
        assert len(popped) == 3
        one, two, three = popped
        unsigned, stolen, aged = ack(one), signed(one), signed(two)
        stolen.ext_fields["offset"] = str(two.offset)
        stolen.ext_fields["extraInfo"] = two.handle.text  # another message under the same signature
        aged.version = 317  # the field that such clients add after they signed is not part of it
        aged.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
        refused = [unsigned, stolen, signed(one, secret="wrong"), signed(one, "bob", "bob-secret")]
        assert await together(peer, *refused) == ([16] * 4, 0)
        assert await together(peer, signed(one), aged) == ([0, 0], 1)
        deny = [Policy(PolicyType.CUSTOM, (entry("Group:G", Action.SUB, decision=Decision.DENY),))]
        await access.change(lambda s: state.update_acl(s, "User:alice", deny))
        assert await together(peer, signed(three)) == ([16], 0)
        allow = [Policy(PolicyType.CUSTOM, (entry("Group:G", Action.SUB),))]
        await access.change(lambda s: state.update_acl(s, "User:alice", allow))
        assert await together(peer, signed(three)) == ([0], 1)

    on_a_broker(tmp_path, scene, **AUTH, **SMALL_TIMES)


def test_decisions_are_kept_for_each_user_address_topic_and_group(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await prepare(peer)
        access = peer.controller.broker.access
        assert access is not None
        acks = SignedAcks(access)

        def may(topic: str, group: str, secret: str = "alice-secret") -> bool:
            request = RemotingCommand(RequestCode.ACK_MESSAGE)
            request.ext_fields |= {"topic": topic, "consumerGroup": group}
            sign(request, "alice", secret)
            return acks.may(request.ext_fields, request.version, "127.0.0.1:5")

        allowed = [may("T", "G"), may("%RETRY%G_T", "G"), may("T", "H")]
        refused = [may("U", "G"), may("%RETRY%G_U", "G"), may("T", "G", "wrong")]
        assert (allowed, refused) == ([True] * 3, [False] * 3)

    on_a_broker(tmp_path, scene, **AUTH, **SMALL_TIMES)
