"""What no unit accounts for is found, however units are spread over queues: missing, double and wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.lake.log import coverage
from mqlake.lake.log.coverage import Coverage
from mqlake.lake.log.splits import LogFile


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([91, 91, 200, 3000]), min_size=1, max_size=60),
    seed=st.randoms(use_true_random=False),
    faults=st.lists(st.sampled_from(["missing", "double", "offset", "size", "swapped"]), max_size=3),
    block=st.sampled_from([128, 1024, 1 << 14]),
)
def test_what_has_no_unit(sizes: list[int], seed: object, faults: list[str], block: int) -> None:
    ends = np.cumsum(sizes)
    begins = ends - sizes
    base = 1 << 20
    files = [LogFile("0", base, int(ends[-1]), int(ends[-1]))]
    units = [(base + int(begin), size) for begin, size in zip(begins, sizes, strict=True)]
    wrong: list[tuple[int, int]] = []
    for fault in faults:
        row = seed.randrange(len(units))  # type: ignore[attr-defined]
        offset, size = units[row]
        if fault == "missing":
            units.pop(row)
        elif fault == "double":
            units.append((offset, size))
            continue
        elif fault == "offset":
            units[row] = (offset ^ 64, size)
        elif fault == "size":
            units[row] = (offset, size ^ 8)
        else:  # another one's instead
            units[row] = units[0]
        wrong.append((offset, size))
        if not units:
            break
    old, coverage.BLOCK_MIN = coverage.BLOCK_MIN, block
    try:
        found = Coverage(files)
    finally:
        coverage.BLOCK_MIN = old
    queues: list[list[tuple[int, int]]] = [[], [], []]
    for unit in units:
        seed.choice(queues).append(unit)  # type: ignore[attr-defined]
    for queue in queues:
        rising = np.array(sorted(set(queue)), np.int64).reshape(-1, 2)
        found.add(rising[:, 0].copy(), rising[:, 1].copy())
    uncovered = found.uncovered()
    assert uncovered == sorted(uncovered)
    present = set(units)
    for begin, size in zip(begins, sizes, strict=True):
        record = base + int(begin)
        if (record, size) not in present:
            assert any(start <= record < end for start, end in uncovered), (record, uncovered)
    if not faults:
        assert uncovered == []


@pytest.mark.parametrize("blank", [0, 500])
def test_blanks_at_the_ends_of_files_are_read(blank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "BLOCK_MIN", 1024)
    files = [LogFile("0", 0, 1024, 1024), LogFile("1024", 1024, 300, 1024)]
    found = Coverage(files)
    found.add(np.array([0, 1024, 1224]), np.array([1024 - blank, 200, 100]))
    assert found.uncovered() == ([(1024 - blank, 1024)] if blank else [])
