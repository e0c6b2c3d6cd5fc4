"""ConfigManager: a table that lives in memory and is kept in one of the broker's config files.

Some changes are written at once (an operator's), others with the next interval (commits of offsets, groups that
made themselves); `dirty` says that there is something to write. The table belongs to the event loop. Writing in
the background takes a snapshot on the loop; the content, its text and the disk are another thread's work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from mqlake.base.config_file import ConfigFile
from mqlake.errors import FormatError


class ConfigManager:
    def __init__(self, path: str) -> None:
        self._file = ConfigFile(path)
        self.dirty = False
        """Whether the table holds changes that the file does not."""
        self._copies = 0
        self._written = 0
        self._write_lock = threading.Lock()

    @property
    def path(self) -> str:
        return self._file.path

    def load(self) -> None:
        """Takes what the file holds, if there is one. StoreCorruptError, FormatError, OSError."""
        value = self._file.load()
        if value is None:
            return
        try:
            self.decode(value)
        except FormatError as error:
            raise FormatError(error.offset, f"{self.path}: {error.reason}") from None

    def persist(self) -> None:
        """Writes the table, durably, before it returns. OSError; then the file's old content stays."""
        self._write(self._next_copy(), self.snapshot())
        self.dirty = False

    async def persist_in_background(self) -> None:
        """Writes the table when it has changed, and holds up nobody meanwhile. OSError."""
        if not self.dirty:
            return
        self.dirty = False  # what changes from here on is not in the copy
        try:
            await asyncio.to_thread(self._write, self._next_copy(), self.snapshot())
        except BaseException:
            self.dirty = True
            raise

    def _next_copy(self) -> int:
        self._copies += 1
        return self._copies

    def _write(self, copy: int, content: Callable[[], dict[str, Any]]) -> None:
        with self._write_lock:
            if copy < self._written:
                return  # a later copy was faster
            try:
                self._file.persist(content())
            except OSError as error:  # a full disk's names no file
                raise OSError(error.errno, f"{error.strerror}; the change is not kept", self.path) from error
            self._written = copy

    def encode(self) -> dict[str, Any]:
        """The file's content; later changes of the table do not reach it."""
        raise NotImplementedError

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Makes the file's content, on any thread. A large table takes a shallow copy here and encodes there."""
        content = self.encode()
        return lambda: content

    def decode(self, value: Any) -> None:
        """Takes the file's content over. FormatError."""
        raise NotImplementedError
