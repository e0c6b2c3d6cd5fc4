from __future__ import annotations

import pytest

from mqlake.broker.filter.message_filter import ExpressionForRetryMessageFilter, ExpressionMessageFilter
from mqlake.broker.state.consumer_filter import ConsumerFilterManager
from mqlake.message import properties_to_bytes, tags_code
from mqlake.remoting.bodies.client import SubscriptionData
from tests.broker.filter.test_properties import record


def subscription(expression: str, kind: str | None, topic: str = "T", **fields) -> SubscriptionData:
    tags = {tag.strip() for tag in expression.split("||")} if kind in (None, "TAG") else set()
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        expression_type=kind,
        code_set={tags_code(tag) for tag in tags},
        **fields,
    )


@pytest.fixture
def manager(tmp_path):
    return ConsumerFilterManager(str(tmp_path / "consumerFilter.json"))


def passes(message_filter: ExpressionMessageFilter, **properties: str) -> bool:
    code = tags_code(properties.get("TAGS"))
    if not message_filter.is_matched_by_consume_queue(code):
        return False
    by_record = message_filter.is_matched_by_commit_log(record(properties_to_bytes(properties)))
    assert by_record == (message_filter._by_tags or message_filter.is_matched_by_properties(properties))
    return by_record


@pytest.mark.parametrize("kind", ["TAG", None])
def test_by_tags(kind):
    message_filter = ExpressionMessageFilter(subscription("A || B", kind), None)
    assert passes(message_filter, TAGS="A") and passes(message_filter, TAGS="B")
    assert not passes(message_filter, TAGS="C") and not passes(message_filter)
    assert passes(ExpressionMessageFilter(subscription("*", kind), None), TAGS="C")
    by_class = subscription("A", kind, class_filter_mode=True)
    assert passes(ExpressionMessageFilter(by_class, None), TAGS="C")


def test_by_expression(manager):
    data = manager.build("T", "G", "a > 5", "SQL92", 1)
    message_filter = ExpressionMessageFilter(subscription("a > 5", "SQL92"), data)
    assert passes(message_filter, a="6", TAGS="anything")
    assert not passes(message_filter, a="5") and not passes(message_filter)


def test_without_filter_data_all_pass():
    assert passes(ExpressionMessageFilter(subscription("a > 5", "SQL92"), None), a="1")


def test_retried_messages_pass_by_the_filter_of_their_first_topic(manager):
    manager.register("T", "G", "a > 5", "SQL92", 1)
    retry = subscription("*", "SQL92", topic="%RETRY%G")
    message_filter = ExpressionForRetryMessageFilter(retry, None, manager)
    assert passes(message_filter, RETRY_TOPIC="T", a="6")
    assert not passes(message_filter, RETRY_TOPIC="T", a="5")
    assert passes(message_filter, RETRY_TOPIC="U", a="5")  # not filtered there
    assert passes(message_filter, a="5")
    own = subscription("a > 5", "SQL92")
    message_filter = ExpressionForRetryMessageFilter(own, manager.get("T", "G"), manager)
    assert passes(message_filter, a="6") and not passes(message_filter, a="5")
