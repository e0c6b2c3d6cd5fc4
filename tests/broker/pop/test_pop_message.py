"""POP_MESSAGE on a live broker."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from mqlake.broker.pop.pop_message import available
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.bodies.admin import ConsumerOffsetSerializeWrapper, SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import (
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
)
from mqlake.store.results import GetMessageResult, PutMessageStatus
from tests.broker.live import Peer, now_ms, on_a_broker
from tests.broker.mqtrace.test_hooks import recorder_in
from tests.broker.pop.popping import Popper, pop_header, records
from tests.broker.puts import Puts
from tests.waiting import PATIENCE_S, trying, until_async


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
        refused = await peer.ask(RequestCode.POP_MESSAGE, pop_header("unknown"))
        numbers = {
            name: refused.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid", "restNum")
        }
        assert set(numbers.values()) == {"0"}
        assert (await Popper(peer).pop()).bodies == [b"a"]

    on_a_broker(tmp_path, scene)


def test_waits_until_a_message_comes(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        assert (await popper.pop()).bodies == [b"a"]
        waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
        info = PollingInfoRequestHeader(consumer_group="G", topic="T", queue_id=-1)
        for _ in trying("the pop waits"):
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


@pytest.mark.parametrize(("topic", "order"), [("T", False), ("T", True), ("P", True)])
def test_no_queue_is_always_the_first(tmp_path: Path, topic: str, order: bool) -> None:
    """But by priority, which a pop in order does not heed: the last queues would starve."""

    async def scene(peer: Peer) -> None:
        priority_topic(peer)
        for queue_id in range(4):
            await sent(peer, b"%d" % queue_id, topic=topic, queue_id=queue_id)
        first = set()
        for number in range(16):
            answer = await Popper(peer, topic, f"G{number}").pop(max_msg_nums=1, order=order)
            first.update(answer.bodies)
        assert len(first) > 1

    on_a_broker(tmp_path, scene)


def test_a_group_may_heed_no_priority(tmp_path: Path) -> None:
    """priority.factor says in how many of 100 pops of a group the highest queue is the first."""

    async def scene(peer: Peer) -> None:
        priority_topic(peer)
        for queue_id in range(4):
            await sent(peer, b"%d" % queue_id, topic="P", queue_id=queue_id)
        groups = peer.controller.broker.subscription_group_manager
        for factor, few in (("100", True), (None, True), ("many", True), ("0", False)):
            first = set()
            for number in range(16):
                group = f"G{factor}-{number}"
                attributes = {"priority.factor": factor} if factor else {}
                groups.subscription_group_table[group] = SubscriptionGroupConfig(
                    group_name=group, attributes=attributes
                )
                first.update((await Popper(peer, "P", group).pop(max_msg_nums=1)).bodies)
            assert (first == {b"3"}) is few, factor

    on_a_broker(tmp_path, scene)


def test_messages_of_both_retry_topics_come(tmp_path: Path) -> None:
    """With enableRetryTopicV2 an answer has messages of one of them."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"x")
        popper = Popper(peer)
        await popper.pop()
        topics = peer.controller.broker.topic_config_manager
        topics.create_topic_in_send_message_back_method("%RETRY%G+T", 1, 6, 0)
        await sent(peer, b"old", topic="%RETRY%G_T")
        for number in range(6):
            for topic in ("%RETRY%G_T", "%RETRY%G+T"):
                message = MessageExtBrokerInner(topic, b"%s %d" % (topic.encode(), number))
                assert (await peer.controller.broker.store.async_put_message(message)).is_ok
        await peer.dispatched()
        found: list[bytes] = []
        while len(found) < 13:
            found += (await popper.pop(max_msg_nums=1)).bodies
        assert len(set(found)) == 13

    on_a_broker(tmp_path, scene, enableRetryTopicV2="true")


