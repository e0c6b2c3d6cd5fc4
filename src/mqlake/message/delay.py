"""Delay levels: how long each holds a message back, and the queue of SCHEDULE_TOPIC that it waits in."""

from __future__ import annotations

from collections.abc import Mapping

from mqlake.errors import ConfigError

DEFAULT_MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> dict[int, int]:
    """`"1s 5s 1m"` → {1: 1000, 2: 5000, 3: 60000}: delay in ms by level. Raises ConfigError."""
    table = {}
    for level, item in enumerate(text.split(), start=1):
        number, unit = item[:-1], item[-1]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"delay level {item!r} is not a number followed by s, m, h or d")
        table[level] = int(number) * _UNIT_MS[unit]
    if not table:
        raise ConfigError("there are no delay levels")
    return table


def deliver_timestamp(level: int, store_timestamp: int, table: Mapping[int, int]) -> int:
    """When a message of this delay level is due, in ms. Levels above the last count as the last."""
    delay = table.get(level)
    if delay is None:
        delay = table[max(table)] if table and level > max(table) else 1000
    return store_timestamp + delay


def delay_level_to_queue_id(level: int) -> int:
    """The queue of SCHEDULE_TOPIC that holds the messages of this level."""
    return level - 1
