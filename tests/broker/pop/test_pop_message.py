"""POP_MESSAGE on a live broker."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import PollingInfoRequestHeader, PollingInfoResponseHeader
from tests.broker.live import Peer, now_ms, on_a_broker
from tests.broker.pop.popping import Popper
from tests.waiting import PATIENCE_S


async def sent(peer: Peer, *bodies: bytes, topic: str = "T", **fields: object) -> None:
    for body in bodies:
        answer = await peer.send(topic, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
    await peer.dispatched()


def test_messages_are_handed_out_once(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b", b"c")
        popper = Popper(peer)
        answer = await popper.pop(max_msg_nums=2)
        assert answer.remark == "FOUND"
        assert answer.bodies == [b"a", b"b"]
        header = answer.header
        assert (header.start_offset_info, header.msg_offset_info) == ("0 0 0", "0 0 0,1")
        assert (header.invisible_time, header.rest_num, header.order_count_info) == (60_000, 1, None)
        assert 0 <= header.revive_qid < 8
        assert (await popper.pop()).bodies == [b"c"]
        assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT
        # another group has all of them
        assert (await Popper(peer, group="H").pop()).bodies == [b"a", b"b", b"c"]

    on_a_broker(tmp_path, scene)


def test_all_queues_or_one(tmp_path):
    async def scene(peer: Peer) -> None:
        for queue_id in range(4):
            await sent(peer, b"%d" % queue_id, queue_id=queue_id)
        popper = Popper(peer)
        assert (await popper.pop(queue_id=2)).bodies == [b"2"]
        answer = await popper.pop()
        assert sorted(answer.bodies) == [b"0", b"1", b"3"]
        assert answer.header.rest_num == 0

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER, "greater than 32"),
        ({"queue_id": 9}, ResponseCode.INVALID_PARAMETER, "queueId"),
        ({"queue_id": -2}, ResponseCode.INVALID_PARAMETER, "queueId"),
        ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER, "invisibleTime"),
        ({"invisible_time": 3 * 86_400_000 + 1}, ResponseCode.INVALID_PARAMETER, "timerMaxDelaySec"),
        ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT, "timeout"),
        ({"exp_type": "SQL92", "exp": "a > 1"}, ResponseCode.SYSTEM_ERROR, "enablePropertyFilter"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, fields, code, text):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        answer = await Popper(peer).pop(**fields)
        assert (answer.code, text in (answer.remark or "")) == (code, True), answer
        answer = await Popper(peer, "unknown").pop()
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (await Popper(peer).pop()).bodies == [b"a"]

    on_a_broker(tmp_path, scene)


def test_waits_until_a_message_comes(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        assert (await popper.pop()).bodies == [b"a"]
        waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
        info = PollingInfoRequestHeader(consumer_group="G", topic="T", queue_id=-1)
        while True:
            answer = await peer.ask(RequestCode.POLLING_INFO, info)
            if answer.decode_header(PollingInfoResponseHeader).polling_num == 1:
                break
        await sent(peer, b"b")
        assert (await waiting).bodies == [b"b"]

    on_a_broker(tmp_path, scene)


def test_waits_no_longer_than_asked(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.pop()
        began = now_ms()
        assert (await popper.pop(poll_time=200)).code == ResponseCode.POLLING_TIMEOUT
        assert now_ms() - began >= 140  # 50 ms before the client gives up

    on_a_broker(tmp_path, scene)


def test_no_more_wait_than_allowed(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.pop()
        waiting = [asyncio.ensure_future(popper.pop(poll_time=60_000)) for _ in range(3)]
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().code for one in done] == [ResponseCode.POLLING_FULL]
        await sent(peer, b"b")
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().bodies for one in done] == [[b"b"]]
        for one in waiting:
            one.cancel()

    on_a_broker(tmp_path, scene, popPollingSize="2")


def test_tags(tmp_path):
    async def scene(peer: Peer) -> None:
        for tag in ("A", "B", "A"):
            await sent(peer, tag.encode(), properties=f"TAGS\x01{tag}\x02")
        popper = Popper(peer)
        answer = await popper.pop(exp="B", exp_type="TAG")
        assert answer.bodies == [b"B"]
        assert answer.header.msg_offset_info == "0 0 1"
        assert (await popper.pop(exp="B")).code == ResponseCode.POLLING_TIMEOUT
        # what the filter rejected is passed
        offsets = peer.controller.broker.consumer_offset_manager
        assert offsets.query_offset("G", "T", 0) == 3

    on_a_broker(tmp_path, scene)


def test_expression(tmp_path):
    async def scene(peer: Peer) -> None:
        for number in (1, 2, 3):
            await sent(peer, b"%d" % number, properties=f"n\x01{number}\x02")
        popper = Popper(peer)
        answer = await popper.pop(exp="n >= 2", exp_type="SQL92")
        assert answer.bodies == [b"2", b"3"]
        answer = await popper.pop(exp="n >", exp_type="SQL92")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    on_a_broker(tmp_path, scene, enablePropertyFilter="true")


def test_nothing_is_popped_without_timers(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        answer = await Popper(peer).pop()
        assert (answer.code, "timerWheelEnable" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)

    on_a_broker(tmp_path, scene, timerWheelEnable="false")


def priority_topic(peer: Peer) -> None:
    """Makes the topic P of four queues."""
    config = TopicConfig(
        topic_name="P", read_queue_nums=4, write_queue_nums=4, attributes={"+message.type": "PRIORITY"}
    )
    peer.controller.broker.topic_config_manager.update_topic_config(config)


def test_the_most_urgent_first(tmp_path):
    """Topics with message.type=PRIORITY: the queue is the priority, and retries do not overtake (#10350)."""

    async def scene(peer: Peer) -> None:
        priority_topic(peer)
        for body, priority in ((b"low", 0), (b"urgent", 9), (b"middle", 2), (b"also urgent", 3)):
            await sent(peer, body, topic="P", properties=f"_SYS_MSG_PRIORITY_\x01{priority}\x02")
        ordered = "_SYS_MSG_PRIORITY_\x019\x02__SHARDINGKEY\x01k\x02"
        await sent(peer, b"ordered", topic="P", queue_id=1, properties=ordered)
        popper = Popper(peer, "P")
        found = [(await popper.pop(max_msg_nums=1)).bodies[0] for _ in range(5)]
        assert found == [b"urgent", b"also urgent", b"middle", b"ordered", b"low"]

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize("up", [False, True])
def test_any_mix_of_priorities(tmp_path, up):
    """As a stable sort by priority has them, the highest first; with priorityOrderAsc=false the lowest."""

    async def scene(peer: Peer) -> None:
        priority_topic(peer)
        rng = random.Random(54)
        priorities = [rng.randrange(7) for _ in range(60)]  # from 3 on it is the last queue
        for number, priority in enumerate(priorities):
            body = b"%d" % number
            await sent(peer, body, topic="P", properties=f"_SYS_MSG_PRIORITY_\x01{priority}\x02")
        popper = Popper(peer, "P")
        found: list[int] = []
        while len(found) < len(priorities):
            answer = await popper.pop(max_msg_nums=rng.randint(1, 7))
            found += map(int, answer.bodies)
        sign = 1 if up else -1
        assert found == sorted(range(60), key=lambda number: sign * min(priorities[number], 3))

    on_a_broker(tmp_path, scene, priorityOrderAsc="false" if up else "true")


@pytest.mark.parametrize("waits_ms", [0, 30_000])
def test_a_pop_finds_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_ms: int
) -> None:
    async def scene(peer: Peer) -> None:
        popper = Popper(peer)
        await sent(peer, b"first")
        assert (await popper.pop()).bodies == [b"first"]
        monkeypatch.setattr("mqlake.store.dispatch.RELAXED_S", PATIENCE_S)
        for _ in range(3):
            found = []
            for body in (b"a", b"b"):
                assert (await peer.send(popper.topic, body)).code == ResponseCode.SUCCESS
            while len(found) < 2:
                answer = await popper.pop(poll_time=waits_ms)
                assert answer.code == ResponseCode.SUCCESS
                found += answer.bodies
            assert found == [b"a", b"b"]

    on_a_broker(tmp_path, scene)
