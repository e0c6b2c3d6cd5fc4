"""BackgroundWork: what every loop in the background runs its rounds in, so that no error ends it.
BackgroundTask: a loop on the event loop that starts and stops.

    work = BackgroundWork("commits of offsets", logger)
    while True:
        await asyncio.sleep(5)
        async with work.round():       in a thread: with work.round()
            ...

A round that raises any Exception is over, and the loop goes on: after a pause in an `async with`, at once in a `with`,
whose thread waits in its own way. The error is logged at WARNING, once a minute while it goes on, with its traceback
if it is none of mqlake's own. Work that has failed KEEPS_FAILING times in a row is in `failing()`, which health shows.
`repeat` is that loop for a job that is done at an interval.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import MqlakeError

PAUSE_S = 1.0
"""After a round that failed."""
KEEPS_FAILING = 3

_lock = threading.Lock()
_failed: weakref.WeakSet[BackgroundWork] = weakref.WeakSet()
"""Work whose last round failed; a loop that has ended is forgotten with its work."""


class BackgroundWork:
    """The rounds of one loop."""

    def __init__(self, name: str, logger: logging.Logger, *, pause_s: float = PAUSE_S) -> None:
        """`name`: what it does, as the beginning of a sentence. `pause_s`: after a round that failed."""
        self.name = name
        self.failures = 0
        """In a row, up to now."""
        self.last_error = ""
        self._pause_s = pause_s
        self._log = ThrottledLog(logger, logging.WARNING)

    def round(self) -> Self:
        """A context manager around the statements of one round."""
        return self

    def worked(self) -> None:
        if self.failures:
            with _lock:
                _failed.discard(self)
            self.failures = 0
            self._log.worked(f"{self.name}: works again")

    def failed(self, error: Exception) -> None:
        with _lock:
            _failed.add(self)
        self.failures += 1
        own = isinstance(error, MqlakeError)
        self.last_error = str(error) if own else f"{type(error).__name__}: {error}"
        self._log.failed(f"{self.name}: {self.last_error}; tried again", None if own else error)

    async def pause(self) -> None:
        await asyncio.sleep(self._pause_s)

    # --- a round, in the form of a context

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.worked()
        elif isinstance(error, Exception):
            self.failed(error)
            return True
        return False

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        goes_on = self.__exit__(kind, error, trace)
        if goes_on:
            await self.pause()
        return goes_on


async def repeat(
    name: str,
    logger: logging.Logger,
    interval_s: float | Callable[[], float],
    job: Callable[[], Awaitable[object]],
) -> None:
    """Runs `job` until it is cancelled, each time after `interval_s`, as the rounds of BackgroundWork."""
    work = BackgroundWork(name, logger)
    while True:
        await asyncio.sleep(interval_s() if callable(interval_s) else interval_s)
        async with work.round():
            await job()


class BackgroundTask:
    """A coroutine that runs on the event loop from start() to stop()."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """`name`: the task's, for those who debug."""
        self._run = run
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancels it, and returns when it has ended. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def failing() -> list[str]:
    """Returns a sentence for each work of this process that keeps failing."""
    with _lock:
        found = [work for work in _failed if work.failures >= KEEPS_FAILING]
    return sorted(f"{work.name} has failed {work.failures} times: {work.last_error}" for work in found)
