"""Topics: the names that RocketMQ keeps for itself, and the names that it allows."""

from __future__ import annotations

from mqlake.errors import IllegalTopicError

AUTO_CREATE_TOPIC_KEY_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)
NOT_ALLOWED_SEND_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Topics that only the broker itself writes to."""

TOPIC_LENGTH_MAX = 127
_TOPIC_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def validate_topic(topic: str) -> None:
    """Raise IllegalTopicError unless `topic` is 1 to 127 characters of [%|a-zA-Z0-9_-]."""
    if not topic or topic.isspace():
        raise IllegalTopicError("the topic is blank")
    if not _TOPIC_CHARACTERS.issuperset(topic):
        bad = next(character for character in topic if character not in _TOPIC_CHARACTERS)
        raise IllegalTopicError(f"topic {topic!r} contains {bad!r}; allowed are letters, digits and % | _ -")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise IllegalTopicError(
            f"topic {topic!r} has {len(topic)} characters; {TOPIC_LENGTH_MAX} are allowed"
        )


def is_system_topic(topic: str) -> bool:
    """True for the topics that RocketMQ keeps for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)
