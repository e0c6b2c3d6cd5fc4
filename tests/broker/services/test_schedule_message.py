from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.formats.record import decode_record
from mqlake.message import SCHEDULE_TOPIC, MessageExtBrokerInner
from mqlake.remoting.codes import ResponseCode
from mqlake.store.config import MessageStoreConfig
from mqlake.store.filter import TagFilter
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import GetMessageStatus, PutMessageStatus
from tests.broker.live import SUBSCRIPTION, SUSPEND, Peer, on_a_broker
from tests.broker.small import SMALL
from tests.clock import Clock
from tests.waiting import PATIENCE_S, until_async


class Room:
    """A store on a clock of its own, and the service, as after each start of a broker."""

    def __init__(self, root, clock: Clock, **settings: object) -> None:
        self.clock = clock
        config = MessageStoreConfig.from_mapping({**SMALL, "storePathRootDir": str(root), **settings})
        self.store = DefaultMessageStore(config, clock_ms=clock)
        self.store.load()
        self.store.start()
        self.service = ScheduleMessageService(str(root / "config" / "delayOffset.json"), self.store)
        self.service.load()
        self.service.correct_delay_offset()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.shutdown()

    def put(self, body: str, level: int, topic: str = "T", queue_id: int = 3, **fields) -> None:
        message = MessageExtBrokerInner(
            topic, body.encode(), "tag", "key", queue_id=queue_id, born_timestamp=7, **fields
        )
        message.delay_time_level = level
        assert self.store.put_message(message).is_ok
        assert message.topic == SCHEDULE_TOPIC
        assert self.store.wait_until_dispatched(PATIENCE_S)

    def deliver(self, level: int) -> float:
        """All that is due; when to look again."""
        while (wait_s := self.service.deliver_due(level)) == 0.0:
            pass
        self.store.flush()
        assert self.store.wait_until_dispatched(PATIENCE_S)
        return wait_s

    def messages(self, topic: str = "T", queue_id: int = 3) -> list:
        count = self.store.max_offset_in_queue(topic, queue_id)
        found = []
        while len(found) < count:
            found += self.store.get_message("g", topic, queue_id, len(found), 32).messages()
        return found

    def bodies(self, topic: str = "T", queue_id: int = 3) -> list[str]:
        return [message.body.decode() for message in self.messages(topic, queue_id)]


