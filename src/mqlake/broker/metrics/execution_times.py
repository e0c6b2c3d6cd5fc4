"""ExecutionTimes: how long an operator's requests took, as RocketMQ's histograms count it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

BUCKETS_MS = (10, 100, 1000, 3000, 5000)


class ExecutionTimes:
    """Counts by (invocation status, whether the topic is a system topic)."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, bool], list[int]] = {}
        """Counts by upper bound in BUCKETS_MS; the last is for all that took longer."""
        self.sums_ms: dict[tuple[str, bool], int] = {}

    def record(self, elapsed_ms: int, *, success: bool, is_system: bool = False) -> None:
        key = ("success" if success else "failure", is_system)
        counts = self.counts.setdefault(key, [0] * (len(BUCKETS_MS) + 1))
        counts[bisect_left(BUCKETS_MS, elapsed_ms)] += 1
        self.sums_ms[key] = self.sums_ms.get(key, 0) + elapsed_ms

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Records how long the block took; an exception is a failure."""
        begin = time.monotonic_ns()
        success = False
        try:
            yield
            success = True
        finally:
            self.record((time.monotonic_ns() - begin) // 1_000_000, success=success)
