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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mqlake.errors import ConfigError, StoreError
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.lake.arrow.filters import RowFilter, indexed_keys
from mqlake.lake.log import key_index
from mqlake.lake.log.queue_files import BATCH, DIRECTORIES, SIMPLE, QueueFile, Run, queue_files
from mqlake.lake.log.reading import I64_MAX, Gathered, Ranges, Reading, bounds_of, joined, laid_out
from mqlake.lake.log.record_heads import RecordHeads
from mqlake.lake.log.single_records import UNKNOWN, Places, message_number
from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.topics import topic_configs
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import Mode
from mqlake.message import SCHEDULE_TOPIC, tags_code
from mqlake.store.files.store_lock import lock_holder

MOSTLY = 0.7
"""Share of a scan's cost: skipping that would still cost so much is left alone."""
LOCAL_FILE = 50_000
"""To find a queue's file, read its units and look at two of their records."""
LOCAL_FILES_MIN = 64
"""Fewer of them are no matter."""
REMOTE_SPLITS_MIN = 64
"""A scan that takes fewer requests is not preceded by those for consume queues."""
REMOTE_INDEX_MIN = 11
"""The same for the index."""
LOOKUPS_MAX = 100_000
"""Topics times keys that are looked up in the index."""


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


@dataclass
class _Queue:
    """The proof of one consume queue: no other message of it between `first` and `last`, physical offsets. `following`:
    the queue offset after its last unit."""

    first: int
    last: int
    is_whole: bool
    following: int = 0


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
        """Finds by the index the messages of topics that are known to have no inner batches, whose messages it does
        not know."""
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
        chosen = queue_files(self._storage, self._topics, self._queue_ids)
        local_max = max(LOCAL_FILES_MIN, cost // LOCAL_FILE)
        if len(chosen) > (local_max if self._storage.is_local else self._requests(cost) / 2):
            return None
        gathered = Gathered()
        queues = self._proven_by(chosen, gathered, cost * MOSTLY)
        also = None if queues is None else self._not_proven_by(queues)
        found = None if also is None else gathered.reading(also)
        return None if found is None or found.cost > cost * MOSTLY else found

    def _not_proven_by(self, queues: dict[tuple[str, int], _Queue]) -> Ranges | None:
        """Returns the ranges that may have messages of the topics which the queues do not tell of; None: anywhere."""
        if self._wanted.options.known_topics and self._are_all_whole(queues):
            dispatched = self._dispatched_to()
            if dispatched is not None:
                return [(dispatched, self._high)]
        if not self._has_all_queues(queues):
            return None
        return joined(
            part for queue in queues.values() for part in ((self._low, queue.first), (queue.last, self._high))
        )

    def _proven_by(
        self, chosen: Sequence[QueueFile], gathered: Gathered, size_max: float
    ) -> dict[tuple[str, int], _Queue] | None:
        """Returns what each queue proves; None once their records are more bytes than `size_max`."""
        queues: dict[tuple[str, int], _Queue] = {}
        before: tuple[int, int] | None = None
        for file in chosen:
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
            if gathered.size > size_max:
                return None
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
    """Returns the end of each queue of each topic when the store last ended cleanly; empty if it has been opened
    since, or if that cannot be read."""
    if storage.exists("abort"):
        return {}
    try:
        return {
            topic: {int(number): int(end) for number, end in queues.items()}
            for topic, queues in storage.json_object("", "queue-ends.json").get("queues", {}).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
