"""MappedFileQueue: the files of one log in the order of their offsets, as one long sequence of bytes.

commitlog/00000000000000000000  00000000001073741824  00000000002147483648
          └──────── file_size ─┘└──────── file_size ─┘└── wrote ──┘ zeros
          min_offset                                   max_offset
                ... flushed_where <= committed_where <= max_offset
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from mqlake.base.clock import now_ms
from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import StoreCorruptError, WrongFileSizeError
from mqlake.formats.names import file_name_to_offset, offset_to_file_name
from mqlake.store.files.mapped_file import MappedFile

logger = logging.getLogger(__name__)

Allocator = Callable[[str, str], MappedFile | None]


class MappedFileQueue:
    """The files in `directory`, each `file_size` bytes. `allocate(next, next_next)` makes files ahead of need."""

    def __init__(
        self,
        directory: str,
        file_size: int,
        *,
        read_only: bool = False,
        without_mmap: bool = False,
        allocate: Allocator | None = None,
        return_buffer: Callable[[memoryview], None] | None = None,
        size_key: str = "mappedFileSizeCommitLog",
        mapped_file_type: type[MappedFile] = MappedFile,
    ) -> None:
        self._mapped_file_type = mapped_file_type
        self.directory = directory
        self.file_size = file_size
        self.read_only = read_only
        self.without_mmap = without_mmap
        self.mapped_files: list[MappedFile] = []
        self.flushed_where = 0
        self.committed_where = 0
        # store time (ms) of the newest message known to be flushed: never newer than what the disk has
        self.store_timestamp = 0
        self._allocate = allocate
        self._return_buffer = return_buffer
        self._size_key = size_key
        self._data_read_ahead = True
        self._flush_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self.create_error: OSError | None = None
        self._unfinished = ""
        self._closed = False
        self._trouble = ThrottledLog(logger)
        # the first flush or commit that failed. The kernel tells of lost pages once, so a later fdatasync that
        # succeeds proves nothing, whoever calls it: every flush after this one fails too
        self.write_error: OSError | None = None

    # ------------------------------------------------------------------ files

    def load(self) -> None:
        """Maps what the directory holds; every file counts as full until recovery says where data ends. Raises what
        paths() raises."""
        for path in self.paths():
            mapped_file = self._map(path)
            mapped_file.set_positions(self.file_size)
            self.mapped_files.append(mapped_file)

    def paths(self) -> list[str]:
        """The directory's files, oldest first, none of them opened.

        Raises WrongFileSizeError for a file of another length (a last file that an interrupted allocation
        left behind holds only zeros and is deleted by set_end), StoreCorruptError for a gap between two files.
        """
        found: list[str] = []
        for path in (paths := self._list()):
            size = os.path.getsize(path)
            if path == paths[-1] and size != self.file_size and (size == 0 or _only_zeros(path)):
                self._unfinished = path
                continue
            if size != self.file_size:
                raise WrongFileSizeError(path, size, self.file_size, key=self._size_key)
            if found:
                self._check_follows(path, found[-1])
            found.append(path)
        return found

    def refresh(self) -> bool:
        """Read-only beside a writer: maps files that have come, drops those that have gone; True if any did."""
        known = {mapped_file.path for mapped_file in self.mapped_files}
        paths = [path for path in self._list() if os.path.getsize(path) == self.file_size]
        gone = known.difference(paths)
        for mapped_file in [f for f in self.mapped_files if f.path in gone]:
            mapped_file.close()
            self.mapped_files.remove(mapped_file)
        for path in paths:
            if path not in known:
                mapped_file = self._map(path)
                mapped_file.set_positions(self.file_size)
                self.mapped_files.append(mapped_file)
        return bool(gone) or len(paths) != len(known)

    def _list(self) -> list[str]:
        found: list[tuple[int, str]] = []
        if not os.path.isdir(self.directory):
            return []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                offset = file_name_to_offset(entry.name)
                if offset is not None and entry.is_file():
                    found.append((offset, entry.path))
        return [path for _, path in sorted(found)]

    def _check_follows(self, path: str, before: str) -> None:
        offsets = [file_name_to_offset(os.path.basename(each)) or 0 for each in (before, path)]
        if offsets[1] != offsets[0] + self.file_size:
            raise StoreCorruptError(
                path,
                0,
                f"does not follow {before}: a file between them is missing, or {self._size_key} is wrong",
            )

    def _map(self, path: str) -> MappedFile:
        return self._mapped_file_type(
            path,
            self.file_size,
            read_only=self.read_only,
            without_mmap=self.without_mmap,
            size_key=self._size_key,
        )

    def set_data_read_ahead(self, enabled: bool) -> None:
        """Turns the kernel's reading ahead on or off, in the files there are and those to come."""
        self._data_read_ahead = enabled
        for mapped_file in list(self.mapped_files):
            mapped_file.set_read_ahead(enabled)

    def path_of(self, offset: int) -> str:
        return os.path.join(self.directory, offset_to_file_name(offset))

    def get_last_mapped_file(self, *, start_offset: int = 0, need_create: bool = True) -> MappedFile | None:
        """The file to append to; a new one when there is none or the last is full and `need_create`.

        None when it could not be made: `create_error` says why.
        """
        last = self.mapped_files[-1] if self.mapped_files else None
        if last is not None and not last.is_full:
            return last
        if not need_create:
            return last
        return self._create(self._next_offset() if last else start_offset - start_offset % self.file_size)

    def create_next(self) -> MappedFile | None:
        """One more file after the last, whether that is full or not; None as get_last_mapped_file()."""
        return self._create(self._next_offset())

    def _next_offset(self) -> int:
        return self.mapped_files[-1].file_from_offset + self.file_size if self.mapped_files else 0

    def _create(self, offset: int) -> MappedFile | None:
        if self._closed:
            self.create_error = OSError(errno.ESHUTDOWN, "the log is closed")
            return None
        self.create_error = None
        path = self.path_of(offset)
        try:
            if self._allocate is not None:
                mapped_file = self._allocate(path, self.path_of(offset + self.file_size))
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                mapped_file = self._map(path)
        except OSError as error:
            self.create_error = error
            if self._allocate is None:  # else the service that allocates has said it
                self._trouble.failed(f"cannot create {path}: {error.strerror or error}")
            return None
        self._trouble.worked("files are created again")
        if mapped_file is not None:
            if not self._data_read_ahead:
                mapped_file.set_read_ahead(False)
            if not self.mapped_files:
                self.flushed_where = self.committed_where = max(self.flushed_where, offset)
                mapped_file.first_create_in_queue = True
            self.mapped_files.append(mapped_file)
        return mapped_file

    # ------------------------------------------------------------------ offsets

    @property
    def min_offset(self) -> int:
        return self.mapped_files[0].file_from_offset if self.mapped_files else 0

    @property
    def max_offset(self) -> int:
        """End of what readers may see."""
        if not self.mapped_files:
            return self.flushed_where
        last = self.mapped_files[-1]
        end = last.file_from_offset + last.read_position
        # of files before the last, some may still wait in write buffers
        return end if self._return_buffer is None else min(end, self.committed_where)

    @property
    def max_wrote_position(self) -> int:
        last = self.mapped_files[-1] if self.mapped_files else None
        return last.file_from_offset + last.wrote_position if last else self.flushed_where

    def find_mapped_file_by_offset(
        self, offset: int, *, first_if_not_found: bool = False
    ) -> MappedFile | None:
        files = self.mapped_files
        if not files:
            return None
        index = offset // self.file_size - files[0].file_from_offset // self.file_size
        if 0 <= index < len(files):
            found = files[index]
            if found.file_from_offset <= offset < found.file_from_offset + self.file_size:
                return found
        for mapped_file in files:  # files were deleted while we looked
            if mapped_file.file_from_offset <= offset < mapped_file.file_from_offset + self.file_size:
                return mapped_file
        return files[0] if first_if_not_found else None

    def select(self, offset: int, size: int) -> memoryview | None:
        mapped_file = self.find_mapped_file_by_offset(offset)
        return mapped_file.select(offset - mapped_file.file_from_offset, size) if mapped_file else None

    def files_from(self, offset: int) -> Iterator[MappedFile]:
        """The file that holds `offset` and all after it."""
        for mapped_file in list(self.mapped_files):
            if mapped_file.file_from_offset + self.file_size > offset:
                yield mapped_file

    # ------------------------------------------------------------------ flush and commit

    def flush(self, least_pages: int) -> bool:
        """One file's worth of flushing; True when there was nothing (more) to do.

        OSError: nothing moved, and nothing will until the store is opened again.
        """
        with self._flush_lock:
            self._check_no_error()
            mapped_file = self.find_mapped_file_by_offset(
                self.flushed_where, first_if_not_found=self.flushed_where == 0
            )
            if mapped_file is None:
                return True
            store_timestamp, end = mapped_file.read_timestamp, mapped_file.read_position
            try:
                where = mapped_file.file_from_offset + mapped_file.flush(least_pages)
            except OSError as error:
                self.write_error = error
                raise
            if mapped_file.flushed_position >= end:
                self.store_timestamp = max(self.store_timestamp, store_timestamp)
            done = where == self.flushed_where
            self.flushed_where = where
            return done

    def flush_all(self) -> None:
        """Flushes (and commits) until nothing is left. OSError."""
        self.commit_all()
        while not self.flush(0):
            pass

    def commit_all(self) -> None:
        """Commits until nothing is left. OSError."""
        while not self.commit(0):
            pass

    def commit(self, least_pages: int) -> bool:
        """One file's worth of committing; True when there was nothing (more) to do. OSError as flush()."""
        with self._commit_lock:
            self._check_no_error()
            mapped_file = self.find_mapped_file_by_offset(
                self.committed_where, first_if_not_found=self.committed_where == 0
            )
            if mapped_file is None:
                return True
            try:
                where = mapped_file.file_from_offset + mapped_file.commit(least_pages)
            except OSError as error:
                self.write_error = error
                raise
            self._take_back_buffer(mapped_file)
            done = where == self.committed_where
            self.committed_where = where
            return done

    def _check_no_error(self) -> None:
        error = self.write_error
        if error is not None:
            raise OSError(error.errno, f"an earlier write to the disk failed: {error.strerror}")

    def _take_back_buffer(self, mapped_file: MappedFile) -> None:
        buffer = mapped_file.write_buffer
        if buffer is not None and mapped_file.committed_position == mapped_file.file_size:
            mapped_file.write_buffer = None
            if self._return_buffer is not None:
                self._return_buffer(buffer)

    # ------------------------------------------------------------------ cutting and deleting

    def set_end(self, offset: int) -> None:
        """Recovery's word: data ends at `offset`. Files that begin after it are deleted."""
        for mapped_file in list(self.mapped_files):
            if mapped_file.file_from_offset > offset:
                self.delete_file(mapped_file)
            elif mapped_file.file_from_offset + self.file_size > offset:
                mapped_file.set_positions(offset - mapped_file.file_from_offset)
        self.flushed_where = self.committed_where = offset
        if self._unfinished:
            os.unlink(self._unfinished)
            self._unfinished = ""

    def delete_expired_file_by_time(
        self,
        expired_ms: int,
        *,
        interval_ms: int = 0,
        clean_immediately: bool = False,
        batch_max: int = 10,
        now_ms: Callable[[], int] = now_ms,
        is_needed: Callable[[int, int], bool] = lambda end, overdue_ms: False,
        may_force: Callable[[int], bool] = lambda end: True,
        is_kept: Callable[[int], bool] = lambda end: False,
    ) -> int:
        """Deletes files from the oldest on whose mtime + `expired_ms` has passed and of which `is_needed(end offset, ms
        since then)` is false; with `clean_immediately` any, younger ones if `may_force(end offset)`; none that
        `is_kept(end offset)`. Never the last, at most `batch_max`, `interval_ms` apart. Returns how many."""
        deleted = 0
        for mapped_file in self.mapped_files[:-1]:
            modified_ms = os.stat(mapped_file.path).st_mtime_ns // 1_000_000
            overdue_ms = now_ms() - modified_ms - expired_ms
            end = mapped_file.file_from_offset + self.file_size
            if not clean_immediately and (overdue_ms < 0 or is_needed(end, overdue_ms)):
                break
            if (overdue_ms < 0 and not may_force(end)) or is_kept(end):
                break
            self.delete_file(mapped_file)
            deleted += 1
            if deleted >= batch_max:
                break
            if interval_ms:
                time.sleep(interval_ms / 1000)
        return deleted

    def delete_file(self, mapped_file: MappedFile) -> None:
        self.mapped_files.remove(mapped_file)
        mapped_file.destroy()

    def close(self) -> None:
        self._closed = True
        for mapped_file in self.mapped_files:
            mapped_file.close()
        self.mapped_files = []

    def destroy(self) -> None:
        """Deletes all files and the directory, when nothing else is in it."""
        for mapped_file in self.mapped_files:
            mapped_file.destroy()
        self.mapped_files = []
        self.flushed_where = self.committed_where = 0
        if os.path.isdir(self.directory) and not os.listdir(self.directory):
            os.rmdir(self.directory)


def _only_zeros(path: str) -> bool:
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            if chunk.count(0) != len(chunk):
                return False
    return True
