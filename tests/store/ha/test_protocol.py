from hypothesis import given
from hypothesis import strategies as st

from mqlake.store.ha.protocol import HEADER, REPORT, split_at_file_ends


def test_frames_are_big_endian_and_signed() -> None:
    assert REPORT.pack(240335) == bytes.fromhex("000000000003AACF")
    assert HEADER.pack(-5, 0) == bytes.fromhex("FFFFFFFFFFFFFFFB00000000")


@given(st.integers(0, 300), st.binary(max_size=300), st.integers(1, 100))
def test_parts_are_the_bytes_each_in_one_file(offset: int, data: bytes, file_size: int) -> None:
    parts = split_at_file_ends(offset, memoryview(data), file_size)
    assert b"".join(bytes(part) for _, part in parts) == data
    for start, part in parts:
        assert start // file_size == (start + len(part) - 1) // file_size
        assert data[start - offset : start - offset + len(part)] == part