def test_hooks_are_told_of_each_queue_that_a_pop_has_taken_from(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for queue_id in (1, 2):
            await sent(peer, b"%d" % queue_id, queue_id=queue_id)
        consumes = recorder_in(peer).consumes
        answer = await Popper(peer).pop()
        assert len(answer.messages) == 2
        assert sorted((kind, context.topic, context.queue_id) for kind, context in consumes) == [
            ("before", "T", 1),
            ("before", "T", 2),
        ]
        assert {message.body for _, context in consumes for message in context.messages} == {b"1", b"2"}

    on_a_broker(tmp_path, scene)


def test_a_pop_that_leaves_messages_behind_wakes_the_next(tmp_path: Path) -> None:
    """One waiter is woken for each arrival, and takes what it may: the rest is for the others."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b", b"c")
        state, woken = peer.controller.pop_service.state, []
        state.wake = lambda topic, group: woken.append((topic, group))
        popper = Popper(peer)
        for count, expected in ((2, [("T", "G")]), (2, [("T", "G")])):
            assert len((await popper.pop(max_msg_nums=count)).bodies) <= 2
            assert woken == expected

    on_a_broker(tmp_path, scene)


def test_a_waiting_pop_whose_topic_is_deleted_is_answered(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper = Popper(peer)
        await popper.pop()
        state = peer.controller.pop_service.state
        waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
        await until_async(lambda: len(state.pop_polling) == 1)
        peer.controller.broker.topic_config_manager.delete_topic_config("T")
        state.wake("T", "G")
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    on_a_broker(tmp_path, scene)


def test_pops_take_the_revive_queues_in_turn(tmp_path: Path) -> None:
    """All checkpoints in one queue would wait for each other."""

    async def scene(peer: Peer) -> None:
        await sent(peer, *(b"%d" % number for number in range(6)))
        popper = Popper(peer)
        seen = [(await popper.pop(max_msg_nums=1)).header.revive_qid for _ in range(6)]
        assert seen == [1, 2, 0, 1, 2, 0]
        (handle,) = [
            one.handle for one in (await Popper(peer, group="H").pop(max_msg_nums=1, order=True)).messages
        ]
        assert handle.revive_queue_id == 999

    on_a_broker(tmp_path, scene, reviveQueueNum="3")


@pytest.mark.parametrize(
    ("init_mode", "in_memory", "from_offset"), [(0, True, 0), (0, False, 0), (1, True, 0), (1, False, 2)]
)
def test_where_a_new_group_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init_mode: int, in_memory: bool, from_offset: int
) -> None:
    """From the beginning, or with the last message; with all of a queue that is in memory as a whole."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2")
        store = peer.controller.broker.store
        monkeypatch.setattr(store, "check_in_mem_by_consume_offset", lambda *_: in_memory)
        answer = await Popper(peer).pop(init_mode=init_mode)
        assert answer.bodies == [b"%d" % number for number in range(from_offset, 3)]
        broker = peer.controller.broker
        broker.config = broker.config.replaced({"initPopOffsetByCheckMsgInMem": "false"})
        answer = await Popper(peer, group="H").pop(init_mode=init_mode)
        assert answer.bodies == ([b"2"] if init_mode else [b"0", b"1", b"2"])
        await sent(peer, b"x", topic="U")
        assert (await Popper(peer, "U", "H").pop(init_mode=1)).bodies == [b"x"]

    on_a_broker(tmp_path, scene)


