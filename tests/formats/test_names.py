import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats.names import file_name_to_offset, offset_to_file_name


def test_twenty_digits():
    assert offset_to_file_name(0) == "0" * 20
    assert offset_to_file_name(1 << 30) == "00000000001073741824"


@given(st.integers(0, (1 << 63) - 1))
def test_round_trip(offset):
    assert file_name_to_offset(offset_to_file_name(offset)) == offset


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_no_file_begins_there(offset):
    with pytest.raises(ValueError, match=str(offset)):
        offset_to_file_name(offset)


@pytest.mark.parametrize(
    "name", ["", "0", "0" * 19, "0" * 21, "9" * 20, "-" + "0" * 19, "²" * 20, "0" * 19 + "\n"]
)
def test_other_names_are_no_offset(name):
    assert file_name_to_offset(name) is None


@given(st.text())
def test_any_name(name):
    offset = file_name_to_offset(name)
    assert offset is None or offset_to_file_name(offset) == name
