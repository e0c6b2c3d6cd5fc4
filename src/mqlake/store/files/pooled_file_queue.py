"""PooledFileQueue: the files of one queue in the order of their offsets, as one long sequence of bytes.

    consumequeue/T/0/00000000000006000000  00000000000012000000  00000000000018000000
                     └──── file_size ────┘└──── file_size ────┘└─ data ─┘ zeros (sparse)
                     min_offset             ... flushed_where <= max_offset

What MappedFileQueue is to the commit log, without a mapping: plain reads and writes through a FilePool. Files
are made at full size without space of their own, as RocketMQ makes them. A missing file in the middle (a
queue that jumped far ahead) is allowed: reading there finds nothing.
"""

from __future__ import annotations

import bisect
import logging
import os
from itertools import pairwise

from mqlake.base.durable import fsync_dir
from mqlake.errors import StoreCorruptError, WrongFileSizeError
from mqlake.formats.names import file_name_to_offset
from mqlake.store.files.file_pool import Buffer, FilePool, PooledFile
from mqlake.store.files.mapped_file import OS_PAGE_SIZE

logger = logging.getLogger(__name__)

UNFLUSHED_FILES_MAX = 3
"""So many files at most, the last one among them, hold bytes that may not be on disk: where a crash can leave
holes, and where recovery looks for them."""


def _start_of(file: PooledFile) -> int:
    return file.file_from_offset


