import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.index import (
    ENTRY,
    ENTRY_DTYPE,
    HASH_SLOT_SIZE,
    HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SIZE,
    SLOT,
    IndexHeader,
    build_key,
    decode_entry,
    entry_position,
    index_file_size,
    index_key_hash,
    slot_position,
    time_diff_seconds,
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
SLOTS, ENTRIES = 5_000_000, 20_000_000  # the defaults


def test_sizes():
    assert HEADER.size == INDEX_HEADER_SIZE == 40
    assert SLOT.size == HASH_SLOT_SIZE == 4
    assert ENTRY.size == ENTRY_DTYPE.itemsize == INDEX_SIZE == 20
    assert index_file_size(SLOTS, ENTRIES) == 420_000_040


def test_positions():
    assert slot_position(0) == 40
    assert slot_position(SLOTS) == entry_position(0, SLOTS) == 20_000_040
    assert entry_position(ENTRIES, SLOTS) == index_file_size(SLOTS, ENTRIES)


class TestHeader:
    def test_layout(self):
        assert IndexHeader(1, 2, 3, 4, 5, 6).encode() == bytes.fromhex(
            "0000000000000001 0000000000000002 0000000000000003 0000000000000004 00000005 00000006"
        )

    @given(st.builds(IndexHeader, I64, I64, I64, I64, I32, st.integers(1, (1 << 31) - 1)))
    def test_round_trip(self, header):
        assert IndexHeader.decode(header.encode() + b"after") == header

    def test_a_new_file_is_zeros(self):
        assert IndexHeader.decode(bytes(40)) == IndexHeader() == IndexHeader(index_count=1)

    def test_truncated_at_every_point(self):
        for length in range(40):
            with pytest.raises(TruncatedRecordError):
                IndexHeader.decode(bytes(length))

    @pytest.mark.parametrize(
        ("begin", "end", "matched"),
        [
            (0, 99, False),
            (0, 100, True),
            (150, 160, True),
            (0, 999, True),
            (200, 999, True),
            (201, 999, False),
        ],
    )
    def test_is_time_matched(self, begin, end, matched):
        assert IndexHeader(100, 200).is_time_matched(begin, end) is matched


class TestEntry:
    def test_layout(self):
        assert ENTRY.pack(1, 2, 3, 4) == bytes.fromhex("00000001 0000000000000002 00000003 00000004")

    @given(st.lists(st.tuples(I32, I64, I32, I32), min_size=1))
    def test_round_trip_one_by_one_and_as_an_array(self, entries):
        data = b"".join(ENTRY.pack(*entry) for entry in entries)
        assert [decode_entry(data, i * 20) for i in range(len(entries))] == entries
        assert np.frombuffer(data, ENTRY_DTYPE).tolist() == entries

    def test_truncated_at_every_point(self):
        for length in range(20):
            with pytest.raises(TruncatedRecordError):
                decode_entry(bytes(length))
        with pytest.raises(TruncatedRecordError):
            decode_entry(bytes(20), -1)


class TestKeys:
    def test_vector(self):
        key = build_key("TopicTest", "OrderID188")
        assert key == "TopicTest#OrderID188"
        assert index_key_hash(key) == 1231271670
        assert index_key_hash(key) % SLOTS == 1271670

    def test_the_hash_without_a_positive_twin(self):
        assert index_key_hash("polygenelubricants") == 0

    @given(st.text())
    def test_range(self, key):
        assert 0 <= index_key_hash(key) < 1 << 31


@pytest.mark.parametrize(
    ("begin", "store", "seconds"),
    [
        (0, 5000, 0),
        (-1, 5000, 0),
        (1000, 1999, 0),
        (1000, 2000, 1),
        (5000, 1000, 0),
        (1, 1 << 60, (1 << 31) - 1),
    ],
)
def test_time_diff_seconds(begin, store, seconds):
    assert time_diff_seconds(begin, store) == seconds
