"""MappedFile: one file of fixed size, mapped into memory, written from its start to its end.

    0            flushed          committed           wrote                      file_size
    ├── on disk ────┼── in page cache ──┼── in write buffer ──┼── zeros (or a blank) ────┤

    flushed_position <= committed_position <= wrote_position <= file_size        always

Without a write buffer what is written is committed at once. The space is allocated when the file is made
(posix_fallocate), so a full disk is an OSError when a file is created, never a SIGBUS when it is written.

Other processes read the file while it is written. A record's first four bytes are its size, and zero means
"nothing here yet"; so everything else is written first, four zero bytes are put after it (whatever an
earlier life of the file left there), and the size comes last, in one store. `struct.pack_into` is not used
on the map: it zeroes its target before it writes, and readers were seen to catch that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mqlake import native
from mqlake.base.durable import fsync_dir
from mqlake.errors import StoreClosedError, WrongFileSizeError
from mqlake.formats.columns import Bytes
from mqlake.formats.names import file_name_to_offset
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH
from mqlake.store.files.memory import libc, lock_memory, unlock_memory

OS_PAGE_SIZE = 4096
ZERO_SIZE = bytes(4)
"""Follows the last record: a size of zero says that nothing is there yet."""
_PROBE = bytearray(1)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)  # Linux
MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
READY_BYTES = 4 << 20
"""Zeros after the records that are kept in the page cache for the next puts (PrefaultService)."""

SAMPLE_BYTES = 512 * 1024
"""is_cached() tests one page in each piece of this size: evicted pages usually come in runs."""


def _order_keeper(machine: str) -> Callable[[], None] | None:
    """Returns a function that makes a size visible only after the record in front of it; None on a processor that
    writes in order."""
    kernels = None if machine in ("x86_64", "AMD64") else native.module("append")
    return None if kernels is None else kernels.keep_order


_keep_order = _order_keeper(platform.machine())


class MappedFile:
    """One mapped file. `file_from_offset` (bytes) is what its 20-digit name says, 0 for other names.

    Raises WrongFileSizeError when an existing file has another length, OSError when it cannot be made.
    """

    TOTAL_MAPPED_VIRTUAL_MEMORY: ClassVar[int] = 0
    TOTAL_MAPPED_FILES: ClassVar[int] = 0

    __slots__ = (
        "_committed_timestamp",
        "_fd",
        "_map",
        "_target",
        "array",
        "committed_position",
        "file_from_offset",
        "file_size",
        "first_create_in_queue",
        "flushed_position",
        "path",
        "prefaulted_position",
        "read_only",
        "readable_array",
        "store_timestamp",
        "view",
        "wake_position",
        "without_mmap",
        "write_buffer",
        "wrote_position",
    )

    def __init__(
        self,
        path: str,
        file_size: int,
        *,
        read_only: bool = False,
        write_buffer: memoryview | None = None,
        without_mmap: bool = False,
        size_key: str = "mappedFileSizeCommitLog",
    ) -> None:
        self.path = path
        self.file_size = file_size
        self.file_from_offset = file_name_to_offset(os.path.basename(path)) or 0
        self.read_only = read_only
        self.write_buffer = write_buffer
        self.without_mmap = without_mmap
        self.wrote_position = 0
        self.committed_position = 0
        self.flushed_position = 0
        self.store_timestamp = 0
        # made when its queue had no file
        self.first_create_in_queue = False
        self._committed_timestamp = 0
        # PrefaultService's: how far pages were touched ahead, and the position at which it wants to be woken
        self.prefaulted_position = 0
        self.wake_position = 0
        self._fd = _open(path, file_size, read_only=read_only, size_key=size_key)
        try:
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            self._map: mmap.mmap | None = mmap.mmap(self._fd, file_size, access=access)
        except BaseException:
            os.close(self._fd)
            raise
        self.view = memoryview(self._map)
        # what records are written to, unless they are written through the descriptor
        self._target = None if without_mmap and write_buffer is None else write_buffer or self.view
        self.array: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        # the same for those who only read: making such a view takes as long as finding a page of messages
        self.readable_array: Bytes = self.array.view()
        self.readable_array.flags.writeable = False
        MappedFile.TOTAL_MAPPED_VIRTUAL_MEMORY += file_size
        MappedFile.TOTAL_MAPPED_FILES += 1

    def __repr__(self) -> str:
        return (
            f"MappedFile({self.path!r}, wrote={self.wrote_position}, committed={self.committed_position}, "
            f"flushed={self.flushed_position}, file_size={self.file_size})"
        )

    @property
    def is_full(self) -> bool:
        return self.wrote_position >= self.file_size

    @property
    def read_position(self) -> int:
        """End of what readers may see (bytes from the file's start)."""
        return self.wrote_position if self.write_buffer is None else self.committed_position

    @property
    def read_timestamp(self) -> int:
        """Store time (ms) of the newest message that readers may see, or of one before it."""
        return self.store_timestamp if self.write_buffer is None else self._committed_timestamp

    def invariants(self) -> None:
        assert 0 <= self.flushed_position <= self.committed_position, self
        assert self.committed_position <= self.wrote_position <= self.file_size, self

    def set_positions(self, position: int) -> None:
        """Recovery's word: data ends at `position`, and all of it is on disk."""
        self.flushed_position = self.committed_position = self.wrote_position = position
        self.invariants()

    # ------------------------------------------------------------------ writing

    def append_record(self, record: bytes | bytearray, store_timestamp: int) -> int:
        """Writes whole records at the write position, the size of the first last; returns that position.

        Four zero bytes follow them: a size of zero tells readers that nothing is there yet, whatever an earlier life of
        the file left. The caller has made sure that they fit. OSError only without mmap (a device error).
        """
        start = self.wrote_position
        end = start + len(record)
        self.write_at(start + 4, record[4:] + ZERO_SIZE[: self.file_size - end])
        self.publish(start, record[:4], end, store_timestamp)
        return start

    def append_through_descriptor(self, records: memoryview, store_timestamp: int) -> None:
        """As append_record(), for a slave's large blocks: the pages of a new file are written without being zeroed and
        mapped first, which costs several times as much as the copy. Not with a write buffer. OSError."""
        start, fd = self.wrote_position, self._descriptor()
        end = start + len(records)
        parts: list[bytes | memoryview] = [records[4:]]
        if end + 4 <= self.file_size:
            parts.append(ZERO_SIZE)
        if os.pwritev(fd, parts, start + 4) != sum(map(len, parts)):
            _pwrite_all(fd, b"".join(parts), start + 4)
        _pwrite_all(fd, records[:4], start)
        self.wrote_position = self.committed_position = end
        self.store_timestamp = store_timestamp

    def append_blank(self, blank: bytes) -> None:
        """Ends the file with `blank` (formats.record.encode_blank), which stands for all the bytes that are left."""
        start = self.wrote_position
        if self.write_buffer is not None:
            self.write_buffer[start:] = bytes(self.file_size - start)
        self.write_at(start + 4, blank[4:])
        self.publish(start, blank[:4], self.file_size, self.store_timestamp)

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Bytes that no reader looks at yet (after an unpublished size)."""
        if self._target is not None:
            self._target[position : position + len(data)] = data
        else:
            _pwrite_all(self._fd, data, position)

    def publish(self, start: int, size_bytes: bytes | bytearray, end: int, store_timestamp: int) -> None:
        """The first four bytes of what was written at `start`: from here on readers see it up to `end`."""
        if _keep_order is not None:
            _keep_order()
        self.write_at(start, size_bytes)
        self.wrote_position = end
        if self.write_buffer is None:
            self.committed_position = end
        # last: whoever reads the timestamp first and the position then never has a timestamp too new
        self.store_timestamp = store_timestamp

    def has_room(self, size: int) -> bool:
        """True if `size` bytes fit after what is written, and the blank that ends a file after them."""
        return self.wrote_position + size + END_FILE_MIN_BLANK_LENGTH <= self.file_size

    def has_size(self) -> bool:
        """True if something was made visible where the next record goes."""
        start, out = self.wrote_position, self.write_buffer or self.view
        return any(out[start : start + 4])

    def target_array(self) -> Bytes | None:
        """The memory into which compiled code may write records; None when writing goes through the descriptor."""
        if self.write_buffer is not None:
            return np.frombuffer(self.write_buffer, dtype=np.uint8)
        return None if self.without_mmap else self.array

    @property
    def is_mapped(self) -> bool:
        """True if records are written straight into the mapping: not through a write buffer, nor the descriptor."""
        return self.write_buffer is None and not self.without_mmap

    def is_able_to_commit(self, least_pages: int) -> bool:
        if self.is_full:
            return self.committed_position < self.wrote_position
        if least_pages > 0:
            return (
                self.wrote_position // OS_PAGE_SIZE - self.committed_position // OS_PAGE_SIZE >= least_pages
            )
        return self.wrote_position > self.committed_position

    def commit(self, least_pages: int) -> int:
        """Moves what waits in the write buffer to the file; returns the committed position.

        OSError leaves the position where it was.
        """
        if self.write_buffer is not None and self.is_able_to_commit(least_pages):
            timestamp, start, end = self.store_timestamp, self.committed_position, self.wrote_position
            _pwrite_all(self._fd, self.write_buffer[start + 4 : end], start + 4)
            if end + 4 <= self.file_size:
                # not the buffer's own four bytes: a put may have written the next record's size there by now
                _pwrite_all(self._fd, ZERO_SIZE, end)
            _pwrite_all(self._fd, self.write_buffer[start : start + 4], start)
            self.committed_position = end
            self._committed_timestamp = timestamp
            self.invariants()
        return self.committed_position

    def is_able_to_flush(self, least_pages: int) -> bool:
        end = self.read_position
        if self.is_full:
            return self.flushed_position < end
        if least_pages > 0:
            return end // OS_PAGE_SIZE - self.flushed_position // OS_PAGE_SIZE >= least_pages
        return end > self.flushed_position

    def flush(self, least_pages: int) -> int:
        """Brings the committed bytes to the disk; returns the flushed position.

        OSError leaves the position where it was: nothing counts as flushed that the disk refused.
        """
        if self.is_able_to_flush(least_pages):
            end = self.read_position
            os.fdatasync(self._descriptor())
            self.flushed_position = end
            self.invariants()
        return self.flushed_position

    def erase(self, start: int) -> None:
        """Zeroes everything after `start` that holds data (recovery has dropped it), and syncs. OSError."""
        for begin, end in self.data_extents(start):
            for at in range(begin, end, 1 << 20):
                _pwrite_all(self._fd, bytes(min(1 << 20, end - at)), at)
        self.sync()

    def sync(self) -> None:
        """fdatasync, whatever the positions say. OSError."""
        os.fdatasync(self._descriptor())

    def last_data(self, start: int, limit: int | None = None) -> int:
        """One past the last byte of [start, limit) that is not zero (None: of the file); `start` when all are."""
        last, end = start, self.file_size if limit is None else limit
        for begin, data_end in reversed(self.data_extents(start)):
            found = self._last_byte(begin, min(data_end, end))
            if found > begin:
                last = found
                break
        self.evict(last, end)
        # allocated space that was read, or read ahead, is taken for data: each look would read more of it
        ready = min(last + READY_BYTES, end)
        os.posix_fadvise(self._descriptor(), ready, end - ready, os.POSIX_FADV_DONTNEED)
        return last

    def _last_byte(self, begin: int, end: int) -> int:
        """One past the last byte of [begin, end) that is not zero, or `begin`."""
        for at in range(end, begin, -(1 << 20)):
            block = self.array[max(begin, at - (1 << 20)) : at]
            if block.view(np.bool_).any():  # twice as fast as of bytes
                return at - int(np.argmax(block[::-1] != 0))
        return begin

    # ------------------------------------------------------------------ reading

    def select(self, position: int, size: int) -> memoryview | None:
        """`size` readable bytes at `position`, or None when they are not (all) there."""
        if position < 0 or position + size > self.read_position:
            return None
        return self.view[position : position + size]

    def is_resident(self, position: int) -> bool:
        """True if reading the byte at `position` needs no disk, or the system does not tell."""
        try:
            os.preadv(self._fd, (_PROBE,), position, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def is_cached(self, start: int, end: int) -> bool:
        """True if the pages of [start, end) are in memory, by a sample of them, or the system does not tell. Unlike
        is_resident(), which has the kernel begin to read, it only looks."""
        array, state = self.array, ctypes.c_ubyte(1)
        for position in (*range(start, end, SAMPLE_BYTES), end - 1):
            page = array.ctypes.data + position // mmap.PAGESIZE * mmap.PAGESIZE
            libc().mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(state))
            if not state.value & 1:
                return False
        return True

    def read_into(self, buffer: Bytes, position: int, size: int) -> Bytes:
        """The bytes from `position` on, copied to the beginning of `buffer`. OSError.

        For who reads them once: to map a page and to take it out again costs twice as much as its copy.
        """
        view, done = buffer.data[:size], 0
        while done < size and (read := os.preadv(self._descriptor(), (view[done:],), position + done)):
            done += read
        return buffer[:done]

    def read_ahead(self, position: int, size: int) -> None:
        """Has the bytes read from the disk, without the interpreter lock. OSError."""
        os.pread(self._descriptor(), size, position)

    def set_read_ahead(self, enabled: bool) -> None:
        """Turns the kernel's reading ahead on or off, through the map and the descriptor."""
        if self._map is None:
            return
        self._map.madvise(mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL if enabled else os.POSIX_FADV_RANDOM)

    def data_extents(self, start: int) -> list[tuple[int, int]]:
        """The parts [begin, end) after `start` that are not holes (unwritten space reads as zeros)."""
        found, at = [], start
        while at < self.file_size:
            try:
                begin = os.lseek(self._fd, at, os.SEEK_DATA)
                at = os.lseek(self._fd, begin, os.SEEK_HOLE)
            except OSError:  # ENXIO: no data from here to the end
                break
            found.append((begin, min(at, self.file_size)))
        return found

    def is_unwritten(self, position: int) -> bool:
        """True if the page at `position` is known to be zeros without reading it."""
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA) >= position + OS_PAGE_SIZE
        except OSError:  # ENXIO: no data from here to the end
            return True

    # ------------------------------------------------------------------ memory

    def allocate(self) -> None:
        """Gives a sparse file (as Java makes them) its space, so that writing it cannot end in SIGBUS. OSError.

        A file that has its space is not touched: retention goes by its modification time.
        """
        if os.fstat(self._fd).st_blocks * 512 < self.file_size:
            os.posix_fallocate(self._fd, 0, self.file_size)

    def warm(self, *, sync_flush: bool, flush_pages: int) -> None:
        """Touches each page of a new file so that no put pays for a page fault; OSError from the flushes.

        With `sync_flush` a flush follows each `flush_pages` pages, so that the disk is never handed
        the whole file at once.
        """
        step = max(1, flush_pages) * OS_PAGE_SIZE
        for start in range(0, self.file_size, step):
            self.array[start : start + step : OS_PAGE_SIZE] = 0
            if sync_flush:
                os.fdatasync(self._fd)

    def prefault(self, start: int, end: int) -> bool:
        """Has the pages of [start, end) made writable without touching their contents; False where the kernel
        cannot. The interpreter lock is free meanwhile."""
        array = self.array  # what this keeps mapped cannot become somebody else's memory
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= min(end, len(array)):
            return True
        address, size = array.ctypes.data + first, min(end, len(array)) - first
        advised: int = libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_WRITE)
        return advised == 0

    def lock_in_memory(self) -> bool:
        """mlock and madvise(WILLNEED); False when the system's limits forbid the lock."""
        assert self._map is not None
        locked = lock_memory(self.array.ctypes.data, self.file_size)
        self._map.madvise(mmap.MADV_WILLNEED)
        return locked

    def unlock_in_memory(self) -> None:
        unlock_memory(self.array.ctypes.data, self.file_size)

    def evict(self, start: int, end: int) -> None:
        """Takes the pages of [start, end) out of this process's memory; the page cache keeps them.

        For who reads a log from end to end: it would seem to need as much memory as the log has bytes.
        """
        first, last = start // mmap.PAGESIZE * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Gives up the file. Slices that readers still hold stay valid: the memory is unmapped with the last."""
        if self._map is None:
            return
        self._map = None
        self.view = self._target = memoryview(b"")
        self.array = self.readable_array = np.empty(0, dtype=np.uint8)
        os.close(self._fd)
        MappedFile.TOTAL_MAPPED_VIRTUAL_MEMORY -= self.file_size
        MappedFile.TOTAL_MAPPED_FILES -= 1

    def __del__(self) -> None:
        """Nobody can reach it any more: its descriptor goes, as Python's own files do it."""
        if getattr(self, "_map", None) is not None:
            self.close()

    def destroy(self) -> None:
        """Closes and deletes the file. OSError when it cannot be deleted."""
        self.close()
        os.unlink(self.path)

    def _descriptor(self) -> int:
        if self._map is None:
            raise StoreClosedError(f"{self.path} was closed")
        return self._fd


def _open(path: str, file_size: int, *, read_only: bool, size_key: str) -> int:
    existed = os.path.exists(path)
    fd = os.open(path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        size = os.fstat(fd).st_size
        if existed and size != file_size and (read_only or size != 0):
            raise WrongFileSizeError(path, size, file_size, key=size_key)
        if not read_only and size != file_size:
            os.posix_fallocate(fd, 0, file_size)
            fsync_dir(os.path.dirname(path))
    except BaseException as error:
        os.close(fd)
        if not existed and not read_only:
            os.unlink(path)
        if isinstance(error, OSError):
            error.filename = path  # posix_fallocate does not say it
        raise
    return fd


def _pwrite_all(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    done = os.pwrite(fd, data, position)
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)
