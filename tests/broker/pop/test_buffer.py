"""enablePopBufferMerge: checkpoints in memory."""

from __future__ import annotations

import asyncio

from mqlake.message import TIMER_TOPIC
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, on_a_broker, running
from tests.broker.live_broker import run
from tests.broker.pop.popping import SMALL_TIMES, Popper
from tests.broker.pop.test_ack import comes, popped, revived
from tests.broker.pop.test_pop_message import sent

MERGE = {**SMALL_TIMES, "enablePopBufferMerge": "true"}


def stored(peer: Peer) -> int:
    """Records of checkpoints and acknowledgements in the log."""
    store = peer.controller.broker.store
    topic = peer.controller.pop_service.state.revive_log.topic
    return store.max_offset_in_queue(TIMER_TOPIC, 0) + sum(
        store.max_offset_in_queue(topic, queue_id) for queue_id in range(8)
    )


def test_what_is_acknowledged_soon_is_never_written(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, *(b"%d" % i for i in range(6)))
        popper = Popper(peer)
        offsets = peer.controller.broker.consumer_offset_manager
        first = await popper.pop(max_msg_nums=3)
        second = await popper.pop(max_msg_nums=3)
        assert offsets.query_offset("G", "T", 0) == 0
        await popper.batch_ack(second.messages)
        assert offsets.query_offset("G", "T", 0) == 0  # in order
        for one in first.messages:
            assert (await popper.ack(one)).code == ResponseCode.SUCCESS
        assert offsets.query_offset("G", "T", 0) == 6
        assert len(peer.controller.pop_service.state.buffer) == 0
        await peer.dispatched()
        assert stored(peer) == 0

    on_a_broker(tmp_path, scene, **MERGE)


def test_the_rest_is_written_in_time(tmp_path):
    """#3787: an acknowledgement counts as long as the checkpoint is in memory, and afterwards as well."""

    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", b"c", invisible_time=5000)
        await popper.ack(answer.messages[0])
        state = peer.controller.pop_service.state
        assert len(state.buffer) == 1
        while len(state.buffer):
            await asyncio.sleep(0.01)
        await popper.ack(answer.messages[1])
        (again,) = await comes(popper)
        assert again.body == b"c"
        await revived(peer)
        assert peer.controller.pop_service.revive_service.revived == 1

    on_a_broker(tmp_path, scene, popCkStayBufferTime="200", **MERGE)


def test_the_rest_is_written_at_the_end(tmp_path):
    async def main() -> None:
        async with running(tmp_path, **MERGE) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            popper, answer = await popped(peer, b"a", b"b", invisible_time=5000)
            await popper.ack(answer.messages[0])
            assert len(controller.pop_service.state.buffer) == 1
        async with running(tmp_path, **MERGE) as controller, RemotingClient() as client:
            popper = Popper(Peer(controller, client))
            (again,) = await comes(popper)
            assert again.body == b"b"
            assert again.handle.pop_time >= answer.messages[0].handle.visible_at

    run(main())


def test_only_what_may_stay_is_kept(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", invisible_time=4000)
        assert len(peer.controller.pop_service.state.buffer) == 0  # due too soon
        await sent(peer, b"b", b"c")
        assert (await popper.pop(max_msg_nums=1)).bodies == [b"b"]
        assert (await popper.pop(max_msg_nums=1)).bodies == [b"c"]
        assert len(peer.controller.pop_service.state.buffer) == 1  # no room for another

    on_a_broker(tmp_path, scene, popCkMaxBufferSize="1", **MERGE)
