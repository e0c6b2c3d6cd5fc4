"""GroupCommitService: flushes in threads, so that one fsync serves everything written during the last one.

    append ─▶ waiting ─┐
    append ─▶ waiting ─┼─▶ fsync (thread) ─▶ deliver ─▶ the callbacks, together
    append ─▶ waiting ─┘

The owner decides when a flush begins and where callbacks run: a broker begins it at the end of an iteration of
its event loop and runs the callbacks there, waking the loop once per batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from mqlake.base.background import BackgroundWork

logger = logging.getLogger(__name__)

THREADS = 3
"""Partitions flushed at the same time. More threads lose more to the interpreter's lock than they save in waiting for
the disk."""

Job = Callable[[], None]


def at_once(job: Job) -> None:
    job()


class GroupCommitService:
    """`begin` gets a function that starts a flush, `deliver` one that runs its callbacks; each must call it."""

    def __init__(
        self,
        deliver: Callable[[Job], None] = at_once,
        begin: Callable[[Job], None] = at_once,
        threads: int = THREADS,
    ) -> None:
        self.deliver = deliver
        self._begin = begin
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"metaq-flush-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Runs `job` in a thread."""
        self._begin(lambda: self._jobs.put(job))

    def _run(self) -> None:
        work = BackgroundWork("flushes", logger)
        while (job := self._jobs.get()) is not None:
            with work.round():
                job()

    def close(self) -> None:
        """Waits for the submitted jobs."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