def test_the_first_answer_of_a_group_is_given_when_its_offset_is_on_disk(tmp_path: Path) -> None:
    """After a crash the group would begin elsewhere, past messages that it never got."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2")
        answer = await Popper(peer).pop(init_mode=1, max_msg_nums=1)
        assert answer.bodies == [b"2"]
        config = tmp_path / "store" / "config"
        offsets = ConsumerOffsetSerializeWrapper.from_json((config / "consumerOffset.json").read_bytes())
        assert offsets.offset_table["T@G"][0] >= 2
        assert b'"G"' in (config / "subscriptionGroup.json").read_bytes()

    on_a_broker(tmp_path, scene, initPopOffsetByCheckMsgInMem="false", flushConsumerOffsetInterval="60000")


def test_a_group_that_has_an_offset_begins_nowhere_else(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2")
        peer.controller.broker.consumer_offset_manager.commit_offset("test", "G", "T", 0, 0)
        assert (await Popper(peer).pop(init_mode=1)).bodies == [b"0", b"1", b"2"]

    on_a_broker(tmp_path, scene, initPopOffsetByCheckMsgInMem="false")


def test_messages_that_are_on_the_disk_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread reads them, and no other pop takes the queue meanwhile."""

    async def scene(peer: Peer) -> None:
        for queue_id in range(3):
            await sent(peer, b"%d" % queue_id, b"more", queue_id=queue_id)
        store, state = peer.controller.broker.store, peer.controller.pop_service.state
        get, may_read, read = store.get_message, threading.Event(), []

        def cold(*arguments: object, may_wait: bool = True) -> GetMessageResult:
            if not may_wait:
                raise BlockingIOError
            return get(*arguments)

        def read_ahead(topic: str, queue_id: int, offset: int, _: int) -> None:
            assert may_read.wait(PATIENCE_S)
            read.append((topic, queue_id, offset))

        monkeypatch.setattr(store, "get_message", cold)
        monkeypatch.setattr(store, "read_ahead", read_ahead)
        popper = Popper(peer)
        first = asyncio.ensure_future(popper.pop(max_msg_nums=4))
        await until_async(lambda: sum(queue.in_use for queue in state.queues) == 3)
        other = await popper.pop()
        assert (other.messages, first.done()) == ([], False)
        may_read.set()
        answer = await first
        assert len(answer.bodies) == 4 and len(read) == 2, "room for two queues"
        assert not any(queue.in_use for queue in state.queues)
        assert len((await popper.pop()).bodies) == 2
        assert (await popper.pop()).messages == []

    on_a_broker(tmp_path, scene)


