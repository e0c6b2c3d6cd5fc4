"""Times, addresses, names, filters and types of apache.rocketmq.v2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.proxy import values
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import (
    AddressScheme,
    Code,
    FilterExpression,
    FilterType,
    MessageType,
    Resource,
)
from mqlake.remoting.bodies.topic import TopicConfig


@given(st.integers(-(2**40), 2**40))
def test_times_keep_their_milliseconds(ms: int):
    assert values.timestamp_ms(values.timestamp(ms)) == ms
    assert values.duration_ms(values.duration(ms)) == ms
    assert 0 <= values.timestamp(ms).nanos < 10**9


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("10.0.0.1", AddressScheme.IPv4),
        ("::1", AddressScheme.IPv6),
        ("broker.example.com", AddressScheme.DOMAIN_NAME),
    ],
)
def test_the_scheme_follows_the_form_of_the_host(host: str, scheme: AddressScheme):
    made = values.endpoints(host, 8081)
    assert (made.scheme, made.addresses[0].host, made.addresses[0].port) == (scheme, host, 8081)


@pytest.mark.parametrize("name", ["", "  ", "a b", "ä", "x" * 128, "rmq_sys_x", "TBW102"])
def test_illegal_topics(name: str):
    with pytest.raises(StatusError) as caught:
        values.topic_name(Resource(name=name))
    assert caught.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "CID_RMQ_SYS_x"])
def test_illegal_groups(name: str):
    with pytest.raises(StatusError) as caught:
        values.group_name(Resource(name=name))
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP


def test_filters():
    assert values.filter_of(FilterExpression()) == ("TAG", "*")
    assert values.filter_of(FilterExpression(type=FilterType.SQL, expression="a > 1")) == ("SQL92", "a > 1")
    assert values.tags_of(FilterExpression(expression="a || b||")) == {"a", "b"}
    assert values.tags_of(FilterExpression(expression="*")) is None
    assert values.tags_of(FilterExpression(type=FilterType.SQL, expression="a")) is None


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO),
        ({"DELAY": "3", "__SHARDINGKEY": "g"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "3"}, MessageType.DELAY),
        ({"TRAN_MSG": "true", "DELAY": "3"}, MessageType.TRANSACTION),
        ({"_SYS_MSG_PRIORITY_": "3", "__LITE_TOPIC": "x"}, MessageType.PRIORITY),
        ({"__LITE_TOPIC": "x"}, MessageType.LITE),
    ],
)
def test_types_of_messages(properties: dict[str, str], kind: MessageType):
    assert values.message_type(properties) == kind


@pytest.mark.parametrize(
    ("attribute", "kinds"),
    [
        (None, [MessageType.NORMAL]),
        ("FIFO", [MessageType.FIFO]),
        ("MIXED", [MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION]),
        ("UNSPECIFIED", [MessageType.MESSAGE_TYPE_UNSPECIFIED]),
    ],
)
def test_types_of_topics(attribute: str | None, kinds: list[MessageType]):
    attributes = {} if attribute is None else {"message.type": attribute}
    assert list(values.accepted_types(TopicConfig(attributes=attributes))) == kinds
    assert list(values.accepted_types(None)) == [MessageType.NORMAL]
