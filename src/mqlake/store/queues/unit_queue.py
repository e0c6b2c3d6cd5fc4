"""UnitQueue: what ConsumeQueue and BatchConsumeQueue share, a queue of units of one fixed size on disk.

    first file (the oldest)                    last file
    ├ expired ├ min_logic_offset … units … ┼ … units … ┤ max_offset ├ zeros ─────────────┤

Units are in the order of the commit log, so everything is found by halving: the end of the data (the first
unit that is zeros), the first unit of a physical offset, the smallest offset that is still in the log.

Recovery looks at the last three files at most. After a clean shutdown the end is searched (a few small
reads, whatever the file's size); after a crash all units are checked in order up to the first bad one, since
a lost page may leave zeros between good ones, and what lies after the end is zeroed, so that it can never be
taken for data later.
"""

from __future__ import annotations

import bisect
import logging
from abc import ABC, abstractmethod
from struct import Struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mqlake.formats.columns import Bools
from mqlake.store.files.file_pool import FilePool, PooledFile
from mqlake.store.files.pooled_file_queue import UNFLUSHED_FILES_MAX, PooledFileQueue

logger = logging.getLogger(__name__)

Units = npt.NDArray[np.void]

SEARCH_WINDOW = 64 * 1024
CHUNK = 256 * 1024


