"""prim.h in Python, for kernels that run uncompiled: slow, and every index is checked."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

CACHE_LINE = 64
OVERLAP = 16
BLOCK, SPAN = 32, 64
INT64_MAX = (1 << 63) - 1
NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2
PROP_CRC_NAME = b"__CRC32#\x01"
PROP_CRC_NAME_LENGTH = len(PROP_CRC_NAME)
WORD_MASK = (1 << 64) - 1
CRC_MASK = 0x7FFFFFFF
i64 = u64 = i32 = u32 = u8 = Bytes = Room = Numbers = object
"""The names of types, for declarations."""

_16, _32, _64, _WORD = (struct.Struct(code) for code in (">h", ">i", ">q", "<Q"))


def views(*arrays: Any) -> Iterator[memoryview]:
    """Arrays whose elements are Python's numbers."""
    return map(memoryview, arrays)


def bytes_of(buf: Any) -> memoryview:
    return memoryview(buf)


room_of = i64s_of = i32s_of = bytes_of


def numbers_of(numbers: Any) -> memoryview | None:
    return memoryview(numbers) if len(numbers) else None


def pairs_of(pairs: Any) -> memoryview:
    return memoryview(pairs.reshape(-1))


def load16(p: memoryview, at: int) -> int:
    return int(_16.unpack_from(p, at)[0])


def load32(p: memoryview, at: int) -> int:
    return int(_32.unpack_from(p, at)[0])


def load64(p: memoryview, at: int) -> int:
    return int(_64.unpack_from(p, at)[0])


def load_word(p: memoryview, at: int) -> int:
    return int(_WORD.unpack_from(p, at)[0])


def store16(p: memoryview, at: int, n: int) -> None:
    _write(p, at, (n & 0xFFFF).to_bytes(2, "big"))


def store32(p: memoryview, at: int, n: int) -> None:
    _write(p, at, (n & 0xFFFFFFFF).to_bytes(4, "big"))


def store64(p: memoryview, at: int, n: int) -> None:
    _write(p, at, (n & WORD_MASK).to_bytes(8, "big"))


def store_word(p: memoryview, at: int, n: int) -> None:
    _write(p, at, (n & WORD_MASK).to_bytes(8, "little"))


def _write(p: memoryview, at: int, data: bytes) -> None:
    if at < 0 or at + len(data) > len(p):
        raise IndexError((at, len(data), len(p)))
    p[at : at + len(data)] = data


def _read(p: memoryview, at: int, length: int) -> bytes:
    if length < 0 or at < 0 or at + length > len(p):
        raise IndexError((at, length, len(p)))
    return bytes(p[at : at + length])


def word(n: int) -> int:
    return n & WORD_MASK


def int64_of(bits: int) -> int:
    return (bits & WORD_MASK ^ 1 << 63) - (1 << 63)


def int32_of(bits: int) -> int:
    return (bits & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def signed_byte(byte: int) -> int:
    return (byte ^ 0x80) - 0x80


def trailing_zeros(n: int) -> int:
    return (n & -n).bit_length() - 1


acquire32, release32 = load32, store32


def prefetch(p: memoryview, at: int) -> None:
    pass


def put(out: memoryview, at: int, p: memoryview, start: int, length: int) -> int:
    if length > 0:
        _write(out, at, _read(p, start, length))
    return at + length


copy = put


def copy_text(out: memoryview, at: int, p: memoryview, start: int, length: int, size: int) -> None:
    put(out, at, p, start, length)


def same_bytes(a: memoryview, a_start: int, b: memoryview, b_start: int, length: int) -> bool:
    return _read(a, a_start, length) == _read(b, b_start, length)


def use_crc32(address: int) -> None:
    pass


def crc32(p: memoryview, start: int, length: int) -> int:
    return zlib.crc32(_read(p, start, length)) & CRC_MASK


def hash_bytes(p: memoryview, start: int, length: int) -> int:
    return hash(_read(p, start, length)) & WORD_MASK


def hash_pair(a: int, b: int) -> int:
    return hash((a, b)) & WORD_MASK


def slot_of(code: int, mask: int) -> int:
    return (code ^ code >> 32) & mask


def name_end(p: memoryview, at: int, end: int) -> int:
    while at < end and p[at] not in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
        at += 1
    return at


def value_end(p: memoryview, at: int, end: int) -> int:
    found = bytes(p[at:end]).find(PROPERTY_SEPARATOR)
    return at + found if found >= 0 else max(at, end)


def digits(p: memoryview, at: int, end: int) -> tuple[int, int]:
    stop = at
    while stop < end and 48 <= p[stop] <= 57:
        stop += 1
    value = int(bytes(p[at:stop]) or b"0")
    return (value, stop) if value <= INT64_MAX else (0, -1)


def store_hex(out: memoryview, at: int, n: int) -> None:
    _write(out, at, f"{n & 0xFFFFFFFF:08X}".encode())


def unlike_span(p: memoryview, at: int, model: int) -> int:
    pairs = zip(_read(p, at, SPAN), _read(p, model, SPAN), strict=True)
    return sum(1 << i for i, (a, b) in enumerate(pairs) if a != b)


def equal_in_span(p: memoryview, at: int, byte: int) -> int:
    return sum(1 << i for i, b in enumerate(_read(p, at, SPAN)) if b == byte)


def found_in_span(p: memoryview, at: int, end: int, size: int, byte: int) -> int:
    return sum(1 << i for i, b in enumerate(bytes(p[at : min(end, at + SPAN)])) if b == byte)


def byte_end(p: memoryview, at: int, end: int, size: int, byte: int) -> int:
    found = bytes(p[at:end]).find(byte)
    return at + found if found >= 0 else end


def use_hash_text() -> None:
    pass


def hash_text(p: memoryview, start: int, end: int, before: int) -> int:
    for unit in bytes(p[start:end]).decode("utf-8", "replace").encode("utf-16-be").hex(" ", 2).split():
        before = hash_after(before, int(unit, 16))
    return before


def hash_after(code: int, character: int) -> int:
    return (code * 31 + character) & 0xFFFFFFFF
