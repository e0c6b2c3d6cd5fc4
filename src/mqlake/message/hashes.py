"""The hash of tags and keys, and the checksum of bodies."""

from __future__ import annotations

import zlib
from functools import lru_cache

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # isal has no wheel for every machine; zlib gives the same numbers, slower
    _crc32 = zlib.crc32


def java_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 code units: a signed 32 bit number."""
    h = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            h = (31 * h + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            h = (31 * h + (high << 8 | low)) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h


@lru_cache(maxsize=65536)
def tags_code(tags: str | None) -> int:
    """The hash of the tags, which a consume queue keeps; 0 without tags."""
    return java_hash(tags) if tags else 0


def crc32(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 (the one of zlib) without its top bit, as RocketMQ stores it everywhere."""
    return _crc32(data) & 0x7FFFFFFF
