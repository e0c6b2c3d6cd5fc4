"""TimerWheel: for each step of time the list of what is due then; a copy in memory of the file `timerwheel`.

    due 12:00:05 ──▶ slot (12:00:05 / precision) mod 1,209,600 ──▶ last unit in the timer log ──▶ the one before ──▶ …

The file is mapped privately: memory holds what it has, and what has changed since the last flush; flush() writes the
changed pages. The file is made by the first flush of a slot, so a store without timer messages has none. All of it can
be made again from the timer log.
"""

from __future__ import annotations

import logging
import mmap
import os

import numpy as np
import numpy.typing as npt

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.formats.columns import Int64s
from mqlake.formats.timer import (
    NO_POSITION,
    NO_SLOT,
    SLOT,
    SLOT_DTYPE,
    SLOT_SIZE,
    SLOTS_TOTAL,
    TIMER_WHEEL_SIZE,
    Slot,
)

logger = logging.getLogger(__name__)

_PAGE = 4096
_TWICE = 2 * SLOTS_TOTAL
_LOOK_AHEAD = 4096
"""Slots that are looked at in one go for the next one in use."""


def _zeros() -> mmap.mmap:
    """An empty wheel; private, so that reading it takes no memory."""
    return mmap.mmap(-1, TIMER_WHEEL_SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class TimerWheel:
    """The wheel in file `path`; nothing is written with `read_only`. A file of another length is taken as lost
    (`was_damaged`). OSError."""

    def __init__(self, path: str, precision_ms: int, *, read_only: bool = False) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self.read_only = read_only
        self.was_damaged = False
        self._dirty: set[int] = set()
        self._renew = False
        self._map = self._load()

    def _load(self) -> mmap.mmap:
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == TIMER_WHEEL_SIZE:
                    return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            size = 0
        if size:
            self.was_damaged = True
        return _zeros()

    def close(self) -> None:
        """Without flushing. Its slots count as empty then."""
        self._map = _zeros()

    # --- slots

    def _index(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % _TWICE * SLOT_SIZE

    def get(self, time_ms: int) -> Slot:
        """The slot of a time; NO_SLOT when nothing is due then."""
        step = time_ms // self.precision_ms
        time, first, last, num, magic = SLOT.unpack_from(self._map, step % _TWICE * SLOT_SIZE)
        if time != step or last == NO_POSITION or not time:
            return NO_SLOT
        return Slot(time * self.precision_ms, first, last, num, magic)

    def put(self, time_ms: int, first: int, last: int, num: int, magic: int = 0) -> None:
        position = self._index(time_ms)
        SLOT.pack_into(self._map, position, time_ms // self.precision_ms, first, last, num, magic)
        self._dirty.add(position // _PAGE)

    def put_many(self, steps: Int64s, firsts: Int64s, lasts: Int64s, nums: Int64s) -> None:
        """Many slots at once; `steps` are times divided by the precision."""
        table = np.frombuffer(self._map, SLOT_DTYPE)
        places = steps % _TWICE
        for name, values in (("time", steps), ("first", firsts), ("last", lasts), ("num", nums)):
            table[name][places] = values
        table["magic"][places] = 0
        self._dirty.update(np.unique(places * SLOT_SIZE // _PAGE).tolist())

    def clear(self) -> None:
        """Forgets every slot, in memory and with the next flush in the file."""
        self._map = _zeros()  # the old one goes when nobody looks at it any more
        self._dirty.clear()
        self._renew = True

    def slots(self, start_ms: int, end_ms: int | None = None) -> npt.NDArray[np.void]:
        """The slots in use (SLOT_DTYPE) from a time on, before `end_ms` if given, in the order of time."""
        table = np.frombuffer(self._map, SLOT_DTYPE)
        start, time = start_ms // self.precision_ms, table["time"]
        chosen = (time >= max(start, 1)) & (time < start + _TWICE) & (table["last"] != NO_POSITION)
        if end_ms is not None:
            chosen &= time < end_ms // self.precision_ms
        found = table[chosen]
        right_place = np.flatnonzero(chosen) == found["time"].astype(np.int64) % _TWICE
        found = found[right_place]
        in_order: npt.NDArray[np.void] = found[np.argsort(found["time"], kind="stable")]
        return in_order

    def next_in_use(self, start_ms: int, end_ms: int) -> int:
        """The first time from `start_ms` on, before `end_ms`, at which something is due; `end_ms` if there is none."""
        precision = self.precision_ms
        step, end = start_ms // precision, end_ms // precision
        table = np.frombuffer(self._map, SLOT_DTYPE)
        while step < end:
            if self.get(step * precision) is not NO_SLOT:  # mostly the first one is
                return step * precision
            place = step % _TWICE
            count = min(end - step, _LOOK_AHEAD, _TWICE - place)
            part = table[place : place + count]
            used = np.flatnonzero(
                (part["time"] == np.arange(step, step + count))
                & (part["last"] != NO_POSITION)
                & (part["time"] > 0)
            )
            if len(used):
                return int(step + used[0]) * precision
            step += count
        return end_ms

    def num(self, time_ms: int) -> int:
        """How many messages are due in the step of `time_ms`, less those that are cancelled."""
        return self.get(time_ms).num

    def all_num(self, start_ms: int) -> int:
        """How many are due from `start_ms` on."""
        return int(self.slots(start_ms)["num"].sum(dtype=np.int64))

    # --- the file

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty) or self._renew

    def flush(self) -> None:
        """The file is as the memory, on disk. OSError: it may hold some of the changes."""
        if self.read_only or not self.is_dirty:
            return
        exists = os.path.exists(self.path)
        if not exists and not self._dirty:
            self._renew = False
            return
        make_dirs(os.path.dirname(self.path))
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if self._renew or not exists or os.fstat(fd).st_size != TIMER_WHEEL_SIZE:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, TIMER_WHEEL_SIZE)
            dirty = sorted(self._dirty)
            for page in dirty:
                start = page * _PAGE
                os.pwrite(fd, self._map[start : start + _PAGE], start)
            os.fsync(fd)
        finally:
            os.close(fd)
        if not exists:
            fsync_dir(os.path.dirname(self.path))
        self._renew = False
        self._dirty.difference_update(dirty)
