"""Temporary directories that never stay: deleted when their process ends, or, if that is killed, by the next one.

A running process holds the lock of its directory.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import glob
import os
import shutil
import tempfile


def work_directory(parent: str, prefix: str) -> str:
    """A new directory, deleted when this process ends; those with this prefix that killed processes left are
    deleted now. Raises OSError."""
    for left in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*")):
        with contextlib.suppress(OSError):  # another user's
            if (fd := _lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(fd)
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
        fd = _lock(path)
        if fd is not None and os.path.isdir(path):  # else another process took it for a leftover
            atexit.register(shutil.rmtree, path, ignore_errors=True)
            return path


def _lock(directory: str) -> int | None:
    """A descriptor that locks a directory until it is closed; None if another process has it, or it is gone."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
