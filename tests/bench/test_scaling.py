"""The curves: how an exponent is found, and that each point can be measured. Figures of tiny sizes mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scaling, scaling_broker, scaling_cluster, scaling_log

SETTINGS = {
    scaling_cluster: {"TOPICS": 3, "QUERIES": 40, "PERIOD_S": 1},
    scaling_log: {"PUTS": 40, "LOOKUPS": 5, "SPARSE_FILE": 4 << 20},
}
SETTINGS[scaling_broker] = {"LOOK_S": 11, "CREATED": 1, "PERSISTED_S": 6, "SENDS": 640, "SLAVE_SENDS": 640}
AT_ONCE = ("namesrv", "namesrv-shared", "queues", "log", "plan", "sparse", "manifest")


def test_the_exponent_is_that_of_the_last_step() -> None:
    assert scaling.exponent([1, 10, 100], [5, 5, 5]) == 0
    assert scaling.exponent([1, 10, 100], [7, 3, 30]) == pytest.approx(1)
    assert scaling.exponent([10, 100], [1, 100]) == pytest.approx(2)
    assert scaling.exponent([10], [1]) is None
    assert scaling.exponent([0, 1], [1, 1]) is scaling.exponent([1, 2], [0, 1]) is None


def test_a_table_has_a_line_for_each_figure() -> None:
    lines = scaling.table("log", {1: {"a, ms": 1, "b, ms": 2}, 10: {"a, ms": 10, "b, ms": 2}}).splitlines()
    assert len(lines) == 4
    assert lines[2].split() == ["a,", "ms", "1", "10", "1.00"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, settings in SETTINGS.items():
        for name, value in settings.items():
            monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", AT_ONCE)
def test_a_point(tmp_path: Path, name: str) -> None:
    figures = scaling.point(name)(tmp_path, 2)
    assert len(figures) > 3
    assert all(isinstance(each, int | float) for each in figures.values())


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", sorted(set(scaling.CURVES).difference(AT_ONCE)))
def test_a_point_with_brokers(tmp_path: Path, name: str) -> None:
    assert scaling.point(name)(tmp_path, 1)
