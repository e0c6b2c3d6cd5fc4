"""GroupCommitService: flushes in threads, so that one fsync answers all that was written while the last one ran.

    append ─▶ waiting ─┐
    append ─▶ waiting ─┼─▶ fsync (thread) ─▶ deliver ─▶ the callbacks, together
    append ─▶ waiting ─┘

Where callbacks run is the owner's choice: a broker has them run on its event loop, one wake a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

THREADS = 4
"""Partitions that are flushed at the same time."""


def run_here(batch: Callable[[], None]) -> None:
    batch()


class GroupCommitService:
    """`deliver` is given a function that runs the callbacks of one fsync; by default it runs in the thread."""

    def __init__(
        self, deliver: Callable[[Callable[[], None]], None] = run_here, threads: int = THREADS
    ) -> None:
        self.deliver = deliver
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="metaq-flush")

    def submit(self, job: Callable[[], None]) -> None:
        """Has `job` run in a thread. RuntimeError when the service is closed."""
        self._executor.submit(job)

    def close(self) -> None:
        """Waits for the jobs under way."""
        self._executor.shutdown()
