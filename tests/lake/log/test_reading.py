"""Ranges, places and blocks are sets of records: none gets lost when they are met, joined and gathered."""

from __future__ import annotations

import operator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.log import reading as log_reading
from mqlake.lake.log.single_records import Places
from mqlake.lake.log.splits import LogFile
from mqlake.lake.offsets import Position, PositionKind
from mqlake.lake.options import LogOptions

SPAN = 200
RANGES = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=8)


def numbers(ranges: log_reading.Ranges) -> set[int]:
    return {n for start, end in ranges for n in range(start, end)}


def is_sorted_and_apart(ranges: log_reading.Ranges) -> bool:
    return all(start < end for start, end in ranges) and all(a[1] < b[0] for a, b in pairwise(ranges))


def places_at(offsets: list[int]) -> Places:
    """Records of 10 bytes there, numbered by their offsets."""
    offset = np.array(sorted(set(offsets)), np.int64)
    return Places.of(offset, np.full(len(offset), 10), offset + 7)


def covered(reading: log_reading.Reading) -> set[int]:
    assert is_sorted_and_apart(reading.ranges)
    return numbers(reading.ranges) | set(reading.places.offset.tolist())


@settings(max_examples=60, deadline=None)
@given(a=RANGES, b=RANGES, gap=st.integers(0, 10), most=st.integers(1, 4))
def test_ranges_are_sets_of_numbers(
    a: log_reading.Ranges, b: log_reading.Ranges, gap: int, most: int
) -> None:
    mine, theirs = log_reading.joined(a), log_reading.joined(b)
    assert is_sorted_and_apart(mine) and numbers(mine) == numbers(a)
    both = log_reading.meet(mine, theirs)
    assert numbers(both) == numbers(mine) & numbers(theirs)
    between = {(x[1], y[0]) for x, y in pairwise(mine)}
    short = [(start, end) for start, end in between if end - start <= gap]
    assert numbers(log_reading.joined(a, gap)) == numbers(mine) | numbers(short)
    every = np.arange(SPAN + 5)
    assert set(every[log_reading._inside(every, mine)].tolist()) == numbers(mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reading, "RANGES_MAX", most)
        few = log_reading.fewer(mine)
    assert len(few) <= most and numbers(few) >= numbers(mine)
    if len(mine) <= most:
        assert few == mine
    else:
        read = {each for each in between if numbers([each]) <= numbers(few)}
        longest = max(end - start for start, end in read)
        assert all(end - start > longest for start, end in between - read), "the shortest gaps are read"
        assert sum(end - start >= longest for start, end in between) >= most, "and no more than have to be"


OFFSETS = st.lists(st.integers(0, SPAN), max_size=12)


@settings(max_examples=60, deadline=None)
@given(a=RANGES, b=RANGES, mine=OFFSETS, theirs=OFFSETS)
def test_what_two_plans_have_in_common(
    a: log_reading.Ranges, b: log_reading.Ranges, mine: list[int], theirs: list[int]
) -> None:
    first = log_reading.Reading(log_reading.joined(a), places_at(mine))
    second = log_reading.Reading(log_reading.joined(b), places_at(theirs))
    both = first.and_in(second)
    found = numbers(both.ranges) | set(both.places.offset.tolist())
    assert found == covered(first) & covered(second)
    assert (both.places.number == both.places.offset + 7).all() and (both.places.size == 10).all()


