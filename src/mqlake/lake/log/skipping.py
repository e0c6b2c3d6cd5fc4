"""Which parts of a log without heads a query has to read: planned from what lies beside it, for what it costs.

    physical offsets            from the filter itself
    key                         from the index: key_index
    topic, queue, offset, tag   from the consume queues of the topics that are asked for

What cannot be proven absent is read. The index says nothing outside its files, nor about messages of inner batches. A
consume queue proves what lies between its first and its last unit; before and after, there may be messages without a
unit: of a topic that was deleted and created again, or not dispatched yet, or when the queue came from a backup.
topics.json says whether all queues are there; without it queue-ends.json does, which a store of mqlake's leaves at a
clean end. Where that does not suffice, the log is read: heads (lake.heads) prove more, and in less time.

    log   |??????[A]..[A].......[A]..[A]??|     the ends are read too

The cost is counted in bytes of log that a scan reads in the same time. Nothing is done that would cost more than it
saves or, with a remote store, take more requests.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqlake.errors import ConfigError, StoreError
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.lake.arrow.filters import NUMBERS, RowFilter, indexed_keys, time_ms
from mqlake.lake.log import key_index
from mqlake.lake.log.queue_files import BATCH, DIRECTORIES, SIMPLE, QueueFile, Run, queue_files
from mqlake.lake.log.record_heads import RecordHeads
from mqlake.lake.log.single_records import UNKNOWN, Places, message_number
from mqlake.lake.log.splits import VERIFY_FULL, LogFile
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.topics import topic_configs
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import Mode
from mqlake.message import SCHEDULE_TOPIC, tags_code
from mqlake.store.files.store_lock import lock_holder

I64_MAX = (1 << 63) - 1
BLOCK = 256 << 10
"""Where the wanted records of a block would cost as much one by one, all of it is read."""
PLACE_COST = 10_000
"""To read one record by itself, besides its bytes."""
PAGE = 4096
PLACES_MAX = 1 << 20
"""More single records than so many become blocks."""
RANGES_MAX = 10_000
"""More than so many ranges are made fewer by reading what lies between them."""
MOSTLY = 0.7
"""Of what a scan costs: skipping that would still cost so much is left alone."""
UNITS_BETWEEN_LOOKS = 1000
REMOTE_SPLITS_MIN = 64
"""A scan that takes fewer requests is not preceded by those for consume queues."""
REMOTE_INDEX_MIN = 11
"""The same for the index."""
LOOKUPS_MAX = 100_000
"""Topics times keys that are looked up in the index."""

Ints = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]


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


def what_to_read(storage: Storage, files: Sequence[LogFile], wanted: RowFilter, split_size: int) -> Reading:
    """Ranges and places in which all records lie that may pass."""
    if not files:
        return Reading([])
    physical = bounds_of(wanted, "physicalOffset", PositionKind.PHYSICAL)
    low = max(files[0].base_offset, int(physical.low))
    high = min(files[-1].end_offset, int(physical.high) + 1)
    reading = Reading([(low, high)] if low < high else [])
    if not wanted.options.skipping or not reading.ranges:
        return reading
    if wanted.topics is not None and not wanted.topics:
        return Reading([])
    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: the log counts
        reading = _Planner(storage, files, wanted, split_size).narrowed(reading)
    return laid_out(reading, storage, wanted, split_size)


def laid_out(reading: Reading, storage: Storage, wanted: RowFilter, split_size: int) -> Reading:
    """The same with ranges in place of places that lie close together, or that cannot be read one by one."""
    as_ranges = not storage.is_local or wanted.options.verify == VERIFY_FULL
    return _in_blocks(reading, min(BLOCK, split_size) if as_ranges else None)


def bounds_of(wanted: RowFilter, column: str, kind: PositionKind | None = None) -> Bounds:
    """What the conditions on a column leave, and a start or an end of this kind."""
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
    """Those of which a part lies at physical offsets that are wanted."""
    bounds = bounds_of(wanted, "physicalOffset", PositionKind.PHYSICAL)
    return [file for file in files if file.end_offset > bounds.low and file.base_offset <= bounds.high]


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


# ---------------------------------------------------------------------- from consume queues and index


@dataclass
class _Queue:
    """The proof of one consume queue: no other message of it between `first` and `last`, physical offsets. `following`:
    the queue offset after its last unit."""

    first: int
    last: int
    is_whole: bool
    following: int = 0


class Gathered:
    """Places of records, folded to blocks before they are too many."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._count = 0
        self._blocks = np.zeros(0, np.int64)

    def add(self, offset: Ints, size: Ints, number: Ints) -> None:
        self._parts.append((offset, size, number))
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


