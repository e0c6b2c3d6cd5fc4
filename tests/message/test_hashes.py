"""Hashes are Java's, checksums zlib's without the top bit."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.message import (
    crc32,
    java_hash,
    tags_code,
)


class TestHashes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", 0),
            ("TagA", 2598919),
            ("TagB", 2598920),
            ("*", 42),
            ("TopicTest#OrderID188", -1231271670),
            ("polygenelubricants", -(1 << 31)),
            ("é", 0xE9),
            ("😀", 0xD83D * 31 + 0xDE00),
        ],
    )
    def test_java_hash(self, text, expected):
        assert java_hash(text) == expected

    @given(st.text(st.characters()))
    def test_java_hash_is_the_polynomial_over_utf_16(self, text):
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H").tolist()
        total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) & 0xFFFFFFFF
        assert java_hash(text) & 0xFFFFFFFF == total
        assert -(1 << 31) <= java_hash(text) < 1 << 31

    def test_tags_code(self):
        assert tags_code(None) == tags_code("") == 0
        assert tags_code("TagA") == 2598919

    def test_crc32(self):
        assert crc32(b"Hello RocketMQ 0") == 613185359
        assert crc32(b"") == 0

    @given(st.binary())
    def test_crc32_is_zlibs_without_the_top_bit(self, data):
        assert (
            crc32(data) == crc32(memoryview(data)) == crc32(bytearray(data)) == zlib.crc32(data) & 0x7FFFFFFF
        )
