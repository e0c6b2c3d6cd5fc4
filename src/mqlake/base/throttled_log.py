"""ThrottledLog: logs when something begins to fail, once a period while it keeps failing, and when it works again.

12:00:00 ERROR   cannot create .../00000000001073741824: No space left on device
12:01:00 ERROR   cannot create .../00000000001073741824: No space left on device (tried 5,912 times since)
12:01:23 WARNING files are created again (after 8,204 failures)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

PERIOD_S = 60.0


class ThrottledLog:
    """One kind of failure of work that is retried, by any thread. `clock_s` is monotonic."""

    def __init__(
        self,
        logger: logging.Logger,
        level: int = logging.ERROR,
        *,
        period_s: float = PERIOD_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._level = level
        self._period_s = period_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._failures = 0
        self._failures_said = 0
        self._next_line = 0.0

    def failed(self, text: str, error: BaseException | None = None) -> None:
        """Records a failure; `text` says what failed and why. `error`: its traceback is logged with it."""
        with self._lock:
            self._failures += 1
            now = self._clock_s()
            if self._failures > 1 and now < self._next_line:
                return
            self._next_line = now + self._period_s
            count, self._failures_said = self._failures - self._failures_said, self._failures
        since = f" (tried {count:,} times since)" if self._failures > 1 else ""
        self._logger.log(self._level, "%s%s", text, since, exc_info=error)

    def worked(self, text: str) -> None:
        """Records a success; logs `text` if it had failed before."""
        if not self._failures:
            return
        with self._lock:
            count, self._failures = self._failures, 0
            self._failures_said = 0
        if count:
            self._logger.warning("%s (after %s)", text, f"{count:,} failures" if count > 1 else "1 failure")
