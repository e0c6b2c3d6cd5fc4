from __future__ import annotations

import pytest

from mqlake.broker.metrics.execution_times import ExecutionTimes


def test_a_block_is_measured():
    times = ExecutionTimes()
    with times.measured():
        pass
    with pytest.raises(KeyError), times.measured():
        raise KeyError
    assert {status: sum(each.counts) for status, each in times.by_status.items()} == {
        "success": 1,
        "failure": 1,
    }
