"""Revive: which checkpoints are due, and how far the offset of a revive queue may go; then on a live broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.pop.checkpoint import (
    ACK_CODE,
    CHECKPOINT_CODE,
    Acknowledgement,
    Checkpoint,
    CheckpointKey,
    encode_acknowledgement,
    encode_checkpoint,
)
from mqlake.broker.pop.revive import ReviveQueue
from mqlake.formats.record import encode_record
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_KEYS,
    REVIVE_GROUP,
    crc32,
    host_bytes,
    properties_to_bytes,
)
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, now_ms, on_a_broker, running
from tests.broker.live_broker import run
from tests.broker.pop.popping import SMALL_TIMES, Popper
from tests.broker.pop.test_ack import comes, popped, revived
from tests.broker.pop.test_pop_message import sent

HOST = host_bytes(("127.0.0.1", 10911))


def key_of(number: int) -> CheckpointKey:
    return CheckpointKey("T", "G", 0, 10 * number, 1000 + number, "broker-a")


def record(body: bytes, due: int) -> memoryview:
    properties = properties_to_bytes({"TIMER_DELIVER_MS": str(due)})
    numbers = crc32(body), 0, 0, 0, 0, 0, 1, HOST, 1, HOST, 0, 0
    return memoryview(encode_record(body, *numbers, b"revive", properties))


def checkpoint_record(number: int, invisible_time: int, count: int) -> memoryview:
    checkpoint = Checkpoint(key_of(number), invisible_time, range(count))
    return record(encode_checkpoint(checkpoint), checkpoint.revive_time - 1000)


def ack_record(number: int, invisible_time: int, offset: int) -> memoryview:
    acknowledgement = Acknowledgement(key_of(number), [10 * number + offset])
    return record(encode_acknowledgement(acknowledgement), 1000 + number + invisible_time)


COUNT = 3
times = st.integers(0, 50)


@given(st.lists(times, max_size=8), st.data())
def test_the_offset_never_passes_what_is_not_done(invisible_times, data):
    """Records in any order, some twice, some acknowledgements late; the oracle works on the whole list at once."""
    records = []
    for number, time in enumerate(invisible_times):
        records += [("ck", number, time, None)] * data.draw(st.integers(1, 2))
        acknowledged = data.draw(st.sets(st.integers(0, COUNT - 1)))
        records += [("ack", number, time, offset) for offset in acknowledged]
    if data.draw(st.booleans()):
        records.append(("ack", 99, data.draw(times), 0))  # its checkpoint never comes
    records = data.draw(st.permutations(records))
    until_steps = [*sorted(data.draw(st.lists(st.integers(990, 1100), max_size=4))), 10_000]
    cuts = [*sorted(data.draw(st.integers(0, len(records))) for _ in until_steps[:-1]), len(records)]

    queue = ReviveQueue(0, "broker-a", 0)
    revived: dict[int, set[int]] = {}
    read = 0
    for until, cut in zip(until_steps, cuts, strict=True):
        for at in range(read, cut):
            kind, number, time, offset = records[at]
            if kind == "ck":
                queue.read(CHECKPOINT_CODE, checkpoint_record(number, time, COUNT), at)
            else:
                queue.read(ACK_CODE, ack_record(number, time, offset), at)
        read = max(read, cut)
        while (checkpoint := queue.next_due(until)) is not None:
            number = checkpoint.key.start_offset // 10
            assert number not in revived, "once only"
            assert checkpoint.revive_time < until
            # what was acknowledged before this is not handed out again
            before = {offset for kind, of, _, offset in records[:read] if kind == "ack" and of == number}
            open_offsets = {offset - 10 * number for offset in checkpoint.open_offsets()}
            assert open_offsets >= set(range(COUNT)) - before
            first = next(kind for kind, of, _, _ in records if of == number)
            if first == "ck":  # as the timer delivers them; others wait for their checkpoint for a time only
                assert open_offsets == set(range(COUNT)) - before
            revived[number] = open_offsets
            queue.finish(checkpoint)
        queue.drop_early(until)
        done = queue.done_until()
        for at in range(min(done + 1, len(records))):
            kind, number, _, _ = records[at]
            if kind == "ck":
                assert number in revived, f"offset {done} passed checkpoint {at}"
        assert done < read
    assert queue.done_until() == len(records) - 1
    assert set(revived) == set(range(len(invisible_times)))


def test_a_checkpoint_that_comes_twice_is_handled_once():
    queue = ReviveQueue(0, "broker-a", 0)
    queue.read(CHECKPOINT_CODE, checkpoint_record(1, 10, 2), 0)
    queue.finish(queue.next_due(5000))
    queue.read(CHECKPOINT_CODE, checkpoint_record(1, 10, 2), 1)
    queue.read(ACK_CODE, ack_record(1, 10, 0), 2)
    assert queue.next_due(5000) is None
    assert queue.done_until() == 2


# --- on a broker


def test_messages_keep_what_they_have(tmp_path):
    """#6339: RocketMQ lost the flag. A delay level that a message once had does not delay its retry."""

    async def scene(peer: Peer) -> None:
        properties = f"KEYS\x01k\x02TAGS\x01A\x02mine\x01yes\x02{PROPERTY_DELAY_TIME_LEVEL}\x010\x02"
        await sent(peer, b"a", flag=7, properties=properties, born_timestamp=12345)
        popper = Popper(peer)
        answer = await popper.pop(invisible_time=0)
        (again,) = await comes(popper)
        message = again.message
        assert (message.body, message.flag, message.tags, message.born_timestamp) == (b"a", 7, "A", 12345)
        assert message.properties["mine"] == "yes"
        assert message.properties[PROPERTY_KEYS] == "k"
        first = message.properties[PROPERTY_FIRST_POP_TIME]
        assert first == str(answer.header.pop_time)
        # again: the first time stays, the attempts count
        await popper.changed(again, 0)
        (third,) = await comes(popper)
        assert third.message.reconsume_times == 2
        assert third.message.properties[PROPERTY_FIRST_POP_TIME] == first

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_retry_topic_v2_and_v1(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", invisible_time=0)
        (again,) = await comes(popper)
        assert again.topic == "%RETRY%G_T"
        await popper.changed(again, 0)
        broker = peer.controller.broker
        broker.config = broker.config.replaced({"enableRetryTopicV2": "true"})
        (again,) = await comes(popper)
        assert again.topic == "%RETRY%G_T"  # what is in a retry topic stays there
        await sent(peer, b"b")
        answer = await popper.pop()
        await popper.changed(answer.messages[0], 0)
        (again,) = await comes(popper)
        assert (again.body, again.topic) == (b"b", "%RETRY%G+T")

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


def test_actual_retry_topic(tmp_path):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", invisible_time=0)
        (again,) = await comes(popper)
        assert again.message.topic == again.topic == "%RETRY%G_T"
        assert (await popper.ack(again)).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene, popResponseReturnActualRetryTopic="true", **SMALL_TIMES)


