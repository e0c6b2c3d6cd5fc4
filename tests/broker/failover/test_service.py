"""`failover=` is taken apart, or refused with what is needed."""

from __future__ import annotations

import pytest

from mqlake.broker.failover.service import parse_where
from mqlake.errors import ConfigError


def test_a_service_is_named_by_its_members_and_a_prefix() -> None:
    where = parse_where("etcd://10.0.0.1:2379,etcd-2,[::1]:5/teams/a/")
    assert where.endpoints == (("10.0.0.1", 2379), ("etcd-2", 2379), ("::1", 5))
    assert where.group("c", "a") == "/teams/a/failover/c/a"
    assert parse_where("etcd://h").group("c", "a") == "/mqlake/failover/c/a"


@pytest.mark.parametrize(
    "text", ["10.0.0.1:2379", "zookeeper://h:2181", "etcd://", "etcd:///x", "etcd://h:99999"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="failover="):
        parse_where(text)
