"""Jobs: long work that a page starts, with its progress, its end and its result; the newest of each name is kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mqlake.base.clock import now_ms
from mqlake.errors import ConfigError, MqlakeError

JOBS_MAX = 64
RUNNING_MAX = 4

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Job:
    name: str
    began: int
    """ms since 1970."""
    done: int = 0
    total: int = 0
    """0: not known."""
    ended: int = 0
    """ms since 1970; 0: it runs."""
    error: str = ""
    result: Any = None

    def progress(self, done: int, total: int) -> None:
        """May be called from any thread."""
        self.done, self.total = done, total

    def state(self) -> dict[str, Any]:
        running = not self.ended
        share = min(self.done / self.total, 1.0) if self.total else (0.0 if running else 1.0)
        return {
            "name": self.name,
            "running": running,
            "began": self.began,
            "ended": self.ended,
            "done": self.done,
            "total": self.total,
            "share": share,
            "error": self.error,
        }


class Jobs:
    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def start(self, name: str, work: Callable[[Job], Awaitable[Any]]) -> Job:
        """Starts it, unless a job of that name runs: then that one is meant. ConfigError if too many run."""
        known = self._jobs.get(name)
        if known is not None and not known.ended:
            return known
        if len(self._tasks) >= RUNNING_MAX:
            raise ConfigError(f"{RUNNING_MAX} jobs run already; wait until one has ended")
        job = Job(name, now_ms())
        self._jobs[name] = job
        self._jobs.move_to_end(name)
        for old in [each for each in self._jobs.values() if each.ended][: max(0, len(self._jobs) - JOBS_MAX)]:
            del self._jobs[old.name]
        task = asyncio.create_task(self._run(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[Any]]) -> None:
        try:
            job.result = await work(job)
        except (MqlakeError, OSError) as error:
            job.error = str(error)
        except Exception as error:
            logger.exception("job %s failed", job.name)
            job.error = repr(error)
        finally:
            job.ended = now_ms()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
