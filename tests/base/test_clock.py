from __future__ import annotations

import time

from mqlake.base.clock import now_ms


def test_milliseconds_since_1970() -> None:
    before = int(time.time() * 1000)
    assert before - 1 <= now_ms() <= int(time.time() * 1000) + 1
