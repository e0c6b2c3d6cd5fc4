from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError
from mqlake.metaq.message import Partition
from mqlake.metaq.zookeeper.paths import ConsumedOffset, MetaZookeeper, TopicBroker, broker_node


def test_paths_below_a_root() -> None:
    paths = MetaZookeeper()
    assert paths.master(3) == "/meta/brokers/ids/3/master"
    assert paths.slave(3, 1) == "/meta/brokers/ids/3/slave1"
    assert paths.master_config_checksum(3) == "/meta/brokers/ids/3/master_config_checksum"
    assert paths.topic_pub("t") == "/meta/brokers/topics-pub/t"
    assert paths.consumer_offset("g", "t", Partition(3, 2)) == "/meta/consumers/g/offsets/t/3-2"
    assert paths.consumer_owner("g", "t", Partition(3, 2)) == "/meta/consumers/g/owners/t/3-2"
    assert MetaZookeeper("a/b/").consumer_ids("g") == "/a/b/consumers/g/ids"
    assert MetaZookeeper("/").broker_ids == "/brokers/ids"
    assert [broker_node(3), broker_node(3, 0)] == ["3-m", "3-s0"]


def test_a_topics_broker() -> None:
    assert TopicBroker("0-m", 5).encode() == b'{"numParts":5,"broker":"0-m"}'
    assert TopicBroker.decode(b'{"broker":"0-m","numParts":5}') == TopicBroker("0-m", 5)
    for data in (None, b"", b"{}", b"[]", b'{"broker":1,"numParts":5}', b"5"):
        with pytest.raises(FormatError):
            TopicBroker.decode(data)


@given(st.integers(0, 1 << 62), st.integers(-(1 << 63), (1 << 63) - 1))
def test_offsets_with_ids_of_either_sign(offset: int, message_id: int) -> None:
    assert ConsumedOffset.decode(ConsumedOffset(offset, message_id).encode()) == (offset, message_id)


def test_offsets_as_the_java_client_writes_them() -> None:
    assert ConsumedOffset.decode(b"-5468922846526832640-74") == (74, -5468922846526832640)
    assert ConsumedOffset.decode(b"74") == (74, 0)  # before 1.4
    for data in (b"", b"x", b"1-", b"1-x", b"-"):
        with pytest.raises(FormatError):
            ConsumedOffset.decode(data)
