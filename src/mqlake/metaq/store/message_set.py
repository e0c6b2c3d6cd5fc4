"""FileMessageSet: the messages in one file, or in a range of one.

    0                          high_water_mark        size
    ├──────── on the disk ─────────────┼── written ───┤
    ├── rec ──┼─── rec ───┼──── rec ───┼──── rec ─────┤◀─ append
              └ slice(offset, limit) ──┘

`append` advances the size, `flush` (fsync) moves the high-water mark up to it, and readers get only the bytes below the
mark: nothing that a power cut could take back. Opening a mutable set recovers it: the file is truncated after its last
whole record. An immutable set is used as it is. Slices share the file and keep it open.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mqlake.errors import StoreError
from mqlake.metaq.formats.command import encode_value_head
from mqlake.metaq.formats.record import Buffer
from mqlake.metaq.formats.scan import ScanStop, find_record, scan_records

SEARCHED_BYTES = 1 << 20


class Receiver(Protocol):
    """A connection that a message set is written to."""

    def transfer(self, head: bytes, fd: int, offset: int, count: int) -> int:
        """Sends `head` and `count` bytes of the file `fd` from `offset` on; returns how many went without a copy."""


class MessageSet(Protocol):
    """The original's interface of a message set."""

    def slice(self, offset: int, limit: int) -> MessageSet: ...
    def write(self, opaque: int, receiver: Receiver) -> int: ...
    def append(self, data: Buffer) -> int: ...
    def flush(self) -> None: ...
    def read(self, size: int, offset: int = 0) -> bytes: ...
    def message_count(self) -> int: ...


BeforeCut = Callable[[int, int, int], None]
"""Called with a file's descriptor, the size to which it will be truncated, and its size."""


def _nothing(fd: int, end: int, length: int) -> None:
    pass


class _File:
    """A descriptor that is closed when the last set that uses it is gone, so never while it is read."""

    __slots__ = ("fd", "flushing", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.path = path
        self.flushing = threading.Lock()
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileMessageSet:
    """Made by `open` and `slice`. `append` and `flush` may run in two threads."""

    __slots__ = ("_count", "_file", "_start", "high_water_mark", "mutable", "size")

    def __init__(self, file: _File, start: int, size: int, *, mutable: bool, count: int = 0) -> None:
        self._file = file
        self._start = start
        self._count = count
        self.size = size
        """In bytes."""
        self.high_water_mark = size
        """The first bytes, up to this one, are on the disk."""
        self.mutable = mutable

    @classmethod
    def open(
        cls, path: str, *, mutable: bool, fast_boot: bool = False, before_cut: BeforeCut = _nothing
    ) -> FileMessageSet:
        """The messages of a file. A mutable set creates a missing file, and recovers an existing one.

        `fast_boot`: the file is trusted without being read, and its messages are not counted. `before_cut` is called
        before recovery truncates. OSError, and what `before_cut` raises.
        """
        file = _File(path, os.O_RDWR | os.O_CREAT if mutable else os.O_RDONLY)
        size = os.fstat(file.fd).st_size
        message_set = cls(file, 0, size, mutable=mutable)
        if mutable and not fast_boot:
            message_set.recover(before_cut)
        return message_set

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def fd(self) -> int:
        return self._file.fd

    def message_count(self) -> int:
        """Messages found by recovery or appended since; those of immutable files are not counted."""
        return self._count

    def append(self, data: Buffer, count: int = 1) -> int:
        """Writes `count` records after the last one and returns where they begin; they are not on the disk yet.

        Raises StoreError for an immutable set, and OSError, after which the set is unchanged.
        """
        if not self.mutable:
            raise StoreError(f"{self.path}: nothing can be appended to an immutable message set")
        position = self.size
        written = os.pwrite(self._file.fd, data, position)
        if written != len(data):
            self._write_rest(memoryview(data), position, written)
        self.size = position + len(data)
        self._count += count
        return position

    def _write_rest(self, data: memoryview, position: int, written: int) -> None:
        try:
            while written < len(data):
                written += os.pwrite(self._file.fd, data[written:], position + written)
        except OSError:
            os.ftruncate(self._file.fd, position)
            raise

    def flush(self) -> None:
        """Makes appended records durable and readable. After an OSError their state is unknown."""
        with self._file.flushing:
            size = self.size
            if size > self.high_water_mark:
                os.fdatasync(self._file.fd)
                self.high_water_mark = size

    def truncate(self, size: int) -> None:
        """Truncates to `size`, durably. OSError."""
        os.ftruncate(self._file.fd, size)
        os.fsync(self._file.fd)
        self.size = self.high_water_mark = size

    def freeze(self) -> None:
        """Flushes and makes the set immutable. OSError."""
        self.flush()
        self.mutable = False

    def slice(self, offset: int, limit: int) -> FileMessageSet:
        """The readable bytes from `offset` to `limit`, both counted from the start of the set."""
        end = max(offset, min(limit, self.high_water_mark))
        return FileMessageSet(self._file, self._start + offset, end - offset, mutable=False)

    def read(self, size: int, offset: int = 0) -> bytes:
        """At most `size` readable bytes from `offset` on. OSError."""
        size = min(size, self.high_water_mark - offset)
        return os.pread(self._file.fd, size, self._start + offset) if size > 0 else b""

    def write(self, opaque: int, receiver: Receiver) -> int:
        """Sends the set as the answer `value`, straight from the file; returns how many bytes went without a copy."""
        return receiver.transfer(encode_value_head(self.size, opaque), self._file.fd, self._start, self.size)

    def recover(self, before_cut: BeforeCut = _nothing) -> int:
        """Truncates the file after its last whole record and counts the messages; returns the number of bytes removed.

        Zeros at the end of the file, which a power cut may leave, count as not written: no broker gives a
        message the id 0. OSError.
        """
        length = self.size
        end, count = whole_records(self._file.fd, length)
        self._count = count
        if end < length:
            before_cut(self._file.fd, end, length)
            self.truncate(end)
        return length - end

    def close(self) -> None:
        """Flushes a mutable set and closes the file, also for its slices. OSError."""
        if self._file.fd >= 0:
            try:
                if self.mutable:
                    self.flush()
            finally:
                self._file.close()


def has_records(fd: int, start: int) -> bool:
    """True if a whole record begins anywhere after the byte `start`, where none begins.

    In more than SEARCHED_BYTES anything but zeros counts as one. OSError.
    """
    data = np.frombuffer(os.pread(fd, SEARCHED_BYTES + 1, start), np.uint8)
    if len(data) > SEARCHED_BYTES:
        return not _is_zeros(fd, start)
    return find_record(data, 1, len(data)) >= 0


def _is_zeros(fd: int, start: int) -> bool:
    while data := os.pread(fd, 1 << 20, start):
        if data.strip(b"\0"):
            return False
        start += len(data)
    return True


def whole_records(fd: int, length: int) -> tuple[int, int]:
    """Returns (where the last whole record of a file ends, the number of records). OSError."""
    if length == 0:
        return 0, 0
    position = count = 0
    with mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        array = np.frombuffer(mapped, np.uint8)
        try:
            while True:
                scan = scan_records(array, position, length)
                zeros = scan.is_zeros
                if zeros.any():
                    first = int(zeros.argmax())
                    return int(scan.position[first]), count + first
                count += len(scan)
                position = scan.end
                if scan.stop is not ScanStop.MAX_RECORDS:
                    return position, count
                mapped.madvise(mmap.MADV_DONTNEED, 0, position & -mmap.PAGESIZE)
        finally:
            del array
