"""ConsumeQueue: for each message of a topic's queue, where it is in the commit log.

    consumequeue/<topic>/<queueId>/<20 digits>        unit n at byte 20·n, as formats.consume_queue draws it

    dispatch ──units──▶ put_units ──one pwrite a file──▶ ├ pre-blank ├ units ├ zeros ┤

A queue whose first unit is not its 0th fills the file in front of it with pre-blanks. The same record may be
dispatched any number of times: a unit whose record ends at or before `max_physic_offset` is already there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mqlake.formats.columns import Bools, Int64s
from mqlake.formats.consume_queue import CQ_DTYPE, CQ_STORE_UNIT_SIZE, PRE_BLANK, PRE_BLANK_SIZE, UNIT
from mqlake.formats.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExtUnit, decorate, is_ext_address
from mqlake.store.files.file_pool import Buffer, FilePool, PooledFile
from mqlake.store.queues.consume_queue_ext import ConsumeQueueExt
from mqlake.store.queues.unit_queue import CHUNK, UnitQueue, Units
from mqlake.store.results import BoundaryType

logger = logging.getLogger(__name__)

StoreTimeOf = Callable[[int, int], int]
"""(physical offset, size) -> store timestamp (ms) of the record there, negative when it is not in the log."""

BLANKS_A_READ = CHUNK // CQ_STORE_UNIT_SIZE
READ_AHEAD = 256 * CQ_STORE_UNIT_SIZE


class CqUnit(NamedTuple):
    """One unit as a reader gets it: `batch_num` messages from `queue_offset` on."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    batch_num: int = 1


