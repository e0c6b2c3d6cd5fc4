from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.timer import (
    TIMER_UNIT_DTYPE,
    TIMER_WHEEL_SIZE,
    TimerCheckpointData,
    TimerUnit,
    decode_done,
    decode_timer_unit,
    encode_done,
    encode_timer_blank,
    is_timer_magic,
    units_in_timer_file,
)

LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)


@given(st.builds(TimerUnit, LONG, st.integers(0, 15), LONG, INT, LONG, INT, INT))
def test_a_unit_comes_back_one_way_and_the_other(unit: TimerUnit) -> None:
    data = unit.encode()
    assert len(data) == 52
    assert decode_timer_unit(data) == unit
    (row,) = np.frombuffer(data, TIMER_UNIT_DTYPE)
    assert tuple(row) == (52, *unit, 0)


def test_what_is_no_unit() -> None:
    unit = TimerUnit(-1, 1, 0, 0, 0, 0, 0)
    assert decode_timer_unit(bytes(52)) is None
    assert decode_timer_unit(unit._replace(magic=16).encode()) is None
    with pytest.raises(TruncatedRecordError):
        decode_timer_unit(bytes(51))
    assert [magic for magic in range(-20, 20) if is_timer_magic(magic)] == list(range(16))


def test_the_sizes_are_rocketmqs() -> None:
    assert TIMER_WHEEL_SIZE == 38_707_200
    size = 104_857_600
    last = (units_in_timer_file(size) - 1) * 52
    assert last == size - ((size - 16) % 52) - 16 - 52
    assert encode_timer_blank(40).hex() == "00000028" + "00" * 8 + "cbd43194"


def test_a_checkpoint_of_a_live_run() -> None:
    """Of RocketMQ 5.5.0 after a clean stop."""
    data = TimerCheckpointData(1795310806000, 4680, 90, 90, 0, 1795310806161, 229)
    assert TimerCheckpointData.decode(data.encode()) == data
    assert TimerCheckpointData.decode(data.encode()[:32]) == TimerCheckpointData(1795310806000, 4680, 90, 90)
    with pytest.raises(TruncatedRecordError):
        TimerCheckpointData.decode(data.encode()[:31])


def test_what_follows_a_checkpoint() -> None:
    assert decode_done(TimerCheckpointData().encode() + encode_done(7, 9)) == (7, 9)
    assert decode_done(bytes(56)) == (0, 0)
