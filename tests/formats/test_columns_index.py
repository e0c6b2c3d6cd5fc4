"""Many keys into an index file, and out of it."""

from __future__ import annotations

import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats import columns
from mqlake.formats.columns import plain
from mqlake.formats.index import IndexHeader, index_file_size
from mqlake.native import columns as kernels
from tests.formats.columns_cases import I32, I64, OUTPUT, many, working_with

SLOTS, ENTRIES = 7, 20


def empty_index() -> bytearray:
    return bytearray(index_file_size(SLOTS, ENTRIES))


class TestIndex:
    def put(self, index: np.ndarray, keys: list[tuple[int, int, int]]) -> int:
        codes, offsets, times = zip(*keys, strict=True) if keys else ((), (), ())
        return columns.index_put_many(
            index,
            SLOTS,
            ENTRIES,
            np.array(codes, np.int32),
            np.array(offsets, np.int64),
            np.array(times, np.int64),
        )

    def test_put_and_query(self, twin: ModuleType) -> None:
        index = OUTPUT.put(empty_index())
        assert self.put(index, [(3, 100, 5_000), (10, 200, 6_999), (3, 300, 9_000), (4, 400, 9_500)]) == 4
        header = IndexHeader.decode(index.tobytes())
        assert header == IndexHeader(5_000, 9_500, 100, 400, 2, 5)

        def query(key_hash: int, begin: int = 0, end: int = 2**62, most: int = 10) -> list[int]:
            return columns.index_query(index, SLOTS, ENTRIES, key_hash, begin, end, most).tolist()

        assert query(3) == [300, 100]
        assert query(10) == [200]
        assert query(17) == []
        assert query(5) == []
        assert query(3, most=1) == [300]
        assert query(3, most=0) == []
        assert query(3, begin=6_000) == [300]
        assert query(10, begin=6_000, end=6_000) == [200]
        assert query(3, end=8_999) == [100]

    def test_stops_when_full(self, twin: ModuleType) -> None:
        index = OUTPUT.put(empty_index())
        keys = [(i, 100 + i, 1_000 * i) for i in range(30)]
        assert self.put(index, keys) == ENTRIES - 1
        assert self.put(index, keys) == 0
        assert IndexHeader.decode(index.tobytes()).index_count == ENTRIES
        assert columns.index_query(index, SLOTS, ENTRIES, 18, 0, 2**62, 9).tolist() == [118]
        assert columns.index_query(index, SLOTS, ENTRIES, 19, 0, 2**62, 9).tolist() == []

    def test_one_by_one_is_the_same(self, twin: ModuleType) -> None:
        keys = [(i * i % 23, 100 + i, 50_000 + 700 * (i % 5)) for i in range(15)]
        at_once = OUTPUT.put(empty_index())
        self.put(at_once, keys)
        singly = np.frombuffer(empty_index(), np.uint8)
        for key in keys:
            assert self.put(singly, [key]) == 1
        assert at_once.tobytes() == singly.tobytes()

    def test_time_differences(self, twin: ModuleType) -> None:
        index = OUTPUT.put(empty_index())
        self.put(index, [(1, 1, 10_000), (1, 2, 11_999), (1, 3, 9_000), (1, 4, 2**62)])
        entries = index.tobytes()[40 + 4 * SLOTS :]
        differences = [struct.unpack_from(">i", entries, 20 * i + 12)[0] for i in range(1, 5)]
        assert differences == [0, 1, 0, 2**31 - 1]

    def test_a_chain_in_a_circle_ends(self, twin: ModuleType) -> None:
        index = OUTPUT.put(empty_index())
        self.put(index, [(1, 1, 10_000), (1, 2, 11_000)])
        struct.pack_into(">i", index, 40 + 4 * SLOTS + 20 * 1 + 16, 2)
        found = columns.index_query(index, SLOTS, ENTRIES, 1, 0, 2**62, 1000)
        assert found.tolist() == [2, 1] * (ENTRIES // 2)

    def test_arguments_that_make_no_sense(self, twin: ModuleType) -> None:
        index = np.zeros(index_file_size(SLOTS, ENTRIES), np.uint8)
        one32, one64 = np.ones(1, np.int32), np.ones(1, np.int64)
        for slots, entries in ((0, 1), (1, 0), (SLOTS + 1, ENTRIES)):
            with pytest.raises(ValueError, match="are no index"):
                columns.index_put_many(index, slots, entries, one32, one64, one64)
            with pytest.raises(ValueError, match="are no index"):
                columns.index_query(index, slots, entries, 1, 0, 1, 1)
        with pytest.raises(ValueError, match="differ in number"):
            columns.index_put_many(index, SLOTS, ENTRIES, one32, one64, one64[:0])
        index.flags.writeable = False
        with pytest.raises(TypeError, match="writable"):
            columns.index_put_many(index, SLOTS, ENTRIES, one32, one64, one64)

    @many
    @given(
        st.one_of(st.just(b""), st.binary(min_size=40, max_size=index_file_size(SLOTS, ENTRIES))),
        st.lists(
            st.tuples(st.one_of(st.integers(0, 20), I32), I64, st.one_of(st.integers(0, 10**6), I64)),
            max_size=30,
        ),
        st.one_of(st.integers(0, 20), I32),
        I64,
        I64,
        st.integers(-1, 40),
    )
    def test_twins_agree_on_any_file(
        self, content: bytes, keys: list[tuple[int, int, int]], code: int, begin: int, end: int, most: int
    ) -> None:
        results = []
        for module in (plain, kernels):
            with working_with(module):
                index = OUTPUT.put(content.ljust(index_file_size(SLOTS, ENTRIES), b"\0"))
                put = self.put(index, keys)
                results.append((put, index.tobytes()))
                for low, high in ((begin, end), (-(2**63), 2**63 - 1)):
                    found = columns.index_query(index, SLOTS, ENTRIES, code, low, high, most)
                    results[-1] += (found.tolist(),)
        assert results[0] == results[1]
