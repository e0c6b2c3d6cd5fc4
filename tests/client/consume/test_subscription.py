from __future__ import annotations

import pytest

from mqlake.client.consume.subscription import MessageSelector, build_subscription_data
from mqlake.errors import ConfigError


def test_subscriptions() -> None:
    everything = build_subscription_data("T")
    assert (everything.sub_string, everything.tags_set, everything.expression_type) == ("*", set(), "TAG")
    tags = build_subscription_data("T", " a||b  ||  ")
    assert tags.tags_set == {"a", "b"} and tags.code_set == {97, 98}
    condition = build_subscription_data("T", MessageSelector.by_sql("a > 1"))
    assert (condition.sub_string, condition.expression_type, condition.code_set) == ("a > 1", "SQL92", set())
    for bad in (" || ", MessageSelector.by_tag("||")):
        with pytest.raises(ConfigError):
            build_subscription_data("T", bad)
    with pytest.raises(ConfigError):
        MessageSelector.by_sql(" ")


def test_no_expression_is_every_message() -> None:
    assert MessageSelector.by_tag("") == MessageSelector("*", "TAG")
    assert build_subscription_data("T", MessageSelector.by_tag("")).tags_set == set()


def test_a_condition_that_looks_like_tags_is_none() -> None:
    condition = build_subscription_data("T", MessageSelector.by_sql("a || b"))
    assert (condition.sub_string, condition.tags_set) == ("a || b", set())