class PooledFileQueue:
    """The files in `directory`, each `file_size` bytes; `size_key` names the setting that says so.

    `max_offset` is the end of the data, bytes from the queue's beginning. One thread at a time changes the
    queue; others may read and flush meanwhile, so the list of files is replaced and never changed.
    """

    __slots__ = (
        "_names_unsynced",
        "directory",
        "file_size",
        "files",
        "flush_error",
        "flushed_where",
        "max_offset",
        "pool",
        "size_key",
    )

    def __init__(self, directory: str, file_size: int, pool: FilePool, *, size_key: str) -> None:
        self.directory = directory
        self.file_size = file_size
        self.pool = pool
        self.size_key = size_key
        self.files: list[PooledFile] = []
        self.max_offset = 0
        self.flushed_where = 0
        # the first flush that failed: a later one that succeeds would prove nothing, so all of them fail
        self.flush_error: OSError | None = None
        # directories with a name in them that may not be on disk yet
        self._names_unsynced: list[str] = []

    # ------------------------------------------------------------------ files

    def load(self) -> None:
        """Takes stock of the directory, nothing is opened; every file counts as full until recovery.

        A last file of 0 bytes (its creation was interrupted) is deleted. Raises WrongFileSizeError for
        another length, StoreCorruptError for a name that cannot be right.
        """
        self.files = self._list()
        if self.files:
            self.max_offset = self.files[-1].file_from_offset + self.file_size
        self.flushed_where = self.max_offset

    def _list(self) -> list[PooledFile]:
        found: list[tuple[int, int]] = []
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    offset = file_name_to_offset(entry.name)
                    if offset is not None:
                        found.append((offset, entry.stat().st_size))
        except FileNotFoundError:
            return []
        found.sort()
        files = []
        for number, (offset, size) in enumerate(found):
            file = PooledFile(self.directory, offset)
            if size == 0 and number == len(found) - 1:
                if not self.pool.read_only:
                    logger.warning("%s: empty, deleted", file.path)
                    self.pool.delete(file)
                continue
            if size != self.file_size:
                raise WrongFileSizeError(file.path, size, self.file_size, key=self.size_key)
            if offset % self.file_size:
                raise StoreCorruptError(
                    file.path, 0, f"no multiple of {self.size_key}={self.file_size} begins here"
                )
            files.append(file)
        return files

    def refresh(self) -> None:
        """Read-only beside a writer: takes note of files that have come and gone; `max_offset` stays.

        Descriptors are given up, as a file of the same name may be another one by now.
        """
        self.close()
        self.files = self._list()

    def _create(self, start: int) -> PooledFile:
        file = PooledFile(self.directory, start)
        self._make_directory()
        self.pool.create(file, self.file_size)
        self._names_unsynced.append(self.directory)
        self.files = sorted([*self.files, file], key=_start_of)
        return file

    def _make_directory(self) -> None:
        missing, directory = [], self.directory
        while directory and not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            os.makedirs(path, exist_ok=True)  # another process may make the queues of the same topic
            self._names_unsynced.append(os.path.dirname(path))

    def file_at(self, offset: int) -> PooledFile | None:
        """The file that holds byte `offset` of the queue."""
        files = self.files
        if not files:
            return None
        last = files[-1]
        if last.file_from_offset <= offset < last.file_from_offset + self.file_size:
            return last
        number = bisect.bisect_right(files, offset, key=_start_of) - 1
        if number >= 0 and offset < files[number].file_from_offset + self.file_size:
            return files[number]
        return None

    def missing(self) -> list[tuple[int, int]]:
        """Returns the parts [start, end) of the data whose files are missing between others."""
        ends = ((before.file_from_offset + self.file_size, after) for before, after in pairwise(self.files))
        return [
            (end, after.file_from_offset)
            for end, after in ends
            if end < min(after.file_from_offset, self.max_offset)
        ]

    def next_file_start(self, offset: int) -> int:
        """Returns the beginning of the first file after `offset`; `max_offset` when there is none."""
        number = bisect.bisect_right(self.files, offset, key=_start_of)
        return self.files[number].file_from_offset if number < len(self.files) else self.max_offset

    @property
    def min_offset(self) -> int:
        return self.files[0].file_from_offset if self.files else 0

    @property
    def total_size(self) -> int:
        return len(self.files) * self.file_size

    # ------------------------------------------------------------------ bytes

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, not beyond the file's end or the data's; b"" when nothing is there."""
        file = self.file_at(offset)
        if file is None:
            return b""
        size = min(size, file.file_from_offset + self.file_size - offset, self.max_offset - offset)
        if size <= 0:
            return b""
        try:
            return self.pool.pread(file, size, offset - file.file_from_offset)
        except FileNotFoundError:  # deleted while we looked
            return b""

    def write(self, offset: int, data: Buffer) -> None:
        """Writes `data` at `offset`, one system call for each file, and makes the files that are missing.

        OSError: `max_offset` has not moved, and what reached a file is not visible.
        """
        position, done, size = offset, 0, len(data)
        try:
            while done < size:
                file = self.file_at(position)
                if file is None:
                    start = position - position % self.file_size
                    if start - self.flushed_where > (UNFLUSHED_FILES_MAX - 1) * self.file_size:
                        self._sync(start)
                    file = self._create(start)
                part = min(size - done, file.file_from_offset + self.file_size - position)
                piece = data if part == size else data[done : done + part]
                self.pool.pwrite(file, piece, position - file.file_from_offset)
                done += part
                position += part
        except BaseException:
            self.flushed_where = min(self.flushed_where, self.max_offset)
            raise
        self.max_offset = position

    def flush(self, least_pages: int = 0) -> bool:
        """Brings the data to the disk when at least that many pages wait (or a file was completed).

        True when nothing is left. OSError: `flushed_where` has not moved, and no later flush succeeds.
        """
        end = self.max_offset
        if self.flushed_where >= end:
            return True
        pages = end // OS_PAGE_SIZE - self.flushed_where // OS_PAGE_SIZE
        if pages < least_pages and self.flushed_where >= self.files[-1].file_from_offset:
            return False
        self._sync(end)
        return self.flushed_where >= self.max_offset

    def _sync(self, end: int) -> None:
        if self.flush_error is not None:
            error = self.flush_error
            raise OSError(error.errno, f"{self.directory}: an earlier flush failed: {error.strerror}")
        try:
            self._sync_files(end)
        except OSError as error:
            self.flush_error = error
            raise
        self.flushed_where = end

    def _sync_files(self, end: int) -> None:
        for file in self.files:
            if self.flushed_where - self.file_size < file.file_from_offset < end:
                try:
                    self.pool.fdatasync(file)
                except FileNotFoundError:  # deleted meanwhile
                    continue
        names, self._names_unsynced = self._names_unsynced, []
        try:
            for directory in dict.fromkeys(names):
                fsync_dir(directory)
        except BaseException:
            self._names_unsynced += names
            raise

    @property
    def modified_ms(self) -> int:
        """When the last file was written to; -1 without files. OSError."""
        return os.stat(self.files[-1].path).st_mtime_ns // 1_000_000 if self.files else -1

    def count_as_unflushed(self) -> None:
        """Marks all files that may hold bytes which are not on disk as unflushed."""
        if self.files:
            first = self.files[-UNFLUSHED_FILES_MAX:][0]
            self.flushed_where = min(self.flushed_where, first.file_from_offset)

    # ------------------------------------------------------------------ cutting and deleting

    def cut(self, offset: int, *, erase: bool) -> None:
        """Data ends at `offset`: files after it go (a file that begins there stays only as the first), and
        with `erase` the bytes after it in its own file are zeroed, so that they are never taken for data.

        Read-only, nothing changes on disk.
        """
        kept = [file for file in self.files if file.file_from_offset < offset] or self.files[:1]
        for file in self.files[len(kept) :]:
            if not self.pool.read_only:
                self.pool.delete(file)
        self.files = kept
        self.max_offset = max(offset, self.min_offset)
        self.flushed_where = min(self.flushed_where, self.max_offset)
        if erase and kept and not self.pool.read_only:
            position = self.max_offset - kept[-1].file_from_offset
            if position < self.file_size:
                self.pool.erase(kept[-1], position)

    def delete_first(self, count: int) -> None:
        gone, self.files = self.files[:count], self.files[count:]
        for file in gone:
            self.pool.delete(file)

    def destroy(self) -> None:
        """Deletes all files, and the directory when nothing else is in it."""
        gone, self.files = self.files, []
        self.max_offset = self.flushed_where = 0
        self._names_unsynced = []
        for file in gone:
            self.pool.delete(file)
        remove_if_empty(self.directory)

    def close(self) -> None:
        """Gives up idle descriptors."""
        for file in self.files:
            self.pool.forget(file)


def remove_if_empty(directory: str) -> None:
    """Deletes a directory with nothing in it; one that is not empty or not there is left as it is."""
    try:
        os.rmdir(directory)
    except OSError:
        if os.path.isdir(directory) and not os.listdir(directory):
            raise
