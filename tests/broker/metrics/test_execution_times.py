from __future__ import annotations

import pytest

from mqlake.broker.metrics.execution_times import ExecutionTimes


def test_each_time_falls_into_its_bucket():
    times = ExecutionTimes()
    for elapsed_ms in (0, 10, 11, 5000, 5001):
        times.record(elapsed_ms, success=True)
    times.record(1, success=False, is_system=True)
    assert times.counts == {("success", False): [2, 1, 0, 0, 1, 1], ("failure", True): [1, 0, 0, 0, 0, 0]}
    assert times.sums_ms["success", False] == 10_022


def test_a_block_is_measured():
    times = ExecutionTimes()
    with times.measured():
        pass
    with pytest.raises(KeyError), times.measured():
        raise KeyError
    assert times.counts.keys() == {("success", False), ("failure", False)}
