"""Timer messages whose place in the commit log has to go before they are due: they are stored again first.

    cleaner: the disk is short, and the oldest file is younger than fileReservedTime
      may_go(end) ── False ─▶ timers' thread: what waits in it is stored again, as a message that is rolled
      may_go(end) ── True  ◀─ all of it is durable at its new place; `moved_until` = end

The units of the timer log that lead to the old places stay where they are and are passed over: `moved_until`, which the
file timermoved keeps. A disk that is full takes no copies; then the file goes, and what is lost is counted and logged.
"""

from __future__ import annotations

import numpy as np

from mqlake.base.durable import write_durably
from mqlake.formats.columns import Int64s
from mqlake.store.timer.timer_log import TimerLog

FILE_NAME = "timermoved"


class Rescue:
    """`asked` is the cleaner's, the rest belongs to the timers' thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.asked = 0
        """Up to this offset the commit log is to be left."""
        self.moved_until = 0
        """Messages before this offset of the commit log are stored elsewhere too, or lost."""
        self.moved = self.lost = 0
        """Messages since the start."""
        self.left: list[int] = []
        """Positions in the timer log that are still to be moved for what was asked."""
        self.begun = 0
        """Up to where `left` was looked for."""
        self.done: set[int] = set()
        """Positions that were moved meanwhile."""

    def load(self) -> None:
        """OSError. A file that is no number counts for nothing: messages may then be delivered twice."""
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                text = file.read(32).strip()
        except FileNotFoundError:
            return
        if text.isdigit():
            self.moved_until = int(text)

    def finish(self, until: int) -> None:
        """All before `until` has been moved, or is lost. OSError: it does not count then."""
        write_durably(self._path, b"%d\n" % until)
        self.moved_until = until
        self.left = []
        if until >= self.begun:
            self.done = set()
        self.begun = until

    def passes_over(self, position: int, physical_offset: int) -> bool:
        """True if the unit leads to a place that was left."""
        return physical_offset < self.moved_until or position in self.done


def waiting_before(log: TimerLog, until: int, moved_until: int, read_time: int, precision_ms: int) -> Int64s:
    """Positions of the units that are not due at `read_time`, and lead to [moved_until, until) of the commit log."""
    found = [np.empty(0, np.int64)]
    for position, units in log.chunks():
        offsets = units["offset"].astype(np.int64)
        steps = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
        chosen = (offsets >= moved_until) & (offsets < until) & (steps >= read_time // precision_ms)
        found.append(position + np.flatnonzero(chosen) * units.dtype.itemsize)
    return np.concatenate(found)