class UnitQueue(ABC):
    """Units of (topic, queue_id). `files.max_offset` and `min_logic_offset` count bytes, of whole units."""

    __slots__ = (
        "_min_physical",
        "ends_in_damage",
        "files",
        "first_gap",
        "max_physic_offset",
        "min_logic_offset",
        "queue_id",
        "topic",
    )

    dtype: ClassVar[np.dtype[np.void]]
    unit: ClassVar[Struct]
    unit_size: ClassVar[int]

    def __init__(
        self, topic: str, queue_id: int, directory: str, file_size: int, pool: FilePool, *, size_key: str
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = PooledFileQueue(directory, file_size, pool, size_key=size_key)
        # end (offset + size) of the last record in the queue, -1 when it has none
        self.max_physic_offset = -1
        self.min_logic_offset = 0
        # set by recover(): after the end that it found lies something that is no unit, and no zeros either
        self.ends_in_damage = False
        # number of the first unit that is missing before others, as far as that was seen since the queue was opened
        self.first_gap: int | None = None
        # physical offset of the unit at min_logic_offset, -1 when not known
        self._min_physical = -1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, {self.queue_id})"

    def __str__(self) -> str:
        return f"topic {self.topic}, queue {self.queue_id}"

    @staticmethod
    @abstractmethod
    def valid(units: Units) -> Bools:
        """Which units hold something; the first that does not is where the data ends."""

    @staticmethod
    def is_blank(unit: Any) -> bool:  # noqa: ARG004
        """True if the unit (a tuple of its fields) stands for no record."""
        return False

    @abstractmethod
    def _unit(self, number: int) -> Any:
        """Unit `number` as a tuple that begins with physical offset and size; None when it is not there."""

    @property
    def is_empty(self) -> bool:
        return self.files.max_offset <= self.files.min_offset

    # ------------------------------------------------------------------ loading and recovery

    def load(self) -> None:
        """Names and sizes of the files. Raises WrongFileSizeError, StoreCorruptError."""
        self.files.load()
        self.min_logic_offset = self.files.min_offset

    def recover(self, *, thorough: bool) -> int:
        """Finds the end of the data; returns `max_physic_offset`. `thorough` after a crash. OSError."""
        files = self.files.files
        if not files:
            return -1
        if len(files) == 1 and self._recover_small(files[0], thorough=thorough):
            return self.max_physic_offset
        end = 0
        for file in files[-UNFLUSHED_FILES_MAX:]:
            position = self._end_of_data(file, thorough=thorough)
            end = file.file_from_offset + position
            if position < self.files.file_size:
                break
        self.ends_in_damage = any(self.files.read(end, self.unit_size))
        self._set_end(end, erase=thorough)
        if not self.is_empty:
            self._begin_at(self._skip_blanks(self.files.min_offset // self.unit_size))
        return self.max_physic_offset

    def _recover_small(self, file: PooledFile, *, thorough: bool) -> bool:
        """A queue of little more than a few pages, as most are where there are very many: all from one read.

        False, and nothing done, when it takes more than that.
        """
        size = self.unit_size
        head = self.files.pool.head(file, SEARCH_WINDOW)
        if not head:
            return False
        data = head.ljust(min(-(-len(head) // size) * size, self.files.file_size), b"\0")
        valid = self.valid(np.frombuffer(data, self.dtype))
        count = int(valid.argmin())
        if valid[count]:
            count = len(valid)
        elif count == 0:
            return False
        behind = count * size
        first, last = self.unit.unpack_from(data), self.unit.unpack_from(data, behind - size)
        if self.is_blank(first) or self.is_blank(last):
            return False
        if thorough and data[behind:] != bytes(len(data) - behind):
            return False
        self.ends_in_damage = any(data[behind : behind + size])
        self.files.max_offset = file.file_from_offset + behind
        self.files.flushed_where = min(self.files.flushed_where, self.files.max_offset)
        self._note_last(last)
        self._min_physical = first[0]
        return True

    def _look_for_lost_files(self) -> None:
        """Notes the gap that a file leaves which is gone from between two others."""
        for start, end in self.files.missing():
            if self._is_lost(start // self.unit_size, end // self.unit_size):
                logger.warning("%s: the file that begins at byte %d is gone", self, start)
                self._note_gap(start // self.unit_size)

    def _is_lost(self, first: int, end: int) -> bool:
        """True if the units [first, end), of which no file is there, have been there."""
        return True

    def _note_gap(self, number: int) -> None:
        if self.first_gap is None:
            self.first_gap = number

    def cut_gap(self) -> None:
        """Drops everything from the first gap on, so that dispatching the log again can fill it."""
        if self.first_gap is not None:
            self._set_end(max(self.first_gap * self.unit_size, self.files.min_offset), erase=True)
            if self.is_empty:
                self.destroy()
            self.first_gap = None

    def bridge_gaps(self) -> None:  # noqa: B027 - a batch consume queue has no pre-blanks
        """Lets no pre-blank stand for a message that the log has lost. OSError."""

    def _end_of_data(self, file: PooledFile, *, thorough: bool) -> int:
        """Position in `file` of the first unit without data, or the file's size."""
        size = self.unit_size
        hole = self.files.pool.first_hole(file)
        limit = min(-(-hole // size) * size, self.files.file_size)
        start = 0 if thorough else max(0, limit - SEARCH_WINDOW) // size * size
        end = self._first_invalid(file, start, limit)
        if end > start or start == 0:
            return end
        return (
            bisect.bisect_left(
                range(start // size),
                True,
                key=lambda number: (
                    self._first_invalid(file, number * size, (number + 1) * size) == number * size
                ),
            )
            * size
        )

    def _first_invalid(self, file: PooledFile, start: int, limit: int) -> int:
        """Position of the first unit in [start, limit) without data; `limit` when all have some."""
        step = CHUNK // self.unit_size * self.unit_size
        while start < limit:
            data = self.files.pool.pread(file, min(limit - start, step), start)
            units = np.frombuffer(data, self.dtype, len(data) // self.unit_size)
            valid = self.valid(units)
            if not len(units) or not valid.all():
                return start + (int(valid.argmin()) * self.unit_size if len(units) else 0)
            start += len(units) * self.unit_size
        return limit

    def _set_end(self, end: int, *, erase: bool) -> None:
        self.files.cut(self._without_trailing_blanks(end), erase=erase)
        self._look_at_last()

    def last_unit(self) -> Any:
        """The newest unit as a tuple that begins with physical offset and size; None when there is none."""
        return None if self.is_empty else self._unit(self.files.max_offset // self.unit_size - 1)

    def hide_last_unit(self) -> None:
        """Ends before the newest unit, which stays on the disk until it is written over or erased."""
        self.files.max_offset -= self.unit_size
        self.files.flushed_where = min(self.files.flushed_where, self.files.max_offset)
        self._look_at_last()

    def unhide_until(self, end: int, log_end: int) -> None:
        """Ends at byte `end` again, after units that were dropped; none of them reaches past the log's end."""
        self.files.max_offset = end
        self._look_at_last()
        self.max_physic_offset = min(self.max_physic_offset, log_end)

    def erase_rest(self) -> None:
        """Zeroes what lies after the end. OSError."""
        if self.files.files:
            self.files.cut(self.files.max_offset, erase=True)

    def _look_at_last(self) -> None:
        self._note_last(self.last_unit())

    def _note_last(self, unit: Any) -> None:
        """Takes what the queue knows of its newest record from the last unit, None when there is none."""
        self.max_physic_offset = -1 if unit is None else unit[0] + unit[1]

    def _without_trailing_blanks(self, end: int) -> int:
        """`end`, or what is left when units that stand for nothing are taken from the tail."""
        return end

    # ------------------------------------------------------------------ searching

    def _units(self, offset: int, count: int) -> Units:
        """Up to `count` units from byte `offset` on (a copy), not beyond the end of the file or of the data."""
        data = self.files.read(offset, count * self.unit_size)
        return np.frombuffer(data, self.dtype, len(data) // self.unit_size)

    def _physical_at(self, number: int) -> int:
        """Physical offset of unit `number`, or of the first one past it that stands for a record."""
        unit = self._unit(self._skip_blanks(number))
        return self.max_physic_offset if unit is None else int(unit[0])

    def _skip_blanks(self, number: int) -> int:
        """`number`, or the first unit after it that stands for a record; the end when there is none."""
        offset = number * self.unit_size
        while offset < self.files.max_offset and self.files.file_at(offset) is None:
            offset = self.files.next_file_start(offset)
        return offset // self.unit_size

    def first_from(self, physical_offset: int) -> int:
        """Number of the first unit whose record begins at or after `physical_offset`, the end if none does."""
        first, end = self.files.min_offset // self.unit_size, self.files.max_offset // self.unit_size
        return first + bisect.bisect_left(range(first, end), physical_offset, key=self._physical_at)

    # ------------------------------------------------------------------ the commit log's limits

    def correct_min_offset(self, commit_log_min: int) -> None:
        """Moves the queue's beginning to the first unit whose record is still in the commit log."""
        if self.is_empty or self.min_logic_offset >= self.files.max_offset:
            return
        if 0 <= commit_log_min <= self._min_physical:
            return
        if self.max_physic_offset <= commit_log_min:
            number = self.files.max_offset // self.unit_size
        else:
            number = self._skip_blanks(self.first_from(commit_log_min))
        self._begin_at(number)

    def begin_anew(self, commit_log_min: int) -> None:
        """As correct_min_offset(), also to an earlier unit, as far as there are files."""
        if not self.is_empty:
            self._begin_at(self._skip_blanks(self.files.min_offset // self.unit_size))
            self.correct_min_offset(commit_log_min)

    def _begin_at(self, number: int) -> None:
        self.min_logic_offset = number * self.unit_size
        self._min_physical = self._physical_at(number)

    def truncate_dirty_logic_files(self, physical_offset: int) -> None:
        """Drops every unit whose record ends after `physical_offset`, where the commit log now ends."""
        if self.max_physic_offset <= physical_offset:
            return
        number = self.first_from(physical_offset)
        first = self.files.min_offset // self.unit_size
        if number > first:
            before = self._unit(number - 1)
            if before is not None and before[0] + before[1] > physical_offset:
                number -= 1
        logger.info("%s: cut to %d units, the log ends at %d", self, number, physical_offset)
        self._set_end(number * self.unit_size, erase=True)
        if self.is_empty:
            self.files.destroy()
        if self.min_logic_offset > self.files.max_offset or self.is_empty:
            self.min_logic_offset = self.files.min_offset
            self._min_physical = -1

    def delete_expired_file(self, commit_log_min: int) -> int:
        """Deletes the oldest files without a record that is still in the commit log, never the last file;
        then corrects the beginning. Returns how many were deleted."""
        count = 0
        for file in self.files.files[:-1]:
            end = file.file_from_offset + self.files.file_size
            if self._physical_at(end // self.unit_size - 1) >= commit_log_min:
                break
            count += 1
        if count:
            self.files.delete_first(count)
        if self.min_logic_offset < self.files.min_offset:
            self.min_logic_offset = self.files.min_offset
            self._min_physical = -1
        self.correct_min_offset(commit_log_min)
        return count

    # ------------------------------------------------------------------ life

    def refresh(self) -> None:
        """Read-only beside a running writer: looks how far the data reaches by now."""
        end, max_physic_offset = self.files.max_offset, self.max_physic_offset
        self.files.refresh()
        files = self.files.files
        if files:
            self._look_at_last()
        if not files or end < self.files.min_offset or self.max_physic_offset != max_physic_offset:
            self._start_over()  # the queue was cut, deleted or made again
            return
        for file in files:
            start = end - file.file_from_offset
            if 0 <= start < self.files.file_size:
                end = file.file_from_offset + self._end_behind(file, start)
        self.files.max_offset = end
        self.min_logic_offset = max(self.min_logic_offset, self.files.min_offset)
        self._look_at_last()

    def _start_over(self) -> None:
        self._note_last(None)
        self._min_physical = -1
        self.files.max_offset = 0
        self.load()
        self.recover(thorough=False)

    def _end_behind(self, file: PooledFile, start: int) -> int:
        """As far as units are whole: the last one may be in the middle of being written, so it counts only
        when it reads the same twice."""
        end = self._first_invalid(file, start, self.files.file_size)
        if end > start:
            pool, last = self.files.pool, end - self.unit_size
            if pool.pread(file, self.unit_size, last) != pool.pread(file, self.unit_size, last):
                return last
        return end

    def flush(self, least_pages: int = 0) -> bool:
        """True when nothing is left to flush. OSError."""
        return self.files.flush(least_pages)

    def destroy(self) -> None:
        """Deletes all files."""
        self.files.destroy()
        self.first_gap = None
        self.max_physic_offset = self._min_physical = -1
        self.min_logic_offset = 0
