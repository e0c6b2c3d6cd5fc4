"""Audit: every refusal is counted, and logged with few words per second.

    access refused: authentication, user alice, 10.0.0.1, SEND_MESSAGE_V2: check signature failed. (17 more since)

Refusals of one user at one address for one reason are one line in LINE_S, with the number of those in between. A name
that no user has may be a secret in the wrong place, so it is not written: only its length and a fingerprint.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger("mqlake.audit")

LINE_S = 10.0
LINES_MAX = 1000
"""Different refusals that are remembered; with more, all are forgotten."""
WINDOW_S = 1.0


class Audit:
    """On one event loop."""

    def __init__(self, failures_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_max = failures_max
        self._clock = clock
        self.refused: Counter[tuple[str, str]] = Counter()
        """(authentication or authorization, request) → how often, for metrics."""
        self._lines: dict[tuple[str, str, str, str], tuple[float, int]] = {}
        self._window = 0.0
        self._in_window: Counter[str] = Counter()

    def note(self, step: str, who: str, ip: str, request: str, why: str) -> bool:
        """Notes a refusal; returns True if its address has too many in this second. `who`: see `shown`."""
        self.refused[step, request] += 1
        now = self._clock()
        line = (step, who, ip, why)
        logged_at, held_back = self._lines.get(line, (-LINE_S, 0))
        if now - logged_at >= LINE_S:
            more = f" ({held_back} more since the last line)" if held_back else ""
            logger.warning("access refused: %s, %s, %s, %s: %s%s", step, who, ip, request, why, more)
            if len(self._lines) >= LINES_MAX:
                self._lines.clear()
            self._lines[line] = (now, 0)
        else:
            self._lines[line] = (logged_at, held_back + 1)
        if now - self._window >= WINDOW_S:
            self._window = now
            self._in_window.clear()
        self._in_window[ip] += 1
        return self._in_window[ip] > self._failures_max


def shown(name: str | None, *, known: bool) -> str:
    """A user for the log."""
    if not name:
        return "no user"
    if known:
        return f"user {name}"
    return f"an unknown user ({len(name)} characters, {hashlib.sha256(name.encode()).hexdigest()[:8]})"