def test_queue_of_the_retry_topic(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", queue_id=3)
        popper = Popper(peer)
        await popper.pop(invisible_time=0)
        (again,) = await comes(popper)
        assert again.message.queue_id == 3
        config = peer.controller.broker.topic_config_manager.select_topic_config(again.topic)
        assert config.read_queue_nums == 4

    on_a_broker(tmp_path, scene, useSeparateRetryQueue="true", **SMALL_TIMES)


def test_what_is_gone_holds_up_nothing(tmp_path):
    """A topic, a group, or messages that were deleted while they were invisible."""

    async def scene(peer: Peer) -> None:
        broker = peer.controller.broker
        for topic in ("T", "U"):
            await sent(peer, b"a", topic=topic)
            assert (await Popper(peer, topic).pop(invisible_time=0)).bodies == [b"a"]
        await sent(peer, b"a", topic="V")
        assert (await Popper(peer, "V", "H").pop(invisible_time=0)).bodies == [b"a"]
        broker.topic_config_manager.delete_topic_config("T")
        broker.store.consume_queues.delete_topic("U")
        broker.subscription_group_manager.delete_subscription_group_config("H")
        broker.consumer_offset_manager.remove_offset("H")
        await revived(peer)
        revive = peer.controller.pop_service.revive_service
        assert revive.revived == 0
        assert [revive.lag(queue) for queue in revive.queues] == [0] * 8
        topic = peer.controller.pop_service.state.revive_log.topic
        committed = broker.consumer_offset_manager.query_offsets(REVIVE_GROUP, topic)
        assert sum(offset + 1 for offset in committed.values()) == 3

    on_a_broker(tmp_path, scene, **{**SMALL_TIMES, "reviveInterval": "600000"})


def test_goes_on_after_a_restart(tmp_path):
    async def main() -> None:
        from mqlake.remoting.client import RemotingClient

        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            popper, answer = await popped(peer, b"a", b"b", b"c", invisible_time=1500)
            await popper.ack(answer.messages[0])
            visible_at = answer.messages[0].handle.visible_at
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            popper = Popper(peer)
            again = await comes(popper, 2)
            assert now_ms() >= visible_at
            assert sorted(one.body for one in again) == [b"b", b"c"]
            assert await popper.ack(again[0])
            await revived(peer)
            assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT

    run(main())
