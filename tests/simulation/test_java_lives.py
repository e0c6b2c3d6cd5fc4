"""Replication in virtual time with a peer that behaves as RocketMQ's does, on either side."""

from __future__ import annotations

import pytest

from mqlake.store.ha.ha_connection import HAConnection
from tests.simulation.java_lives import LifeWithAJavaMaster, LifeWithJavaSlaves
from tests.simulation.life import BrokenPromiseError, Life

SEEDS = range(1, 41)


def test_a_master_of_javas_slaves() -> None:
    lives = [LifeWithJavaSlaves(seed) for seed in SEEDS]
    for life in lives:
        life.run()
    assert sum(life.acknowledged > 0 for life in lives) > len(lives) / 2
    # slaves were ahead of it, and some have diverged for good
    assert sum(life.beyond for life in lives) > 5
    assert sum(life.replaced for life in lives) > 1


def test_slaves_of_javas_master() -> None:
    lives = [LifeWithAJavaMaster(seed) for seed in SEEDS]
    for life in lives:
        life.run()
    assert sum(life.answers for life in lives) > 400
    assert sum(len(life.lives) > 1 for life in lives) > len(lives) / 2


def a_seed_that_breaks(kind: type[Life]) -> str:
    for seed in range(1, 200):
        try:
            kind(seed).run()
        except BrokenPromiseError as error:
            return str(error)
    return ""


def test_it_finds_a_master_that_counts_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(connection: HAConnection, offset: int) -> bool:
        if connection.slave_request_offset < 0:
            connection.slave_request_offset = offset
            connection.next_transfer_offset = offset
        connection.slave_ack_offset = connection.confirmed_offset = offset
        return True

    monkeypatch.setattr(HAConnection, "_report", count)
    found = a_seed_that_breaks(LifeWithJavaSlaves)
    assert "was acknowledged with" in found
    assert "again: python -m tests.simulation --kind java-slave --seed" in found


def test_it_finds_a_slave_that_does_not_ask_where_its_master_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LifeWithAJavaMaster, "make_slave", Life.make_slave)
    assert "a slave reports" in a_seed_that_breaks(LifeWithAJavaMaster)
