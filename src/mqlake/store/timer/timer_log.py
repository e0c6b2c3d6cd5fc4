"""TimerLog: every message that was put into the timer wheel, in the order in which it was: units of 52 bytes.

timerlog/00000000000000000000  ─▶  00000000000104857600  ─▶ …      each ends with a blank; a unit's position is its
 unit unit unit … unit blank        unit unit … (zeros)            offset in the whole

Units are collected in memory and written by write(); flush() makes them durable. Files are made at their full length
and take blocks as they are written, so a full disk is an OSError of write(), and not a SIGBUS. What the log holds can
be made again from the commit log.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.formats.names import file_name_to_offset, offset_to_file_name
from mqlake.formats.timer import (
    TIMER_BLANK_MIN,
    TIMER_UNIT_DTYPE,
    TIMER_UNIT_SIZE,
    TimerUnit,
    decode_timer_unit,
    encode_timer_blank,
    units_in_timer_file,
)

logger = logging.getLogger(__name__)

Units = npt.NDArray[np.void]
FILE_SIZE_MIN = TIMER_UNIT_SIZE + TIMER_BLANK_MIN


class _File:
    def __init__(self, path: str, start: int, size: int, *, read_only: bool) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.fd = os.open(path, os.O_RDONLY if read_only else os.O_RDWR)
        self.map = mmap.mmap(self.fd, size, access=mmap.ACCESS_READ)
        self.view = memoryview(self.map)
        self.is_dirty = False

    def units(self) -> Units:
        return np.frombuffer(self.map, TIMER_UNIT_DTYPE, units_in_timer_file(self.size))

    def close(self) -> None:
        os.close(self.fd)
        self.view.release()
        try:
            self.map.close()
        except BufferError:  # an array is still looked at; the map goes with it
            return


class TimerLog:
    """The files in `directory`. Those that are there decide the size; `file_size` is for the first one.

    `damage`: why what was found cannot be used, if so; then nothing of it is. OSError.
    """

    def __init__(self, directory: str, file_size: int, *, read_only: bool = False) -> None:
        self.directory = directory
        self.file_size = file_size
        self.read_only = read_only
        self.damage = ""
        self.end = 0
        """Position that the next unit gets (a blank may come before it)."""
        self.flushed = 0
        self._files: list[_File] = []
        self._pending = bytearray()
        self._pending_start = 0
        self._load()

    def _load(self) -> None:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        found = sorted((offset, name) for name in names if (offset := file_name_to_offset(name)) is not None)
        sizes = [os.path.getsize(os.path.join(self.directory, name)) for _, name in found]
        if sizes and sizes[-1] < FILE_SIZE_MIN:  # it was being made
            found.pop()
            sizes.pop()
        if not found:
            return
        size, start = sizes[0], found[0][0]
        wrong = [
            name
            for number, (offset, name) in enumerate(found)
            if sizes[number] != size or offset != start + number * size
        ]
        if wrong or size < FILE_SIZE_MIN or start % size:
            self.damage = (
                f"{self.directory}: {(wrong or [found[0][1]])[0]} does not belong to the files before it"
            )
            return
        self.file_size = size
        self._files = [
            _File(os.path.join(self.directory, name), offset, size, read_only=self.read_only)
            for offset, name in found
        ]
        self.end = self._files[-1].start

    def close(self) -> None:
        """Without flushing."""
        for file in self._files:
            file.close()
        self._files = []

    # --- reading

    @property
    def start(self) -> int:
        """Position of the first unit still there."""
        return self._files[0].start if self._files else self.end

    def _file_at(self, position: int) -> _File | None:
        files = self._files
        if not files or position < files[0].start:
            return None
        number = (position - files[0].start) // self.file_size
        return files[number] if number < len(files) else None

    def get(self, position: int) -> TimerUnit | None:
        """The unit at `position`, None where none is. What is not written yet is not there."""
        file = self._file_at(position)
        if file is None or position + TIMER_UNIT_SIZE > min(file.start + self.file_size, self.end):
            return None
        return decode_timer_unit(file.view, position - file.start)

    def chunks(self, position: int = 0, *, to_end: bool = False) -> Iterator[tuple[int, Units]]:
        """(Position of its first unit, TIMER_UNIT_DTYPE) file by file, of the units from `position` on. `to_end`: what
        lies after the log's end as well."""
        for file in list(self._files):
            if file.start + self.file_size <= position or (not to_end and file.start >= self.end):
                continue
            first = max(0, -(-(position - file.start) // TIMER_UNIT_SIZE))
            last = (self.end - file.start) // TIMER_UNIT_SIZE
            units = file.units()[first:] if to_end else file.units()[first:last]
            yield file.start + first * TIMER_UNIT_SIZE, units

    def recover(self) -> None:
        """Finds the log's end: after the last whole unit; after a file that is full the next one begins."""
        for file in self._files:
            units = file.units()
            magic = units["magic"]
            good = (units["size"] == TIMER_UNIT_SIZE) & ((magic | 0xF) == 0xF) & (magic > 0)
            bad = np.flatnonzero(~good)
            if len(bad):
                self.end = file.start + int(bad[0]) * TIMER_UNIT_SIZE
                break
            self.end = file.start + len(units) * TIMER_UNIT_SIZE
        self.flushed = self.end

    def file_start(self, position: int) -> int:
        """Returns the beginning of the file that has a position."""
        return position - position % self.file_size

    def last_position(self) -> int:
        """Position of the last unit, -1 if there is none."""
        if self.end <= self.start:
            return -1
        base = self.file_start(self.end - 1)
        room = units_in_timer_file(self.file_size)
        return base + (min((self.end - base) // TIMER_UNIT_SIZE, room) - 1) * TIMER_UNIT_SIZE

    # --- writing

    def append(self, unit: TimerUnit) -> int:
        """The unit's position; it is in the log with the next write()."""
        position = self.end
        left = self.file_size - position % self.file_size
        if not self._pending:
            self._pending_start = position
        if left < TIMER_UNIT_SIZE + TIMER_BLANK_MIN:
            self._pending += encode_timer_blank(left).ljust(left, b"\0")[:left]
            position += left
        self._pending += unit.encode()
        self.end = position + TIMER_UNIT_SIZE
        return position

    def write(self) -> None:
        """Writes what was appended. OSError: nothing was appended since the last write()."""
        if not self._pending:
            return
        try:
            data, position = memoryview(self._pending), self._pending_start
            while data:
                file = self._writable(position)
                part = data[: file.start + self.file_size - position]
                _write_all(file.fd, part, position - file.start)
                file.is_dirty = True
                position += len(part)
                data = data[len(part) :]
        except OSError:
            self.end = self._pending_start
            raise
        finally:
            self._pending = bytearray()

    def _writable(self, position: int) -> _File:
        file = self._file_at(position)
        if file is not None:
            return file
        make_dirs(self.directory)
        path = os.path.join(self.directory, offset_to_file_name(self.file_start(position)))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(fd, self.file_size)
        finally:
            os.close(fd)
        fsync_dir(self.directory)
        file = _File(path, self.file_start(position), self.file_size, read_only=False)
        self._files.append(file)
        return file

    def flush(self) -> None:
        """Flushes everything that was written to the disk. OSError."""
        end = self.end if not self._pending else self._pending_start
        for file in self._files:
            if file.is_dirty:
                os.fdatasync(file.fd)
                file.is_dirty = False
        self.flushed = end

    def truncate(self, position: int) -> None:
        """Takes away the units from `position` on. OSError."""
        for file in [file for file in self._files if file.start >= position and file.start > 0]:
            self._files.remove(file)
            file.close()
            os.unlink(file.path)
        file_ = self._file_at(position)
        if file_ is not None and position < self.end:
            os.ftruncate(file_.fd, position - file_.start)
            os.ftruncate(file_.fd, self.file_size)
            os.fsync(file_.fd)
        self.end = min(self.end, position)
        self.flushed = min(self.flushed, position)

    def discard(self) -> None:
        """Deletes all files; the next unit is the first. OSError."""
        self.close()
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            names = []
        for name in names:
            if file_name_to_offset(name) is not None:
                os.unlink(os.path.join(self.directory, name))
        self.damage = ""
        self.end = self.flushed = 0

    def delete_expired(self, commit_log_min: int) -> int:
        """Deletes the oldest files whose last unit points below `commit_log_min`, never the last one; how many."""
        count = 0
        while len(self._files) > 1 and int(self._files[0].units()["offset"][-1]) < commit_log_min:
            file = self._files.pop(0)
            file.close()
            os.unlink(file.path)
            count += 1
        return count


def _write_all(fd: int, data: memoryview, position: int) -> None:
    while data:
        wrote = os.pwrite(fd, data, position)
        position += wrote
        data = data[wrote:]
