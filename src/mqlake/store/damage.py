"""DamageLog: what reads and the scrub have found damaged, each place reported once.

    a pull passes over a unit ─┐
    a query by key             ├─▶ report(kind, damage) ─▶ known already? ─▶ warning with file and byte ─▶ counted
    the scrub ─────────────────┘                                └ yes: nothing

Many readers come by the same place, and each pull of each group finds it again: the first one reports it. Warnings are
limited to LINES_PER_MINUTE; the counts go on, and the next line says how many were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from mqlake.errors import StoreCorruptError

logger = logging.getLogger(__name__)

LINES_PER_MINUTE = 30
PLACES_MAX = 10_000
"""Places that are remembered. Beyond them nothing more is counted: then nobody needs a number to know."""

PULL = "pull"
QUERY = "query"
SCRUB = "scrub"


class DamageLog:
    """Thread-safe. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: set[tuple[str, int, str, int]] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._minute_began = clock_s()
        self._lines = self._left_out = 0

    def report(
        self, found_by: str, error: StoreCorruptError, topic: str = "", queue_id: int = -1, what: str = ""
    ) -> bool:
        """Logs and counts damage that is not known yet; returns True if it was new.

        `found_by` is PULL, QUERY or SCRUB. `topic` and `queue_id` are whose message is not given out because of it, and
        empty when that cannot be said. `what` is what was done about it.
        """
        with self._lock:
            place = (error.path, error.offset, topic, queue_id)
            if place in self._known or len(self._known) >= PLACES_MAX:
                return False
            self._known.add(place)
            self._counts[found_by, topic] += 1
            now = self._clock_s()
            if now - self._minute_began >= 60:
                self._minute_began, self._lines = now, 0
            if self._lines >= LINES_PER_MINUTE:
                self._left_out += 1
                return True
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        logger.error(
            "%s%s%s",
            error,
            f"; {what}" if what else "",
            f" ({left_out} like it were not logged)" * bool(left_out),
        )
        return True

    @property
    def count(self) -> int:
        """Damaged places that are known."""
        return len(self._known)

    def counts(self) -> list[tuple[str, str, int]]:
        """(Found by, topic, places), for metrics."""
        with self._lock:
            return [(found_by, topic, count) for (found_by, topic), count in self._counts.items()]
