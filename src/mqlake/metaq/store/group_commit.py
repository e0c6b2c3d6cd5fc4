"""GroupCommitService: flushes in threads, so that one fsync answers all that was written while the last one ran.

    append ─▶ waiting ─┐
    append ─▶ waiting ─┼─▶ fsync (thread) ─▶ deliver ─▶ the callbacks, together
    append ─▶ waiting ─┘

When a flush begins and where callbacks run is the owner's choice: a broker begins it when it has handled all that
came in one turn of its event loop, and has the callbacks run there, one wake a batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger(__name__)

THREADS = 3
"""Partitions that are flushed at the same time. More of them hand the interpreter's lock around for longer than they
save in waiting for the disk."""

Job = Callable[[], None]


def at_once(job: Job) -> None:
    job()


class GroupCommitService:
    """`begin` is given what starts a flush, `deliver` what runs the callbacks of one; each must run it some time."""

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
        """Has `job` run in a thread."""
        self._begin(lambda: self._jobs.put(job))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("a flush failed")

    def close(self) -> None:
        """Waits for the jobs that were submitted."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
