"""DamageLog: each damaged place is reported once."""

from __future__ import annotations

import logging

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.store import damage
from mqlake.store.damage import PULL, SCRUB, DamageLog


def at(offset: int) -> StoreCorruptError:
    return StoreCorruptError("/store/commitlog/0", offset, "broken")


def test_a_place_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    log = DamageLog()
    assert log.report(PULL, at(7), "T", 3, "consumers pass over it")
    assert not log.report(PULL, at(7), "T", 3)
    assert log.report(PULL, at(7), "T", 4), "another queue misses another message"
    assert log.report(SCRUB, at(8))
    assert log.count == 3
    assert sorted(log.counts()) == [(PULL, "T", 2), (SCRUB, "", 1)]
    assert [record.getMessage() for record in caplog.records] == [
        "/store/commitlog/0: corrupt at byte 7: broken; consumers pass over it",
        "/store/commitlog/0: corrupt at byte 7: broken",
        "/store/commitlog/0: corrupt at byte 8: broken",
    ]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_lines_are_limited_and_counts_are_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "LINES_PER_MINUTE", 3)
    now = 100.0
    log = DamageLog(lambda: now)
    for offset in range(10):
        assert log.report(PULL, at(offset), "T")
    assert len(caplog.records) == 3 and log.count == 10
    now += 61
    assert log.report(PULL, at(10), "T")
    assert caplog.records[-1].getMessage().endswith("broken (7 like it were not logged)")
    now += 61
    assert log.report(PULL, at(11), "T")
    assert caplog.records[-1].getMessage().endswith("byte 11: broken")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "PLACES_MAX", 5)
    log = DamageLog()
    assert [log.report(PULL, at(offset), "T") for offset in range(7)] == [True] * 5 + [False] * 2
    assert log.counts() == [(PULL, "T", 5)]
