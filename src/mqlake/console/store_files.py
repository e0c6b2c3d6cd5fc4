"""StoreFiles: a store directory as the console reads it, also while a broker writes to it.

One thread of its own opens it, looks again at what a writer has added, and answers: the event loop never waits for a
disk, and nothing is read twice at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mqlake.console.jobs import Job
from mqlake.store.check.info import StoreInfo, store_info
from mqlake.store.check.verify import VerifyReport, verify_store
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.restore_copies import PutBack, look_at_copies

REFRESH_S = 1.0
"""Seconds for which a look at the files is good enough: another one reads the end of the log."""
INFO_S = 5.0

T = TypeVar("T")


class StoreFiles:
    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, object] | None = None) -> None:
        self.path = os.path.abspath(path)
        self._settings = dict(settings or {})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-store")
        self._store: ReadOnlyStore | None = None
        self._seen = 0.0
        self._info: tuple[float, StoreInfo] | None = None

    async def ask(self, question: Callable[[ReadOnlyStore], T]) -> T:
        """Returns the answer to `question`, which must keep nothing that points into the files. Raises as
        ReadOnlyStore does."""
        return await self._run(lambda: question(self._open()))

    async def info(self) -> StoreInfo:
        """See store_info(); of a few seconds ago."""
        return await self._run(self._look)

    async def copies(self) -> list[PutBack]:
        """Returns the copies that recovery and repair took out of the log."""
        return await self._run(lambda: look_at_copies(self.path, self._settings))

    async def verify(self, job: Job) -> VerifyReport:
        """Verifies the store in a thread apart from the others' questions: it reads everything."""
        return await asyncio.to_thread(verify_store, self.path, self._settings, progress=job.progress)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, do: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    def _open(self) -> ReadOnlyStore:
        now = time.monotonic()
        if self._store is None:
            self._store = ReadOnlyStore(self.path, self._settings)
        elif now - self._seen > REFRESH_S:
            try:
                self._store.refresh()
            except BaseException:
                self._close()  # the next question opens it again
                raise
        self._seen = now
        return self._store

    def _look(self) -> StoreInfo:
        now = time.monotonic()
        if self._info is None or now - self._info[0] > INFO_S:
            self._info = now, store_info(self.path, self._settings)
        return self._info[1]

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def named(paths: list[str], settings: Mapping[str, Any] | None = None) -> dict[str, StoreFiles]:
    """The directories by short names: their last part, with a number where two have the same."""
    found: dict[str, StoreFiles] = {}
    for path in paths:
        base = name = os.path.basename(os.path.abspath(path)) or "store"
        number = 1
        while name in found:
            number += 1
            name = f"{base}-{number}"
        found[name] = StoreFiles(path, settings)
    return found
