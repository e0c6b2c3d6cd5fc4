"""Consumer groups: the names that RocketMQ keeps for itself."""

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
