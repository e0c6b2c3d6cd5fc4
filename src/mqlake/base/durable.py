"""Small files written whole: after a crash at any point the name holds the old content or the new one.

write NAME.tmp → fsync → rename to NAME → fsync the directory
"""

from __future__ import annotations

import os


def fsync_dir(path: str) -> None:
    """Makes the names in a directory durable. OSError."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: str) -> None:
    """Makes a directory and those above it that are missing, and their names durable. OSError."""
    if not os.path.isdir(path):
        parent = os.path.dirname(os.path.abspath(path))
        make_dirs(parent)
        os.makedirs(path, exist_ok=True)
        fsync_dir(parent)


def write_temporary(path: str, data: bytes, mode: int = 0o644) -> str:
    """Writes `data` durably beside `path` and returns the temporary name. An OSError, which names `path`, leaves no
    file."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        if mode & 0o077 == 0:  # an old file of that name may have been open to others
            os.fchmod(fd, mode)
        with open(fd, "wb", buffering=0) as file:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[file.write(remaining) or 0 :]
            os.fsync(fd)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # of a full disk the system does not say it
        raise
    return temporary


def write_durably(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """`path` holds `data`, also after a power loss. On OSError it holds what it held before."""
    os.replace(write_temporary(path, data, mode), path)
    fsync_dir(os.path.dirname(path))