def test_what_is_left_is_counted_over_all_queues(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for queue_id in range(4):
            await sent(peer, b"a", b"b", queue_id=queue_id)
        popper = Popper(peer)
        for rest in (5, 2, 0):
            answer = await popper.pop(max_msg_nums=3)
            assert answer.header.rest_num == rest
        in_order = Popper(peer, group="H")
        assert (await in_order.pop(max_msg_nums=3, order=True)).header.rest_num == 5

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(("probability", "first"), [("0", [b"a", b"b"]), ("100", [b"again", b"a"])])
def test_retries_come_first_or_where_there_is_room(
    tmp_path: Path, probability: str, first: list[bytes]
) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        await sent(peer, b"again", topic="%RETRY%G_T")
        popper = Popper(peer)
        answer = await popper.pop(max_msg_nums=2)
        assert (answer.bodies, answer.header.rest_num) == (first, 1 if b"again" in first else 0)
        assert len((await popper.pop(max_msg_nums=2)).bodies) == 1
        assert (await popper.pop()).messages == []

    on_a_broker(tmp_path, scene, popFromRetryProbability=probability)


def test_what_a_pop_that_waits_would_find(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        state = peer.controller.pop_service.state

        def found(
            queue_id: int = -1, order: bool = False, attempt: str | None = None, topic: str = "T"
        ) -> bool:
            return available(state, topic, "G", queue_id, order, attempt)

        assert not found(), "there is no such topic"
        await sent(peer, b"a", queue_id=1)
        assert found() and found(1) and found(1, True) and not found(0) and not found(topic="U")
        queue = state.queues.get("T", "G", 1)
        queue.in_use = True
        assert not found(), "the pop that is in it finds it"
        queue.in_use = False
        popper = Popper(peer)
        (one,) = (await popper.pop(order=True, attempt_id="x")).messages
        assert found(1, True, "x") and not found(1, True, "y")
        await popper.ack(one)
        assert not found() and not found(1, True)
        await sent(peer, b"again", topic="%RETRY%G_T")
        assert found() and found(0) and not found(order=True), (
            "what is popped in order is tried again in place"
        )
        assert (await popper.pop()).bodies == [b"again"]
        assert not found()

    on_a_broker(tmp_path, scene)


def test_no_more_are_in_flight_than_allowed(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2", b"3")
        popper = Popper(peer)
        for body in (b"0", b"1"):
            assert (await popper.pop(max_msg_nums=1)).bodies == [body]
        assert (await popper.pop()).messages == []
        broker = peer.controller.broker
        broker.config = broker.config.replaced({"enablePopMessageThreshold": "false"})
        assert (await popper.pop()).bodies == [b"2", b"3"]

    on_a_broker(tmp_path, scene, enablePopMessageThreshold="true", popInflightMessageThreshold="2")


def test_an_operators_reset_is_taken_by_the_next_pop(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2")
        offsets = peer.controller.broker.consumer_offset_manager
        for order in (False, True):
            popper = Popper(peer, group=f"G-{order}")
            assert len((await popper.pop(order=order)).messages) == 3
            offsets.assign_reset_offset("T", popper.group, 0, 1)
            assert (await popper.pop(order=order)).bodies == [b"1", b"2"]
            assert (await popper.pop(order=order)).messages == []

    on_a_broker(tmp_path, scene)


def test_messages_that_are_gone_are_passed_over(tmp_path: Path) -> None:
    """Offsets below what the queue has, as after files were deleted, and beyond its end."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"0", b"1", b"2")
        broker = peer.controller.broker
        broker.consumer_offset_manager.commit_offset("test", "G", "T", 0, 9)
        assert (await Popper(peer).pop()).bodies == []
        assert broker.consumer_offset_manager.query_offset("G", "T", 0) == 3
        await sent(peer, b"3")
        assert (await Popper(peer).pop()).bodies == [b"3"]

    on_a_broker(tmp_path, scene)


def test_peeking_takes_nothing(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        for number in range(5):
            await sent(peer, b"%d" % number, queue_id=number % 2)

        async def peek(
            queue_id: int = -1, count: int = 32, topic: str = "T", group: str = "G"
        ) -> tuple[int, list[bytes], str]:
            header = PeekMessageRequestHeader(
                consumer_group=group, topic=topic, queue_id=queue_id, max_msg_nums=count
            )
            answer = await peer.ask(RequestCode.PEEK_MESSAGE, header)
            bodies = [record.body for record in records(answer.body_bytes())] if answer.body else []
            return answer.code, bodies, answer.ext_fields.get("restNum", "")

        nothing = ResponseCode.PULL_NOT_FOUND
        popper = Popper(peer)
        assert (await popper.pop(queue_id=0, max_msg_nums=1)).bodies == [b"0"]
        assert await peek() == (0, [b"2", b"4", b"1", b"3"], "4")
        assert await peek(1) == (0, [b"1", b"3"], "2")
        assert await peek(0, 1) == (0, [b"2"], "2")
        assert await peek(-1, 3) == (0, [b"2", b"4", b"1"], "4")
        assert await peek(3) == (nothing, [], "0")
        assert (await peek(4))[0] == (await peek(-2))[0] == ResponseCode.INVALID_PARAMETER
        assert (await peek(topic="unknown"))[0] == ResponseCode.TOPIC_NOT_EXIST
        assert (await peek(group="nobody at all"))[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert sorted((await popper.pop()).bodies) == [b"1", b"2", b"3", b"4"]
        assert await peek() == (nothing, [], "0")

    on_a_broker(tmp_path, scene)


# --- checkpoints


def checkpoint_puts(peer: Peer) -> Puts:
    log = peer.controller.pop_service.state.revive_log
    log._put = puts = Puts(log._put)
    return puts


def committed(peer: Peer, queue_id: int = 0) -> int:
    return peer.controller.broker.consumer_offset_manager.query_offset("G", "T", queue_id)


@pytest.mark.parametrize(
    "status",
    [
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.OS_PAGECACHE_BUSY,
        PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL,
    ],
)
def test_without_its_checkpoint_no_message_is_handed_out(tmp_path: Path, status: PutMessageStatus) -> None:
    """Nothing would bring it back if its consumer died."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        popper, puts = Popper(peer), checkpoint_puts(peer)
        puts.refuse = status
        answer = await popper.pop()
        assert (answer.code, answer.messages) == (ResponseCode.POLLING_TIMEOUT, [])
        assert len(puts.asked) == 1 and committed(peer) == 0
        assert peer.controller.pop_service.state.queues.in_flight("T", "G", 0) == 0
        puts.refuse = None
        assert (await popper.pop()).bodies == [b"a", b"b"]
        assert len(puts.asked) == 2 and committed(peer) == 2
        assert peer.controller.pop_service.state.queues.in_flight("T", "G", 0) == 2
        assert (await popper.pop()).messages == []

    on_a_broker(tmp_path, scene)


@pytest.mark.parametrize(
    "status",
    [
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    ],
)
def test_a_checkpoint_that_is_in_the_log_counts(tmp_path: Path, status: PutMessageStatus) -> None:
    """It comes out of the timer: messages that were kept back for it would be there twice."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        popper, puts = Popper(peer), checkpoint_puts(peer)
        puts.refuse = status
        assert (await popper.pop()).bodies == [b"a"]
        assert committed(peer) == 1

    on_a_broker(tmp_path, scene)


def test_no_message_is_handed_out_before_its_checkpoint_is_flushed(tmp_path: Path) -> None:
    """As under SYNC_FLUSH: a power cut before would take the checkpoint of messages that a consumer has."""

    async def scene(peer: Peer) -> None:
        popper, puts = Popper(peer), checkpoint_puts(peer)
        await sent(peer, b"x")
        assert (await popper.pop()).bodies == [b"x"]  # the first answer of a group waits in any case
        await sent(peer, b"a", b"b")
        puts.holds = True
        first = asyncio.ensure_future(popper.pop())
        await until_async(lambda: len(puts.held) == 1)
        assert (await popper.pop()).messages == []  # nobody else has them meanwhile
        await sent(peer, b"c")
        puts.holds = False
        assert (await popper.pop()).bodies == [b"c"]
        assert not first.done()
        assert committed(peer) == 1, "c is behind what is not safe yet"
        puts.let_go()
        assert (await first).bodies == [b"a", b"b"]
        assert committed(peer) == 4

    on_a_broker(tmp_path, scene)


def test_a_woken_pop_is_answered_when_its_checkpoint_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when something fails then: nobody would answer it any more."""

    async def scene(peer: Peer) -> None:
        popper, puts = Popper(peer), checkpoint_puts(peer)
        await sent(peer, b"x")
        assert (await popper.pop()).bodies == [b"x"]
        puts.holds = True
        state = peer.controller.pop_service.state
        for body, code in ((b"a", ResponseCode.SUCCESS), (b"b", ResponseCode.SYSTEM_ERROR)):
            waiting = asyncio.ensure_future(popper.pop(poll_time=60_000))
            await until_async(lambda: len(state.pop_polling) == 1)
            await sent(peer, body)
            await until_async(lambda: len(puts.held) == 1)
            assert not waiting.done()
            if code:
                monkeypatch.setattr(state.queues, "stored", {}.__getitem__)  # fails
            puts.let_go()
            answer = await waiting
            assert (answer.code, answer.bodies) == (code, [] if code else [body])

    on_a_broker(tmp_path, scene)


def test_a_group_without_heartbeats_is_told_of_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For operators' requests; not at each pop, also while several groups pop in turn."""

    async def scene(peer: Peer) -> None:
        await sent(peer, b"a")
        manager, told = peer.controller.broker.consumer_manager, list[str]()
        monkeypatch.setattr(manager, "compensate_basic_consumer_info", lambda group, *_: told.append(group))
        for group in ("G", "H") * 3:
            await Popper(peer, group=group).pop()
        assert told == ["G", "H"]
        table = peer.controller.pop_service.pop_message_processor._compensated
        for number in range(10_000):
            table[str(number), "T"] = "*", 0
        await Popper(peer, group="I").pop()
        assert told == ["G", "H", "I"] and list(table) == [("I", "T")], "it keeps no more than so many"

    on_a_broker(tmp_path, scene)
