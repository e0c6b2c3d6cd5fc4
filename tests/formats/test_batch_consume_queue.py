import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.batch_consume_queue import (
    BCQ_DTYPE,
    BCQ_STORE_UNIT_SIZE,
    UNIT,
    BatchConsumeQueueUnit,
    decode_unit,
    encode_unit,
)

I16 = st.integers(-(1 << 15), (1 << 15) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_sizes():
    assert UNIT.size == BCQ_DTYPE.itemsize == BCQ_STORE_UNIT_SIZE == 46


def test_layout():
    assert encode_unit(1, 2, 3, 4, 5, 6) == bytes.fromhex(
        "0000000000000001 00000002 0000000000000003 0000000000000004 0000000000000005 0006 FFFFFFFF 00000000"
    )


@given(st.lists(st.tuples(I64, I32, I64, I64, I64, I16), min_size=1))
def test_round_trip_one_by_one_and_as_an_array(units):
    data = b"".join(encode_unit(*unit) for unit in units)
    expected = [(*unit, -1, 0) for unit in units]
    assert [decode_unit(data, i * 46) for i in range(len(units))] == expected
    assert np.frombuffer(data, BCQ_DTYPE).tolist() == expected


@given(st.binary(min_size=46, max_size=46))
def test_any_46_bytes_are_a_unit(data):
    assert UNIT.pack(*decode_unit(memoryview(data))) == data


def test_truncated_at_every_point():
    data = encode_unit(1, 2, 3, 4, 5, 6)
    for length in range(46):
        with pytest.raises(TruncatedRecordError):
            decode_unit(data[:length])
    with pytest.raises(TruncatedRecordError):
        decode_unit(data, -1)


@pytest.mark.parametrize("field", ["offset", "size", "msg_base_offset", "batch_size"])
def test_validity(field):
    unit = BatchConsumeQueueUnit(0, 91, 0, 0, 0, 1)
    assert unit.is_valid
    assert not unit._replace(**{field: -1}).is_valid
    assert not decode_unit(bytes(46)).is_valid
