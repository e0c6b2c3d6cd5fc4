"""FileMessageSet: the messages in one file, or in a part of one.

    0                          high_water_mark        size
    ├──────── on the disk ─────────────┼── written ───┤
    ├── rec ──┼─── rec ───┼──── rec ───┼──── rec ─────┤◀─ append
              └ slice(offset, limit) ──┘

`append` moves the size, `flush` (fsync) the high-water mark to it, and only what lies below the mark is given to
readers: nothing that a power cut could take back. A mutable set is opened by recovery, which cuts the file off
behind its last whole record; an immutable one is taken as it is. Slices share the file and keep it open.
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
    """Where a message set is written to: a connection."""

    def transfer(self, head: bytes, fd: int, offset: int, count: int) -> int:
        """Sends `head`, then `count` bytes of the file `fd` from `offset` on; how many of them were not copied."""


class MessageSet(Protocol):
    """What the original calls a message set."""

    def slice(self, offset: int, limit: int) -> MessageSet: ...
    def write(self, opaque: int, receiver: Receiver) -> int: ...
    def append(self, data: Buffer) -> int: ...
    def flush(self) -> None: ...
    def read(self, size: int, offset: int = 0) -> bytes: ...
    def message_count(self) -> int: ...


BeforeCut = Callable[[int, int, int], None]
"""Told a file's descriptor, from which byte on it will be cut off, and how long it is."""


def _nothing(fd: int, end: int, length: int) -> None:
    pass


class _File:
    """A descriptor that is closed when the last set that uses it is gone: never under a reader."""

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
        """Bytes from the start of the set on."""
        self.high_water_mark = size
        """So many of them are on the disk."""
        self.mutable = mutable

    @classmethod
    def open(
        cls, path: str, *, mutable: bool, fast_boot: bool = False, before_cut: BeforeCut = _nothing
    ) -> FileMessageSet:
        """The messages of a file. A mutable one is made when it is missing, and recovered.

        `fast_boot`: the file is taken as whole, unread, and its messages are not counted. `before_cut` is called when
        recovery will cut something off. OSError, and what `before_cut` raises.
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
        """Messages found by recovery and appended since; immutable files are not counted."""
        return self._count

    def append(self, data: Buffer, count: int = 1) -> int:
        """Writes `count` records behind the last and returns where they begin; they are not on the disk yet.

        Raises StoreError on an immutable set; OSError, and then the set is as it was before.
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
        """What is appended is on the disk and can be read. OSError: then nothing is known of it."""
        with self._file.flushing:
            size = self.size
            if size > self.high_water_mark:
                os.fdatasync(self._file.fd)
                self.high_water_mark = size

    def truncate(self, size: int) -> None:
        """Cuts off what lies behind `size`, durably. OSError."""
        os.ftruncate(self._file.fd, size)
        os.fsync(self._file.fd)
        self.size = self.high_water_mark = size

    def freeze(self) -> None:
        """Flushes; nothing can be appended any more. OSError."""
        self.flush()
        self.mutable = False

    def slice(self, offset: int, limit: int) -> FileMessageSet:
        """The readable bytes from `offset` up to `limit` (or to what can be read), both from the set's start."""
        end = max(offset, min(limit, self.high_water_mark))
        return FileMessageSet(self._file, self._start + offset, end - offset, mutable=False)

    def read(self, size: int, offset: int = 0) -> bytes:
        """At most `size` readable bytes from `offset` on. OSError."""
        size = min(size, self.high_water_mark - offset)
        return os.pread(self._file.fd, size, self._start + offset) if size > 0 else b""

    def write(self, opaque: int, receiver: Receiver) -> int:
        """Sends the set as the answer `value`, its bytes straight from the file; how many went without a copy."""
        return receiver.transfer(encode_value_head(self.size, opaque), self._file.fd, self._start, self.size)

    def recover(self, before_cut: BeforeCut = _nothing) -> int:
        """Cuts the file off behind its last whole record and counts the messages; how many bytes went.

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
    """Whether a whole record begins anywhere behind the byte `start`, which begins none.

    Of what is long only whether it is anything but zeros is asked. OSError.
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
    """(where the records of a file that are whole end, how many they are). OSError."""
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