class ConsumeQueue(UnitQueue):
    """The queue in `directory`. `ext`, when given, keeps what does not fit a unit.

    `first_gap` is the queue offset at which units were missing when later ones arrived (pre-blanks stand
    there), or a file when the queue was recovered; None as long as that has not happened since the queue was opened.
    While it `stops_at_gaps` no unit is written after one: a crash must not leave pre-blanks that the log could fill.
    """

    __slots__ = ("_ahead", "_read_to", "ext", "lost_end", "stops_at_gaps")

    dtype = CQ_DTYPE
    unit = UNIT
    unit_size = CQ_STORE_UNIT_SIZE

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        file_size: int,
        pool: FilePool,
        *,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        super().__init__(topic, queue_id, directory, file_size, pool, size_key="mappedFileSizeConsumeQueue")
        self.ext = ext
        self.stops_at_gaps = False
        # the messages before this one are lost, as somebody has accepted: units of theirs lead to it
        self.lost_end = 0
        # units read ahead for who reads on: the files as they were, the first one's position, and the units
        self._ahead: tuple[list[PooledFile], int, bytes] = ([], 0, b"")
        self._read_to = -1

    @staticmethod
    def valid(units: Units) -> Bools:
        result: Bools = (units["offset"] >= 0) & (units["size"] > 0)
        return result

    @staticmethod
    def is_blank(unit: tuple[int, int, int]) -> bool:
        return unit[1] == PRE_BLANK_SIZE

    def load(self) -> None:
        super().load()
        if self.ext is not None:
            self.ext.load()

    def recover(self, *, thorough: bool) -> int:
        max_physic_offset = super().recover(thorough=thorough)
        if self.ext is not None:
            self.ext.recover(self._max_ext_address())
        self._look_for_lost_files()
        return max_physic_offset

    def _is_lost(self, first: int, end: int) -> bool:
        """Returns True for a lost part, False for pre-blanks: with more of them before or after it, the messages
        were missing already when the next file was begun (see _place)."""
        around = map(self._unit, (first - 1, end))
        return not any(unit is None or self.is_blank(unit) for unit in around)

    def _look_for_lost_files(self) -> None:
        super()._look_for_lost_files()
        lost = [] if self.ext is None else self.ext.files.missing()
        for file in self.files.files if lost else ():
            units = self._units(file.file_from_offset, self.files.file_size // CQ_STORE_UNIT_SIZE)
            for start, end in lost:
                addresses = units["tags_code"]
                found = np.flatnonzero((addresses >= decorate(start)) & (addresses < decorate(end)))
                if len(found):
                    logger.warning(
                        "%s: the file of its extension that begins at byte %d is gone", self, start
                    )
                    self._note_gap(file.file_from_offset // CQ_STORE_UNIT_SIZE + int(found[0]))

    # ------------------------------------------------------------------ writing

    def put_units(self, first_queue_offset: int, units: Units, store_times: Int64s) -> None:
        """Units of consecutive messages, the first of which is the queue's message `first_queue_offset`.

        Those that are there already are passed over. OSError: nothing of it is visible, nothing has moved.
        """
        offset, size, _ = units[0].item()
        if offset + size <= self.max_physic_offset:
            ends = units["offset"] + units["size"]
            there = int(np.searchsorted(ends, self.max_physic_offset, side="right"))
            units, store_times = units[there:], store_times[there:]
            first_queue_offset += there
            if not len(units):
                return
        if first_queue_offset == 0:
            self._begin_anew()
        if self.ext is not None:
            units = units.copy()
            units["tags_code"] = self.ext.put_many(units["tags_code"], store_times)
        offset, size, _ = units[-1].item()
        self._append(first_queue_offset, units.view(np.uint8).data, offset + size)

    def put_unit(
        self, queue_offset: int, physical_offset: int, size: int, tags_code: int, store_time: int
    ) -> None:
        """One unit, as `put_units`."""
        end = physical_offset + size
        if end <= self.max_physic_offset:
            return
        if queue_offset == 0:
            self._begin_anew()
        if self.ext is not None:
            address = self.ext.put(ConsumeQueueExtUnit(tags_code, store_time))
            tags_code = tags_code if address is None else address
        self._append(queue_offset, UNIT.pack(physical_offset, size, tags_code), end)

    def _begin_anew(self) -> None:
        """A newer message that is the queue's first: the topic was deleted and created again."""
        if not self.is_empty:
            logger.warning(
                "%s starts over: its %d units belong to an earlier topic of that name",
                self,
                self.max_offset_in_queue,
            )
            self.destroy()

    def _append(self, queue_offset: int, data: Buffer, max_physic_offset: int) -> None:
        offset = queue_offset * CQ_STORE_UNIT_SIZE
        if offset != self.files.max_offset:
            offset, data = self._place(offset, data)
            if not len(data):
                return
        self.files.write(offset, data)
        self.max_physic_offset = max_physic_offset

    def _place(self, offset: int, data: Buffer) -> tuple[int, Buffer]:
        """Returns the place of units that do not follow the last one, and the bytes to write there: pre-blanks in
        front, or what is there already left out."""
        end, file_size = self.files.max_offset, self.files.file_size
        file_start = offset - offset % file_size
        is_accepted = 0 < offset == self.lost_end * CQ_STORE_UNIT_SIZE
        fill = PRE_BLANK
        if self.stops_at_gaps and not is_accepted and offset > (0 if self.is_empty else end):
            self._note_gap(0 if self.is_empty else end // CQ_STORE_UNIT_SIZE)
            return offset, b""
        if self.is_empty:
            if self.files.files and self.files.min_offset != file_start:
                self.files.destroy()  # one empty file of another place
            self.min_logic_offset = offset
            start = file_start
            if offset > 0 and not is_accepted:
                self._note_gap(0)
        elif offset < end:
            logger.warning("%s: units from %d on are dispatched again", self, offset // CQ_STORE_UNIT_SIZE)
            return end, data[end - offset :]
        else:
            if is_accepted:
                fill = bytes(data[:CQ_STORE_UNIT_SIZE])
            else:
                logger.warning("%s: the units from %d on are missing", self, self.max_offset_in_queue)
                self._note_gap(end // CQ_STORE_UNIT_SIZE)
            start = end
            if end < file_start:
                self.files.write(end, fill * (-end % file_size // CQ_STORE_UNIT_SIZE))
                start = file_start
        return start, fill * ((offset - start) // CQ_STORE_UNIT_SIZE) + bytes(data)

    # ------------------------------------------------------------------ reading

    @property
    def min_offset_in_queue(self) -> int:
        return self.min_logic_offset // CQ_STORE_UNIT_SIZE

    @property
    def max_offset_in_queue(self) -> int:
        """One past the newest message's offset."""
        return self.files.max_offset // CQ_STORE_UNIT_SIZE

    def get(self, queue_offset: int) -> CqUnit | None:
        """The unit of message `queue_offset`; None when it is outside the queue. Its tags code is the
        message's own also when the unit holds an address of the extension."""
        if queue_offset < self.min_offset_in_queue:
            return None
        unit = self._unit(queue_offset)
        if unit is None:
            return None
        offset, size, tags_code = unit
        if self.ext is not None and is_ext_address(tags_code):
            ext_unit = self.ext.get(tags_code)
            tags_code = tags_code if ext_unit is None else ext_unit.tags_code
        return CqUnit(queue_offset, offset, size, tags_code)

    def get_range(self, queue_offset: int, count: int) -> Units:
        """Units (CQ_DTYPE) of up to `count` messages from `queue_offset` on, of one file; none outside the
        queue. What is missing in the middle is there as pre-blanks. Their tags codes are the messages' own, as
        `get` has them."""
        if queue_offset < self.min_offset_in_queue or count <= 0:
            return np.empty(0, CQ_DTYPE)
        units = self._units(queue_offset * CQ_STORE_UNIT_SIZE, count)
        if self.ext is not None:
            units = units.copy()
            units["tags_code"] = self.ext.tags_codes(units["tags_code"].astype(np.int64))
        return units

    def get_range_bytes(self, queue_offset: int, count: int) -> bytes:
        """The units of `get_range` as they are in the file, with addresses of the extension in place of tags codes,
        for a queue offset in the queue.

        Who goes on where the last call ended gets them from what was read ahead: a system call for each page of
        messages also hands the interpreter to another thread each time.
        """
        start, size = queue_offset * CQ_STORE_UNIT_SIZE, count * CQ_STORE_UNIT_SIZE
        # whatever cuts, deletes or begins the queue again makes another list of files; all else only appends
        files, first, units = self._ahead
        end = start + size
        if first <= start and end <= first + len(units) and files is self.files.files:
            self._read_to = end
            return units[start - first : end - first]
        files = self.files.files
        units = self.files.read(start, max(size, READ_AHEAD) if start == self._read_to else size)
        self._read_to = end
        self._ahead = (files, start, units) if len(units) > size else ([], 0, b"")
        return units[:size]

    def roll_next_file(self, queue_offset: int) -> int:
        """Queue offset at which the next file begins."""
        units_in_file = self.files.file_size // CQ_STORE_UNIT_SIZE
        return queue_offset + units_in_file - queue_offset % units_in_file

    def _unit(self, number: int) -> tuple[int, int, int] | None:
        data = self.files.read(number * CQ_STORE_UNIT_SIZE, CQ_STORE_UNIT_SIZE)
        if len(data) < CQ_STORE_UNIT_SIZE:
            return None
        unit: tuple[int, int, int] = UNIT.unpack(data)
        return unit

    def _physical_at(self, number: int) -> int:
        unit = self._unit(number)
        if unit is not None and not self.is_blank(unit):
            return unit[0]
        return super()._physical_at(number)

    def _skip_blanks(self, number: int) -> int:
        count = 1
        while number < self.max_offset_in_queue:
            units = self._units(number * CQ_STORE_UNIT_SIZE, count)
            filled = units["size"] != PRE_BLANK_SIZE
            if filled.any():
                return number + int(filled.argmax())
            number, count = super()._skip_blanks(number + len(units)), BLANKS_A_READ
        return number

    def _without_trailing_blanks(self, end: int) -> int:
        number, first = end // CQ_STORE_UNIT_SIZE, self.files.min_offset // CQ_STORE_UNIT_SIZE
        while number > first:
            unit = self._unit(number - 1)
            if unit is not None and not self.is_blank(unit):
                return number * CQ_STORE_UNIT_SIZE
            file = self.files.file_at((number - 1) * CQ_STORE_UNIT_SIZE)
            file_first = file.file_from_offset // CQ_STORE_UNIT_SIZE if file else first
            start = max(file_first, number - BLANKS_A_READ)
            units = self._units(start * CQ_STORE_UNIT_SIZE, number - start)
            filled = np.flatnonzero(units["size"] != PRE_BLANK_SIZE)
            if len(filled):
                return (start + int(filled[-1]) + 1) * CQ_STORE_UNIT_SIZE
            number = start
        return first * CQ_STORE_UNIT_SIZE

    def bridge_gaps(self) -> None:
        """Lets the units of messages that are lost point to the message after them:

        unit   [ 4 ][ 5 ][blank][blank][ 8 ][ 9 ]   as dispatch leaves it
               [ 4 ][ 5 ][  8  ][  8  ][ 8 ][ 9 ]   bridged

        RocketMQ does not read across pre-blanks: it searches units by physical offset, which has to ascend, and skips
        good messages after a unit whose record it cannot find. So a consumer that reads across gets the next message
        more than once. OSError.
        """
        assert self.first_gap is not None
        size, files = self.unit_size, self.files
        start = max(self.first_gap, self.min_offset_in_queue)
        following = np.empty(0, self.dtype)
        for file in reversed(files.files):
            first = max(start * size, file.file_from_offset)
            units = np.frombuffer(files.read(first, files.file_size), self.dtype).copy()
            if not len(units):
                continue
            blank = units["size"] == PRE_BLANK_SIZE
            source = np.where(blank, len(units), np.arange(len(units)))
            source = np.minimum.accumulate(source[::-1])[::-1]
            bridged = blank & ((source < len(units)) | (len(following) > 0))
            if bridged.any():
                units[bridged] = np.concatenate((units, following))[source[bridged]]
                files.pool.pwrite(file, units.view(np.uint8).data, first - file.file_from_offset)
            following = units[:1]
        self.first_gap = None

    # ------------------------------------------------------------------ by time

    def get_offset_in_queue_by_time(
        self,
        timestamp: int,
        boundary: BoundaryType,
        store_time_of: StoreTimeOf,
        *,
        commit_log_min: int = 0,
    ) -> int:
        """Queue offset (within the queue) for a store time (ms), as RocketMQ 5.3.3 answers it.

        Of messages stored at `timestamp` LOWER gives the first, UPPER the last; without one LOWER gives the
        first stored later, UPPER the last stored earlier.
        """
        found = self._offset_by_time(timestamp, boundary, store_time_of, commit_log_min)
        return min(max(found, self.min_offset_in_queue), self.max_offset_in_queue)

    def _offset_by_time(
        self, timestamp: int, boundary: BoundaryType, store_time_of: StoreTimeOf, commit_log_min: int
    ) -> int:

        def time_at(number: int) -> int:
            unit = self._unit(number)
            return -1 if unit is None or self.is_blank(unit) else store_time_of(unit[0], unit[1])

        first = self._file_by_time(timestamp, boundary, time_at)
        if first is None:
            return 0
        floor = max(first, self.min_offset_in_queue)
        last = min(self.roll_next_file(first), self.max_offset_in_queue) - 1
        if last < floor:
            return 0
        lower = boundary is BoundaryType.LOWER
        if time_at(last) < timestamp:
            return last + 1 if lower else last
        if time_at(floor) > timestamp:
            return first if lower else 0
        low, high = floor, last
        left = right = max(0, first - 1)
        while low <= high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit is None:
                return 0
            if unit[0] < commit_log_min:
                low, left = middle + 1, middle
                continue
            store_time = store_time_of(unit[0], unit[1])
            if store_time < 0:
                logger.warning("%s: no store time for the record at %d", self, unit[0])
                return 0
            if store_time == timestamp:
                step, limit = (-1, floor) if lower else (1, last)
                while middle != limit and time_at(middle + step) == timestamp:
                    middle += step
                return middle
            if store_time > timestamp:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if lower else left

    def _file_by_time(
        self, timestamp: int, boundary: BoundaryType, time_at: Callable[[int], int]
    ) -> int | None:
        """Number of the first unit of the file in which to search for `timestamp`."""
        starts = [file.file_from_offset // CQ_STORE_UNIT_SIZE for file in self.files.files]
        if boundary is BoundaryType.LOWER:
            units_in_file = self.files.file_size // CQ_STORE_UNIT_SIZE
            earlier = (start for start in starts[:-1] if time_at(start + units_in_file - 1) >= timestamp)
            return next(earlier, starts[-1] if starts else None)
        return next((start for start in reversed(starts) if time_at(start) <= timestamp), None)

    # ------------------------------------------------------------------ the extension and the rest

    def _max_ext_address(self) -> int | None:
        """The newest unit's address in the extension, among the units that recovery looks at."""
        for file in reversed(self.files.files):
            units = self._units(file.file_from_offset, self.files.file_size // CQ_STORE_UNIT_SIZE)
            addresses = units["tags_code"][units["tags_code"] <= MAX_ADDRESS]
            if len(addresses):
                return int(addresses[-1])
        return None

    def truncate_dirty_logic_files(self, physical_offset: int) -> None:
        before = self.files.max_offset
        super().truncate_dirty_logic_files(physical_offset)
        if self.ext is not None and self.files.max_offset != before:
            self.ext.truncate_by_max_address(self._max_ext_address())

    def correct_min_offset(self, commit_log_min: int) -> None:
        super().correct_min_offset(commit_log_min)
        if self.ext is not None:
            unit = self._unit(self.min_offset_in_queue)
            if unit is not None and is_ext_address(unit[2]):
                self.ext.truncate_by_min_address(unit[2])

    def flush(self, least_pages: int = 0) -> bool:
        done = super().flush(least_pages)
        return (self.ext is None or self.ext.flush(least_pages)) and done

    def destroy(self) -> None:
        super().destroy()
        if self.ext is not None:
            self.ext.destroy()