class _Planner:
    """One store and what is asked of it."""

    def __init__(
        self, storage: Storage, files: Sequence[LogFile], wanted: RowFilter, split_size: int
    ) -> None:
        self._storage, self._wanted = storage, wanted
        self._heads = RecordHeads(storage, files)
        self._low, self._high = files[0].base_offset, files[-1].end_offset
        self._split_size = split_size
        self._queue_ids = wanted.allowed("queueId")
        self._offsets = bounds_of(wanted, "queueOffset")
        self._starts = wanted.options.start.kind is PositionKind.QUEUES
        self._ends = wanted.options.end.kind is PositionKind.QUEUES
        tags = wanted.allowed("tags")
        self._codes = None if tags is None else np.array([tags_code(tag) for tag in tags], np.int64)
        asked = [keys for keys in map(indexed_keys, wanted.conditions) if keys is not None]
        if wanted.options.keys is not None:
            asked.append(wanted.options.keys)
        self._keys = min(asked, key=len) if asked else None
        self._topics = wanted.topics if _can_be_directories(wanted.topics) else None

    def narrowed(self, reading: Reading) -> Reading:
        """The part of `reading` that has to be read."""
        options = self._wanted.options
        if not options.unpack:  # raw reads show what has no unit: half and rolled back messages
            return reading
        plans: list[tuple[Callable[[int], Reading | None], int]] = []
        if self._keys is not None:
            plans.append((self._by_index, REMOTE_INDEX_MIN))
        # a unit that leads to another record is damage, which must not be left out
        if self._topics is not None and options.mode is Mode.FAIL_FAST:
            plans.append((self._by_queues, REMOTE_SPLITS_MIN))
        for plan, requests_min in plans:
            if self._requests(reading.cost) >= requests_min:
                found = self._guarded(plan, reading.cost)
                reading = reading if found is None else reading.and_in(found)
        return reading

    def _requests(self, cost: int) -> float:
        return I64_MAX if self._storage.is_local else cost / self._split_size

    @staticmethod
    def _guarded(plan: Callable[[int], Reading | None], cost: int) -> Reading | None:
        try:
            return plan(cost)
        except (
            StoreError,
            ConfigError,
            OSError,
            ValueError,
        ):  # damaged, or deleted meanwhile: the log counts
            return None

    # ------------------------------------------------------------------ the index

    def _by_index(self, cost: int) -> Reading | None:
        """Of topics that are known to have no inner batches, whose messages the index does not know."""
        topics = self._known_topics() if self._topics is None else self._topics
        found = None if topics is None else self._index_reading(topics, cost)
        if found is None or self._topics is None:
            return found
        for topic in self._topics:
            if not self._storage.directories(f"{DIRECTORIES[SIMPLE]}/{topic}") or self._storage.directories(
                f"{DIRECTORIES[BATCH]}/{topic}"
            ):
                return None
        return found

    def _known_topics(self) -> Collection[str] | None:
        """All that are there; None unless that is asked for, since what was deleted may have the key, too."""
        assert self._keys is not None
        if not self._wanted.options.known_topics or self._storage.directories(DIRECTORIES[BATCH]):
            return None
        topics = {*self._storage.directories(DIRECTORIES[SIMPLE]), *topic_configs(self._storage)}
        return topics if len(topics) * len(self._keys) <= LOOKUPS_MAX else None

    def _index_reading(self, topics: Collection[str], cost: int) -> Reading | None:
        assert self._keys is not None
        found = key_index.hits(
            self._storage, topics, self._keys, self._heads.store_time_at, cost // 4, self._requests(cost)
        )
        if found is None:
            return None
        silent, position = [], self._low
        for begin, end in sorted(found.known):
            silent.append((position, begin + 1))
            position = max(position, end)
        offsets = found.offsets[(found.offsets >= self._low) & (found.offsets < self._high)]
        unknown = np.full(len(offsets), UNKNOWN)
        return Reading(joined([*silent, (position, self._high)]), Places.of(offsets, unknown, unknown))

    # ------------------------------------------------------------------ consume queues

    def _by_queues(self, cost: int) -> Reading | None:
        """By the queues of the topics, if they prove enough."""
        assert self._topics is not None
        chosen = queue_files(self._storage, self._topics)
        if not self._storage.is_local and len(chosen) > self._requests(cost) / 2:
            return None
        if self._is_mostly(chosen, cost):
            return None
        gathered = Gathered()
        queues = self._proven_by(chosen, gathered)
        also = self._not_proven_by(queues)
        found = None if also is None else gathered.reading(also)
        return None if found is None or found.cost > cost * MOSTLY else found

    def _not_proven_by(self, queues: dict[tuple[str, int], _Queue]) -> Ranges | None:
        """Where messages of the topics may be that the queues do not tell of; None: anywhere."""
        if self._wanted.options.known_topics and self._are_all_whole(queues):
            dispatched = self._dispatched_to()
            if dispatched is not None:
                return [(dispatched, self._high)]
        if not self._has_all_queues(queues):
            return None
        return joined(
            part for queue in queues.values() for part in ((self._low, queue.first), (queue.last, self._high))
        )

    def _is_mostly(self, chosen: Sequence[QueueFile], cost: int) -> bool:
        """True if the queues' records are so much of the log that nothing is to be gained, by a look at some units."""
        size = 0.0
        for file in chosen:
            array, first, count = file.rows()
            if file.kind == SIMPLE:
                low, high = self._offsets_of(file)
                before = file.offset // array.itemsize
                first, count = max(first, low - before), min(count, high + 1 - before)
            if count > first:
                size += (count - first) * float(array["size"][first:count:UNITS_BETWEEN_LOOKS].mean())
        return size > cost * MOSTLY

    def _proven_by(self, chosen: Sequence[QueueFile], gathered: Gathered) -> dict[tuple[str, int], _Queue]:
        queues: dict[tuple[str, int], _Queue] = {}
        before: tuple[int, int] | None = None
        for file in chosen:
            if self._queue_ids is not None and file.queue_id not in self._queue_ids:
                continue
            name = file.topic, file.queue_id
            if name not in queues:
                before = None
            run = self._run(file)
            queue = queues.setdefault(name, _Queue(self._high, self._low, is_whole=True))
            if run is None:
                queue.is_whole = False
                continue
            if len(run.offset) == 0:
                continue
            if before is not None and (before[0] != run.number[0] or before[1] > run.offset[0]):
                queue.is_whole = False
            following = int(run.units["batch_size"][-1]) if file.kind == BATCH else 1
            before = int(run.number[-1]) + following, int(run.offset[-1] + run.size[-1])
            queue.first = min(queue.first, max(self._low, int(run.offset[0])))
            queue.last = max(queue.last, min(self._high, before[1]))
            queue.following = before[0]
            self._choose(file, run, gathered)
        return queues

    def _run(self, file: QueueFile) -> Run | None:
        """The units of a file in which the first and the last lead to messages of its queue."""
        run = file.run()
        if run is None:
            return None
        first, last = np.searchsorted(run.offset, [self._low, self._high])
        for row in {int(first), int(last) - 1} if first < last else ():
            said = self._heads.message_at(int(run.offset[row]))
            if said != (file.topic, file.queue_id, int(run.number[row])):
                return None
        return run

    def _choose(self, file: QueueFile, run: Run, gathered: Gathered) -> None:
        number = run.number
        low, high = self._offsets_of(file)
        mask = (run.offset >= self._low) & (run.offset < self._high) & (number <= high)
        if file.kind == SIMPLE:
            mask &= number >= low
            if self._codes is not None and file.topic != SCHEDULE_TOPIC:  # there it is the time of delivery
                code = run.units["tags_code"]  # an address in the extension may stand for any code
                mask &= np.isin(code, self._codes) | (code <= MAX_ADDRESS)
        else:
            mask &= number + run.units["batch_size"] > low
        gathered.add(run.offset[mask], run.size[mask], message_number(file.queue_id, number[mask]))

    def _offsets_of(self, file: QueueFile) -> tuple[int, int]:
        """The first and the last queue offset that are wanted of a queue."""
        options, name = self._wanted.options, (file.topic, str(file.queue_id))
        low = max(int(self._offsets.low), options.start.queues.get(name, 0) if self._starts else 0)
        high = options.end.queues.get(name, -1) if self._ends else -1
        return low, min(int(self._offsets.high), high - 1 if high >= 0 else I64_MAX)

    def _are_all_whole(self, queues: dict[tuple[str, int], _Queue]) -> bool:
        """True if there are queues of each topic, and all of them prove what they can."""
        return frozenset(topic for topic, _ in queues) == self._topics and all(
            each.is_whole for each in queues.values()
        )

    def _dispatched_to(self) -> int | None:
        """Up to where every record that belongs in a queue has its unit, unless that was deleted since: to the end when
        the store was closed, else as far as the index, which is dispatched to after the queues. None after a crash."""
        if not self._storage.exists("abort"):
            return self._high
        if not self._storage.is_local or lock_holder(self._storage.path("lock")) is None:
            return None
        ends = [
            header.end_phy_offset for header in key_index.headers(self._storage, self._heads.store_time_at)
        ]
        return min(self._high, max(ends, default=self._low))

    def _has_all_queues(self, queues: dict[tuple[str, int], _Queue]) -> bool:
        if not all(queue.is_whole and queue.first < queue.last for queue in queues.values()):
            return False
        assert self._topics is not None
        if self._queue_ids is not None:
            return all((topic, queue) in queues for topic in self._topics for queue in self._queue_ids)
        numbers = _queue_numbers(self._storage)
        if not numbers:
            return self._are_as_recorded(queues)
        return all(
            numbers.get(topic, 0) > 0 and all((topic, queue) in queues for queue in range(numbers[topic]))
            for topic in self._topics
        )

    def _are_as_recorded(self, queues: dict[tuple[str, int], _Queue]) -> bool:
        """True if each topic has the queues that it had when the store ended, and each of them ends there."""
        assert self._topics is not None
        recorded = _recorded_ends(self._storage)
        ends: dict[str, dict[int, int]] = {topic: {} for topic in self._topics}
        for (topic, number), queue in queues.items():
            ends[topic][number] = queue.following
        return all(each and each == recorded.get(topic) for topic, each in ends.items())


def _can_be_directories(topics: frozenset[str] | None) -> bool:
    return topics is not None and not any(
        "/" in topic or "\0" in topic or topic in ("", ".", "..") or "\ufffd" in topic for topic in topics
    )


def _queue_numbers(storage: Storage) -> dict[str, int]:
    """The number of queues of each topic of config/topics.json; empty if it cannot be read."""
    try:
        return {
            topic: max(int(config.get("readQueueNums", 0)), int(config.get("writeQueueNums", 0)))
            for topic, config in topic_configs(storage).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _recorded_ends(storage: Storage) -> dict[str, dict[int, int]]:
    """Where each queue of each topic ended when the store last ended cleanly; empty if it has been opened since, or
    if that cannot be read."""
    if storage.exists("abort"):
        return {}
    try:
        return {
            topic: {int(number): int(end) for number, end in queues.items()}
            for topic, queues in storage.json_object("", "queue-ends.json").get("queues", {}).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
