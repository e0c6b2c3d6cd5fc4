"""ConsumeQueueExt: what does not fit into a consume queue's units, in files of its own.

    consumequeue_ext/<topic>/<queueId>/<20 digits>

    ├ unit ├ unit ├ … ├ -1 ┤≥ 4 spare├ unit ├ … ├ zeros ┤       units as formats.consume_queue_ext draws them
    └──────── file ────────┘         └──── next file ───┘

A consume queue unit's tags code then holds the address of its extension unit. The address is only as good as
the files: without them a consumer filters by comparing the tags themselves.
"""

from __future__ import annotations

import logging

import numpy as np

from mqlake.errors import FormatError
from mqlake.formats.columns import Int64s
from mqlake.formats.consume_queue_ext import (
    END_BLANK_DATA_LENGTH,
    END_OF_FILE,
    MAX_ADDRESS,
    MAX_EXT_UNIT_SIZE,
    MAX_REAL_OFFSET,
    MIN_EXT_UNIT_SIZE,
    ConsumeQueueExtUnit,
    decode_unit,
    decorate,
    encode_unit,
    is_ext_address,
    undecorate,
)
from mqlake.store.files.file_pool import FilePool, PooledFile
from mqlake.store.files.pooled_file_queue import PooledFileQueue

logger = logging.getLogger(__name__)


# a unit without a bit map
PLAIN_UNIT = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("store_time", ">i8"), ("bit_map_size", ">i2")])
USUAL_UNIT_SIZE = 64
CHUNK = 1 << 20
BYTES_A_READ = 1 << 20


