"""The rules of a static topic's mapping. That they are RocketMQ's is seen in tests/interop/test_static_topics.py."""

from __future__ import annotations

import pytest

from mqlake.errors import MappingError
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.bodies.topic import (
    LogicQueueMappingItem,
    MessageQueue,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)
from mqlake.remoting.static_topic import (
    NO_BROKER,
    accepted,
    check_offsets,
    endpoints,
    find_item,
    is_mock_broker,
    mapping_info,
    max_offset_of_mapping,
    mock_broker_name,
    next_item,
)


def part(gen: int, logic_offset: int, bname: str = "", **fields: int) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(gen=gen, logic_offset=logic_offset, bname=bname or f"b{gen}", **fields)


A, B, C = part(0, 0), part(1, 10_000), part(2, 20_000)
UNDECIDED = part(2, -1)


def mapping(bname: str = "b0", epoch: int = 1, total: int = 1, **queues: list[LogicQueueMappingItem]):
    hosted = {int(name[1:]): items for name, items in queues.items()}
    return TopicQueueMappingDetail(
        topic="T", bname=bname, epoch=epoch, total_queues=total, hosted_queues=hosted
    )


@pytest.mark.parametrize(
    ("offset", "gen"), [(0, 0), (9_999, 0), (10_000, 1), (19_999, 1), (20_000, 2), (1 << 60, 2), (-5, 0)]
)
def test_an_offset_belongs_to_the_last_part_that_begins_at_or_before_it(offset, gen):
    assert find_item([A, B, C], offset).gen == gen


def test_a_part_that_is_not_decided_is_not_there_yet():
    assert find_item([A, B, UNDECIDED], 1 << 60) is B
    assert find_item([UNDECIDED], 0) is None
    assert next_item([A, B, UNDECIDED], B) is None
    assert next_item([A, B, UNDECIDED], A) is B
    assert next_item([A, B], B) is None


def test_without_its_oldest_part_a_queue_begins_at_the_next():
    assert find_item([B, C], 0) is B


def test_offsets_of_a_part_and_of_the_queue():
    assert (B.logical(0), B.logical(7), B.physical(10_007)) == (10_000, 10_007, 7)
    assert B.physical(9_000) == -1_000  # before the part: its broker answers where it begins
    late = part(1, 10_000, start_offset=5)
    assert (late.logical(5), late.logical(2), late.physical(10_000)) == (10_000, 10_000, 5)
    assert UNDECIDED.logical_or_unknown(3) == -1
    ended = part(1, 10_000, end_offset=4)
    assert (ended.logical_or_unknown(9), ended.logical_or_unknown(3)) == (10_004, 10_003)
    assert (max_offset_of_mapping([ended]), max_offset_of_mapping([A, B])) == (10_004, 10_000)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([part(0, 0, queue_id=-1)], "negative"),
        ([part(0, 0, start_offset=-1)], "negative"),
        ([part(0, 0, start_offset=5, end_offset=4)], "endOffset is less"),
        ([part(0, -1), part(1, 10_000)], "without its logicOffset"),
        ([part(1, 0), part(1, 10_000)], "gen"),
        ([part(0, 10_000), part(1, 10_000)], "begins at"),
        ([part(0, 0, end_offset=10_000), part(1, 10_000)], "begins at"),
    ],
)
def test_parts_that_contradict_each_other(items, why):
    with pytest.raises(MappingError, match=why):
        check_offsets(items)


def test_parts_that_agree():
    check_offsets([A, B, UNDECIDED])
    check_offsets([part(0, 0, end_offset=9_999), B])
    check_offsets([])


# --- what a broker takes


def test_a_queue_that_only_the_old_mapping_has_stays():
    old, new = mapping(q0=[A], q1=[part(0, 0, queue_id=1)]), mapping(epoch=2, q0=[A, B])
    assert accepted(old, new, force=False).hosted_queues == {0: [A, B], 1: [part(0, 0, queue_id=1)]}
    assert accepted(None, new, force=False) is new


