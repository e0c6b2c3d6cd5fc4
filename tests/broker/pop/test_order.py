"""Orderly pop: ConsumerOrderInfoManager, its file, and on a live broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base import json_config
from mqlake.broker.pop.order import IGNORED, MESSAGES_MAX, NOT_POPPED, ConsumerOrderInfoManager
from mqlake.message import ORDER_REVIVE_QUEUE_ID
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, on_a_broker
from tests.broker.pop.popping import Popper
from tests.broker.pop.test_pop_message import sent
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock(1_000_000)


@pytest.fixture
def manager(tmp_path, clock):
    return ConsumerOrderInfoManager(str(tmp_path / "consumerOrderInfo.json"), clock)


def blocked(manager, attempt=None):
    return bool(manager.blocked_until("T", "G", 0, attempt))


def test_a_queue_is_blocked_until_all_is_acknowledged(manager, clock):
    assert not blocked(manager)
    manager.update("T", "G", 0, "one", clock.now, 5000, [7, 8, 10])
    assert blocked(manager)
    assert blocked(manager, "two")
    assert not blocked(manager, "one")
    pop_time = clock.now
    assert manager.commit_and_next("T", "G", 0, 8, pop_time) == 7
    assert manager.commit_and_next("T", "G", 0, 7, pop_time) == 10
    assert blocked(manager)
    assert manager.commit_and_next("T", "G", 0, 9, pop_time) == NOT_POPPED
    assert manager.commit_and_next("T", "G", 0, 10, pop_time - 1) == IGNORED
    assert manager.commit_and_next("T", "G", 0, 10, pop_time) == 11
    assert not blocked(manager)


def test_time_ends_the_block(manager, clock):
    manager.update("T", "G", 0, None, clock.now, 5000, [7, 8])
    assert manager.update_next_visible_time("T", "G", 0, 8, clock.now, clock.now + 9000)
    assert not manager.update_next_visible_time("T", "G", 0, 8, clock.now - 1, clock.now)
    assert not manager.update_next_visible_time("T", "G", 0, 9, clock.now, clock.now)
    clock.now += 6000
    assert blocked(manager)
    clock.now += 3000
    assert not blocked(manager)


def test_attempts_are_counted(manager, clock):
    assert manager.update("T", "G", 0, None, clock.now, 1, [7, 8]) == {}
    assert manager.update("T", "G", 0, None, clock.now, 1, [7, 8, 9]) == {7: 1, 8: 1}
    assert manager.update("T", "G", 0, "x", clock.now, 1, [8, 9]) == {8: 2, 9: 1}
    assert manager.update("T", "G", 0, "x", clock.now, 1, [8, 9]) == {8: 2, 9: 1}


def test_file_of_java(manager, tmp_path):
    """As RocketMQ 5.5 writes it: unquoted queue ids, and fields that are not known here."""
    (tmp_path / "consumerOrderInfo.json").write_text(
        '{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"T@G":{0:{"a":"one","cm":1,"i":60000,'
        '"l":999000,"o":[7,1,3],"oc":{7:1},"ot":{8:1050000},"popTime":999000}}}}'
    )
    manager.load()
    info = manager.find("T", "G", 0)
    assert (info.offsets, info.is_acknowledged(0), info.is_acknowledged(1)) == ([7, 8, 10], True, False)
    assert info.next_offset() == 8
    assert manager.blocked_until("T", "G", 0, None) == 999000 + 60000
    manager.persist()
    written = json_config.loads((tmp_path / "consumerOrderInfo.json").read_bytes())
    assert written["table"]["T@G"][0] == {
        "a": "one",
        "cm": 1,
        "i": 60000,
        "l": 999000,
        "o": [7, 1, 3],
        "oc": {7: 1},
        "ot": {8: 1050000},
        "popTime": 999000,
    }


@given(st.lists(st.integers(1, 5), min_size=1, max_size=MESSAGES_MAX), st.data())
def test_the_next_offset_against_a_set(distances, data):
    clock = Clock(1_000_000)
    manager = ConsumerOrderInfoManager("/nowhere/consumerOrderInfo.json", clock)
    offsets = [100]
    for distance in distances[1:]:
        offsets.append(offsets[-1] + distance)
    manager.update("T", "G", 0, None, clock.now, 1000, offsets)
    left = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        left.discard(offset)
        expected = min(left) if left else offsets[-1] + 1
        assert manager.commit_and_next("T", "G", 0, offset, clock.now) == expected
        assert -(1 << 63) <= manager.find("T", "G", 0).commit_offset_bit < 1 << 63  # a long, for Java
        assert blocked(manager) == bool(left)


def test_cleaning(manager, clock):
    manager.update("T", "G", 0, None, clock.now, 1, [7])
    manager.update("T", "G", 5, None, clock.now, 1, [7])
    manager.update("U", "H", 0, None, clock.now, 1, [7])
    manager.update("U", "G", 0, None, clock.now, 1, [7])
    manager.clean({"T": 4, "U": 1}.get, lambda group: group == "G")
    assert {key: list(queues) for key, queues in manager.table.items()} == {"T@G": [0], "U@G": [0]}
    manager.forget("T", None, None)
    assert list(manager.table) == ["U@G"]
    clock.now += 25 * 3600 * 1000
    manager.clean(lambda topic: 1, lambda group: True)
    assert manager.table == {}


# --- on a broker


def test_messages_come_in_order(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b", b"c", b"d")
        popper = Popper(peer)
        first = await popper.pop(order=True, max_msg_nums=2, attempt_id="one")
        assert first.bodies == [b"a", b"b"]
        assert first.header.revive_qid == ORDER_REVIVE_QUEUE_ID
        assert first.header.order_count_info == "0 0 0"
        # blocked, except for the same attempt
        assert (await popper.pop(order=True, attempt_id="two")).code == ResponseCode.POLLING_TIMEOUT
        again = await popper.pop(order=True, max_msg_nums=2, attempt_id="one")
        assert again.bodies == [b"a", b"b"]
        old = first.messages[0]
        assert (await popper.ack(old)).code == ResponseCode.SUCCESS  # of an earlier pop: ignored
        waiting = asyncio.ensure_future(popper.pop(order=True, poll_time=60_000))
        for one in again.messages:
            assert (await popper.ack(one)).code == ResponseCode.SUCCESS
        last = await waiting
        assert last.bodies == [b"c", b"d"]
        assert (await popper.batch_ack(last.messages)).code == ResponseCode.SUCCESS
        assert peer.controller.broker.consumer_offset_manager.query_offset("G", "T", 0) == 4

    on_a_broker(tmp_path, scene)


def test_time_over_brings_them_again(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        popper = Popper(peer)
        first = await popper.pop(order=True, invisible_time=60_000)
        await popper.ack(first.messages[0])
        sooner = await popper.changed(first.messages[1], 300)
        assert sooner.handle.pop_time == first.header.pop_time
        again = await popper.pop(order=True, poll_time=60_000)
        assert again.bodies == [b"b"]
        assert again.header.pop_time >= sooner.handle.visible_at
        assert again.header.order_count_info == "0 qo0%1 1;0 0 1"

    on_a_broker(tmp_path, scene)


def test_reset_ends_the_block(tmp_path):
    async def scene(peer: Peer) -> None:
        await sent(peer, b"a", b"b")
        popper = Popper(peer)
        first = await popper.pop(order=True)
        peer.controller.broker.consumer_offset_manager.assign_reset_offset("T", "G", 0, 1)
        again = await popper.pop(order=True)
        assert again.bodies == [b"b"]
        assert (await popper.ack(first.messages[0])).code == ResponseCode.SUCCESS
        assert peer.controller.broker.consumer_offset_manager.query_offset("G", "T", 0) == 1

    on_a_broker(tmp_path, scene)
