"""Revive: which checkpoints are due, and how far the offset of a revive queue may go; then on a live broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
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
from mqlake.errors import FormatError
from mqlake.formats.record import encode_record
from mqlake.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_KEYS,
    REVIVE_GROUP,
    MessageExtBrokerInner,
    crc32,
    host_bytes,
    properties_to_bytes,
)
from mqlake.remoting.codes import ResponseCode
from mqlake.store.results import PutMessageStatus
from tests.broker.live import Peer, now_ms, on_a_broker, running
from tests.broker.live_broker import run
from tests.broker.pop.popping import SMALL_TIMES, Popper
from tests.broker.pop.test_ack import comes, popped, revived
from tests.broker.pop.test_pop_message import sent
from tests.broker.puts import Puts
from tests.waiting import until_async

HOST = host_bytes(("127.0.0.1", 10911))


def key_of(number: int) -> CheckpointKey:
    return CheckpointKey("T", "G", 0, 10 * number, 1000 + number, "broker-a")


def record(body: bytes, due: int | str, **more: str) -> memoryview:
    properties = properties_to_bytes({"TIMER_DELIVER_MS": str(due), **more})
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


def test_acknowledgements_that_come_before_their_checkpoint_all_count():
    queue = ReviveQueue(0, "broker-a", 0)
    queue.read(ACK_CODE, ack_record(1, 10, 0), 0)
    queue.read(ACK_CODE, ack_record(1, 10, 2), 1)
    queue.read(ACK_CODE, ack_record(2, 10, 1), 2)
    assert queue.done_until() == -1, "their checkpoints may still come"
    queue.read(CHECKPOINT_CODE, checkpoint_record(1, 10, 3), 3)
    checkpoint = queue.next_due(5000)
    assert checkpoint.open_offsets() == [11]
    assert queue.done_until() == -1
    queue.finish(checkpoint)
    assert queue.done_until() == 1, "that of the second is still not here"
    assert queue.drop_early(1012) == 0 and queue.done_until() == 1
    assert queue.drop_early(1013) == 1 and queue.done_until() == 3
    assert queue.drop_early(1013) == 0


def test_what_comes_for_a_checkpoint_that_is_done_waits_for_nothing():
    queue = ReviveQueue(0, "broker-a", 0)
    queue.read(CHECKPOINT_CODE, checkpoint_record(1, 10, 2), 0)
    assert queue.next_due(1011) is None, "its time is not over"
    queue.read(ACK_CODE, ack_record(1, 10, 1), 1)
    assert not queue.early, "its checkpoint is here"
    queue.finish(queue.next_due(1012))
    queue.read(ACK_CODE, ack_record(1, 10, 0), 2)
    assert not queue.early and queue.done_until() == 2


def test_a_checkpoint_that_comes_twice_brings_its_bits():
    """From RocketMQ's broker, which stores it again with what was acknowledged meanwhile."""
    queue = ReviveQueue(0, "broker-a", 0)
    for at, bits in enumerate((0b001, 0b100)):
        checkpoint = Checkpoint(key_of(1), 10, range(3), bits=bits)
        queue.read(CHECKPOINT_CODE, record(encode_checkpoint(checkpoint), 1), at)
    assert queue.next_due(5000).open_offsets() == [11]
    queue.finish(queue.next_due(5000))
    assert queue.next_due(5000) is None and queue.done_until() == 1


def test_what_is_remembered_has_its_bounds(monkeypatch):
    monkeypatch.setattr("mqlake.broker.pop.revive.EARLY_MAX", 2)
    monkeypatch.setattr("mqlake.broker.pop.revive.DONE_MAX", 2)
    queue = ReviveQueue(0, "broker-a", 0)
    for number in range(3):
        queue.read(ACK_CODE, ack_record(number, 10, 0), number)
    assert list(queue.early) == [key_of(1), key_of(2)], "the oldest gives way"
    queue = ReviveQueue(0, "broker-a", 0)
    for number in range(3):
        queue.read(CHECKPOINT_CODE, checkpoint_record(number, 10, 1), number)
        queue.finish(queue.next_due(5000))
    assert list(queue.done) == [key_of(1), key_of(2)]


