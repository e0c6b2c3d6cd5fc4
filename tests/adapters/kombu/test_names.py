"""Queues, exchanges and keys of any name have a topic of their own, which RocketMQ takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.adapters.kombu.names import (
    TOPIC_LENGTH_MAX,
    bindings_namespace,
    exchange_topic,
    queue_topic,
    routing_tag,
)
from mqlake.message import validate_topic

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


def test_usual_names_stay_readable():
    assert queue_topic("celery") == "celery"
    assert queue_topic("img.resize", 6) == "img|2Eresize|p6"
    assert exchange_topic("celeryev") == "kombu|xceleryev"
    assert routing_tag("task.sent") == "task|2Esent"
    assert routing_tag("") == "|-"
    assert bindings_namespace("a/b") == "KOMBU_BINDINGS/a|2Fb"


@given(NAMES, st.integers(0, 9))
def test_any_name_is_a_topic(name: str, priority: int):
    for topic in (queue_topic(name, priority), exchange_topic(name)):
        validate_topic(topic)
        assert len(topic) <= TOPIC_LENGTH_MAX
    assert "||" not in f"a||{routing_tag(name)}||b".replace("a||", "").replace("||b", "")


@given(NAMES, NAMES, st.integers(0, 9), st.integers(0, 9))
def test_no_two_names_have_the_same_topic(one: str, other: str, first: int, second: int):
    if (one, first) != (other, second):
        assert queue_topic(one, first) != queue_topic(other, second)
    if one != other:
        assert exchange_topic(one) != exchange_topic(other)
        assert routing_tag(one) != routing_tag(other)
    assert exchange_topic(one) != queue_topic(other, second)


def test_long_names_differ_by_their_ends():
    one, other = ("q" * 300 + end for end in "ab")
    assert queue_topic(one) != queue_topic(other)
    assert queue_topic(one, 3) != queue_topic(one, 6)
