"""Namespaces: `namespace%name`, with retry and dead letter topics as `%RETRY%namespace%group`."""

from __future__ import annotations

from mqlake.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    LMQ_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
)

SEPARATOR = "%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
PREFIXES = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)


def with_namespace(namespace: str, resource: str) -> str:
    """A topic's or group's full name; system ones and those that have it already stay as they are."""
    if not namespace or not resource:
        return resource
    prefix, name = _split(resource)
    if is_system_topic(name) or name.startswith((SYSTEM_GROUP_PREFIX, LMQ_PREFIX, namespace + SEPARATOR)):
        return resource
    return f"{prefix}{namespace}{SEPARATOR}{name}"


def without_namespace(namespace: str, resource: str) -> str:
    """Inverse of `with_namespace`; names of other namespaces stay as they are."""
    if not namespace:
        return resource
    prefix, name = _split(resource)
    return prefix + name.removeprefix(namespace + SEPARATOR)


def _split(resource: str) -> tuple[str, str]:
    for prefix in PREFIXES:
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource
