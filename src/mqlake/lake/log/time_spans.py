"""Which parts of a local log have no record of a time: proven by the first and last store time in each block of it.

    blocks of a file   | 10:00-10:04 | 10:04-10:09 | 03:12-10:11 | 10:11-10:15 |      the clock was wrong for a moment
    from 10:05 on             -            x             x             x

A log is in the order of its offsets, not of its times: a clock can jump forwards and backwards between any two records.
So what is skipped has been looked at: the heads of its records are walked over, which takes about half of reading them.
Samples (store_times) say first where that is worth it. A file's blocks are remembered as long as the process lives; of
a file that has grown only the new records are walked over. A block with damage is read, which reports it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqlake.lake.log.splits import VERIFY_NONE, Damage, LogFile, Split, Window, walk
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.store_times import HEAD_BYTES, Heads, ranges_by_samples

BLOCK = 256 << 10
"""Bytes of log that share a first and a last time: 64 KiB of memory for a file of 1 GiB."""
WALK_GAIN = 2
"""So many bytes are walked over in the time in which one is read."""
FILES_REMEMBERED = 4096

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Spans:
    """What a walk over a file up to `limit` saw; `last` is the position of the last record and `head` its bytes."""

    inode: int
    modified_ns: int
    limit: int
    block: int
    last: int
    head: bytes
    low: Ints
    high: Ints


_known: dict[str, _Spans] = {}


def ranges_by_time(
    heads: Heads, earliest: float, latest: float, *, sampled: bool = False
) -> list[tuple[int, int]]:
    """Ranges of physical offsets outside of which no record has a store time (ms) from `earliest` to `latest`.

    All of a remote log, which would have to be read for that. `sampled`: as samples show, of a log whose clock is
    known to have been right. Raises FileNotFoundError for a file that was deleted.
    """
    if sampled:
        return ranges_by_samples(heads, earliest, latest)
    if not heads.storage.is_local:
        return [(file.base_offset, file.end_offset) for file in heads.files]
    known = {file.file: found for file in heads.files if (found := _remembered(heads.storage, file))}
    likely: list[tuple[int, int]] = []
    if len(known) < len(heads.files):
        likely = ranges_by_samples(heads, earliest, latest)
    ranges = []
    for file in heads.files:
        spans = known.get(file.file)
        if spans is None:
            inside = sum(
                max(0, min(end, file.end_offset) - max(start, file.base_offset)) for start, end in likely
            )
            if (file.limit - inside) * WALK_GAIN <= file.limit:
                ranges.append((file.base_offset, file.end_offset))
                continue
            spans = _walked(heads.storage, file)
        numbers = np.flatnonzero((spans.low <= latest) & (spans.high >= earliest)).tolist()
        start = file.base_offset
        ranges += [
            (start + number * spans.block, min(file.end_offset, start + (number + 1) * spans.block))
            for number in numbers
            if number * spans.block < file.limit
        ]
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def _remembered(storage: Storage, file: LogFile) -> _Spans | None:
    """What an earlier walk saw of the same file, walked on to its present end."""
    known = _known.get(file.file)
    if known is None:
        return None
    state = os.stat(file.file)
    is_same = known.inode == state.st_ino and known.last <= file.limit
    if not is_same or _head(storage, file, known.last) != known.head:
        return None
    if known.limit >= file.limit and known.modified_ns == state.st_mtime_ns:
        return known
    # written to since: what was appended is walked over; what was changed in place, in a file that was full, is unknown
    return None if known.limit == file.file_size else _walked(storage, file, known)


def _walked(storage: Storage, file: LogFile, before: _Spans | None = None) -> _Spans:
    block, last = (BLOCK, 0) if before is None else (before.block, before.last)
    blocks = file.limit // block + 1
    low, high = np.full(blocks, _HIGHEST), np.full(blocks, _LOWEST)
    if before is not None:
        seen = min(blocks, len(before.low))
        low[:seen], high[:seen] = before.low[:seen], before.high[:seen]
    split = Split(storage, file.file, file.base_offset, last, file.limit, file.limit, file.file_size)
    state = os.stat(file.file)
    # mapped: of large records only the pages with their heads are touched
    for found in walk(split, Window(storage.map(file.file, file.limit)), verify=VERIFY_NONE):
        if isinstance(found, Damage):
            unknown = slice(
                last // block, (found.until - 1) // block + 1
            )  # a split reports what follows a record
            low[unknown], high[unknown] = _LOWEST, _HIGHEST
            continue
        position = found.physical_offset - file.base_offset
        number = position // block
        firsts = np.append(0, np.flatnonzero(np.diff(number)) + 1)
        at, times = number[firsts], found.store_timestamp
        low[at] = np.minimum(low[at], np.minimum.reduceat(times, firsts))
        high[at] = np.maximum(high[at], np.maximum.reduceat(times, firsts))
        last = int(position[-1])
    head = _head(storage, file, last)
    spans = _Spans(state.st_ino, state.st_mtime_ns, file.limit, block, last, head, low, high)
    while len(_known) >= FILES_REMEMBERED:
        _known.pop(next(iter(_known)), None)
    _known[file.file] = spans
    return spans


def _head(storage: Storage, file: LogFile, position: int) -> bytes:
    return storage.read(file.file, position, min(file.limit, position + HEAD_BYTES)).tobytes()
