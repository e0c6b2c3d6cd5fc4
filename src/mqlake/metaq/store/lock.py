"""DirectoryLock: one broker per data directory, without a file that the original would stumble over.

The lock is flock() on the directory itself; the kernel drops it with the process.
"""

from __future__ import annotations

import fcntl
import os

from mqlake.errors import StoreLockedError


class DirectoryLock:
    """The exclusive right to write below `path`, from the constructor to `release`."""

    def __init__(self, path: str) -> None:
        """StoreLockedError if another process has it, OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise StoreLockedError(f"{path} is in use: a broker writes to it") from None

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(path: str) -> bool:
    """True if an mqlake broker writes below `path`. OSError."""
    try:
        DirectoryLock(path).release()
    except StoreLockedError:
        return True
    return False
