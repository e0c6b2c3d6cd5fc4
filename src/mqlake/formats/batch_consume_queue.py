"""One unit of a batch consume queue: where an inner batch is, and which messages of the queue it holds.

    0        8     12        20         28             36         38              42         46
    ├────────┼─────┼─────────┼──────────┼──────────────┼──────────┼───────────────┼──────────┤
    │ offset │size │tagsCode │storeTime │msgBaseOffset │batchSize │compactedOffset│ reserved │
    │  i64   │ i32 │   i64   │   i64    │     i64      │   i16    │     i32       │   i32    │
    └────────┴─────┴─────────┴──────────┴──────────────┴──────────┴───────────────┴──────────┘

The unit holds messages msgBaseOffset … msgBaseOffset + batchSize - 1 of the queue, so units are searched, not
counted. compactedOffset is -1 except in compacted topics.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np

from mqlake.errors import TruncatedRecordError

UNIT = Struct(">qiqqqhii")
BCQ_STORE_UNIT_SIZE = 46
BCQ_DTYPE = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_time", ">i8"),
        ("msg_base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)
INVALID_COMPACTED_OFFSET = -1


class BatchConsumeQueueUnit(NamedTuple):
    offset: int
    """Physical offset of the record in the commit log, bytes."""
    size: int
    """The record's whole size, bytes."""
    tags_code: int
    store_time: int
    """ms"""
    msg_base_offset: int
    """Queue offset of the batch's first message."""
    batch_size: int
    compacted_offset: int = INVALID_COMPACTED_OFFSET
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        """False where a queue has no more units."""
        return self.offset >= 0 and self.size > 0 and self.msg_base_offset >= 0 and self.batch_size > 0


def encode_unit(
    offset: int, size: int, tags_code: int, store_time: int, msg_base_offset: int, batch_size: int
) -> bytes:
    """The 46 bytes of a unit."""
    return UNIT.pack(
        offset, size, tags_code, store_time, msg_base_offset, batch_size, INVALID_COMPACTED_OFFSET, 0
    )


def decode_unit(buf: bytes | bytearray | memoryview, pos: int = 0) -> BatchConsumeQueueUnit:
    """The unit at `pos`. Raises TruncatedRecordError when fewer than 46 bytes are there."""
    if pos < 0 or len(buf) - pos < BCQ_STORE_UNIT_SIZE:
        raise TruncatedRecordError(pos, f"a batch consume queue unit needs {BCQ_STORE_UNIT_SIZE} bytes")
    return BatchConsumeQueueUnit._make(UNIT.unpack_from(buf, pos))
