"""One unit of a consume queue: where the n-th message of a queue is in the commit log.

    0        8     12       20
    ├────────┼─────┼────────┤
    │ offset │size │tagsCode│   i64 | i32 | i64, big-endian
    └────────┴─────┴────────┘

Unit n is at byte 20·n of the queue. `tags_code` is the hash of the tags; in SCHEDULE_TOPIC_XXXX it is the
time (ms) at which the message is due; with an extension file it may be an address there
(`consume_queue_ext`).
A unit with a size of 0 or an offset below 0 is where the queue ends.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np

from mqlake.errors import TruncatedRecordError

UNIT = Struct(">qiq")
CQ_STORE_UNIT_SIZE = 20
CQ_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Fills a queue's first file before its first unit when the queue does not begin there."""


class ConsumeQueueUnit(NamedTuple):
    offset: int
    """Physical offset of the record in the commit log, bytes."""
    size: int
    """The record's whole size, bytes."""
    tags_code: int


encode_unit = UNIT.pack
"""(offset, size, tags_code) -> the 20 bytes of a unit."""


def decode_unit(buf: bytes | bytearray | memoryview, pos: int = 0) -> ConsumeQueueUnit:
    """The unit at `pos`. Raises TruncatedRecordError when fewer than 20 bytes are there."""
    if pos < 0 or len(buf) - pos < CQ_STORE_UNIT_SIZE:
        raise TruncatedRecordError(pos, f"a consume queue unit needs {CQ_STORE_UNIT_SIZE} bytes")
    return ConsumeQueueUnit._make(UNIT.unpack_from(buf, pos))
