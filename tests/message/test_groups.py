"""Which groups are RocketMQ's own."""

from __future__ import annotations

import pytest

from mqlake.message.groups import BUILT_IN_GROUPS, is_system_group


@pytest.mark.parametrize("group", [*BUILT_IN_GROUPS, "CID_RMQ_SYS_REVIVE_GROUP", "DEFAULT_CONSUMER"])
def test_groups_of_rocketmq(group: str) -> None:
    assert is_system_group(group)


@pytest.mark.parametrize("group", ["billing", "CID_billing", "MY_CID_RMQ_SYS_", "TOOLS_CONSUMER2", ""])
def test_groups_of_users(group: str) -> None:
    assert not is_system_group(group)
