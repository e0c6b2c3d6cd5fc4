"""What an operator may write into the record of a group, and what is refused with the reason."""

from __future__ import annotations

import pytest

from mqlake.broker.failover.orders import Orders
from mqlake.broker.failover.record import ANYONE, Record
from mqlake.broker.failover.service import parse_where
from mqlake.errors import FailoverError
from tests.broker.failover.etcd_cluster import EtcdCluster


def orders_of(etcd: EtcdCluster, name: str, record: Record | None) -> Orders:
    where = parse_where(etcd.url)
    if record is not None:
        etcd.client().put(f"{where.group('c', name)}/record", record.to_json())
    return Orders(etcd.client(), where, "c", name)


MASTER_0 = Record(3, 0, ((0, 10), (1, 11)), ((3, 500),), 3000)


def test_a_member_of_the_set_is_elected_and_no_other_replica_unless_unclean(etcd: EtcdCluster) -> None:
    orders = orders_of(etcd, "elect", MASTER_0)
    assert orders.elect(1).successor == orders.read().successor == 1
    with pytest.raises(FailoverError, match="replica 0 is the master of c/elect already"):
        orders.elect(0)
    with pytest.raises(FailoverError, match=r"replica 2 is not in the in-sync set \[0, 1\]"):
        orders.elect(2)
    elected = orders.elect(2, unclean=True)
    assert (elected.successor, elected.unclean) == (2, True)


def test_the_master_resigns_only_if_another_one_can_take_over(etcd: EtcdCluster) -> None:
    orders = orders_of(etcd, "resign", MASTER_0)
    assert orders.resign().successor == ANYONE
    orders.exclude(1)
    with pytest.raises(FailoverError, match="nobody could take over"):
        orders.resign()


def test_a_slave_is_excluded_until_that_is_undone(etcd: EtcdCluster) -> None:
    orders = orders_of(etcd, "exclude", MASTER_0)
    with pytest.raises(FailoverError, match="replica 0 is the master"):
        orders.exclude(0)
    assert orders.exclude(1).excluded == orders.exclude(1).excluded == (1,)
    assert orders.include(1).excluded == ()


def test_a_group_that_is_not_there_is_named(etcd: EtcdCluster) -> None:
    with pytest.raises(FailoverError, match="knows no group c/nowhere"):
        orders_of(etcd, "nowhere", None).read()
