"""Names: queues, exchanges and routing keys as RocketMQ's topics and tags, which have few characters.

    celery            ─▶ topic celery, group celery
    img.resize        ─▶ topic img|2Eresize               a byte that a topic cannot have is | and two hex digits
    img.resize, 6     ─▶ topic img|2Eresize|p6            the messages of a priority step above the lowest
    exchange celeryev ─▶ topic kombu|xceleryev            what queues that do not last read from

No two names have the same topic.
"""

from __future__ import annotations

import hashlib
import string

TOPIC_LENGTH_MAX = 127
_PLAIN = frozenset((string.ascii_letters + string.digits + "_-").encode())


def escape(name: str) -> str:
    """`name` in the characters of topics and tags."""
    return "".join(chr(byte) if byte in _PLAIN else f"|{byte:02X}" for byte in name.encode())


def _fitting(topic: str) -> str:
    """A topic that is too long ends with a digest of itself."""
    if len(topic) <= TOPIC_LENGTH_MAX:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:32]
    return f"{topic[: TOPIC_LENGTH_MAX - 34]}|h{digest}"


def queue_topic(queue: str, priority: int = 0) -> str:
    """Returns the topic of a queue's messages; those of a priority step have a topic of their own."""
    return _fitting(escape(queue) + (f"|p{priority}" if priority else ""))


def exchange_topic(exchange: str) -> str:
    """Returns the topic of what is published to an exchange, for queues that do not last. The default exchange is
    ''."""
    return _fitting(f"kombu|x{escape(exchange)}")


def routing_tag(routing_key: str) -> str:
    """A routing key as a tag; an empty one, too, is a tag that can be subscribed to."""
    return escape(routing_key) or "|-"


def bindings_namespace(exchange: str) -> str:
    """Returns the namespace in which the name servers keep the bindings of lasting queues to an exchange."""
    return f"KOMBU_BINDINGS/{escape(exchange)}"
