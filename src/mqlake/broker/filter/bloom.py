"""BloomFilter: the bits of a group and topic that RocketMQ expects in consumerFilter.json.

mqlake does not use them. RocketMQ checks by them whether a consumerFilter.json was written with its own settings, and
ignores the whole file if not.
"""

from __future__ import annotations

import math

_M64 = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class BloomFilter:
    """For `expected` entries and a wanted error rate: `m` bits (a multiple of 8), `k` positions an entry."""

    def __init__(self, error_rate_percent: int, expected: int) -> None:
        error_rate = error_rate_percent / 100
        self.k = math.ceil(math.log(error_rate) / math.log(0.5))
        bits = math.ceil(
            expected * (math.log(1 / error_rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        self.m = 8 * math.ceil(bits / 8)

    def positions(self, text: str) -> list[int]:
        low = murmur3_128_low(text.encode())
        first, second = _int32(low), _int32(low >> 32)
        positions = []
        for i in range(1, self.k + 1):
            combined = _int32(first + i * second)
            positions.append((~combined if combined < 0 else combined) % self.m)
        return positions


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def murmur3_128_low(data: bytes) -> int:
    """The first 64 bits of MurmurHash3's x64 128-bit hash with seed 0."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _M64
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _M64
    h1 ^= _mix1(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mix2(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _M64
    h2 = h2 + h1 & _M64
    return _final(h1) + _final(h2) & _M64


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _M64


def _mix1(key: int) -> int:
    return _rotate(key * _C1 & _M64, 31) * _C2 & _M64


def _mix2(key: int) -> int:
    return _rotate(key * _C2 & _M64, 33) * _C1 & _M64


def _final(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _M64
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _M64
    return value ^ value >> 33
