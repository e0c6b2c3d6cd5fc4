"""LoopThread: an event loop in a background thread, on which programs without one run the asyncio client.

    any thread ── run(coroutine) ──▶ the loop's thread ──▶ its result, or its exception

After a fork the child has no such thread; its first call starts one. Clients that the parent made belong to the parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from mqlake.remoting.loop import loop_factory

T = TypeVar("T")


class LoopThread:
    """The event loop, running in its thread from the first use to the end of the process."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = (loop_factory() or asyncio.new_event_loop)()
                threading.Thread(target=self._loop.run_forever, name="mqlake-client", daemon=True).start()
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for the result."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: no caller waits for the result any more
            raise

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """A plain function, on the loop's thread."""

        async def work() -> T:
            return function(*args, **options)

        return self.run(work())


LOOP_THREAD = LoopThread()
"""The loop of this process."""
