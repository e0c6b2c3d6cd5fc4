"""The parts of a log that a query reads: ranges of physical offsets, and single records by their places.

    ranges   |===========|          |====|
    places                 .   .             .:::.:. ─▶ a block of 256 KiB

Places that lie close together become blocks, since to read a record by itself costs as much as PLACE_COST bytes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqlake.lake.arrow.filters import RowFilter, time_ms
from mqlake.lake.arrow.schema import NUMBERS
from mqlake.lake.log.single_records import Places
from mqlake.lake.log.splits import VERIFY_FULL, LogFile
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import PositionKind

I64_MAX = (1 << 63) - 1
BLOCK = 256 << 10
"""Size of a block: if its wanted records would cost as much one by one, all of it is read."""
PLACE_COST = 10_000
"""To read one record by itself, besides its bytes."""
PAGE = 4096
PLACES_MAX = 1 << 20
"""More single records than so many become blocks."""
RANGES_MAX = 10_000
"""More than so many ranges are made fewer by reading what lies between them."""

Ints = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Reading:
    """The records that begin in `ranges` of physical offsets (sorted, apart), and those at `places`."""

    ranges: Ranges
    places: Places = field(default_factory=Places.none)

    @property
    def cost(self) -> int:
        _, touched = _by_block(self.places)
        return sum(end - start for start, end in self.ranges) + int(np.minimum(touched, BLOCK).sum())

    def and_in(self, other: Reading) -> Reading:
        """The records that are in both."""
        mine, theirs = self.places, other.places
        both = [
            mine.where(_inside(mine.offset, other.ranges) | np.isin(mine.offset, theirs.offset)),
            theirs.where(_inside(theirs.offset, self.ranges)),
        ]
        places = Places.of(
            *(np.concatenate([getattr(each, n) for each in both]) for n in ("offset", "size", "number"))
        )
        return Reading(meet(self.ranges, other.ranges), places)


class Gathered:
    """Places of records, folded to blocks before they are too many; `size` is the bytes of all that were added."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._count = 0
        self._blocks = np.zeros(0, np.int64)

    def add(self, offset: Ints, size: Ints, number: Ints) -> None:
        self._parts.append((offset, size, number))
        self.size += int(size.sum())
        self._count += len(offset)
        if self._count > 2 * PLACES_MAX:
            places = self._places()
            dense = _dense(places)
            rest = places.where(~np.isin(places.offset // BLOCK, dense))
            if len(rest) > PLACES_MAX:
                dense, rest = np.unique(places.offset // BLOCK), Places.none()
            self._blocks = np.union1d(self._blocks, dense)
            self._parts, self._count = [(rest.offset, rest.size, rest.number)], len(rest)

    def merge(self, other: Gathered) -> None:
        self._blocks = np.union1d(self._blocks, other._blocks)
        for part in other._parts:
            self.add(*part)

    def _places(self) -> Places:
        if not self._parts:
            return Places.none()
        return Places.of(*(np.concatenate(columns) for columns in zip(*self._parts, strict=True)))

    def reading(self, also: Ranges) -> Reading:
        blocks = ((int(each) * BLOCK, (int(each) + 1) * BLOCK) for each in self._blocks)
        ranges = joined([*blocks, *also])
        places = self._places()
        return Reading(ranges, places.where(~_inside(places.offset, ranges)))


def laid_out(reading: Reading, storage: Storage, wanted: RowFilter, split_size: int) -> Reading:
    """The same with ranges in place of places that lie close together, or that cannot be read one by one."""
    as_ranges = not storage.is_local or wanted.options.verify == VERIFY_FULL
    return _in_blocks(reading, min(BLOCK, split_size) if as_ranges else None)


# ---------------------------------------------------------------------- ranges and blocks


def meet(a: Ranges, b: Ranges) -> Ranges:
    """The ranges that lie in both."""
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def joined(ranges: Iterable[tuple[int, int]], gap_max: int = 0) -> Ranges:
    """Sorted and apart, with what lies between two when it is not longer than `gap_max`."""
    found: Ranges = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1] + gap_max:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def fewer(ranges: Ranges) -> Ranges:
    """At most RANGES_MAX, the shortest gaps being read."""
    if len(ranges) <= RANGES_MAX:
        return ranges
    gaps = np.array([b[0] - a[1] for a, b in itertools.pairwise(ranges)])
    return joined(ranges, int(np.partition(gaps, len(gaps) - RANGES_MAX)[len(gaps) - RANGES_MAX]))


def _inside(offset: Ints, ranges: Ranges) -> npt.NDArray[np.bool_]:
    if not ranges:
        return np.zeros(len(offset), np.bool_)
    starts, ends = np.array(ranges, np.int64).T
    at = np.searchsorted(starts, offset, "right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (offset < ends[at])
    return inside


def _in_blocks(reading: Reading, gap_max: int | None) -> Reading:
    """Places that lie close together as ranges of whole blocks; with `gap_max` each as one, with its page."""
    places = reading.places.where(~_inside(reading.places.offset, reading.ranges))
    if gap_max is not None:
        blocks, size = np.unique(places.offset // PAGE), PAGE
        places = Places.none()
    else:
        blocks, size = _dense(places), BLOCK
        places = places.where(~np.isin(places.offset // BLOCK, blocks))
        if len(places) > PLACES_MAX:
            blocks = np.union1d(blocks, places.offset // BLOCK)
            places = Places.none()
    borders = np.flatnonzero(np.diff(blocks) > 1)
    firsts, lasts = np.append(0, borders + 1), np.append(borders, len(blocks) - 1)
    found = [
        (int(blocks[a]) * size, (int(blocks[b]) + 1) * size)
        for a, b in zip(firsts, lasts, strict=True)
        if len(blocks)
    ]
    ranges = fewer(joined([*reading.ranges, *found], gap_max or 0))
    return Reading(ranges, places.where(~_inside(places.offset, ranges)))


def _by_block(places: Places) -> tuple[Ints, npt.NDArray[np.float64]]:
    """The numbers of the blocks that have places, and what it costs to read those of each."""
    if not len(places):
        return np.zeros(0, np.int64), np.zeros(0)
    block = places.offset // BLOCK
    firsts = np.append(0, np.flatnonzero(np.diff(block)) + 1)
    return block[firsts], np.add.reduceat(np.maximum(places.size, 0) + float(PLACE_COST), firsts)


def _dense(places: Places) -> Ints:
    """Numbers of the blocks that are read as a whole in less time."""
    blocks, touched = _by_block(places)
    return blocks[touched >= BLOCK]


# ---------------------------------------------------------------------- bounds


@dataclass(frozen=True)
class Bounds:
    """An interval; both ends included."""

    low: float = -I64_MAX
    high: float = I64_MAX

    def narrowed(self, compare: object, values: Sequence[float]) -> Bounds:
        """By a comparison with the first value, or (None) with being one of them."""
        if compare in (None, operator.eq):
            return Bounds(max(self.low, min(values)), min(self.high, max(values))) if values else self
        if compare in (operator.gt, operator.ge):
            return Bounds(max(self.low, values[0]), self.high)
        return Bounds(self.low, min(self.high, values[0]))


def bounds_of(wanted: RowFilter, column: str, kind: PositionKind | None = None) -> Bounds:
    """Returns the bounds that the conditions on a column leave, and a start or an end of this kind."""
    bounds = Bounds()
    for each in wanted.conditions:
        if each.column == column:
            values = [
                v for v in (each.values if column in NUMBERS else map(time_ms, each.values)) if v is not None
            ]
            if len(values) == len(each.values):
                bounds = bounds.narrowed(each.compare, values)
    options = wanted.options
    if options.start.kind is kind:
        bounds = bounds.narrowed(operator.ge, [options.start.value])
    if options.end.kind is kind:
        bounds = bounds.narrowed(operator.lt, [options.end.value])
    return bounds


def files_within(files: Sequence[LogFile], wanted: RowFilter) -> list[LogFile]:
    """Returns the files that have wanted physical offsets."""
    bounds = bounds_of(wanted, "physicalOffset", PositionKind.PHYSICAL)
    return [file for file in files if file.end_offset > bounds.low and file.base_offset <= bounds.high]
