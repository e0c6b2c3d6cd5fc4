from __future__ import annotations

import time

import pytest

from mqlake.client.produce.fault_strategy import MQFaultStrategy


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("latency_s", "left_out_s"),
    [(0.0, 0), (0.1, 0), (0.549, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (14.9, 10), (15.0, 30)],
)
def test_the_slower_the_longer(now: list[float], latency_s: float, left_out_s: int) -> None:
    """RocketMQ's table."""
    faults = MQFaultStrategy()
    faults.succeeded("slow", latency_s)
    for second in range(40):
        now[0] = 1000.0 + second
        assert faults.not_available() == ({"slow"} if second < left_out_s else set())


def test_a_failure_is_half_a_minute_and_each_broker_counts_alone(now: list[float]) -> None:
    faults = MQFaultStrategy()
    faults.failed("a")
    faults.succeeded("b", 0.6)
    assert faults.not_available() == {"a", "b"}
    now[0] += 29.9
    assert faults.not_available() == {"a"}
    now[0] += 0.1
    assert faults.not_available() == set()


def test_a_quick_answer_ends_it() -> None:
    faults = MQFaultStrategy()
    faults.failed("a")
    faults.succeeded("a", 0.01)
    assert faults.not_available() == set()
