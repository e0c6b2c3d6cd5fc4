"""A filler: a record that stands where damage was, so that every reader of the log gets across.

    ┌ sizes, magic, CRC, physical offset: all right ┬ SYSFLAG: rolled back ┬ body: zeros ┬ topic ┐
    └───────────────────────────────────────────────┴──────────────────────┴─────────────┴───────┘

It fills its place to the byte, and it is a rolled back transaction's record of a system topic: RocketMQ and mqlake
check it like any other record, and dispatch it to no consume queue and to no index. A blank would not do, as it
means that the rest of the file is unused. Where it fits there is a property CRC too, for stores that insist on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mqlake.formats.columns import Bools, Scan
from mqlake.formats.record import (
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    RECORD_SIZE_MIN,
    encode_blank,
    encode_record,
)
from mqlake.message import MessageSysFlag, crc32, host_bytes

FILLER_TOPIC = b"rmq_sys_filler"
# where the name above does not fit: a record is never smaller than one with a topic of one character
SHORT_FILLER_TOPIC = b"_"
FILLER_SIZE_MIN = RECORD_SIZE_MIN + len(SHORT_FILLER_TOPIC)
# with its whole name and the property CRC
FILLER_SIZE = RECORD_SIZE_MIN + len(FILLER_TOPIC) + CRC32_TAIL_LENGTH
# bytes that one filler takes at most in a long hole
PIECE = 1 << 20

_NO_HOST = host_bytes(("0.0.0.0", 0))
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE


def encode_filler(size: int, physical_offset: int, store_timestamp: int) -> bytes:
    """A filler of exactly `size` bytes, at least FILLER_SIZE_MIN. `store_timestamp` (ms) is a neighbour's."""
    assert size >= FILLER_SIZE_MIN
    room = size - RECORD_SIZE_MIN
    topic = FILLER_TOPIC if room >= len(FILLER_TOPIC) else SHORT_FILLER_TOPIC
    prop_crc = room - len(topic) >= CRC32_TAIL_LENGTH
    body = bytes(room - len(topic) - (CRC32_TAIL_LENGTH if prop_crc else 0))
    return encode_record(
        body,
        crc32(body),
        0,
        0,
        0,
        physical_offset,
        _ROLLBACK,
        store_timestamp,
        _NO_HOST,
        store_timestamp,
        _NO_HOST,
        0,
        0,
        topic,
        b"",
        prop_crc=prop_crc,
    )


def fence_off(
    start: int, end: int, base_offset: int, file_size: int, store_timestamp: int
) -> Iterator[bytes]:
    """Makes bytes [start, end) of a log file, whose first byte is at physical offset `base_offset`, a part of the
    log that has no messages: fillers, and where `end` is the file's end a blank. `store_timestamp` (ms) is a
    neighbour's. The bytes come in pieces, to be written one after the other from `start` on.

    Where records follow, at least FILLER_SIZE_MIN bytes are needed.
    """
    if end == file_size:
        # a filler shows that something is gone; where only the blank fits, the blank
        if end - start >= FILLER_SIZE + END_FILE_MIN_BLANK_LENGTH:
            yield encode_filler(FILLER_SIZE, base_offset + start, store_timestamp)
            start += FILLER_SIZE
        yield encode_blank(end - start)
        return
    while start < end:
        size = end - start
        if size > PIECE + FILLER_SIZE_MIN:
            size = PIECE
        yield encode_filler(size, base_offset + start, store_timestamp)
        start += size


def are_fillers(scan: Scan) -> Bools:
    """Which records of a scan are fillers."""
    ids = [number for number, topic in enumerate(scan.topics) if topic in (FILLER_TOPIC, SHORT_FILLER_TOPIC)]
    if not ids:
        return np.zeros(len(scan), np.bool_)
    found: Bools = np.isin(scan.topic_id, ids) & ((scan.sys_flag & _ROLLBACK) == _ROLLBACK)
    return found
