from __future__ import annotations

import pytest

from mqlake.broker.filter.bloom import BloomFilter, murmur3_128_low


@pytest.mark.parametrize(
    ("data", "low"),
    [
        (b"", 0),
        (b"The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C),
        (b"hello", 0xCBD8A7B341BD9B02),
    ],
)
def test_known_hashes(data, low):
    assert murmur3_128_low(data) == low


def test_sizes_as_rocketmq_computes_them():
    default = BloomFilter(20, 32)
    assert (default.k, default.m) == (3, 112)
    assert (BloomFilter(1, 1).k, BloomFilter(1, 1).m) == (7, 16)


def test_positions_are_within_the_bits():
    bloom = BloomFilter(20, 32)
    for number in range(200):
        positions = bloom.positions(f"group-{number}#topic")
        assert len(positions) == 3 and all(0 <= position < 112 for position in positions)
    assert bloom.positions("G#T") == bloom.positions("G#T")
