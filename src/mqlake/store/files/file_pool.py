"""FilePool: read and write any number of files through a bounded number of open descriptors.

A store may hold hundreds of thousands of consume queue files; a process may hold a few thousand descriptors.

    PooledFile ──take──▶ descriptor ──pread / pwrite / fdatasync──▶ give back ──▶ [ idle: oldest … newest ]
               (open when none is idle)                                   close one of these when over capacity

A descriptor in use is not in the pool, so nobody can close it under the user; a second user of the same file
meanwhile opens another one. Files are told apart by object, never by path: a file that is deleted and made
again is another PooledFile, and a descriptor of the old one is never used for the new one.

Recovery looks before it writes: between `defer_changes` and `apply_deferred` nothing is deleted or erased, only noted.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from collections import OrderedDict
from collections.abc import Callable

from mqlake.formats.names import offset_to_file_name

Buffer = bytes | memoryview

CAPACITY_MAX = 16 * 1024
OLDEST_EACH = 8
"""When there are too many descriptors, one of this many that are closed is the oldest, the others are the newest.
Dispatch writes to queues in turn: where these are more than the descriptors, the oldest is always the next that is
needed."""
ERASE_CHUNK = 1 << 20


class PooledFile:
    """A file named by its offset in `directory`. Cheap: no descriptor of its own."""

    __slots__ = ("directory", "file_from_offset")

    def __init__(self, directory: str, file_from_offset: int) -> None:
        self.directory = directory
        self.file_from_offset = file_from_offset

    @property
    def path(self) -> str:
        return f"{self.directory}/{offset_to_file_name(self.file_from_offset)}"

    def __repr__(self) -> str:
        return f"PooledFile({self.path!r})"


class FilePool:
    """At most `capacity` idle descriptors (default: a quarter of the process's limit, at most 16,384).

    Every method raises OSError as the system reports it. Safe to use from several threads.
    """

    def __init__(self, capacity: int | None = None, *, read_only: bool = False) -> None:
        self._idle: OrderedDict[PooledFile, int] = OrderedDict()
        if capacity is None:
            soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            unlimited = soft_limit == resource.RLIM_INFINITY
            capacity = CAPACITY_MAX if unlimited else min(CAPACITY_MAX, soft_limit // 4)
        self.capacity = capacity
        self.read_only = read_only
        self._deferred: list[Callable[[], None]] | None = None
        self._closed = 0

    def __len__(self) -> int:
        return len(self._idle)

    def __del__(self) -> None:
        self.close()

    def defer_changes(self) -> None:
        """From now on deleting and erasing are only noted: the files stay as they are until `apply_deferred`."""
        self._deferred = []

    def apply_deferred(self) -> None:
        """Does what was noted since `defer_changes`, in its order; from now on everything is done at once again."""
        deferred, self._deferred = self._deferred, None
        for change in deferred or ():
            change()

    def create(self, file: PooledFile, size: int) -> None:
        """Makes the file, `size` bytes of zeros that take no space yet, in a directory that exists."""
        fd = self._open(file.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            os.unlink(file.path)
            raise
        self._give_back(file, fd)

    def pread(self, file: PooledFile, size: int, position: int) -> bytes:
        fd = self._borrow(file)
        try:
            return os.pread(fd, size, position)
        finally:
            self._give_back(file, fd)

    def pwrite(self, file: PooledFile, data: Buffer, position: int) -> None:
        """Writes all of `data`, or raises OSError with the file's name."""
        fd = self._borrow(file)
        try:
            done = os.pwrite(fd, data, position)
            while done < len(data):
                done += os.pwrite(fd, data[done:], position + done)
        except OSError as error:
            error.filename = file.path
            raise
        finally:
            self._give_back(file, fd)

    def fdatasync(self, file: PooledFile) -> None:
        fd = self._borrow(file)
        try:
            os.fdatasync(fd)
        finally:
            self._give_back(file, fd)

    def first_hole(self, file: PooledFile) -> int:
        """Returns the first position without allocated blocks: from there on nothing was ever written in order. The
        file's size when it has no hole (or the file system cannot tell)."""
        fd = self._borrow(file)
        try:
            return os.lseek(fd, 0, os.SEEK_HOLE)
        finally:
            self._give_back(file, fd)

    def head(self, file: PooledFile, size_max: int) -> bytes | None:
        """The file up to its first hole when nothing lies after it and that is `size_max` at most, else None."""
        fd = self._borrow(file)
        try:
            hole = os.lseek(fd, 0, os.SEEK_HOLE)
            if hole > size_max or _next_data(fd, hole) is not None:
                return None
            return os.pread(fd, hole, 0)
        finally:
            self._give_back(file, fd)

    def erase(self, file: PooledFile, start: int) -> None:
        """Zeroes what is not zero after `start`; holes stay holes and clean pages stay clean."""
        if self._deferred is not None:
            self._deferred.append(functools.partial(self.erase, file, start))
            return
        fd = self._borrow(file)
        try:
            at = start
            while (extent := _next_data(fd, at)) is not None:
                begin, at = extent
                for position in range(begin, at, ERASE_CHUNK):
                    chunk = os.pread(fd, min(ERASE_CHUNK, at - position), position)
                    zeros = bytes(len(chunk))
                    if chunk != zeros:
                        os.pwrite(fd, zeros, position)
        finally:
            self._give_back(file, fd)

    def forget(self, file: PooledFile) -> None:
        fd = self._idle.pop(file, None)
        if fd is not None:
            os.close(fd)

    def delete(self, file: PooledFile) -> None:
        """Deletes the file; it may be gone already."""
        if self._deferred is not None:
            self._deferred.append(functools.partial(self.delete, file))
            return
        self.forget(file)
        try:
            os.unlink(file.path)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """Closes all idle descriptors. The pool stays usable, with none kept open."""
        self.capacity = 0
        self._close(len(self._idle))

    def _borrow(self, file: PooledFile) -> int:
        fd = self._idle.pop(file, None)
        if fd is not None:
            return fd
        return self._open(file.path, (os.O_RDONLY if self.read_only else os.O_RDWR) | os.O_CLOEXEC)

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._idle:
                raise
        self._close(max(1, len(self._idle) // 2))
        return os.open(path, flags, 0o644)

    def _give_back(self, file: PooledFile, fd: int) -> None:
        if self._idle.setdefault(file, fd) != fd:
            os.close(fd)
        elif len(self._idle) > self.capacity:
            self._closed += 1
            self._close(len(self._idle) - self.capacity, newest=self._closed % OLDEST_EACH != 0)

    def _close(self, count: int, *, newest: bool = False) -> None:
        for _ in range(count):
            try:
                _, fd = self._idle.popitem(last=newest)
            except KeyError:  # another thread was faster
                return
            os.close(fd)


def _next_data(fd: int, position: int) -> tuple[int, int] | None:
    """The first part [begin, end) at or after `position` that holds data; None when there is none."""
    try:
        begin = os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
    return begin, os.lseek(fd, begin, os.SEEK_HOLE)
