"""The derived files of a store, wherever it lies: consume queues and index files, as arrays of their units.

    consumequeue/TOPIC/QUEUE/00000000000000000000        20 B a unit, unit n of the queue at byte 20·n
    batchconsumequeue/TOPIC/QUEUE/00000000000000000000   46 B a unit, which says its queue offset itself
    index/20240229120000000                              header, hash slots, entries of 20 B

A writer may be at work in them: a unit counts once its size is there, an entry once the header counts it.
"""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mqlake.errors import StoreCorruptError
from mqlake.formats.batch_consume_queue import BCQ_DTYPE
from mqlake.formats.consume_queue import CQ_DTYPE, PRE_BLANK_SIZE
from mqlake.formats.index import (
    ENTRY_DTYPE,
    HASH_SLOT_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    IndexHeader,
)
from mqlake.formats.names import file_name_to_offset
from mqlake.lake.log.storage import Storage
from mqlake.store.index.index_sizes import index_sizes

Units = npt.NDArray[Any]

SIMPLE, BATCH = "SimpleCQ", "BatchCQ"
DIRECTORIES = {SIMPLE: "consumequeue", BATCH: "batchconsumequeue"}
_DTYPES = {SIMPLE: CQ_DTYPE, BATCH: BCQ_DTYPE}
SIZE_POSITION = 8
"""Position of a record's size in a unit of either kind."""

INDEX_ENTRIES_PER_SLOT = 4
"""RocketMQ's ratio, from which the number of slots follows; a store with another one has to say maxHashSlotNum."""
ENTRIES_TRIED = 64
INDEX_COUNT_POSITION = 36
"""Position of the number of entries in an index file's header."""


@dataclass(frozen=True, eq=False)
class Run:
    """Units of a file that follow each other; physical offset, size and queue offset of each."""

    units: Units
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]


@dataclass(frozen=True)
class QueueFile:
    """One file of a consume queue; `offset` is the byte of the queue at which it begins."""

    storage: Storage
    kind: str
    topic: str
    queue_id: int
    path: str
    offset: int
    size: int

    def units(self) -> tuple[Units, npt.NDArray[np.int64]]:
        """The units that are there, and the queue offset of each. StoreCorruptError for a file that was cut short."""
        array = self._array()
        rows = np.flatnonzero(
            (array["size"] > 0) & (array["offset"] >= 0) & (array["size"] != PRE_BLANK_SIZE)
        )
        units = array[rows]
        if self.kind == SIMPLE:
            return units, rows + self.offset // array.itemsize
        return units, units["msg_base_offset"].astype(np.int64)

    def run(self) -> Run | None:
        """The units that are used, if their queue offsets and their records follow each other; else None. What lies
        after a hole may be left out; a file that was cut short has the units before the cut."""
        units, first = self._used()
        offset, size = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        if self.kind == SIMPLE:
            number = np.arange(first, first + len(units)) + self.offset // units.itemsize
        else:
            number = units["msg_base_offset"].astype(np.int64)
            if (np.diff(number) != units["batch_size"][:-1]).any():
                return None
        if len(units) and (offset[0] < 0 or size.min() <= 0 or (np.diff(offset) < size[:-1]).any()):
            return None
        return Run(units, offset, size, number)

    def _used(self) -> tuple[Units, int]:
        """The units in use, and the number of the first. A few looks find where they end, since what has no unit yet is
        zero, the first ones near the beginning. Nothing is mapped: a page fault in each of 10,000 queues lets the
        system read ahead as often."""
        dtype = _DTYPES[self.kind]
        room = self.size // dtype.itemsize
        if not self.storage.is_local:
            array = self.storage.read(self.path, 0, room * dtype.itemsize).view(dtype)
            first, count = _used_of(len(array), lambda row: int(array["size"][row]))
            return array[first:count], first
        with io.FileIO(self.path) as file:
            fd = file.fileno()

            def size_of(row: int) -> int:
                return int.from_bytes(
                    os.pread(fd, 4, row * dtype.itemsize + SIZE_POSITION), "big", signed=True
                )

            first, count = _used_of(room, size_of)
            found = os.pread(fd, (count - first) * dtype.itemsize, first * dtype.itemsize)
        return np.frombuffer(found, dtype), first

    def _array(self) -> Units:
        dtype = _DTYPES[self.kind]
        rest = self.size % dtype.itemsize
        if rest:
            raise StoreCorruptError(
                self.path,
                self.size - rest,
                f"{rest} bytes, where a unit has {dtype.itemsize}: it was cut short",
            )
        return self.storage.map(self.path, self.size).view(dtype)


def _used_of(room: int, size_of: Callable[[int], int]) -> tuple[int, int]:
    """From and up to which of the units that there is room for a file is used."""
    count = _first(room, lambda row: size_of(row) <= 0)
    return _first(count, lambda row: size_of(row) != PRE_BLANK_SIZE), count


