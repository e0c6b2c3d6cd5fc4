"""An index file: from a key to the physical offsets of the messages that carry it.

    ┌────────┬───────────────────────────┬──────────────────────────────┐
    │ header │ hash slots                │ entries                      │
    │ 40 B   │ hash_slot_num × 4 B (i32) │ index_num × 20 B             │
    └────────┴───────────────────────────┴──────────────────────────────┘

    header   beginTimestamp i64 | endTimestamp i64 | beginPhyOffset i64 | endPhyOffset i64
             | hashSlotCount i32 (slots in use) | indexCount i32 (number of the next entry; the first is 1)
    slot     i32: number of the newest entry of this slot, 0 when there is none
    entry    keyHash i32 | phyOffset i64 | timeDiff i32 (seconds after beginTimestamp) | previous i32

A slot's entries are a chain, newest first, linked by `previous` and ended by 0. Only hashes are kept: whoever
looks a key up must compare the keys of the records that are found.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np

from mqlake.errors import TruncatedRecordError
from mqlake.message import java_hash

HEADER = Struct(">qqqqii")
INDEX_HEADER_SIZE = 40
SLOT = Struct(">i")
HASH_SLOT_SIZE = 4
ENTRY = Struct(">iqii")
INDEX_SIZE = 20
ENTRY_DTYPE = np.dtype(
    [("key_hash", ">i4"), ("phy_offset", ">i8"), ("time_diff", ">i4"), ("previous", ">i4")]
)

_I32_MAX = 0x7FFFFFFF


@dataclass(slots=True)
class IndexHeader:
    begin_timestamp: int = 0
    """Store time (ms) of the first message in the file."""
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    """Slots in use."""
    index_count: int = 1
    """Number of the next entry: 1 in an empty file."""

    def encode(self) -> bytes:
        """The file's first 40 bytes."""
        return HEADER.pack(*astuple(self))

    @classmethod
    def decode(cls, buf: bytes | bytearray | memoryview) -> IndexHeader:
        """From the file's first bytes. Raises TruncatedRecordError."""
        if len(buf) < INDEX_HEADER_SIZE:
            raise TruncatedRecordError(len(buf), f"an index header needs {INDEX_HEADER_SIZE} bytes")
        header = cls(*HEADER.unpack_from(buf))
        header.index_count = max(1, header.index_count)  # a new file is all zeros
        return header

    def is_time_matched(self, begin: int, end: int) -> bool:
        """True if the file may hold messages stored in [begin, end] (ms)."""
        return begin <= self.end_timestamp and end >= self.begin_timestamp


class IndexEntry(NamedTuple):
    key_hash: int
    phy_offset: int
    """Physical offset of the message's record, bytes."""
    time_diff: int
    """Store time, in seconds after the header's begin_timestamp."""
    previous: int
    """Number of the next older entry of the same slot, 0 at the end."""


def decode_entry(buf: bytes | bytearray | memoryview, pos: int = 0) -> IndexEntry:
    """The entry at `pos`. Raises TruncatedRecordError."""
    if pos < 0 or len(buf) - pos < INDEX_SIZE:
        raise TruncatedRecordError(pos, f"an index entry needs {INDEX_SIZE} bytes")
    return IndexEntry._make(ENTRY.unpack_from(buf, pos))


def index_file_size(hash_slot_num: int, index_num: int) -> int:
    """Bytes of a whole file."""
    return INDEX_HEADER_SIZE + hash_slot_num * HASH_SLOT_SIZE + index_num * INDEX_SIZE


def slot_position(slot: int) -> int:
    """Byte at which hash slot number `slot` begins."""
    return INDEX_HEADER_SIZE + slot * HASH_SLOT_SIZE


def entry_position(number: int, hash_slot_num: int) -> int:
    """Byte at which entry number `number` begins."""
    return INDEX_HEADER_SIZE + hash_slot_num * HASH_SLOT_SIZE + number * INDEX_SIZE


def time_diff_seconds(begin_timestamp: int, store_timestamp: int) -> int:
    """An entry's time_diff: whole seconds, 0 in a file without a begin, never below 0 or above 2³¹-1."""
    if begin_timestamp <= 0:
        return 0
    return min(max(0, (store_timestamp - begin_timestamp) // 1000), _I32_MAX)


def build_key(topic: str, key: str) -> str:
    """The text that is hashed: keys are kept apart by topic."""
    return f"{topic}#{key}"


def index_key_hash(key: str) -> int:
    """0 ≤ hash < 2³¹ of a `build_key` result. The one hash without a positive twin, -2³¹, counts as 0."""
    h = abs(java_hash(key))
    return 0 if h > _I32_MAX else h