class ConsumeQueueExt:
    """The extension of one queue, in `directory`."""

    __slots__ = ("files",)

    def __init__(self, directory: str, file_size: int, pool: FilePool) -> None:
        self.files = PooledFileQueue(directory, file_size, pool, size_key="mappedFileSizeConsumeQueueExt")

    def load(self) -> None:
        """Names and sizes of the files. Raises WrongFileSizeError, StoreCorruptError."""
        self.files.load()

    def recover(self, max_address: int | None) -> None:
        """Finds the end of the units and cuts after the newest address that the queue knows. OSError."""
        if self.files.files:
            last = self.files.files[-1]
            self.files.cut(last.file_from_offset + self._end_of_units(last), erase=True)
            self.truncate_by_max_address(max_address)

    def _end_of_units(self, file: PooledFile) -> int:
        limit = min(self.files.pool.first_hole(file), self.files.file_size)
        position = 0
        while position + MIN_EXT_UNIT_SIZE <= limit:
            data = self.files.pool.pread(file, min(CHUNK, limit - position), position)
            run = _length_of_units(data)
            if run == 0:
                break
            position += run
        return position

    # ------------------------------------------------------------------ units

    def put(self, unit: ConsumeQueueExtUnit) -> int | None:
        """Appends the unit; its address, or None when it is too large or the extension is at its limit.

        OSError: nothing has moved.
        """
        room = self._room()
        if unit.size > min(MAX_EXT_UNIT_SIZE, self.files.file_size - END_BLANK_DATA_LENGTH):
            logger.error("an extension unit of %d bytes is too large", unit.size)
            return None
        if self.files.max_offset + unit.size > MAX_REAL_OFFSET:
            logger.warning(
                "%s: the extension cannot grow beyond %d", self.files.directory, self.files.max_offset
            )
            return None
        if unit.size > room:
            self._fill_to_end()
        offset = self.files.max_offset
        self.files.write(offset, encode_unit(unit))
        return decorate(offset)

    def put_many(self, tags_codes: Int64s, store_times: Int64s) -> Int64s:
        """Appends a unit without a bit map for each; their addresses. OSError."""
        units = np.zeros(len(tags_codes), PLAIN_UNIT)
        units["size"] = MIN_EXT_UNIT_SIZE
        units["tags_code"] = tags_codes
        units["store_time"] = store_times
        addresses = np.empty(len(units), np.int64)
        done = 0
        while done < len(units):
            count = min(len(units) - done, self._room() // MIN_EXT_UNIT_SIZE)
            if count == 0:
                self._fill_to_end()
                continue
            offset = self.files.max_offset
            self.files.write(offset, units[done : done + count].view(np.uint8).data)
            addresses[done : done + count] = np.arange(count) * MIN_EXT_UNIT_SIZE + decorate(offset)
            done += count
        return addresses

    def get(self, address: int) -> ConsumeQueueExtUnit | None:
        """The unit at `address`; None when it is no address or nothing (or damage) is there."""
        if not is_ext_address(address):
            return None
        offset = undecorate(address)
        data = self.files.read(offset, USUAL_UNIT_SIZE)
        size = int.from_bytes(data[:2], "big", signed=True)
        if size > len(data):
            data = self.files.read(offset, size)
        try:
            return decode_unit(data)
        except FormatError as error:
            logger.error("%s: no unit at offset %d: %s", self.files.directory, offset, error)
            return None

    def tags_codes(self, codes: Int64s) -> Int64s:
        """The same with what is at those that are addresses; what cannot be read stays its own address."""
        where = np.flatnonzero(codes <= MAX_ADDRESS)
        if len(where):
            codes = codes.copy()
            codes[where] = self._codes_at(codes[where])
        return codes

    def _codes_at(self, addresses: Int64s) -> Int64s:
        result = addresses.copy()
        positions = addresses ^ np.int64(-(1 << 63))  # undecorate()
        done = 0
        while done < len(positions):
            start = int(positions[done])
            span = max(1, int(np.searchsorted(positions[done:], start + BYTES_A_READ)))
            size = min(max(0, int(positions[done + span - 1]) - start), BYTES_A_READ) + MIN_EXT_UNIT_SIZE
            data = self.files.read(start, size)
            inside = positions[done : done + span] - start
            there = (inside >= 0) & (inside <= len(data) - MIN_EXT_UNIT_SIZE)
            readable = span if there.all() else int(there.argmin())
            if readable:
                at = inside[:readable, None] + np.arange(MIN_EXT_UNIT_SIZE)
                units = np.frombuffer(data, np.uint8)[at].copy().view(PLAIN_UNIT)[:, 0]
                whole = units["size"] >= MIN_EXT_UNIT_SIZE
                result[done : done + readable][whole] = units["tags_code"][whole]
            done += max(1, readable)
        return result

    def _room(self) -> int:
        """Bytes that units may take before a file is full."""
        return self.files.file_size - self.files.max_offset % self.files.file_size - END_BLANK_DATA_LENGTH

    def _fill_to_end(self) -> None:
        self.files.write(self.files.max_offset, END_OF_FILE)
        self.files.max_offset += -self.files.max_offset % self.files.file_size

    # ------------------------------------------------------------------ limits

    @property
    def min_address(self) -> int:
        return decorate(self.files.min_offset)

    @property
    def max_address(self) -> int:
        """The address that the next unit gets when it fits into the file."""
        return decorate(self.files.max_offset)

    def truncate_by_min_address(self, min_address: int) -> None:
        """Deletes the files that end before `min_address`."""
        if is_ext_address(min_address):
            offset = undecorate(min_address)
            ends = [file.file_from_offset + self.files.file_size for file in self.files.files]
            self.files.delete_first(sum(end < offset for end in ends))

    def truncate_by_max_address(self, max_address: int | None) -> None:
        """Drops everything after the unit at `max_address`."""
        if max_address is None or not is_ext_address(max_address):
            return
        unit = self.get(max_address)
        if unit is None:
            logger.error("%s: address %d is not there", self.files.directory, max_address)
            return
        self.files.cut(undecorate(max_address) + unit.size, erase=True)

    def flush(self, least_pages: int = 0) -> bool:
        """True when nothing is left to flush. OSError."""
        return self.files.flush(least_pages)

    def destroy(self) -> None:
        """Deletes all files."""
        self.files.destroy()


def _length_of_units(data: bytes) -> int:
    """Bytes of the whole units at the beginning of `data`."""
    position = 0
    while position + MIN_EXT_UNIT_SIZE <= len(data):
        size = int.from_bytes(data[position : position + 2], "big", signed=True)
        if size < MIN_EXT_UNIT_SIZE:
            break
        # units of one size follow each other: find the end of the run at once
        count = (len(data) - position) // size
        if count == 0:
            break
        sizes = np.ndarray((count,), ">i2", data, position, (size,))
        same = sizes == size
        position += size * (count if same.all() else int(same.argmin()))
    return position