def _first(count: int, passes: Callable[[int], bool]) -> int:
    """The first of `count` rows that passes, as all after it do, or `count`; looks near the beginning first."""
    low, high = 0, 1
    while high < count and not passes(high - 1):
        low, high = high, 2 * high
    return bisect.bisect_left(range(min(high, count)), True, low, key=passes)


def queue_bounds(files: Iterable[QueueFile]) -> dict[tuple[str, str], tuple[int, int]]:
    """By topic and queue: the first queue offset that has a unit, and the one that the next message will have."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for file in files:
        units, offsets = file.units()
        if len(units):
            name = file.topic, str(file.queue_id)
            last = int(units["batch_size"][-1]) if file.kind == BATCH else 1
            found[name] = found.get(name, (int(offsets[0]), 0))[0], int(offsets[-1]) + last
    return found


def queue_files(
    storage: Storage, topics: Iterable[str] | None = None, queue_ids: Collection[int] | None = None
) -> list[QueueFile]:
    """The files of these topics' queues (None: all), by topic, queue and offset."""
    wanted = None if topics is None else sorted(set(topics))
    found = []
    for kind, directory in DIRECTORIES.items():
        for topic in storage.directories(directory) if wanted is None else wanted:
            found += list(_of_topic(storage, kind, directory, topic, queue_ids))
    return found


def _of_topic(
    storage: Storage, kind: str, directory: str, topic: str, queue_ids: Collection[int] | None
) -> Iterator[QueueFile]:
    queues = [name for name in storage.directories(f"{directory}/{topic}") if name.isdecimal()]
    for queue in sorted(queues, key=int):
        if queue_ids is not None and int(queue) not in queue_ids:
            continue
        for name, size in storage.files(f"{directory}/{topic}/{queue}"):
            offset = file_name_to_offset(name)
            if offset is not None:
                path = storage.path(directory, topic, queue, name)
                yield QueueFile(storage, kind, topic, int(queue), path, offset, size)


@dataclass(frozen=True)
class IndexTable:
    """One index file with `slots` hash slots."""

    storage: Storage
    path: str
    size: int
    slots: int

    def header(self) -> IndexHeader:
        """StoreCorruptError when the file has no room for it, or for the entries that it counts."""
        if self.size < INDEX_HEADER_SIZE:
            raise StoreCorruptError(self.path, self.size, f"an index header has {INDEX_HEADER_SIZE} bytes")
        header = IndexHeader.decode(self.storage.read(self.path, 0, INDEX_HEADER_SIZE).tobytes())
        room = self.entries_max
        if not 0 <= header.index_count <= room:
            raise StoreCorruptError(
                self.path,
                INDEX_COUNT_POSITION,
                f"{header.index_count} entries are counted, there is room for {max(0, room)}",
                hint=f"if the store's maxHashSlotNum is not {self.slots}, say it as an option",
            )
        return header

    @property
    def entries_max(self) -> int:
        return (self.size - self._entries_begin) // INDEX_SIZE

    @property
    def _entries_begin(self) -> int:
        return INDEX_HEADER_SIZE + self.slots * HASH_SLOT_SIZE

    def check_slots(self) -> None:
        """StoreCorruptError unless the slots of the first entries lead to them, which a wrong number would not."""
        last = min(self.header().index_count, ENTRIES_TRIED + 1)
        for number, key_hash in enumerate(self.entries(1, last)["key_hash"].tolist(), 1):
            at = INDEX_HEADER_SIZE + key_hash % max(1, self.slots) * HASH_SLOT_SIZE
            if (
                int.from_bytes(self.storage.read(self.path, at, at + HASH_SLOT_SIZE).tobytes(), "big")
                < number
            ):
                raise StoreCorruptError(
                    self.path,
                    at,
                    f"no hash slot leads to entry {number}",
                    hint=f"if the store's maxHashSlotNum is not {self.slots}, say it as an option",
                )

    def entries(self, first: int, last: int) -> Units:
        """Entries number `first` to `last` (exclusive); the first of a file has number 1."""
        start = self._entries_begin
        if self.storage.is_local:
            whole = self.storage.map(self.path, start + last * INDEX_SIZE)
            return whole[start + first * INDEX_SIZE :].view(ENTRY_DTYPE)
        read = self.storage.read(self.path, start + first * INDEX_SIZE, start + last * INDEX_SIZE)
        return read.view(ENTRY_DTYPE)


def index_files(storage: Storage, slots: int | None = None) -> list[IndexTable]:
    """Oldest first; `slots` None: as many as follow from each local file, or from the size of a remote one."""
    unit = HASH_SLOT_SIZE + INDEX_ENTRIES_PER_SLOT * INDEX_SIZE
    found = []
    for name, size in storage.files("index"):
        if name.isdecimal() and size:
            path = storage.path("index", name)
            sizes = index_sizes(path) if storage.is_local and slots is None else None
            found.append(
                IndexTable(
                    storage, path, size, slots or (sizes[0] if sizes else (size - INDEX_HEADER_SIZE) // unit)
                )
            )
    return found
