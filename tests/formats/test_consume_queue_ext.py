import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import BadLengthError, FormatError, MessageError, TruncatedRecordError
from mqlake.formats.consume_queue_ext import (
    END_OF_FILE,
    MAX_ADDRESS,
    MAX_EXT_UNIT_SIZE,
    MAX_REAL_OFFSET,
    ConsumeQueueExtUnit,
    decode_unit,
    decorate,
    encode_unit,
    is_ext_address,
    undecorate,
)

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.builds(ConsumeQueueExtUnit, I64, I64, st.binary(max_size=100))


def test_layout():
    assert encode_unit(ConsumeQueueExtUnit(1, 2, b"\xaa\xbb")) == bytes.fromhex(
        "0016 0000000000000001 0000000000000002 0002 AABB"
    )


@given(UNITS, st.binary(max_size=30))
def test_round_trip(unit, after):
    data = encode_unit(unit)
    assert len(data) == unit.size == 20 + len(unit.filter_bit_map)
    assert decode_unit(data + after) == unit
    assert decode_unit(memoryview(after + data), len(after)) == unit


@given(UNITS)
def test_truncated_at_every_point(unit):
    data = encode_unit(unit)
    for length in range(len(data)):
        with pytest.raises(TruncatedRecordError):
            decode_unit(data[:length])


@given(
    st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\0\x16" + data), st.integers(-2, 60)
)
def test_any_bytes(data, pos):
    try:
        unit = decode_unit(data, pos)
    except FormatError:
        return
    if unit is not None:
        assert encode_unit(unit) == data[pos : pos + unit.size]


def test_units_end():
    assert decode_unit(END_OF_FILE) is None
    assert decode_unit(bytes(2)) is None


@pytest.mark.parametrize(
    "data", [b"\0\x13" + bytes(30), b"\0\x16" + bytes(30), b"\0\x14" + bytes(17) + b"\x01"]
)
def test_lengths_that_contradict(data):
    with pytest.raises(BadLengthError):
        decode_unit(data)


def test_longest():
    longest = ConsumeQueueExtUnit(0, 0, bytes(MAX_EXT_UNIT_SIZE - 20))
    assert decode_unit(encode_unit(longest)) == longest
    with pytest.raises(MessageError):
        encode_unit(ConsumeQueueExtUnit(0, 0, bytes(MAX_EXT_UNIT_SIZE - 19)))


class TestAddresses:
    def test_bounds(self):
        assert MAX_ADDRESS == -2147483649
        assert decorate(0) == -(1 << 63)
        assert decorate(MAX_REAL_OFFSET) == MAX_ADDRESS

    @given(st.integers(0, MAX_REAL_OFFSET))
    def test_round_trip(self, offset):
        assert is_ext_address(decorate(offset))
        assert undecorate(decorate(offset)) == offset
        assert decorate(decorate(offset)) == decorate(offset)

    @given(st.integers(-(1 << 31), (1 << 31) - 1))
    def test_no_hash_is_an_address(self, tags_code):
        assert not is_ext_address(tags_code)
        assert undecorate(tags_code) == tags_code