@settings(max_examples=60, deadline=None)
@given(
    ranges=RANGES, offsets=OFFSETS, gap=st.sampled_from([None, 0, 5, 300]), most=st.sampled_from([0, 2, 100])
)
def test_places_close_together_become_blocks(
    ranges: log_reading.Ranges, offsets: list[int], gap: int | None, most: int
) -> None:
    reading = log_reading.Reading(log_reading.joined(ranges), places_at(offsets))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reading, "BLOCK", 16)
        patch.setattr(log_reading, "PAGE", 4)
        patch.setattr(log_reading, "PLACE_COST", 0)
        patch.setattr(log_reading, "PLACES_MAX", most)
        made = log_reading._in_blocks(reading, gap)
        size = 16 if gap is None else 4
    assert covered(made) >= covered(reading)
    left = set(made.places.offset.tolist())
    assert left <= set(offsets) - numbers(made.ranges) and len(left) <= most
    assert not left or gap is None
    blocks = {n // size for n in set(offsets) - numbers(reading.ranges)}
    allowed = numbers(reading.ranges) | numbers([(n * size, (n + 1) * size) for n in blocks])
    bridged = numbers(log_reading.joined([(n, n + 1) for n in allowed], gap or 0))
    assert numbers(made.ranges) <= bridged, "whole blocks, and what lies between that is not worth a gap"
    if gap is None and most == 100:
        wanted = set(offsets) - numbers(reading.ranges)
        dense = {n for n in blocks if sum(10 for each in wanted if each // 16 == n) >= 16}
        assert left == {n for n in wanted if n // 16 not in dense} - numbers(made.ranges)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(OFFSETS, max_size=6), also=RANGES, most=st.sampled_from([0, 1, 3, 100]))
def test_places_that_are_gathered_are_all_read(
    parts: list[list[int]], also: log_reading.Ranges, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reading, "BLOCK", 16)
        patch.setattr(log_reading, "PLACE_COST", 0)
        patch.setattr(log_reading, "PLACES_MAX", most)
        gathered = log_reading.Gathered()
        for offsets in parts:
            each = places_at(offsets)
            gathered.add(each.offset, each.size, each.number)
            assert sum(len(part[0]) for part in gathered._parts) <= 2 * most
        reading = gathered.reading(also)
    wanted = {offset for offsets in parts for offset in offsets} | numbers(also)
    assert covered(reading) >= wanted
    near = {n // 16 for offsets in parts for n in offsets}
    assert covered(reading) <= numbers(also) | numbers([(n * 16, n * 16 + 16) for n in near])
    if most == 100:
        assert covered(reading) == wanted and reading.ranges == log_reading.joined(also)
    assert (reading.places.number == reading.places.offset + 7).all()


@pytest.mark.parametrize(
    ("places", "ranges", "cost"),
    [
        ([], [], 0),
        ([], [(0, 100), (200, 250)], 150),
        ([5], [], 74),
        ([5, 6], [(0, 1)], 149),
        (list(range(2048)), [], 2048),
    ],
    ids=["nothing", "ranges", "a place", "all", "no more than its blocks"],
)
def test_what_a_plan_costs(
    monkeypatch: pytest.MonkeyPatch, places: list[int], ranges: log_reading.Ranges, cost: int
) -> None:
    """Blocks of 1024 bytes, places of 10 bytes and 64 more."""
    monkeypatch.setattr(log_reading, "BLOCK", 1024)
    monkeypatch.setattr(log_reading, "PLACE_COST", 64)
    assert log_reading.Reading(ranges, places_at(places)).cost == cost


def test_bounds_narrow() -> None:
    every = log_reading.Bounds()
    assert every.narrowed(None, []) == every
    assert every.narrowed(None, [5, 3, 9]) == log_reading.Bounds(3, 9)
    assert every.narrowed(operator.eq, [4]) == log_reading.Bounds(4, 4)
    between = every.narrowed(operator.ge, [4]).narrowed(operator.lt, [9])
    assert between == log_reading.Bounds(4, 9)
    assert between.narrowed(operator.gt, [1]) == between == between.narrowed(operator.le, [20])
    assert between.narrowed(None, [1, 6]) == log_reading.Bounds(4, 6)


def test_bounds_come_of_conditions_and_of_where_a_read_starts_and_ends() -> None:
    """Those of another kind are no bounds of the column: a start at a time is none of a physical offset."""
    conditions = (
        Condition("physicalOffset", operator.ge, (150,)),
        Condition("queueOffset", operator.lt, (7,)),
        Condition("physicalOffset", operator.le, (None,)),
    )

    def wanted(kind: PositionKind) -> RowFilter:
        start, end = Position(kind, 200), Position(kind, 900)
        return RowFilter(LogOptions(stores=(), start=start, end=end), conditions)

    def bounds(given: RowFilter, kind: PositionKind | None) -> log_reading.Bounds:
        return log_reading.bounds_of(given, "physicalOffset", kind)

    offsets, times = wanted(PositionKind.PHYSICAL), wanted(PositionKind.TIMESTAMP)
    assert bounds(offsets, PositionKind.PHYSICAL) == log_reading.Bounds(200, 900)
    assert bounds(offsets, None) == log_reading.Bounds(low=150)
    assert bounds(times, PositionKind.PHYSICAL) == log_reading.Bounds(low=150)
    files = [LogFile(f"{base}", base, 100, 100) for base in range(0, 1100, 100)]
    inside = [file.base_offset for file in log_reading.files_within(files, offsets)]
    assert inside == list(range(200, 901, 100))


def test_the_shortest_gaps_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "RANGES_MAX", 2)
    assert log_reading.fewer([(0, 10), (20, 1000), (1500, 1510)]) == [(0, 1000), (1500, 1510)]
    assert log_reading.fewer([(0, 10), (500, 510), (520, 1000)]) == [(0, 10), (500, 1000)]