def test_logic_offset_is_decided_once():
    old = mapping(epoch=2, q0=[A, part(1, -1)])
    assert accepted(old, mapping(epoch=2, q0=[A, B]), force=False).hosted_queues[0] == [A, B]
    with pytest.raises(MappingError, match="decided once"):
        accepted(mapping(epoch=2, q0=[A, B]), mapping(epoch=3, q0=[A, part(1, 30_000)]), force=False)
    with pytest.raises(MappingError, match="decided once"):
        accepted(mapping(epoch=2, q0=[A, B]), mapping(epoch=2, q0=[A, part(1, -1)]), force=False)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (mapping(epoch=1, q0=[A]), "small epoch"),
        (mapping(epoch=2), "equal epoch with null data"),
        (mapping(epoch=2, q0=[A, B]), "leads"),
        (mapping(epoch=3, q0=[part(0, 0, "elsewhere")]), "stays where it is"),
        (mapping(epoch=3, q0=[part(0, 0, queue_id=3)]), "stays where it is"),
        (mapping(epoch=3, q0=[]), "lacks"),
    ],
)
def test_what_a_broker_refuses_unless_it_is_forced(new, why):
    old = mapping(epoch=2, q0=[A])
    with pytest.raises(MappingError, match=why):
        accepted(old, new, force=False)
    assert accepted(old, new, force=True).epoch == new.epoch


def test_another_scope_is_refused():
    other = mapping(epoch=3, q0=[A])
    other.scope = "zone"
    with pytest.raises(MappingError, match="scope"):
        accepted(mapping(epoch=2, q0=[A]), other, force=False)


def test_a_part_that_was_cleaned_away_may_be_missing_and_may_come_again():
    whole, cleaned = mapping(epoch=2, q0=[A, B]), mapping(epoch=2, q0=[B])
    assert accepted(whole, cleaned, force=False).hosted_queues[0] == [B]
    assert accepted(cleaned, whole, force=False).hosted_queues[0] == [A, B]


# --- what clients learn


def test_name_servers_are_told_of_the_queues_that_a_broker_leads():
    info = mapping_info(mapping("b1", total=2, q0=[A, part(1, 10_000, queue_id=4)], q1=[A]))
    assert (info.bname, info.total_queues, info.curr_id_map) == ("b1", 2, {0: 4})


def queue(number: int, broker: str = "__syslo__global__") -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=number)


def info(bname: str, epoch: int, total: int, led: dict[int, int], scope: str = "__global__"):
    return TopicQueueMappingInfo(
        topic="T", bname=bname, epoch=epoch, total_queues=total, curr_id_map=led, scope=scope
    )


def test_the_newer_mapping_says_who_leads():
    route = TopicRouteData(
        topic_queue_mapping_by_broker={"a": info("a", 5, 3, {0: 0, 1: 1}), "b": info("b", 6, 3, {1: 0})}
    )
    assert endpoints("T", route) == {queue(0): "a", queue(1): "b", queue(2): NO_BROKER}


def test_each_scope_has_queues_of_its_own():
    route = TopicRouteData(
        topic_queue_mapping_by_broker={"a": info("a", 5, 1, {0: 0}), "b": info("b", 5, 1, {0: 0}, "zone")}
    )
    assert endpoints("T", route) == {queue(0): "a", queue(0, "__syslo__zone"): "b"}


def test_ordinary_topics_have_none():
    assert endpoints("T", TopicRouteData()) == {}
    assert endpoints("T", TopicRouteData(topic_queue_mapping_by_broker={})) == {}


def test_names_of_mock_brokers():
    assert mock_broker_name("__global__") == "__syslo__global__" and mock_broker_name("z") == "__syslo__z"
    assert is_mock_broker("__syslo__global__") and not is_mock_broker("broker-a")