def test_an_acknowledgement_without_a_time_waits_as_long_as_its_pop_is_old():
    queue = ReviveQueue(0, "broker-a", 0)
    body = encode_acknowledgement(Acknowledgement(key_of(1), [10]))
    queue.read(ACK_CODE, record(body, "soon"), 0)
    assert queue.drop_early(1001) == 0 and queue.drop_early(1002) == 1


def test_another_record_is_refused():
    queue = ReviveQueue(0, "broker-a", 0)
    with pytest.raises(FormatError, match="neither"):
        queue.read(1, checkpoint_record(1, 10, 1), 4)
    assert queue.next_offset == 5 and queue.done_until() == 4


# --- on a broker


BY_HAND = {**SMALL_TIMES, "reviveInterval": "600000"}


def retry_puts(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Puts:
    """In front of the retry topics."""
    store = peer.controller.broker.store
    puts = Puts(store.async_put_message, lambda message: message.topic.startswith("%RETRY%"))
    monkeypatch.setattr(store, "async_put_message", puts)
    return puts


def revive_offsets(peer: Peer) -> int:
    """Records of the revive topic that are done, as the offsets say that are kept."""
    topic = peer.controller.pop_service.state.revive_log.topic
    committed = peer.controller.broker.consumer_offset_manager.query_offsets(REVIVE_GROUP, topic) or {}
    return sum(offset + 1 for offset in committed.values())


@pytest.mark.parametrize("pending", [False, True])
def test_what_the_store_does_not_take_is_tried_again(tmp_path, monkeypatch, pending):
    """Taken for revived it would be lost: nobody would see the message again."""

    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", b"b", b"c", invisible_time=0)
        puts = retry_puts(peer, monkeypatch)
        puts.refuse = PutMessageStatus.SERVICE_NOT_AVAILABLE
        puts.holds = pending
        revive = peer.controller.pop_service.revive_service
        waiting = asyncio.ensure_future(revived(peer))
        if pending:
            await until_async(lambda: len(puts.held) == 3)
            puts.let_go(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        await waiting
        assert puts.asked == ([b"a", b"b", b"c"] if pending else [b"a"]), "the next ones fail as well"
        assert (revive.revived, revive_offsets(peer)) == (0, 0)
        assert sum(map(revive.lag, revive.queues)) == 1
        puts.refuse = None
        waiting = asyncio.ensure_future(revive.revive())
        if pending:
            await until_async(lambda: len(puts.held) == 3)
            assert revive.revived == 0, "not before they are flushed"
            puts.let_go()
        await waiting
        assert (revive.revived, revive_offsets(peer)) == (3, 1)
        assert sum(map(revive.lag, revive.queues)) == 0
        assert sorted(one.body for one in await comes(popper, 3)) == [b"a", b"b", b"c"]
        assert (await popper.pop()).messages == []

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_what_was_stored_before_the_store_refused_is_not_stored_again(tmp_path, monkeypatch):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", b"b", b"c", invisible_time=0)
        puts = retry_puts(peer, monkeypatch)
        real = puts._put

        def full_after_one(message):
            if len(puts.asked) == 1:
                puts.refuse = PutMessageStatus.OS_PAGECACHE_BUSY
            return real(message)

        puts._put = full_after_one
        await revived(peer)
        assert puts.asked == [b"a", b"b"]
        assert (peer.controller.pop_service.revive_service.revived, revive_offsets(peer)) == (1, 0)
        puts.refuse, puts._put = None, real
        await peer.controller.pop_service.revive_service.revive()
        assert puts.asked == [b"a", b"b", b"b", b"c"]
        assert sorted(one.body for one in await comes(popper, 3)) == [b"a", b"b", b"c"]
        assert (await popper.pop()).messages == []

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_what_can_never_be_stored_holds_up_nothing(tmp_path, monkeypatch, caplog):
    async def scene(peer: Peer) -> None:
        await popped(peer, b"a", b"b", invisible_time=0)
        puts = retry_puts(peer, monkeypatch)
        puts.refuse = PutMessageStatus.MESSAGE_ILLEGAL
        await revived(peer)
        assert puts.asked == [b"a", b"b"] and revive_offsets(peer) == 1
        assert peer.controller.pop_service.revive_service.revived == 0
        assert caplog.text.count("can never be stored in the retry topic") == 2

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_one_checkpoint_that_cannot_be_revived_keeps_the_offset(tmp_path, monkeypatch):
    """The checkpoints of other queues go on; after a crash this one is read again."""

    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", invisible_time=0)
        puts = retry_puts(peer, monkeypatch)
        puts._meant = lambda message: message.topic.startswith("%RETRY%") and message.body == b"a"
        puts.refuse = PutMessageStatus.SERVICE_NOT_AVAILABLE
        await sent(peer, b"b")
        assert (await popper.pop(invisible_time=0)).bodies == [b"b"]
        await revived(peer)
        assert (await comes(popper))[0].body == b"b"
        revive = peer.controller.pop_service.revive_service
        assert (revive.revived, revive_offsets(peer)) == (1, 1)
        assert revive.counts == {("T", "G"): 1}

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_many_checkpoints_are_read_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.pop.revive.PENDING_MAX", 2)
    monkeypatch.setattr("mqlake.broker.pop.revive.PAGE", 1)

    async def scene(peer: Peer) -> None:
        popper = Popper(peer)
        bodies = [b"%d" % number for number in range(7)]
        for body in bodies:
            await sent(peer, body)
            assert (await popper.pop(invisible_time=0)).bodies == [body]
        await revived(peer)
        revive = peer.controller.pop_service.revive_service
        assert (revive.revived, revive.checkpoints_in, revive_offsets(peer)) == (7, 7, 7)
        assert sorted(one.body for one in await comes(popper, 7)) == bodies

    on_a_broker(tmp_path, scene, reviveQueueNum="1", **BY_HAND)


def test_a_record_that_is_none_holds_up_nothing(tmp_path, caplog):
    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"a", invisible_time=0)
        topic = peer.controller.pop_service.state.revive_log.topic
        for tag in ("ck", "ack", "other"):
            message = MessageExtBrokerInner(topic, b"no JSON", properties={"TAGS": tag}, queue_id=0)
            assert (await peer.controller.broker.store.async_put_message(message)).is_ok
        await peer.dispatched()
        await revived(peer)
        revive = peer.controller.pop_service.revive_service
        assert (revive.revived, revive.checkpoints_in, revive.acknowledgements_in) == (1, 1, 0)
        assert caplog.text.count("is skipped") == 3 and revive_offsets(peer) == 4
        assert [one.body for one in await comes(popper)] == [b"a"]

    on_a_broker(tmp_path, scene, reviveQueueNum="1", **BY_HAND)


def test_a_damaged_message_holds_up_no_other(tmp_path, caplog):
    """The store reports it; its neighbours come again."""

    async def scene(peer: Peer) -> None:
        popper, _ = await popped(peer, b"before", b"the damaged one", b"after", invisible_time=0)
        (path,) = [each for each in (tmp_path / "store" / "commitlog").iterdir() if not int(each.name)]
        with open(path, "r+b") as file:
            file.seek(path.read_bytes().index(b"the damaged one"))
            file.write(b"THE")
        await revived(peer)
        assert (peer.controller.pop_service.revive_service.revived, revive_offsets(peer)) == (2, 1)
        assert sorted(one.body for one in await comes(popper, 2)) == [b"after", b"before"]
        assert "message 1 is" in caplog.text

    on_a_broker(tmp_path, scene, **BY_HAND)


@pytest.mark.parametrize("codes", [[], [1 << 62]], ids=["no unit", "a place in an extra file"])
def test_where_the_unit_has_no_tags_code_the_record_tells_what_it_is(tmp_path, codes):
    """RocketMQ's broker keeps it in the queue's extra file with enableConsumeQueueExt."""

    async def scene(peer: Peer) -> None:
        revive = peer.controller.pop_service.revive_service
        queue = ReviveQueue(0, "broker-a", 0)
        body = encode_checkpoint(Checkpoint(key_of(1), 10, range(2)))
        revive._read_one(queue, record(body, 1, TAGS="ck"), 0, codes)
        body = encode_acknowledgement(Acknowledgement(key_of(1), [10]))
        revive._read_one(queue, record(body, 1, TAGS="ack"), 1, codes)
        assert queue.pending[key_of(1)].open_offsets() == [11]
        assert (revive.checkpoints_in, revive.acknowledgements_in) == (1, 1)

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_a_new_retry_topic_is_consumed_from_its_beginning(tmp_path):
    """Without an offset its group would begin at the end. One that grows keeps the offsets of its queues."""

    async def scene(peer: Peer) -> None:
        offsets = peer.controller.broker.consumer_offset_manager
        popper = Popper(peer)
        for queue_id, expected in ((1, {0: 0, 1: 0}), (2, {0: 0, 1: 7, 2: 0})):
            await sent(peer, b"a", queue_id=queue_id)
            await popper.pop(queue_id=queue_id, invisible_time=0, max_msg_nums=1)
            await revived(peer)
            assert offsets.query_offsets("G", "%RETRY%G_T") == expected
            offsets.commit_offset("test", "G", "%RETRY%G_T", 1, 7)
        retry = peer.controller.broker.topic_config_manager.select_topic_config("%RETRY%G_T")
        assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (3, 3, 6)

    settings = {"useSeparateRetryQueue": "true", "popFromRetryProbability": "0"}
    on_a_broker(tmp_path, scene, **settings, **BY_HAND)


def test_checkpoints_in_queues_that_are_not_used_any_more_are_revived(tmp_path):
    """With a smaller reviveQueueNum than before."""

    async def main() -> None:
        from mqlake.remoting.client import RemotingClient

        bodies = [b"%d" % number for number in range(5)]
        many = {**SMALL_TIMES, "reviveQueueNum": "5"}
        async with running(tmp_path, **many) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await sent(peer, *bodies)
            for body in bodies:
                assert (await Popper(peer).pop(max_msg_nums=1, invisible_time=3000)).bodies == [body]
        async with (
            running(tmp_path, **SMALL_TIMES, reviveQueueNum="1") as controller,
            RemotingClient() as client,
        ):
            again = await comes(Popper(Peer(controller, client)), 5)
            assert sorted(one.body for one in again) == bodies
            assert len(controller.pop_service.revive_service.queues) == 5

    run(main())


def test_where_it_goes_on(tmp_path):
    """With the record after the last one that is done, or what the queue has."""

    async def scene(peer: Peer) -> None:
        revive, broker = peer.controller.pop_service.revive_service, peer.controller.broker
        topic = peer.controller.pop_service.state.revive_log.topic
        popper = Popper(peer)
        for body in (b"a", b"b", b"c"):
            await sent(peer, body)
            assert (await popper.pop(invisible_time=0)).bodies == [body]
        await revived(peer)
        assert revive_offsets(peer) == 3
        for committed, following in ((-1, 0), (0, 1), (1, 2), (2, 3), (9, 3)):
            broker.consumer_offset_manager.offset_table.pop(f"{topic}@{REVIVE_GROUP}", None)
            if committed >= 0:
                broker.consumer_offset_manager.commit_offset("test", REVIVE_GROUP, topic, 0, committed)
            revive.load()
            (queue,) = revive.queues
            assert (queue.next_offset, queue.committed) == (following, following - 1)

    on_a_broker(tmp_path, scene, reviveQueueNum="1", **BY_HAND)


def test_how_far_it_is_behind(tmp_path):
    async def scene(peer: Peer) -> None:
        revive, broker = peer.controller.pop_service.revive_service, peer.controller.broker
        queue = revive.queues[0]
        assert (revive.lag(queue), revive.latency_ms(queue)) == (0, 0)
        queue.read(CHECKPOINT_CODE, checkpoint_record(2, 20, 1), 0)
        queue.read(CHECKPOINT_CODE, checkpoint_record(1, 10, 1), 1)
        for now, behind in ((1011, 0), (1010, 0), (1012, 1), (2011, 1000)):
            broker.clock_ms = lambda now=now: now
            assert revive.latency_ms(queue) == behind
        topic = peer.controller.pop_service.state.revive_log.topic
        for _ in range(3):
            assert (await broker.store.async_put_message(MessageExtBrokerInner(topic, b"x"))).is_ok
        await peer.dispatched()
        for committed, lag in ((-1, 3), (0, 2), (2, 0), (5, 0)):
            queue.committed = committed
            assert revive.lag(queue) == lag

    on_a_broker(tmp_path, scene, reviveQueueNum="1", **BY_HAND)


def test_a_message_that_was_only_put_off_has_not_failed(tmp_path):
    """A change of the invisible time that suspends counts no attempt."""

    async def scene(peer: Peer) -> None:
        popper, answer = await popped(peer, b"a", b"b", invisible_time=60_000)
        await popper.changed(answer.messages[0], 0, suspend=True)
        await popper.changed(answer.messages[1], 0)
        again = {one.body: one.message.reconsume_times for one in await comes(popper, 2)}
        assert again == {b"a": 0, b"b": 1}

    on_a_broker(tmp_path, scene, **SMALL_TIMES)


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


def test_how_far_acknowledgements_have_come(tmp_path, monkeypatch):
    """One that is due at the time up to which the timers have read belongs to the step before it, which is delivered: a
    checkpoint of that time is due as well, and not a step later."""

    async def scene(peer: Peer) -> None:
        revive = peer.controller.pop_service.revive_service
        monkeypatch.setattr("mqlake.broker.pop.revive.LOOK_PAUSE_S", 0.0)
        come: list[int] = []
        asyncio.get_running_loop().call_soon(come.append, 1)
        assert await revive._until(lambda _: bool(come), 0), "the broker works on meanwhile"
        timers = SimpleNamespace(curr_read_time_ms=5000, commit_queue_offset=1 << 40)
        monkeypatch.setattr(revive, "_timers", timers)
        assert await revive._delivered_until() == 5001
        timers.commit_queue_offset = -1  # what came is not in the wheel
        assert await revive._delivered_until() is None
        timers.commit_queue_offset = 1 << 40
        monkeypatch.setattr(peer.controller.broker.store, "is_dispatched_until", lambda _: False)
        assert await revive._delivered_until() is None
        monkeypatch.setattr(revive, "_timers", None)
        assert await revive._delivered_until() is None

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_records_that_cannot_be_read_now_end_the_round(tmp_path, monkeypatch):
    """Else it would be begun again at once, and without end."""

    async def scene(peer: Peer) -> None:
        await popped(peer, b"a", invisible_time=0)
        await peer.dispatched()
        revive, store = peer.controller.pop_service.revive_service, peer.controller.broker.store
        stuck = SimpleNamespace(next_begin_offset=0, records=list, queue_offsets=[])
        monkeypatch.setattr(store, "get_message", lambda *_, **__: stuck)
        [queue] = [each for each in revive.queues if revive.lag(each)]
        assert await revive._read(queue) is False
        assert queue.next_offset == 0 and not queue.pending

    on_a_broker(tmp_path, scene, **BY_HAND)


@pytest.mark.parametrize("before_the_start", [False, True])
def test_what_is_revived_is_in_flight_no_more(tmp_path, before_the_start):
    """What was popped before the broker's start never counted as such since."""

    async def scene(peer: Peer) -> None:
        state = peer.controller.pop_service.state
        await popped(peer, b"a", b"b", b"c", invisible_time=0)
        assert state.queues.in_flight("T", "G", 0) == 3
        if before_the_start:
            state.started_at = now_ms() + 1_000_000
        await revived(peer)
        assert peer.controller.pop_service.revive_service.revived == 3
        assert state.queues.in_flight("T", "G", 0) == (3 if before_the_start else 0)

    on_a_broker(tmp_path, scene, **BY_HAND)


def test_a_long_round_lets_others_work_and_keeps_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.pop.revive.TURN_S", 0.0)

    async def scene(peer: Peer) -> None:
        revive = peer.controller.pop_service.revive_service
        queue = ReviveQueue(0, "broker-a", 0)
        for number in range(5):
            queue.read(CHECKPOINT_CODE, checkpoint_record(number, 10, 1), 2 * number)
            queue.read(ACK_CODE, ack_record(number, 10, 0), 2 * number + 1)
        seen: list[int] = []

        async def others() -> None:
            while True:
                seen.append(queue.committed)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        await revive._revive_due(queue, 10_000)
        task.cancel()
        assert len(seen) >= 5 and seen == sorted(seen) and len(set(seen)) > 1

    on_a_broker(tmp_path, scene, **BY_HAND)
