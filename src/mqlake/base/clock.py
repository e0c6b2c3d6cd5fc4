"""The time of day, as RocketMQ counts it: ms since 1970."""

from __future__ import annotations

import time


def now_ms() -> int:
    return time.time_ns() // 1_000_000
