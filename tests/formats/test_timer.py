from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import TruncatedRecordError
from mqlake.formats.timer import (
    SLOT,
    TIMER_UNIT_DTYPE,
    TIMER_UNIT_SIZE,
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
from tests.golden import DIRECTORY

GOLDEN = json.loads((DIRECTORY / "timers.json").read_text())
"""Of RocketMQ's broker 5.3.3 (tests/interop/make_golden_timers.py)."""
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


def test_javas_bytes() -> None:
    """Every unit, blank, slot and checkpoint is written as it was read."""
    for name, text in GOLDEN["timerlog"].items():
        data = bytes.fromhex(text)
        count = units_in_timer_file(len(data))
        for at in range(0, count * TIMER_UNIT_SIZE, TIMER_UNIT_SIZE):
            unit = decode_timer_unit(data, at)
            assert unit is not None
            assert unit.encode() == data[at : at + TIMER_UNIT_SIZE]
        if int(name) == 0:
            left = len(data) - count * TIMER_UNIT_SIZE
            assert data[-left:] == encode_timer_blank(left)
    for place, text in GOLDEN["timerwheel"].items():
        time, *rest = SLOT.unpack(bytes.fromhex(text))
        assert int(place) == time % 1_209_600 * 32
        assert SLOT.pack(time, *rest).hex() == text
    check = TimerCheckpointData.decode(bytes.fromhex(GOLDEN["timercheck"]))
    assert check.encode().hex() == GOLDEN["timercheck"]
    assert (check.last_timer_queue_offset, check.last_timer_log_flush_pos) == (8, 432)
