"""With how many slots and entries an index file was made, found out from the file: no field of it says so.

    │ header 40 │ slots 4 × s │ entry 0 │ entry 1 ... │ entry c - 1 │          size = 40 + 4 × s + 20 × n
      begin, end offset         unused     begin offset   end offset
      slots in use, c

The length alone leaves many pairs (s, n). The right one puts the header's last physical offset into the last entry
and its first into the first entry, and the slot of the last entry's hash leads to it. RocketMQ's ratio of four
entries a slot is tried first; another one is searched for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mqlake.formats.index import ENTRY, HASH_SLOT_SIZE, HEADER, INDEX_HEADER_SIZE, INDEX_SIZE, entry_position

ENTRIES_PER_SLOT = 4
WORDS_A_STEP = 1 << 20
KNOWN_MAX = 1024


# what a file was made with never changes, and it is asked for at each look at a store: by path, inode and length
_known: dict[tuple[str, int, int], tuple[int, int]] = {}


def index_sizes(path: str) -> tuple[int, int] | None:
    """(maxHashSlotNum, maxIndexNum) of the file; None when it holds nothing that tells, is damaged or gone. OSError."""
    try:
        status = os.stat(path)
        name = path, status.st_ino, status.st_size
        if name not in _known:
            found = _read(path, status.st_size)
            if found is None:
                return None
            if len(_known) >= KNOWN_MAX:
                _known.clear()
            _known[name] = found
        return _known[name]
    except FileNotFoundError:  # a running writer has deleted it
        return None


def _read(path: str, size: int) -> tuple[int, int] | None:
    if size <= INDEX_HEADER_SIZE or size % HASH_SLOT_SIZE:
        return None
    data = np.memmap(path, np.uint8, "r")
    view = data.data
    header = b""
    # a running writer changes the header field by field
    while header != (header := bytes(view[:INDEX_HEADER_SIZE])):
        begin, end, _, count = HEADER.unpack(header)[2:]
        if count <= 1 or not 0 <= begin <= end:
            continue
        for slots in _candidates(data.view(">u4"), size, end, count):
            entries, rest = divmod(size - INDEX_HEADER_SIZE - HASH_SLOT_SIZE * slots, INDEX_SIZE)
            if rest == 0 and count <= entries and _fits(view, slots, begin, end, count):
                return slots, entries
    return None


def usual_sizes(size: int) -> tuple[int, int] | None:
    """(maxHashSlotNum, maxIndexNum) of a file of this length with four entries a slot; None when none has it."""
    slots, rest = divmod(size - INDEX_HEADER_SIZE, HASH_SLOT_SIZE + ENTRIES_PER_SLOT * INDEX_SIZE)
    return (slots, slots * ENTRIES_PER_SLOT) if slots > 0 and rest == 0 else None


def any_sizes(size: int) -> tuple[int, int] | None:
    """Returns the pair of sizes with this file length that is nearest to four entries a slot; None for a length that
    no file has."""
    words, rest = divmod(size - INDEX_HEADER_SIZE, HASH_SLOT_SIZE)
    if rest or words < 1 + INDEX_SIZE // HASH_SLOT_SIZE:
        return None
    entries = max(1, words * ENTRIES_PER_SLOT // (1 + INDEX_SIZE // HASH_SLOT_SIZE * ENTRIES_PER_SLOT))
    return words - INDEX_SIZE // HASH_SLOT_SIZE * entries, entries


def _candidates(words: npt.NDArray[np.uint32], size: int, end: int, count: int) -> Iterator[int]:
    """Numbers of slots with which the last entry may lead to physical offset `end`, the usual one first."""
    usual = usual_sizes(size)
    if usual is not None:
        yield usual[0]
    # an entry is five words: hash, offset in two, time, previous; with one slot the last one's would begin here
    first = entry_position(count - 1, 1) // HASH_SLOT_SIZE
    high, low = end >> 32, end & 0xFFFFFFFF
    for start in range(first, len(words) - 2, WORDS_A_STEP):
        step = words[start : start + WORDS_A_STEP + 2]
        found = (step[:-2] != 0) & (step[1:-1] == high) & (step[2:] == low)
        yield from (np.flatnonzero(found) + (start - first + 1)).tolist()


def _fits(view: memoryview, slots: int, begin: int, end: int, count: int) -> bool:
    if ENTRY.unpack_from(view, entry_position(1, slots))[1] != begin:
        return False
    key_hash, offset, _, _ = ENTRY.unpack_from(view, entry_position(count - 1, slots))
    if offset != end or key_hash < 0:
        return False
    slot = INDEX_HEADER_SIZE + HASH_SLOT_SIZE * (key_hash % slots)
    # a running writer may have put another one into the slot since
    return int.from_bytes(view[slot : slot + HASH_SLOT_SIZE], "big") >= count - 1
