"""Pieces of a log with bytes damaged and cut off, given to every kernel that reads a log.

    python -m tests.fuzz.log_pieces BYTES [SEED]     so many bytes of log

The walks agree on where the records end, and nothing is read that is not there: a buffer has the bytes of its piece and
no more, so that a sanitizer sees the first byte after it.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib

import numpy as np

from mqlake.formats import columns
from mqlake.formats.record import encode_blank
from mqlake.lake.arrow.properties import Properties, kernels
from mqlake.metaq.formats import scan as metaq
from tests.formats.columns_cases import DELAY_LEVELS, V6, record

TOPICS = (b"T", b"Topic", b"%RETRY%group", b"SCHEDULE_TOPIC_XXXX", "\u4e3b\u9898".encode())
PROPERTIES = (
    b"",
    b"KEYS\1a b  c\2TAGS\1TagA\2UNIQ_KEY\1" + b"0A" * 16 + b"\2",
    b"DELAY\x013\2TAGS\1" + "\u6807".encode() + b"\2KEYS\1k",
    b"INNER_NUM\x017\2INNER_BASE\x013\2",
    b"TAGS\1" + b"x" * 100 + b"\2__CRC32#\x010000000000\2",
    b"\1\2\1\1\2KEYS\1\2TAGS",
)
FLAGS = (0, 0, 0, 4, 8, 12, 16, 32, 48, 1 << 30)
ODD = b"\0\1\2\x7f\x80\xda\xff"


def piece(chance: random.Random, base_offset: int) -> bytes:
    """Some records, and what may follow them."""
    log = b""
    for _ in range(chance.choice((1, 3, 9))):
        flags = chance.choice(FLAGS)
        log += record(
            base_offset + len(log),
            topic=chance.choice(TOPICS),
            properties=chance.choice(PROPERTIES),
            body=chance.randbytes(chance.choice((0, 1, 40, 700))),
            sys_flag=flags,
            queue_id=chance.randrange(3),
            **({"born_host": V6} if flags & 16 else {}),
            **({"store_host": V6} if flags & 32 else {}),
        )
    return log + chance.choice((b"", bytes(4), bytes(300), encode_blank(64) + bytes(56)))


def metaq_piece(chance: random.Random) -> bytes:
    """The same of MetaQ: length, checksum, id, flag."""
    log = b""
    for number in range(chance.choice((1, 4, 20))):
        body = chance.randbytes(chance.choice((0, 5, 90)))
        log += struct.pack(">iiqi", len(body), _signed(zlib.crc32(body)), number, 0) + body
    return log


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def damaged(chance: random.Random, log: bytes) -> np.ndarray:
    """In an array of its own."""
    data = bytearray(log)
    for _ in range(chance.choice((0, 1, 1, 3))):
        data[chance.randrange(len(data))] = chance.choice((chance.choice(ODD), chance.randrange(256)))
    return np.array(data[: chance.choice((len(data), chance.randrange(len(data) + 1)))], np.uint8)


def read(buf: np.ndarray, base_offset: int, check_crc: bool) -> int:
    """All that is done with a stretch of log; how many records it has."""
    found = columns.scan_records(buf, 0, len(buf), base_offset, check_crc=check_crc)
    walked = columns.walk_records(buf, 0, len(buf), base_offset, check_crc=check_crc)
    assert (walked.records, walked.end, walked.stop) == (len(found), found.end, found.stop)
    first = columns.find_record(buf, 0, len(buf), base_offset)
    assert first == 0 or not check_crc or not len(found)
    columns.dispatch_columns(buf, found, delay_levels=DELAY_LEVELS)
    if len(found):
        columns.arrivals_by_queue(found)
        places, total = columns.gather(buf, found.body_start, found.body_length)
        assert len(places) == len(found) + 1 and len(total) == places[-1]
        Properties(buf, found.properties_start, found.properties_length, kernels())
    return len(found)


def run(size: int, seed: int = 1) -> tuple[int, int]:
    """(Bytes of log, records that were found); AssertionError when two walks differ."""
    chance, done, found = random.Random(seed), 0, 0
    while done < size:
        base_offset = chance.choice((0, 1 << 20, 1 << 40))
        log = piece(chance, base_offset)
        for _ in range(8):
            buf = damaged(chance, log)
            found += read(buf, base_offset, chance.random() < 0.5)
            done += len(buf)
        log = metaq_piece(chance)
        for _ in range(8):
            buf = damaged(chance, log)
            found += len(metaq.scan_records(buf, 0, len(buf), check_crc=chance.random() < 0.5).position)
            done += len(buf)
    return done, found


if __name__ == "__main__":
    print(*run(*map(int, sys.argv[1:3])))
