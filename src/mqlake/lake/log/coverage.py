"""Which bytes of a log the units of all consume queues account for, so that nothing but their messages can be there.

    log     [A][B][A][A][C][A]........[B][A][B]        ........ a deleted topic, half messages, what is not dispatched
    units    ╰────────────────╯        ╰──────╯        records that lie back to back from unit to unit: covered

Units are not sorted or kept: each block of the log has the sum of hash(begin) - hash(end) of its units. Where they lie
back to back, all but the first begin and the last end cancel out, and the block before ends where this one begins. A
missing, double or wrong unit leaves a remainder; its block and the neighbours are then not covered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mqlake.lake.log.splits import LogFile

Ints = npt.NDArray[np.int64]

BLOCK_MIN = 16 << 10
BLOCKS_MAX = 1 << 20
"""So many blocks take 32 MiB."""

_NONE = np.iinfo(np.int64).max
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def _hash(values: Ints) -> npt.NDArray[np.uint64]:
    mixed = values.view(np.uint64) * _FACTOR
    mixed ^= mixed >> np.uint64(32)
    return mixed


class Coverage:
    """Of the log that `files` are."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self._files = files
        self.low, self.high = files[0].base_offset, files[-1].end_offset
        size = max(1, self.high - self.low)
        self._shift = max(BLOCK_MIN - 1, size // BLOCKS_MAX).bit_length()
        blocks = (size >> self._shift) + 1
        self._sum = np.zeros(blocks, np.uint64)
        self._begin = np.full(blocks, _NONE, np.int64)
        self._end = np.full(blocks, -1, np.int64)

    def add(self, offset: Ints, size: Ints) -> None:
        """The units of one queue, or a part of it: offsets that rise."""
        first, last = np.searchsorted(offset, [self.low, self.high])
        if first == last:
            return
        offset, end = offset[first:last], (offset + size)[first:last]
        block = (offset - self.low) >> self._shift
        firsts = np.append(0, np.flatnonzero(np.diff(block)) + 1)
        at = block[firsts]
        self._sum[at] += np.add.reduceat(_hash(offset) - _hash(end), firsts)
        self._begin[at] = np.minimum(self._begin[at], offset[firsts])
        self._end[at] = np.maximum(self._end[at], np.maximum.reduceat(end, firsts))

    def uncovered(self) -> list[tuple[int, int]]:
        """Ranges of physical offsets, sorted and apart, outside of which every record has its unit."""
        used = np.flatnonzero(self._end >= 0)
        begin, end = self._begin[used], self._end[used]
        bases = np.array([file.base_offset for file in self._files], np.int64)
        good = self._sum[used] == _hash(begin) - _hash(end)
        before = np.concatenate([[self.low], end[:-1]])
        after = np.concatenate([begin[1:], [self.high]])
        good &= (begin == before) | (np.isin(begin, bases) & (before <= begin))
        good &= (end == after) | (np.isin(after, bases) & (end <= after))
        starts = np.concatenate([[self.low], end[good]])
        ends = np.concatenate([begin[good], [self.high]])
        gaps = ends > starts
        return list(zip(starts[gaps].tolist(), ends[gaps].tolist(), strict=True))
