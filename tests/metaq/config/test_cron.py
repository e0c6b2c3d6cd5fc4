from __future__ import annotations

import datetime

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.config.cron import parse_cron

START = datetime.datetime(2024, 2, 27, 17, 59, 59, 5)  # a Tuesday


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("0 0 6,18 * * ?", ["2024-02-27 18:00:00", "2024-02-28 06:00:00"]),
        ("* * * * * ?", ["2024-02-27 18:00:00", "2024-02-27 18:00:01"]),
        ("0/20 59 17 * * ?", ["2024-02-28 17:59:00", "2024-02-28 17:59:20"]),
        ("0 30 4 L * ?", ["2024-02-29 04:30:00", "2024-03-31 04:30:00"]),
        ("0 0 0 1 JAN,mar ?", ["2024-03-01 00:00:00", "2025-01-01 00:00:00"]),
        (
            "0 0 12 ? * MON-FRI",
            ["2024-02-28 12:00:00", "2024-02-29 12:00:00", "2024-03-01 12:00:00", "2024-03-04 12:00:00"],
        ),
        (
            "0 0 12 ? * FRI-SUN",
            ["2024-03-01 12:00:00", "2024-03-02 12:00:00", "2024-03-03 12:00:00", "2024-03-08 12:00:00"],
        ),
        ("0 0 12 ? * 6L", ["2024-03-29 12:00:00"]),
        ("0 0 12 ? * 3#2", ["2024-03-12 12:00:00", "2024-04-09 12:00:00"]),
        ("0 0 22-1/2 * * ?", ["2024-02-27 22:00:00", "2024-02-28 00:00:00", "2024-02-28 22:00:00"]),
        ("0 0 0 1 1 ? 2026", ["2026-01-01 00:00:00"]),
    ],
)
def test_times(text: str, following: list[str]) -> None:
    cron, moment = parse_cron(text), START
    for expected in following:
        found = cron.next_after(moment)
        assert found is not None
        assert str(found) == expected
        moment = found


def test_never() -> None:
    assert parse_cron("0 0 0 30 2 ?").next_after(START) is None
    assert parse_cron("0 0 0 1 1 ? 2020").next_after(START) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 0 6",
        "60 0 6 * * ?",
        "0 0 24 * * ?",
        "0 0 6 * XYZ ?",
        "0 0 6 15W * ?",
        "x 0 6 * * ?",
        "? 0 6 * * ?",
        "0/0 0 6 * * ?",
        "0 0 0 * * 6#7",
    ],
)
def test_what_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigError, match="cron expression"):
        parse_cron(text)
