"""How two sides are compared."""

from __future__ import annotations

import pytest
from bench.measure import Line, Progress, Round, compare


class Fixed:
    """Rounds of given lengths, one after the other, all doing `work`."""

    def __init__(self, *seconds: float, work: int = 1) -> None:
        self._rounds = [Round(100, each, each / 2, (work,)) for each in seconds]

    def round(self) -> Round:
        return self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]


def compared(mqlake: Fixed, java: Fixed) -> Line:
    return compare("x", mqlake, java, Progress(quiet=True), unit="msg/s", rounds=3, warm_up_s=0, ratio_min=2)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    line = compared(Fixed(1, 1, 1, 1, 10), Fixed(2, 4, 8))
    assert line.ratio == 2
    assert line.ratio_best == 2
    assert line.met
    assert line.cpu_us == 5000
    assert line.peer_cpu_us == 20_000


def test_sides_that_did_different_work_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="mqlake did"):
        compared(Fixed(1, work=1), Fixed(1, work=2))
