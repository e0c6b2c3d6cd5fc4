"""A slave whose disk has damaged its log is made whole again in place, from its master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.ha.ha_client import Trouble
from mqlake.store.truncate import truncate
from tests.store.ha.pair import Node, node, wait_equal
from tests.store.ha.test_ha_service import log_bytes
from tests.store.small_store import flip, message, record_at
from tests.waiting import PATIENCE_S, until

COUNT = 400
AS_SLAVE = {"brokerRole": "SLAVE"}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "master") as opened:
        for number in range(COUNT):
            opened.store.put_message(message(number))
        assert opened.store.wait_until_dispatched(PATIENCE_S)
        with node(tmp_path / "slave", **AS_SLAVE) as slave:
            slave.follow(opened.address)
            wait_equal(opened, slave)
        yield opened


def damaged(root: Path, number: int) -> int:
    """A bit of the body of record `number` turns; the record's physical offset."""
    path, position, size = record_at(root, number)
    flip(path, position + size // 2)
    assert not verify_store(root).ok
    return int(path.name) + position


@pytest.mark.parametrize("number", [0, 10, COUNT - 1])
def test_cut_before_the_damage_it_gets_the_rest_again(tmp_path: Path, master: Node, number: int) -> None:
    root = tmp_path / "slave"
    offset = damaged(root, number)
    done = truncate(str(root), offset)
    assert done.offset == offset and done.copies
    with node(root, **AS_SLAVE) as slave:
        assert slave.store.max_phy_offset == offset
        slave.follow(master.address)
        wait_equal(master, slave)
        assert slave.store.wait_until_dispatched(PATIENCE_S)
    assert log_bytes(root) == log_bytes(tmp_path / "master")


def test_repaired_without_its_master_it_says_that_it_differs(tmp_path: Path, master: Node) -> None:
    root = tmp_path / "slave"
    offset = damaged(root, COUNT - 10)
    repair_store(root)
    with node(root, **AS_SLAVE) as slave:
        client = slave.follow(master.address).client
        until(lambda: client.trouble is Trouble.DIVERGED)
        assert client.diverged_at is not None and offset <= client.diverged_at < offset + 1000
        end = slave.store.max_phy_offset
    assert truncate(str(root), offset).size == end - offset
    with node(root, **AS_SLAVE) as slave:
        slave.follow(master.address)
        wait_equal(master, slave)
    assert log_bytes(root) == log_bytes(tmp_path / "master")
