"""StoreCheckpoint: the checkpoint (its bytes are drawn in formats/checkpoint.py) as a file kept up to date.

The 40 bytes lie within one disk sector and are written by one pwrite, so a reader or a crash meets the old
values or the new ones. The file is one page long from its first moment on; a missing, empty or short one (another
program's crash) reads as zeros, which makes recovery start at the first file. Nothing is written before the
first `make` or `flush`.
"""

from __future__ import annotations

import os
import threading
from dataclasses import asdict

from mqlake.base.durable import fsync_dir, write_durably
from mqlake.errors import StoreClosedError
from mqlake.formats.checkpoint import CHECKPOINT_FILE_SIZE, CHECKPOINT_SIZE, Checkpoint


class StoreCheckpoint(Checkpoint):
    """The five fields are plain attributes; `flush` makes them durable. Raises OSError."""

    __slots__ = ("_fd", "_lock", "_writable", "path")

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._fd = -1
        self._writable = not read_only
        super().__init__(**asdict(Checkpoint.decode(_read(path))))

    def make(self) -> None:
        """Opens the file for writing; makes it, of zeros, if it is missing. OSError."""
        with self._lock:
            if self._fd < 0 and self._writable:
                self._fd = _open_whole(self.path)

    def flush(self) -> None:
        """Writes the fields and waits for the disk. After an OSError the file holds old or new values."""
        self.make()
        with self._lock:
            if self._fd < 0:
                raise StoreClosedError(f"{self.path} is closed, or was opened read-only")
            # One page in the page cache, one sector on disk: never a part of it.
            if os.pwrite(self._fd, self.encode(), 0) != CHECKPOINT_SIZE:
                raise OSError(f"{self.path}: short write")
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Closes without flushing; a second time does nothing."""
        with self._lock:
            fd, self._fd, self._writable = self._fd, -1, False
            if fd >= 0:
                os.close(fd)


def _open_whole(path: str) -> int:
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_durably(path, bytes(CHECKPOINT_FILE_SIZE))
    fd = os.open(path, os.O_RDWR)
    if os.fstat(fd).st_size < CHECKPOINT_FILE_SIZE:
        os.posix_fallocate(fd, 0, CHECKPOINT_FILE_SIZE)
        fsync_dir(os.path.dirname(path))
    return fd


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(CHECKPOINT_SIZE) or b"").ljust(CHECKPOINT_SIZE, b"\0")
    except FileNotFoundError:
        return bytes(CHECKPOINT_SIZE)
