"""Consumer groups: the names that RocketMQ keeps for itself, and how far one is behind in a queue."""

from __future__ import annotations

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Every broker has them."""
SYSTEM_GROUPS = frozenset((*BUILT_IN_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"))


def is_system_group(group: str) -> bool:
    """True if nobody's consumers are in it."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def messages_behind(end: int, offset: int) -> int:
    """How many messages of a queue that ends at `end` a group at `offset` has not consumed. Sums of it hide nothing: a
    group beyond the end of one queue takes nothing off what it has not consumed of another."""
    return max(end - offset, 0)


def messages_beyond(end: int, offset: int) -> int:
    """How far a group's offset lies beyond the end of a queue: so many messages to come it will skip, unless its
    offset is reset. The queue was made again, or has lost its end."""
    return max(offset - end, 0)
