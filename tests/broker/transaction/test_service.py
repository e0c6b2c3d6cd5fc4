from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.broker.transaction import service
from mqlake.broker.transaction.service import TransactionState, place_of
from mqlake.errors import StoreClosedError
from tests.broker.transaction.room import Room, in_a_room
from tests.clock import Clock
from tests.store.small_store import flip, log_file
from tests.waiting import PATIENCE_S

HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"


def test_what_has_ended_is_passed_over_and_what_is_open_is_asked_for(tmp_path):
    async def scene(room):
        halves = [await room.prepare(str(number)) for number in range(5)]
        assert room.metrics.transaction_counts["T"].count == 5
        room.commit(halves[0])
        room.roll_back(halves[1])
        room.commit(halves[3])
        assert await room.check(after_ms=5_999) == []  # too young
        assert room.progress() == (2, -1)
        assert await room.check(after_ms=1) == ["2", "4"]
        assert room.progress() == (5, 1)
        assert room.metrics.transaction_counts["T"].count == 2
        asked = room.asked[0]
        assert (asked.queue_offset, asked.properties["TRANSACTION_CHECK_TIMES"]) == (5, "1")
        assert room.service.look_half_message(asked.physical_offset).body == b"2"
        room.commit(asked)
        assert await room.check(after_ms=1) == ["4"]
        assert [final.body for final in room.messages("T", 3)] == [b"0", b"3", b"2"]
        assert [op.body for op in room.messages(OP)] == [b"0,1,3,", b"5,"]

    in_a_room(tmp_path, scene)


def test_where_no_transaction_ever_was_nothing_is_written_down(tmp_path):
    async def scene(room: Room) -> None:
        assert await room.check() == []
        assert room.offsets.offset_table == {}  # operators would see a group that consumes

    in_a_room(tmp_path, scene)


def test_after_so_many_checks_a_message_is_an_operators(tmp_path, caplog):
    async def scene(room):
        await room.prepare("1")
        asked = [await room.check(after_ms=30_000) for _ in range(5)]
        assert asked == [["1"], ["1"], ["1"], [], []]
        (discarded,) = room.messages(DISCARDED)
        assert discarded.body == b"1" and discarded.properties["TRANSACTION_CHECK_TIMES"] == "3"
        assert discarded.properties["REAL_TOPIC"] == "T"
        assert room.metrics.transaction_counts["T"].count == 0
        assert room.progress()[0] == 4 and room.messages("T", 3) == []

    in_a_room(tmp_path, scene, transactionCheckMax=3)
    assert (
        "was checked 3 times without an answer; a producer of its group PG was last asked at " in caplog.text
    )


def test_a_message_older_than_the_log_keeps_is_an_operators(tmp_path, caplog):
    async def scene(room):
        await room.prepare("1")
        assert await room.check(after_ms=72 * 3_600_000 + 1) == []
        assert len(room.messages(DISCARDED)) == 1

    in_a_room(tmp_path, scene)
    assert "of T (K1) is older than fileReservedTime (72 h): it is moved to" in caplog.text


def test_a_message_whose_producers_were_never_there_is_not_called_asked_for(tmp_path, caplog):
    async def scene(room):
        room.producers_there = False
        for body in "12":
            await room.prepare(body)
        for _ in range(3):
            await room.check(after_ms=30_000)
        assert len(room.messages(DISCARDED)) == 2

    in_a_room(tmp_path, scene, transactionCheckMax=2)
    told = [
        record.getMessage()
        for record in caplog.records
        if record.name == "mqlake.broker.transaction.service" and record.levelname != "INFO"
    ]
    open_ones = "half queue 0: 2 messages are open and no producer of their group PG could be asked"
    given_up = [
        f"half message {place} of T (K{body}) was checked 2 times without an answer; no producer of its group PG "
        "could be asked since the broker started: it is moved to TRANS_CHECK_MAX_TIME_TOPIC"
        for place, body in ((4, 1), (5, 2))
    ]
    # the copy that a round puts back may be seen in the same round, as in RocketMQ
    assert sorted(told) == sorted([open_ones, open_ones, *given_up])


def test_a_producer_that_wants_time_is_not_asked_before(tmp_path):
    async def scene(room):
        slow = await room.prepare("slow", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        await room.prepare("other", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        for _ in range(18):  # more rounds than transactionCheckMax
            assert await room.check(after_ms=30_000) == []
        room.commit(slow)  # by its first place, though it has been put back many times
        assert await room.check(after_ms=30_000) == []
        assert await room.check(after_ms=60_000) == ["other"]
        assert room.messages(DISCARDED) == []

    in_a_room(tmp_path, scene)


def test_a_clock_that_is_set_back_makes_it_ask_at_once(tmp_path):
    async def scene(room):
        await room.prepare("1")
        room.clock.now -= 1_000_000
        assert await room.check() == []  # stored after this round began, as it seems
        room.clock.now += 999_999
        assert await room.check() == []
        assert await room.check(after_ms=6_001) == ["1"]

    in_a_room(tmp_path, scene)


def test_op_messages_are_written_when_they_are_full_or_old_enough(tmp_path):
    async def scene(room):
        halves = [await room.prepare(str(number)) for number in range(12)]
        for half in halves[:3]:
            room.roll_back(half)
        assert room.messages(OP) == []
        async with asyncio.timeout(60):
            while not room.messages(OP):
                await asyncio.sleep(0.005)
        for half in halves[3:]:
            room.roll_back(half)
        bodies = [op.body for op in room.messages(OP)]
        assert bodies[0] == b"0,1,2," and bodies[1] == b"3,4,5,6,7,8,"
        room.service.close()
        assert [op.body for op in room.messages(OP)][2:] == [b"9,10,11,"]

    in_a_room(tmp_path, scene, transactionOpMsgMaxSize=11, transactionOpBatchInterval=30)


def test_a_round_holds_few_messages_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "ASK_BYTES_MAX", 3000)

    async def scene(room):
        for number in range(20):
            await room.prepare(str(number))
        assert await room.check(after_ms=6_000) == [str(number) for number in range(20)]
        assert room.progress()[0] == 20

    in_a_room(tmp_path, scene)


def test_an_end_that_died_with_the_broker_is_found_again(tmp_path):
    async def scene(room):
        halves = [await room.prepare(str(number)) for number in range(3)]
        room.commit(halves[0])  # its op message is in memory
        room.shutdown(crash=True)
        after = Room(tmp_path, room.clock)
        try:
            room.clock.now += 1
            assert await after.check(after_ms=6_000) == ["1", "2"]
            assert after.service.ended_as(place_of(halves[0])) is TransactionState.COMMITTED
            assert [final.body for final in after.messages("T", 3)] == [b"0"]
        finally:
            after.shutdown()

    async def play():
        await scene(Room(tmp_path, Clock()))

    asyncio.run(play())


def test_an_end_is_remembered_for_its_copies_as_well(tmp_path):
    async def scene(room):
        half = await room.prepare("1")
        assert await room.check(after_ms=30_000) == ["1"]
        (copy,) = room.asked
        room.roll_back(half)
        assert room.service.ended_as(place_of(copy)) is TransactionState.ROLLED_BACK
        room.service.reopen(place_of(copy))
        assert room.service.ended_as(place_of(half)) is None
        assert await room.check(after_ms=30_000) == []  # the op queue knows

    in_a_room(tmp_path, scene)


def test_what_has_ended_is_kept_when_the_store_raises(tmp_path):
    """Else a committed message would be asked for again, and its producer might roll it back."""

    async def scene(room):
        halves = [await room.prepare(str(number)) for number in range(3)]
        for half in halves[:2]:
            room.commit(half)

        def broken(*_):
            raise StoreClosedError("closed")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room.service, "write_op", broken)
            with pytest.raises(StoreClosedError):
                room.service.batch_send_op_message()
        assert room.service.batch_send_op_message()
        assert await room.check(after_ms=30_000) == ["2"]
        assert [op.body for op in room.messages(OP)] == [b"0,1,"]

    in_a_room(tmp_path, scene)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["put", "commit", "roll back", "check", "crash"]), max_size=40), st.randoms())
def test_whatever_happens_a_message_is_decided_once_and_open_ones_are_asked_for(
    tmp_path_factory, steps, random
):
    async def play():
        root = tmp_path_factory.mktemp("room")
        room = Room(root, Clock(), transactionCheckMax=1000)
        open_ones, committed, number = {}, [], 0
        try:
            for step in [*steps, "check"]:
                room.clock.now += 10_000
                if step == "put":
                    open_ones[str(number)] = await room.prepare(str(number))
                    number += 1
                elif step == "crash":
                    room.shutdown(crash=True)
                    room = Room(root, room.clock, transactionCheckMax=1000)
                elif step == "check":
                    asked = await room.check()
                    assert set(open_ones) <= set(asked)
                    open_ones.update(
                        {half.body.decode(): half for half in room.asked if half.body.decode() in open_ones}
                    )
                    for half in room.asked:
                        if half.body.decode() not in open_ones:
                            room.roll_back(half)  # its rollback died with the broker
                elif open_ones:
                    body = random.choice(sorted(open_ones))
                    half = open_ones.pop(body)
                    if step == "commit":
                        committed.append(body.encode())
                        room.commit(half)
                    else:
                        room.roll_back(half)
            assert [final.body for final in room.messages("T", 3)] == committed
        finally:
            room.shutdown()

    asyncio.run(play())


def test_a_damaged_half_message_does_not_stop_the_checks_of_its_queue(tmp_path):
    async def scene(room):
        halves = [await room.prepare(str(number)) for number in range(4)]
        assert room.store.wait_until_dispatched(PATIENCE_S)
        log = log_file(tmp_path)
        flip(log, halves[1].physical_offset + 88)  # the body
        flip(log, halves[2].physical_offset + 15)  # the queue
        assert await room.check(after_ms=30_000) == ["0", "3"]
        assert room.store.damage.counts() == [("pull", HALF, 2)]

    in_a_room(tmp_path, scene)


FIELDS = [
    "topic",
    "body",
    "flag",
    "properties",
    "queue_id",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_host",
    "store_timestamp",
    "queue_offset",
    "physical_offset",
    "reconsume_times",
]


def test_what_is_remembered_of_half_messages_is_bounded_and_what_the_log_has(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "RECENT_MAX", 4)
    monkeypatch.setattr(service, "RECENT_BYTES_MAX", 1000)

    async def scene(room: Room) -> None:
        places, given_away = [], 0
        for number, size in enumerate((1, 10, 100, 900, 1, 1, 2000, 3, 1, 1, 1, 1)):
            places.append(await room.put_half("x" * size, KEYS=f"k{number}"))
            recent = room.service._recent
            assert len(recent) <= 4
            assert sum(len(each.body) for each in recent.values()) == room.service._recent_bytes <= 1000
        for place in places:
            given_away += place in recent
            first = room.service.look_half_message(place)
            stored = room.service.look_half_message(place)
            assert [getattr(first, name) for name in FIELDS] == [getattr(stored, name) for name in FIELDS]
        assert given_away == 4 and not recent and room.service._recent_bytes == 0

    in_a_room(tmp_path, scene)
