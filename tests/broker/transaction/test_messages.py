from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.transaction import messages
from mqlake.errors import FormatError
from mqlake.message import MessageExt, MessageExtBrokerInner, MessageSysFlag

OFFSETS = st.lists(st.integers(0, 2**62), max_size=200)


def message(**fields) -> MessageExtBrokerInner:
    properties = {"UNIQ_KEY": "K", "PGROUP": "PG", "TRAN_MSG": "true"}
    return MessageExtBrokerInner("T", b"body", "tag", properties=properties, queue_id=3, **fields)


@given(OFFSETS, st.integers(1, 500))
def test_what_op_messages_name_is_what_has_ended(offsets, size_max):
    named = []
    for batch, body in messages.op_bodies(offsets, size_max):
        op = messages.op_message(body, 0, ("10.0.0.9", 1), 7)
        assert messages.ended_in(op) == batch and body.endswith(b",")
        assert len(body) - len(str(batch[-1])) - 1 < size_max
        named += batch
    assert named == offsets


def test_op_bodies_are_rocketmqs():
    assert list(messages.op_bodies([0, 12, 345], 4096)) == [([0, 12, 345], b"0,12,345,")]


@given(st.binary(max_size=60))
def test_an_op_message_that_holds_anything_names_nothing_wrong(body):
    op = messages.op_message(body, 0, ("10.0.0.9", 1), 7)
    assert all(offset >= 0 for offset in messages.ended_in(op))
    op.tags = "x"
    assert messages.ended_in(op) == []


@given(st.sampled_from([0, 1, 2, 4, 8, 0xC, 0x301]))
def test_a_half_message_says_where_it_belongs_and_comes_back_there(sys_flag):
    half = message(sys_flag=sys_flag, flag=5, reconsume_times=2, born_timestamp=9)
    messages.to_half(half)
    assert (half.topic, half.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert half.sys_flag == sys_flag & ~0xC
    assert half.properties["__transactionId__"] == "K"
    half.physical_offset, half.queue_offset = 1234, 7

    copy = messages.put_back(half, asked=True)
    assert (copy.topic, copy.queue_id, copy.flag, copy.reconsume_times) == (half.topic, 0, 5, 2)
    assert messages.check_times(copy) == 1 and messages.check_times(half) == 0
    assert messages.prepared_queue_offset(copy) == 7
    copy.queue_offset = 20
    again = messages.put_back(copy, asked=False)
    assert messages.prepared_queue_offset(again) == 7 and messages.check_times(again) == 1

    final = messages.final(half)
    assert (final.topic, final.queue_id, final.body, final.born_timestamp) == ("T", 3, b"body", 9)
    assert final.sys_flag == sys_flag & ~0xC | MessageSysFlag.TRANSACTION_COMMIT_TYPE
    assert final.prepared_transaction_offset == 1234
    assert final.properties == half.properties


@pytest.mark.parametrize("place", [{}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "REAL_QID": "-1"}])
def test_a_half_message_without_a_place_is_an_error(place):
    with pytest.raises(FormatError, match="do not say where it belongs"):
        messages.final(MessageExt("RMQ_SYS_TRANS_HALF_TOPIC", b"x", properties=place))


@pytest.mark.parametrize(("text", "expected"), [("10", 10_000), ("", None), ("soon", None), ("-1", None)])
def test_check_immunity_is_in_seconds(text, expected):
    half = MessageExt("H", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": text})
    assert messages.check_immunity_ms(half) == expected
