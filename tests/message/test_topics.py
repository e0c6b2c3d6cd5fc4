"""The topics that RocketMQ allows, and those that it keeps for itself."""

from __future__ import annotations

import pytest

from mqlake.errors import IllegalTopicError
from mqlake.message import (
    NOT_ALLOWED_SEND_TOPICS,
    SCHEDULE_TOPIC,
    is_system_topic,
    validate_topic,
)


class TestTopics:
    @pytest.mark.parametrize("topic", ["T", "%RETRY%group-1_x|y", "a" * 127])
    def test_valid(self, topic):
        validate_topic(topic)

    @pytest.mark.parametrize("topic", ["", " ", "a b", "a/b", "..", "é", "a" * 128, "a\n", "a\0"])
    def test_illegal(self, topic):
        with pytest.raises(IllegalTopicError):
            validate_topic(topic)

    def test_system_topics(self):
        assert is_system_topic(SCHEDULE_TOPIC)
        assert is_system_topic("rmq_sys_anything")
        assert not is_system_topic("TopicTest")
        assert SCHEDULE_TOPIC in NOT_ALLOWED_SEND_TOPICS
