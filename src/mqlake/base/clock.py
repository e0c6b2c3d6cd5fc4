"""The time of day, as RocketMQ counts it: ms since 1970. Everything that stores or compares a time asks here."""

from __future__ import annotations

import datetime
import time

from mqlake.errors import ConfigError

TIME_MAX_MS = 2**63 - 1
YEAR_1_MS, YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000
"""From the first to before the second lie the times that all readers of timestamps hold: Python, SQL, Iceberg, Delta. A
client may set any number as the time when a message was born."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of a number, or of a date and time: `2024-05-01`, `2024-05-01T12:30:00.5+02:00`.

    Raises ConfigError for anything else.
    """
    text = text.strip()
    if text.isdecimal() and int(text) <= TIME_MAX_MS:
        return int(text)
    try:
        # rounded up from microseconds: a time between two milliseconds belongs to the later one
        return -(-int(datetime.datetime.fromisoformat(text).timestamp() * 1_000_000) // 1000)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is neither milliseconds nor a time like 2024-05-01T12:30:00") from None
