"""FastAck: the same answers and the same effect as AckMessageProcessor, with fewer records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mqlake.message import TIMER_TOPIC
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import AckMessageRequestHeader
from tests.broker.live import Peer, on_a_broker
from tests.broker.pop.popping import SMALL_TIMES, Popped, Popper
from tests.broker.pop.test_ack import comes, revived
from tests.broker.pop.test_pop_message import sent


def ack(popped: Popped, **fields: object) -> RemotingCommand:
    values = {
        "topic": popped.topic,
        "queue_id": popped.handle.queue_id,
        "extra_info": popped.handle.text,
        "offset": popped.offset,
        **fields,
    }
    header = AckMessageRequestHeader(consumer_group="G", **values)
    return RemotingCommand.create_request(RequestCode.ACK_MESSAGE, header)


async def together(peer: Peer, requests: list[RemotingCommand]) -> list[int]:
    """The codes of requests that are written at once."""
    connection = await peer.client.connection(peer.address)
    answers = await asyncio.gather(*(connection.invoke(request) for request in requests))
    return [answer.code for answer in answers]


def records(peer: Peer) -> int:
    return peer.controller.broker.store.max_offset_in_queue(TIMER_TOPIC, 0)


def with_messages(tmp_path, scene: Callable[[Peer, Popper, list[Popped]], Awaitable[None]], **settings: str):
    async def play(peer: Peer) -> None:
        await sent(peer, *(b"%d" % n for n in range(10)))
        popper = Popper(peer)
        popped = (await popper.pop(invisible_time=2000)).messages
        await peer.dispatched()
        await scene(peer, popper, popped)

    on_a_broker(tmp_path, play, **SMALL_TIMES, **settings)


def test_acknowledgements_of_a_checkpoint_are_one_record(tmp_path):
    async def scene(peer: Peer, popper: Popper, popped: list[Popped]) -> None:
        before = records(peer)
        codes = await together(peer, [ack(one) for one in popped[:9]])
        assert codes == [ResponseCode.SUCCESS] * 9
        await peer.dispatched()
        assert records(peer) == before + 1
        assert peer.controller.pop_service.state.queues.in_flight("T", "G", 0) == 1
        (again,) = await comes(popper)
        assert again.body == b"9"
        await revived(peer)
        assert peer.controller.pop_service.revive_service.revived == 1

    with_messages(tmp_path, scene)


def test_what_is_not_usual_is_answered_as_ever(tmp_path):
    async def scene(peer: Peer, popper: Popper, popped: list[Popped]) -> None:
        first, second, third = popped[:3]
        requests = [
            ack(first),
            ack(second, extra_info="garbage"),
            ack(second, offset=99),
            ack(second, topic="unknown"),
            ack(second, queue_id=3),
            ack(second),
            ack(third, extra_info=f"{third.handle.text} 4711"),  # as the gRPC proxy writes it
        ]
        oneway = ack(popped[3])
        oneway.mark_oneway()
        connection = await peer.client.connection(peer.address)
        connection.invoke_oneway(oneway)
        assert await together(peer, requests) == [
            ResponseCode.SUCCESS,
            ResponseCode.INVALID_PARAMETER,
            ResponseCode.NO_MESSAGE,
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.NO_MESSAGE,
            ResponseCode.SUCCESS,
            ResponseCode.SUCCESS,
        ]
        again = await comes(popper, 6)
        assert {one.body for one in again} == {b"%d" % n for n in range(4, 10)}

    with_messages(tmp_path, scene)


def test_in_order_and_under_sync_flush(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        popper = Popper(peer)
        answer = await popper.pop(order=True)
        assert await together(peer, [ack(one) for one in answer.messages]) == [0, 0]
        assert peer.controller.broker.consumer_offset_manager.query_offset("G", "T", 0) == 2
        await sent(peer, b"c", b"d")
        answer = await popper.pop()
        assert await together(peer, [ack(one) for one in answer.messages]) == [0, 0]

    on_a_broker(tmp_path, scene, flushDiskType="SYNC_FLUSH", **SMALL_TIMES)
