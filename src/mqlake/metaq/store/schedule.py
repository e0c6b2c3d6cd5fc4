"""Schedule: runs jobs at their times, one after the other, in its own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mqlake.base.background import BackgroundWork

logger = logging.getLogger(__name__)

NextTime = Callable[[float], float | None]
"""The next time to run, given the current time; both in seconds since 1970. None: never."""


def every(interval_s: float) -> NextTime:
    return lambda now: now + interval_s


class Schedule:
    """`put` jobs under names, `start`, `stop`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._jobs: dict[str, tuple[NextTime, Callable[[], object]]] = {}
        self._due: dict[str, float] = {}
        self._works: dict[str, BackgroundWork] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def names(self) -> list[str]:
        return sorted(self._jobs)

    def put(self, name: str, next_time: NextTime, job: Callable[[], object]) -> None:
        """Adds or replaces a job."""
        with self._changed:
            self._jobs[name] = next_time, job
            self._plan(name)
            self._changed.notify()

    def remove(self, name: str) -> None:
        with self._changed:
            self._jobs.pop(name, None)
            self._due.pop(name, None)
            self._works.pop(name, None)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="metaq-schedule", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the running job."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def run_due(self) -> None:
        now = self._clock()
        with self._changed:
            due = [name for name, at in self._due.items() if at <= now]
            jobs = [(name, self._jobs[name][1]) for name in due]
            for name in due:
                self._plan(name)
        for name, job in jobs:
            with self._works.setdefault(name, BackgroundWork(f"the job {name}", logger)).round():
                job()

    def _plan(self, name: str) -> None:
        at = self._jobs[name][0](self._clock())
        if at is None:
            self._due.pop(name, None)
        else:
            self._due[name] = at

    def _run(self) -> None:
        while not self._stopping:
            self.run_due()
            with self._changed:
                following = min(self._due.values(), default=None)
                wait_s = None if following is None else following - self._clock()
                if not self._stopping and (wait_s is None or wait_s > 0):
                    self._changed.wait(wait_s)
