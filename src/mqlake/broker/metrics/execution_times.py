"""ExecutionTimes: how long an operator's requests took, as RocketMQ's histograms count it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mqlake.base.histogram import Histogram

BUCKETS_MS = (10, 100, 1000, 3000, 5000)


class ExecutionTimes:
    def __init__(self) -> None:
        self.by_status: dict[str, Histogram] = {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Records how long the block took; an exception is a failure."""
        begin = time.monotonic_ns()
        status = "failure"
        try:
            yield
            status = "success"
        finally:
            elapsed_ms = (time.monotonic_ns() - begin) // 1_000_000
            self.by_status.setdefault(status, Histogram(BUCKETS_MS)).add(elapsed_ms, elapsed_ms)
