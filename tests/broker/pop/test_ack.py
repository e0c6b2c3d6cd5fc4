"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME on a live broker."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.message import PROPERTY_FIRST_POP_TIME, PROPERTY_ORIGIN_GROUP
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, now_ms, on_a_broker
from tests.broker.pop.popping import SMALL_TIMES, Answer, Popped, Popper
from tests.broker.pop.test_pop_message import sent


async def comes(popper: Popper, count: int = 1, **fields: object) -> list[Popped]:
    """Pops until `count` messages have come."""
    found: list[Popped] = []
    while len(found) < count:
        answer = await popper.pop(poll_time=5000, **fields)
        found += answer.messages
    return found


async def popped(peer: Peer, *bodies: bytes, **fields: object) -> tuple[Popper, Answer]:
    await sent(peer, *bodies)
    popper = Popper(peer)
    answer = await popper.pop(**fields)
    assert answer.bodies == list(bodies)
    return popper, answer


async def revived(peer: Peer) -> None:
    """Until everything that is due now is done."""
    now = now_ms()
    while peer.controller.timers.curr_read_time_ms < now:
        await asyncio.sleep(0.02)
    await peer.dispatched()  # revive() looks only at what queues show
    await peer.controller.pop_service.revive_service.revive()


def test_what_is_not_acknowledged_comes_again(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", b"c", invisible_time=1000)
        first_pop = answer.header.pop_time
        assert (await popper.ack(answer.messages[1])).code == ResponseCode.SUCCESS
        again = await comes(popper, 2)
        assert now_ms() >= first_pop + 1000
        assert sorted(one.body for one in again) == [b"a", b"c"]
        for one in again:
            assert one.topic == "%RETRY%G_T"
            assert one.message.topic == "T"
            assert one.message.reconsume_times == 1
            assert one.message.properties[PROPERTY_FIRST_POP_TIME] == str(first_pop)
            assert one.message.properties[PROPERTY_ORIGIN_GROUP] == "G"
            assert (await popper.ack(one)).code == ResponseCode.SUCCESS
        await revived(peer)
        assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT
        assert peer.controller.pop_service.revive_service.revived == 2

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_batch_acknowledgement(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", b"c", invisible_time=500)
        left = answer.messages.pop(1)
        assert (await popper.batch_ack(answer.messages)).code == ResponseCode.SUCCESS
        (again,) = await comes(popper)
        assert again.body == left.body
        # the same message of the retry topic
        assert (await popper.batch_ack([again])).code == ResponseCode.SUCCESS
        await revived(peer)
        assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT
        assert peer.controller.pop_service.revive_service.revived == 1

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_invisible_time_is_prolonged_and_shortened(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", invisible_time=1500)
        later = await popper.changed(answer.messages[0], 60_000)
        sooner = await popper.changed(answer.messages[1], 0)
        (again,) = await comes(popper)
        assert again.body == sooner.body == b"b"
        assert again.handle.pop_time < answer.header.pop_time + 60_000
        await revived(peer)
        assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT
        assert (await popper.ack(later)).code == ResponseCode.SUCCESS
        assert peer.controller.pop_service.revive_service.revived == 1

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_suspended_message_counts_no_attempt(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a")
        await popper.changed(answer.messages[0], 0, suspend=True)
        (again,) = await comes(popper)
        assert again.message.reconsume_times == 0

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_old_handle_acknowledges_no_later_pop(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", invisible_time=60_000)
        old = answer.messages[0]
        await popper.changed(old, 500)
        assert (await popper.ack(old)).code == ResponseCode.SUCCESS  # and has no effect
        (again,) = await comes(popper)
        assert again.body == b"a"

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 2}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"extra_info": "garbage"}, ResponseCode.INVALID_PARAMETER),
        ({"extra_info": "0 1 2 3 0 broker-a 3 0"}, ResponseCode.INVALID_PARAMETER),
        ({"extra_info": "0 1 2 3 1 broker-a 0 0"}, ResponseCode.INVALID_PARAMETER),
        ({"extra_info": "0 1 2 8 0 broker-a 0 0"}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_wrong_acknowledgements_are_refused(tmp_path, fields, code):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a")
        refused = await popper.ack(answer.messages[0], **fields)
        assert (refused.code, bool(refused.remark)) == (code, True)
        refused = await popper.change(answer.messages[0], 1000, **fields)
        assert (refused.code, bool(refused.remark)) == (code, True)

    on_a_broker(tmp_path, scene)


def test_wrong_batches_are_refused(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a")
        refused = await popper.batch_ack([])
        assert refused.code == ResponseCode.NO_MESSAGE
        # what belongs to no queue is ignored
        wrong = Popped(answer.messages[0].message, answer.messages[0].handle._replace(queue_id=99), "T")
        assert (await popper.batch_ack([wrong])).code == ResponseCode.SUCCESS
        refused = await popper.change(answer.messages[0], -1)
        assert refused.code == ResponseCode.INVALID_PARAMETER

    on_a_broker(tmp_path, scene)


def test_in_flight_figures(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", b"c")
        queues = peer.controller.pop_service.state.queues
        assert queues.in_flight("T", "G", 0) == 3
        await popper.ack(answer.messages[0])
        changed = await popper.changed(answer.messages[1], 60_000)
        assert queues.in_flight("T", "G", 0) == 2
        await popper.batch_ack([changed, answer.messages[2]])
        assert queues.in_flight("T", "G", 0) == 0

    on_a_broker(tmp_path, scene)


def test_messages_are_not_popped_above_the_threshold(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", max_msg_nums=2)
        await sent(peer, b"c")
        assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT
        await popper.ack(answer.messages[0])
        assert (await popper.pop()).bodies == [b"c"]

    on_a_broker(tmp_path, scene, enablePopMessageThreshold="true", popInflightMessageThreshold="2")
