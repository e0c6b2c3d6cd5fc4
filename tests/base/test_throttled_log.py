from __future__ import annotations

import logging

import pytest

from mqlake.base.throttled_log import ThrottledLog
from tests.clock import Clock

LOGGER = logging.getLogger("trouble")


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def trouble(clock: Clock) -> ThrottledLog:
    return ThrottledLog(LOGGER, period_s=60, clock_s=clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_one_line_when_it_begins_one_a_period_one_when_it_ends(
    trouble: ThrottledLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        trouble.failed("no space")
    clock.now += 60
    for _ in range(100):
        trouble.failed("no space")
    for _ in range(3):
        trouble.worked("space again")
    assert lines(caplog) == [
        ("ERROR", "no space"),
        ("ERROR", "no space (tried 100 times since)"),
        ("WARNING", "space again (after 200 failures)"),
    ]


def test_the_next_time_is_a_new_beginning(trouble: ThrottledLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        trouble.failed("no space")
        trouble.worked("space again")
    assert lines(caplog) == [("ERROR", "no space"), ("WARNING", "space again (after 1 failure)")] * 2


def test_what_works_says_nothing(trouble: ThrottledLog, caplog: pytest.LogCaptureFixture) -> None:
    trouble.worked("space again")
    assert lines(caplog) == []