def test_a_message_comes_back_to_its_place_when_it_is_due_and_as_rocketmq_leaves_it(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("one", 3, reconsume_times=2, flag=9, born_host=("10.0.0.1", 5), store_host=("10.0.0.2", 6))
        clock.now += 9_999
        assert room.deliver(3) == pytest.approx(0.001)
        assert room.messages() == []
        clock.now += 1
        assert room.deliver(3) == 1.0
        (message,) = room.messages()
        assert (message.topic, message.queue_id, message.body) == ("T", 3, b"one")
        assert message.properties == {
            "TAGS": "tag",
            "KEYS": "key",
            "DELAY": "3",
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        }
        assert (message.reconsume_times, message.flag, message.born_timestamp) == (2, 9, 7)
        assert message.born_host == ("10.0.0.1", 5) and message.store_host == ("10.0.0.2", 6)
        assert message.store_timestamp == clock.now
        assert room.store.get_message("g", "T", 3, 0, 1, TagFilter("tag")).status is GetMessageStatus.FOUND
        assert room.store.max_offset_in_queue(SCHEDULE_TOPIC, 2) == 1  # it did not go round again
        assert room.service.running_stats() == {"scheduleMessageOffset_3": "1,1"}
        assert room.store.broker_stats_manager.item("GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER")


def test_levels_do_not_wait_for_each_other_and_keep_their_order(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        for number in range(150):  # several queue files of 64
            room.put(f"slow {number}", 18)
            room.put(f"fast {number}", 1)
            clock.now += 1
        clock.now += 1_000
        room.deliver(1)
        room.deliver(18)
        assert room.bodies() == [f"fast {number}" for number in range(150)]
        clock.now += 7_200_000
        room.deliver(18)
        assert room.bodies()[150:] == [f"slow {number}" for number in range(150)]


def test_a_restart_goes_on_at_the_cursor(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        for number in range(3):
            room.put(str(number), 1)
        clock.now += 1_000
        room.deliver(1)
        room.put("3", 1)
        room.service.persist()
    text = (tmp_path / "config" / "delayOffset.json").read_text()
    assert text.startswith('{\n\t"dataVersion":{') and '"offsetTable":{1:3\n\t}' in text
    with Room(tmp_path, clock) as room:
        clock.now += 1_000
        room.deliver(1)
        assert room.bodies() == ["0", "1", "2", "3"]


def test_what_was_not_persisted_is_delivered_again_and_nothing_is_lost(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("0", 1)
        clock.now += 1_000
        room.deliver(1)
        room.service.persist()
        room.put("1", 1)
        clock.now += 1_000
        room.deliver(1)  # and the broker dies before the next interval
    with Room(tmp_path, clock) as room:
        room.deliver(1)
        assert room.bodies() == ["0", "1", "1"]


def test_the_log_is_flushed_before_the_cursors_are_written(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("0", 1)
        clock.now += 1_000
        room.deliver(1)
        room.service.persist()
        assert room.store.flushed_where == room.store.max_phy_offset


def test_a_store_that_takes_nothing_is_tried_again(tmp_path, caplog):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("0", 1)
        clock.now += 1_000
        room.store.running_flags.make_disk_full()
        for _ in range(20):
            assert room.service.deliver_due(1) == 0.1
        assert room.service.offset_table.get(1, 0) == 0
        room.store.running_flags.make_disk_ok()
        room.deliver(1)
        assert room.bodies() == ["0"]
    said = [record.getMessage() for record in caplog.records if record.name.endswith("schedule_message")]
    begin, end = said
    assert begin.startswith("delay level 1: SERVICE_NOT_AVAILABLE")
    assert end == "due messages are delivered again (after 20 failures)"


def test_sync_flush_delivers_as_well(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock, flushDiskType="SYNC_FLUSH") as room:
        for number in range(4):
            room.put(str(number), 1)
        clock.now += 1_000
        room.deliver(1)
        assert room.bodies() == [str(number) for number in range(4)]


def test_due_times_may_be_in_the_extension_of_the_queue(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock, enableConsumeQueueExt="true") as room:
        room.put("0", 1)
        unit = room.store.consume_queues.get(SCHEDULE_TOPIC, 0).get_range_bytes(0, 1)
        assert unit[12] == 0x80  # an address there
        clock.now += 999
        assert room.deliver(1) == pytest.approx(0.001)
        clock.now += 1
        room.deliver(1)
        assert room.bodies() == ["0"]


def test_a_message_that_does_not_say_where_it_belongs_is_left_behind(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        for properties in ({}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "REAL_QID": "x"}):
            stray = MessageExtBrokerInner(SCHEDULE_TOPIC, b"?", properties={**properties, "DELAY": "1"})
            assert room.store.put_message(stray).status is PutMessageStatus.PUT_OK
        half = {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0", "DELAY": "1"}
        assert room.store.put_message(MessageExtBrokerInner(SCHEDULE_TOPIC, b"?", properties=half)).is_ok
        room.put("good", 1)
        clock.now += 1_000
        room.deliver(1)
        assert room.bodies() == ["good"]
        assert room.service.offset_table[1] == 5


def test_cursors_outside_their_queue_are_corrected(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("0", 1)
        room.service.offset_table = {1: 99, 2: 5}
        room.service.persist()
    with Room(tmp_path, clock) as room:
        assert room.service.offset_table == {1: 1, 2: 0}
        room.put("1", 1)
        clock.now += 1_000
        room.deliver(1)
        assert room.bodies() == ["1"]


def test_a_clock_that_was_set_back_does_not_hold_messages_for_long(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        room.put("0", 1)
        clock.now -= 3_600_000
        room.deliver(1)
        assert room.bodies() == ["0"]


def test_a_level_above_the_last_is_the_last(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock, messageDelayLevel="1s 3s") as room:
        room.put("0", 99)
        assert room.service.max_delay_level == 2
        clock.now += 3_000
        room.deliver(2)
        assert room.bodies() == ["0"] and room.messages()[0].properties["DELAY"] == "2"


def test_many_due_messages_do_not_hold_the_loop(tmp_path):
    clock = Clock()
    with Room(tmp_path, clock) as room:
        for number in range(2_000):
            message = MessageExtBrokerInner("T", str(number).encode(), queue_id=3)
            message.delay_time_level = 1
            assert room.store.put_message(message).is_ok
        assert room.store.wait_until_dispatched(PATIENCE_S)
        clock.now += 1_000

        async def run() -> int:
            room.service.start()
            turns = 0
            while room.service.offset_table.get(1, 0) < 2_000:
                await asyncio.sleep(0)
                turns += 1
            await room.service.shutdown()
            return turns

        turns = asyncio.run(asyncio.wait_for(run(), 60))
        assert turns > 3
        assert room.store.wait_until_dispatched(PATIENCE_S)
        assert room.bodies() == [str(number) for number in range(2_000)]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 3)),
            st.tuples(st.just("pass"), st.integers(0, 2_500)),
            st.tuples(st.sampled_from(["deliver", "persist", "restart", "crash"]), st.just(0)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_each_message_comes_in_time_and_in_order(tmp_path_factory, steps):
    """Against a plain list; after a crash what had not been persisted comes again."""
    root = tmp_path_factory.mktemp("store")
    clock = Clock()
    delays = {1: 1_000, 2: 2_000, 3: 3_000}
    room = Room(root, clock, messageDelayLevel="1s 2s 3s")
    stored: dict[int, list[tuple[int, str]]] = {1: [], 2: [], 3: []}
    cursor, kept = dict.fromkeys(delays, 0), dict.fromkeys(delays, 0)
    expected: dict[int, list[str]] = {1: [], 2: [], 3: []}
    try:
        for number, (step, value) in enumerate(steps):
            if step == "put":
                room.put(f"{number}", value, queue_id=value)
                stored[value].append((clock.now + delays[value], f"{number}"))
            elif step == "pass":
                clock.now += value
            elif step == "deliver":
                for level in delays:
                    room.deliver(level)
                    while cursor[level] < len(stored[level]) and stored[level][cursor[level]][0] <= clock.now:
                        expected[level].append(stored[level][cursor[level]][1])
                        cursor[level] += 1
            else:
                if step != "crash":
                    room.service.persist()
                    kept = dict(cursor)
                if step != "persist":
                    room.store.shutdown()
                    room = Room(root, clock, messageDelayLevel="1s 2s 3s")
                    cursor = dict(kept)
            for level in delays:
                assert room.bodies(queue_id=level) == expected[level]
    finally:
        room.store.shutdown()


def test_on_a_broker_a_delayed_message_arrives_in_its_time_and_wakes_who_waits_for_it(tmp_path):
    async def scene(peer: Peer) -> None:
        sent = await peer.send("T", b"later", properties="DELAY\x011\x02", queue_id=1)
        assert sent.code == ResponseCode.SUCCESS
        store = peer.controller.broker.store
        await until_async(lambda: store.max_offset_in_queue(SCHEDULE_TOPIC, 0) == 1)
        begin = store.message_store_timestamp(SCHEDULE_TOPIC, 0, 0)
        answer = await peer.pull(
            "T", queue_id=1, sys_flag=SUSPEND | SUBSCRIPTION, suspend_timeout_millis=60_000
        )
        assert answer.code == ResponseCode.SUCCESS
        message = decode_record(answer.body)
        assert message.body == b"later" and message.properties["REAL_QID"] == "1"
        assert message.store_timestamp - begin >= 1_000
        await until_async(lambda: peer.controller.schedule_message_service.offset_table == {1: 1})

    on_a_broker(tmp_path, scene)
