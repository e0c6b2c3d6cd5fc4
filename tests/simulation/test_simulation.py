"""Replication in virtual time: what was promised holds in every life, and the simulation finds what would break it."""

from __future__ import annotations

import os

import pytest

from mqlake.store.ha.ha_client import HAClient
from tests.simulation.life import BrokenPromiseError, Life
from tests.simulation.roles import Master, ModelLog

SEEDS = range(1, 101)


def test_lives() -> None:
    lives = [Life(seed) for seed in SEEDS]
    for life in lives:
        life.run()
    # they were worth looking at: something was acknowledged, something not, and masters have lost bytes
    assert sum(life.acknowledged > 0 for life in lives) > len(lives) / 2
    assert sum(life.answers for life in lives) > 1000
    assert sum(len(life.lives) > 1 for life in lives) > len(lives) / 2


def test_a_seed_gives_the_same_life_each_time() -> None:
    assert Life(7).run() == Life(7).run() != Life(8).run()


def a_seed_that_breaks() -> str:
    for seed in range(1, 200):
        try:
            Life(seed).run()
        except BrokenPromiseError as error:
            return str(error)
    return ""


def test_it_finds_reports_that_are_counted_before_the_slave_has_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def acks(master: Master) -> list[int]:
        return [connection.slave_ack_offset for _, connection in master._connections]

    monkeypatch.setattr(Master, "_acks", acks)
    assert "was acknowledged with" in a_seed_that_breaks()


def test_it_finds_a_slave_that_reports_before_its_disk_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelLog, "acknowledged_offset", property(lambda log: log.max_offset))
    monkeypatch.setattr(ModelLog, "sync", lambda log: None)
    found = a_seed_that_breaks()
    assert "was acknowledged with" in found
    assert "again: python -m tests.simulation --kind mqlake --seed" in found


def test_it_finds_a_slave_that_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As RocketMQ's: it goes on where it ends, whatever it has there."""

    def begin(client: HAClient) -> int:
        end = client._log.max_offset
        client._verify_from = client._verify_until = client._offset = end
        return end

    monkeypatch.setattr(HAClient, "_begin", begin)
    found = a_seed_that_breaks()
    assert "is no prefix of its master's log" in found or "no agreement" in found


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<lives> asks for it")
def test_campaign() -> None:
    first = int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1000"))
    for seed in range(first, first + int(os.environ["MQLAKE_CAMPAIGN"])):
        Life(seed).run()
