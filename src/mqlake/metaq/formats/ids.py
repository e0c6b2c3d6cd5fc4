"""IdWorker: message ids that are never repeated.

     63                                    22         12           0
    ├┼──────────────────────────────────────┼──────────┼───────────┤
    │0│ milliseconds since 2011-04-27 (41)  │worker(10)│sequence(12)│
    └─┴─────────────────────────────────────┴──────────┴───────────┘

The original uses the milliseconds since the machine was started, so its ids are negative and repeat after a
restart; consumers remember ids and skip those they know. mqlake uses the wall clock: ids are positive and never
repeat. Readers accept both.
"""

from __future__ import annotations

from collections.abc import Callable

from mqlake.base.clock import now_ms
from mqlake.errors import ConfigError

EPOCH_MS = 1303895660503
WORKER_ID_MAX = 1023
SEQUENCE_BITS = 12
_WORKER_SHIFT = SEQUENCE_BITS
_TIME_SHIFT = SEQUENCE_BITS + 10
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class IdWorker:
    """One per broker process. Not thread-safe."""

    def __init__(self, worker_id: int, clock_ms: Callable[[], int] = now_ms) -> None:
        """ConfigError when `worker_id` (the broker's id) is not 0 to 1023."""
        if not 0 <= worker_id <= WORKER_ID_MAX:
            raise ConfigError(f"brokerId is {worker_id}; message ids have room for 0 to {WORKER_ID_MAX}")
        self._worker = worker_id << _WORKER_SHIFT
        self._clock_ms = clock_ms
        self._last_ms = -1
        self._sequence = 0

    def next_id(self) -> int:
        """Larger than every earlier one, even when the clock stands still or is set back."""
        now = self._clock_ms()
        if now > self._last_ms:
            self._last_ms = now
            self._sequence = 0
        else:
            self._sequence = (self._sequence + 1) & _SEQUENCE_MASK
            if not self._sequence:
                self._last_ms += 1
        return (self._last_ms - EPOCH_MS) << _TIME_SHIFT | self._worker | self._sequence
