"""Receipt handles, offset infos and retry topics of pop, against RocketMQ's texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import MessageError
from mqlake.message import (
    ReceiptHandle,
    msg_offset_info,
    normal_topic,
    order_count_info,
    parse_msg_offset_info,
    parse_order_count_info,
    parse_start_offset_info,
    pop_retry_topic,
    real_topic,
    retry_flag,
    revive_topic,
    start_offset_info,
)

longs = st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(0, 1 << 40)
names = st.text("abcXYZ09_-%|", min_size=1, max_size=20)


def test_handle_of_a_java_broker():
    handle = ReceiptHandle.parse("0 1795310521607 20000 1 2 broker-a 0 3 4711")
    assert handle == ReceiptHandle(0, 1795310521607, 20000, 1, 2, "broker-a", 0, 3, 4711)
    assert handle.visible_at == 1795310541607
    assert not handle.is_order
    assert ReceiptHandle.parse("0 1795310521654 60000 999 0 broker-a 0 0 1323").is_order


@pytest.mark.parametrize("fields", [7, 8, 9])
def test_handles_of_all_lengths_are_the_same_again(fields):
    text = " ".join(["5", "1795310543704", "15000", "5", "1", "broker-a", "0", "4", "20641"][:fields])
    assert ReceiptHandle.parse(text).text == text


@given(offsets, offsets, offsets, st.integers(0, 999), st.integers(0, 2), offsets, offsets)
def test_handle_round_trip(start, pop_time, invisible, revive, flag, queue_offset, physical):
    handle = ReceiptHandle(start, pop_time, invisible, revive, flag, "broker-a", 3, queue_offset, physical)
    assert ReceiptHandle.parse(handle.text) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "0 1 2 3 0 b",
        "0 1 2 3 0 b 0 1 2 3",
        "0 x 2 3 0 b 0 1",
        "0 1_0 2 3 0 b 0 1",
        "0 9223372036854775808 2 3 0 b 0 1",
        "0 1 2 3 7 b 0 1",
        "0 1 2 3 0  0 1",
        "0 1 2 3 0 b 0 " + "9" * 5000,
    ],
)
def test_what_is_no_handle_is_refused(text):
    with pytest.raises(MessageError, match="not a receipt handle"):
        ReceiptHandle.parse(text)


@given(st.text(max_size=60))
def test_any_text_is_a_handle_or_refused(text):
    try:
        handle = ReceiptHandle.parse(text)
    except MessageError:
        return
    assert ReceiptHandle.parse(handle.text) == handle


def test_offset_infos_of_the_reference():
    assert start_offset_info([(0, 0, 100), (1, 0, 7)]) == "0 0 100;1 0 7"
    assert msg_offset_info([(0, 0, [100, 103]), (1, 0, [7])]) == "0 0 100,103;1 0 7"
    assert parse_start_offset_info("0 0 100;1 0 7") == {(0, 0): 100, (1, 0): 7}
    assert parse_msg_offset_info("0 0 100,103;1 0 7") == {(0, 0): [100, 103], (1, 0): [7]}
    assert parse_start_offset_info(None) == {}
    assert parse_msg_offset_info("") == {}


def test_order_counts():
    assert order_count_info(0, 0, {}, [0, 1]) == "0 0 0"
    text = order_count_info(0, 2, {100: 3, 103: 1}, [100, 103])
    assert text == "0 qo2%100 3;0 qo2%103 1;0 2 1"
    assert parse_order_count_info(text) == {(0, 2, 100): 3, (0, 2, 103): 1, (0, 2, None): 1}
    assert order_count_info(0, 2, {100: 3}, [100, 104]) == "0 qo2%100 3;0 2 0"


@pytest.mark.parametrize("text", ["0 0", "0 0 x", "0 0 1;0 0 2", "0 0 1 2"])
def test_wrong_start_offsets_are_refused(text):
    with pytest.raises(MessageError):
        parse_start_offset_info(text)


@given(names, names)
def test_retry_topics_lead_back(topic, group):
    for v2 in (False, True):
        retry = pop_retry_topic(topic, group, v2=v2)
        assert normal_topic(retry, group) == topic
        assert retry_flag(retry) == 1 + v2
        assert real_topic(topic, group, 1 + v2) == retry
    assert real_topic(topic, group, 0) == topic


def test_names():
    assert pop_retry_topic("T", "G") == "%RETRY%G_T"
    assert pop_retry_topic("T", "G", v2=True) == "%RETRY%G+T"
    assert retry_flag("T") == 0
    assert normal_topic("T", "G") == "T"
    assert revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"
