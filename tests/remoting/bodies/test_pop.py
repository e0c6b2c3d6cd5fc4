"""The body of BATCH_ACK_MESSAGE, as RocketMQ's BatchAckTest has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError
from mqlake.remoting.bodies.pop import BatchAck, BatchAckMessageRequestBody, encode_bit_set


def test_bits_are_little_endian():
    assert encode_bit_set(100, [100, 102]) == "BQ=="
    assert BatchAck(start_offset=100, bit_set="BQ==").offsets == [100, 102]
    assert BatchAck(start_offset=100, bit_set="").offsets == []


@given(st.integers(0, 1 << 40), st.sets(st.integers(0, 500)))
def test_bit_sets_round_trip(start, distances):
    offsets = sorted(start + distance for distance in distances)
    assert BatchAck(start_offset=start, bit_set=encode_bit_set(start, offsets)).offsets == offsets


@pytest.mark.parametrize("names", ["short", "long"])
def test_both_kinds_of_names_are_read(names):
    long = {
        "consumerGroup": "G",
        "topic": "T",
        "retry": "2",
        "startOffset": 100,
        "queueId": 1,
        "reviveQueueId": 5,
        "popTime": 1795310521607,
        "invisibleTime": 60000,
        "bitSet": "BQ==",
    }
    short = dict(zip(("c", "t", "r", "so", "q", "rq", "pt", "it", "b"), long.values(), strict=True))
    body = BatchAckMessageRequestBody.from_value(
        {"brokerName": "broker-a", "acks": [short if names == "short" else long]}
    )
    (ack,) = body.acks
    assert ack.real_topic == "%RETRY%G+T"
    assert ack.offsets == [100, 102]
    assert (ack.queue_id, ack.revive_queue_id, ack.pop_time, ack.invisible_time) == (
        1,
        5,
        1795310521607,
        60000,
    )
    assert body.to_value() == {"brokerName": "broker-a", "acks": [short]}


@pytest.mark.parametrize("bits", ["?", "BQ", "A" * 100_000])
def test_wrong_bits_are_refused(bits):
    with pytest.raises(FormatError, match=r"BatchAck\.b"):
        _ = BatchAck(bit_set=bits).offsets
