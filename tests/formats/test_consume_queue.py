import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.consume_queue import (
    CQ_DTYPE,
    CQ_STORE_UNIT_SIZE,
    PRE_BLANK,
    UNIT,
    decode_unit,
    encode_unit,
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_sizes():
    assert UNIT.size == CQ_DTYPE.itemsize == CQ_STORE_UNIT_SIZE == len(PRE_BLANK) == 20


def test_layout():
    assert encode_unit(1, 2, -3) == bytes.fromhex("0000000000000001 00000002 FFFFFFFFFFFFFFFD")
    assert bytes(8) + bytes.fromhex("7FFFFFFF") + bytes(8) == PRE_BLANK


@given(st.lists(st.tuples(I64, I32, I64), min_size=1))
def test_round_trip_one_by_one_and_as_an_array(units):
    data = b"".join(encode_unit(*unit) for unit in units)
    assert [decode_unit(data, i * 20) for i in range(len(units))] == units
    assert np.frombuffer(data, CQ_DTYPE).tolist() == units


@given(st.binary(min_size=20, max_size=20))
def test_any_20_bytes_are_a_unit(data):
    assert encode_unit(*decode_unit(memoryview(data))) == data


@given(st.binary(max_size=60), st.integers(-5, 70))
def test_truncated(data, pos):
    if 0 <= pos <= len(data) - 20:
        decode_unit(data, pos)
    else:
        with pytest.raises(TruncatedRecordError):
            decode_unit(data, pos)


def test_pre_blank_is_as_in_java():
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == PRE_BLANK
