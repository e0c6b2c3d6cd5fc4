"""Which groups are RocketMQ's own."""

from __future__ import annotations

import pytest

from mqlake.message.groups import BUILT_IN_GROUPS, is_system_group, messages_behind, messages_beyond
from mqlake.remoting.bodies.admin import ConsumeStats, OffsetWrapper
from mqlake.remoting.bodies.topic import MessageQueue


@pytest.mark.parametrize("group", [*BUILT_IN_GROUPS, "CID_RMQ_SYS_REVIVE_GROUP", "DEFAULT_CONSUMER"])
def test_groups_of_rocketmq(group: str) -> None:
    assert is_system_group(group)


@pytest.mark.parametrize("group", ["billing", "CID_billing", "MY_CID_RMQ_SYS_", "TOOLS_CONSUMER2", ""])
def test_groups_of_users(group: str) -> None:
    assert not is_system_group(group)


def test_what_is_beyond_the_end_of_one_queue_hides_nothing_of_another() -> None:
    """Signed lags cancelled out: "0 behind" with 7 unread."""
    assert [messages_behind(10, offset) for offset in (3, 10, 17)] == [7, 0, 0]
    assert [messages_beyond(10, offset) for offset in (3, 10, 17)] == [0, 0, 7]
    places = ((10, 3, 5), (10, 17, 0))
    table = {
        MessageQueue(topic="T", broker_name="b", queue_id=number): OffsetWrapper(
            broker_offset=end, consumer_offset=offset, pull_offset=pulled
        )
        for number, (end, offset, pulled) in enumerate(places)
    }
    stats = ConsumeStats(offset_table=table)
    assert (stats.behind, stats.beyond) == (7, 7)
    assert [each.in_flight for each in table.values()] == [2, 0]
