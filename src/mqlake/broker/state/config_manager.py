"""ConfigManager: a table in memory that is persisted in one of the broker's config files.

Some changes are written at once (an operator's), others at the next interval (commits of offsets, groups created by
requests); `dirty` says that there is something to write. The table belongs to the event loop. A write in the
background takes a snapshot on the loop; another thread encodes and writes it.
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
        """True if the table holds changes that the file does not."""
        self.is_missing = False
        """True if there was no file to load."""
        self._copies = 0
        self._written = 0
        self._write_lock = threading.Lock()

    @property
    def path(self) -> str:
        return self._file.path

    def load(self) -> None:
        """Reads the file, if there is one. StoreCorruptError, FormatError, OSError."""
        value = self._file.load()
        self.is_missing = value is None
        if value is None:
            return
        try:
            self.decode(value)
        except FormatError as error:
            raise FormatError(error.offset, f"{self.path}: {error.reason}") from None

    def persist(self) -> None:
        """Writes the table durably before it returns. On OSError the file keeps its old content."""
        self._write(self._next_copy(), self.snapshot())
        self.dirty = False

    async def persist_in_background(self) -> None:
        """Writes the table if it has changed, without blocking the event loop. OSError."""
        if not self.dirty:
            return
        self.dirty = False  # later changes are not in the copy
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
            except OSError as error:  # the error of a full disk names no file
                raise OSError(error.errno, f"{error.strerror}; the change is not kept", self.path) from error
            self._written = copy

    def encode(self) -> dict[str, Any]:
        """The file's content, which later changes of the table do not affect."""
        raise NotImplementedError

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that encodes the content, on any thread. A large table makes a shallow copy first."""
        content = self.encode()
        return lambda: content

    def decode(self, value: Any) -> None:
        """Fills the table from the file's content. FormatError."""
        raise NotImplementedError
