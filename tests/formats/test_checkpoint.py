import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.checkpoint import CHECKPOINT, CHECKPOINT_SIZE, Checkpoint

I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_layout():
    assert CHECKPOINT.size == CHECKPOINT_SIZE == 40
    assert Checkpoint(1, 2, 3, 4, 5).encode() == b"".join(i.to_bytes(8, "big") for i in range(1, 6))


@given(st.builds(Checkpoint, I64, I64, I64, I64, I64))
def test_round_trip(checkpoint):
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert Checkpoint.decode(memoryview(checkpoint.encode() + bytes(4056))) == checkpoint


@given(st.binary(min_size=40, max_size=40))
def test_any_40_bytes_are_a_checkpoint(data):
    assert Checkpoint.decode(data).encode() == data


def test_truncated_at_every_point():
    for length in range(40):
        with pytest.raises(TruncatedRecordError):
            Checkpoint.decode(bytes(length))


def test_min_timestamp():
    assert Checkpoint(10_000, 9_000).min_timestamp == 6_000
    assert Checkpoint(9_000, 10_000).min_timestamp == 6_000
    assert Checkpoint(2_000, 10_000).min_timestamp == 0
    assert Checkpoint(10_000, 9_000, 5_000).min_timestamp_index == 5_000
    assert Checkpoint(10_000, 9_000, 8_000).min_timestamp_index == 6_000
