"""Names of fields, as RocketMQ writes them."""

from __future__ import annotations

import pytest

from mqlake.base.names import camel_case


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default_topic_queue_nums", "defaultTopicQueueNums"),
        ("oway", "oway"),
        ("in_24h", "in24h"),
        ("max_HA_offset", "maxHAOffset"),
    ],
)
def test_camel_case(name: str, expected: str) -> None:
    assert camel_case(name) == expected
