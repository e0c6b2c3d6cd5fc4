"""Delay levels, their text and their queues."""

from __future__ import annotations

import pytest

from mqlake.errors import ConfigError
from mqlake.message import (
    DEFAULT_MESSAGE_DELAY_LEVEL,
    delay_level_to_queue_id,
    deliver_timestamp,
    parse_delay_levels,
)


class TestDelayLevels:
    def test_default_table(self):
        table = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)
        assert len(table) == 18
        assert (table[1], table[4], table[5], table[18]) == (1000, 30_000, 60_000, 7_200_000)

    @pytest.mark.parametrize("text", ["", " ", "1", "s", "1x", "-1s", "1.5s", "²s"])
    def test_illegal(self, text):
        with pytest.raises(ConfigError):
            parse_delay_levels(text)

    def test_deliver_timestamp(self):
        table = {1: 1000, 2: 5000}
        assert deliver_timestamp(2, 100, table) == 5100
        assert deliver_timestamp(9, 100, table) == 5100
        assert deliver_timestamp(0, 100, table) == 1100
        assert deliver_timestamp(3, 100, {}) == 1100

    def test_queue_of_a_level(self):
        assert delay_level_to_queue_id(1) == 0
