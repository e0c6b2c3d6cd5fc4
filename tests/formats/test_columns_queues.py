"""Scanned records by queue: units of consume queues, and arrivals."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.formats import columns
from mqlake.formats.columns import DispatchColumns, Scan, arrivals_by_queue, layout, plain, units_by_queue
from mqlake.formats.consume_queue import UNIT
from mqlake.native import columns as kernels
from tests.formats.columns_cases import working_with

HIDDEN = 4
FIELDS = ("topic", "queue", "flags", "queue_offset", "size", "number", "tags")
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, 1, 7, -1, -(2**31)]),
        st.sampled_from([0, 0, 0, HIDDEN, 8, HIDDEN | 8]),
        st.one_of(st.integers(0, 6), st.integers(-(2**63), 2**62)),
        st.integers(91, 2**31 - 1),
        st.sampled_from([1, 1, 1, 2, 0, -3]),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=40,
)
Records = list[tuple[int, ...]]


def scanned(records: Records, *, room: int = 3) -> tuple[Scan, DispatchColumns]:
    """Columns in arrays with room for more, as of a scan."""
    wide = np.zeros((len(layout.WIDE), len(records) + room), np.int64)
    narrow = np.zeros((len(layout.NARROW), len(records) + room), np.int32)
    fields = dict(zip(FIELDS, zip(*records, strict=True) if records else ((),) * len(FIELDS), strict=True))
    n = len(records)
    wide[layout.PHYSICAL_OFFSET, :n] = np.arange(n) * 1000 + 5
    wide[layout.QUEUE_OFFSET, :n] = fields["queue_offset"]
    narrow[layout.TOPIC_ID, :n] = fields["topic"]
    narrow[layout.QUEUE_ID, :n] = fields["queue"]
    narrow[layout.SYS_FLAG, :n] = fields["flags"]
    narrow[layout.SIZE, :n] = fields["size"]
    none = np.empty(0, np.int32)
    dispatched = DispatchColumns(
        np.array(fields["tags"], np.int64),
        np.zeros(n, np.bool_),
        np.array(fields["number"], np.int16),
        wide[layout.QUEUE_OFFSET, :n],
        none,
        none,
    )
    return Scan(wide[:, :n], narrow[:, :n], none), dispatched


def expected_queues(records: Records, hidden: int) -> dict[tuple[int, int], list[int]]:
    """The numbers of the records of each queue, which a hidden record also begins."""
    queues: dict[tuple[int, int], list[int]] = {}
    for number, (topic, queue, flags, *_) in enumerate(records):
        numbers = queues.setdefault((topic, queue), [])
        if not flags & hidden:
            numbers.append(number)
    return queues


@given(records=RECORDS)
def test_units(twin: ModuleType, records: Records) -> None:  # noqa: ARG001 - the twin works
    found = units_by_queue(*scanned(records), hidden=HIDDEN)
    expected = expected_queues(records, HIDDEN)
    assert found.record.tolist() == [number for numbers in expected.values() for number in numbers]
    assert list(UNIT.iter_unpack(found.units.tobytes())) == [
        (1000 * number + 5, records[number][4], records[number][6]) for number in found.record.tolist()
    ]
    at = 0
    for topic, queue, start, end, queue_offset, is_plain, physic_end in found.runs:
        assert start == at < end
        at, numbers = end, found.record[start:end].tolist()
        assert set(numbers) <= set(expected[topic, queue])
        assert queue_offset == records[numbers[0]][3]
        assert is_plain == all(records[number][5] == 1 for number in numbers)
        assert physic_end == 1000 * numbers[-1] + 5 + records[numbers[-1]][4]
        for one, after in itertools.pairwise(numbers):
            assert records[one][3] + records[one][5] == records[after][3]
    assert at == len(found.record)
    for one, after in itertools.pairwise(found.runs):
        if one[:2] == after[:2]:  # the next run of a queue begins where messages do not follow each other
            last, first = found.record[one[3] - 1], found.record[after[2]]
            assert records[last][3] + records[last][5] != records[first][3]


@given(records=RECORDS)
def test_arrivals(twin: ModuleType, records: Records) -> None:  # noqa: ARG001 - the twin works
    scan, _ = scanned(records)
    assert arrivals_by_queue(scan) == [
        [
            *queue,
            max(0, *(records[number][3] + 1 for number in numbers)),
            len(numbers),
            sum(records[number][4] for number in numbers),
        ]
        for queue, numbers in expected_queues(records, 0).items()
    ]


@pytest.mark.parametrize("few", [1, 2, 1024])
def test_many_queues(twin: ModuleType, few: int, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr(columns, "FEW_QUEUES", few)
    records = [(number % 3, number % 1000, 0, number, 100, 1, 0) for number in range(3000)]
    scan, dispatched = scanned(records)
    expected = expected_queues(records, 0)
    assert [tuple(arrival[:2]) for arrival in arrivals_by_queue(scan)] == list(expected)
    found = units_by_queue(scan, dispatched, hidden=0)
    assert found.record.tolist() == [number for numbers in expected.values() for number in numbers]


@given(records=RECORDS)
def test_twins_agree(records: Records) -> None:
    found = []
    for module in (plain, kernels):
        with working_with(module):
            units, record, runs = units_by_queue(*scanned(records), hidden=HIDDEN)
            found.append((units.tobytes(), record.tolist(), runs))
    assert found[0] == found[1]
