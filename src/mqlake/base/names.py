"""Names of fields: snake_case in Python, camelCase in RocketMQ's headers, settings and JSON."""

from __future__ import annotations


def camel_case(name: str) -> str:
    """`queue_id` → `queueId`."""
    head, *rest = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest)
