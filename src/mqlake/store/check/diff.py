"""Compares two stores: the files of their logs byte by byte, and the units of their consume queues.

    a  ├────────────────┼─ same ─┼── other bytes ──┼─ same ─────┤
    b        ├─ missing ┼─ same ─┼─────────────────┼─ same ─────┼── longer ──┤

Both may be written meanwhile: what one of them got since the comparison began counts as its end. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterator

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError
from mqlake.formats.columns import Bytes
from mqlake.formats.names import offset_to_file_name
from mqlake.store.config import CQ_UNIT_SIZE
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.read_only import ReadOnlyStore

BLOCK = 1 << 20
UNITS = 8192
DIFFERENCES_MAX = 1000
"""Named singly; the others are counted."""


class DifferenceKind(enum.Enum):
    MISSING = "missing"
    """Only the other store has it: files that this one deleted, or never had."""
    LONGER = "longer"
    """It goes on after the end of the other."""
    OTHER_BYTES = "other bytes"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """`size` bytes (of a queue: units) from `offset` on. `store`: the path of the one that lacks them or has more;
    empty for other bytes. `file` and `position`: where that is on disk."""

    kind: DifferenceKind
    what: str
    """`commitlog`, or `topic/queue id`."""
    store: str
    offset: int
    size: int
    file: str
    position: int


@dataclasses.dataclass(slots=True)
class StoreDiff:
    a: str
    b: str
    a_range: tuple[int, int]
    b_range: tuple[int, int]
    compared_bytes: int = 0
    compared_units: int = 0
    differences: list[Difference] = dataclasses.field(default_factory=list)
    more_differences: int = 0

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def add(self, difference: Difference) -> None:
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(difference)
        else:
            self.more_differences += 1


def diff_stores(
    a: str, b: str, *, queues: bool = True, prefix: bool = False, progress: Progress = no_progress
) -> StoreDiff:
    """Compares two stores. `prefix`: `b` is a slave that follows `a`, so its log may end earlier, and either may begin
    later.

    Raises what ReadOnlyStore raises, and ConfigError for stores of other file sizes.
    """
    # a slave first: what it gets while its master is opened counts for neither
    with ReadOnlyStore(b) as second, ReadOnlyStore(a) as first:
        sizes = [store.commit_log_files.file_size for store in (first, second)]
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"mappedFileSizeCommitLog is {sizes[0]} in {a} and {sizes[1]} in {b}: their files cannot be compared"
            )
        found = StoreDiff(
            a,
            b,
            (first.min_phy_offset, first.max_phy_offset),
            (second.min_phy_offset, second.max_phy_offset),
        )
        if not prefix:
            _beginnings(found, first, second)
            _longer(found, first, a, found.a_range, found.b_range)
        _longer(found, second, b, found.b_range, found.a_range)
        _logs(found, first, second, progress)
        if queues:
            _queues(found, first, second)
        return found


def _beginnings(found: StoreDiff, first: ReadOnlyStore, second: ReadOnlyStore) -> None:
    for store, path, own, other in (
        (first, found.a, found.a_range, found.b_range),
        (second, found.b, found.b_range, found.a_range),
    ):
        if own[0] > other[0]:
            size = min(own[0], other[1]) - other[0]
            files = store.commit_log_files
            found.add(
                Difference(
                    DifferenceKind.MISSING, "commitlog", path, other[0], size, files.path_of(other[0]), 0
                )
            )


def _longer(
    found: StoreDiff, store: ReadOnlyStore, path: str, own: tuple[int, int], other: tuple[int, int]
) -> None:
    if own[1] > other[1]:
        start = max(other[1], own[0])
        found.add(_at(store, DifferenceKind.LONGER, path, start, own[1] - start))


def _at(store: ReadOnlyStore, kind: DifferenceKind, path: str, offset: int, size: int) -> Difference:
    files = store.commit_log_files
    base = offset - offset % files.file_size
    return Difference(kind, "commitlog", path, offset, size, files.path_of(base), offset - base)


def _logs(found: StoreDiff, first: ReadOnlyStore, second: ReadOnlyStore, progress: Progress) -> None:
    start = max(found.a_range[0], found.b_range[0])
    end = min(found.a_range[1], found.b_range[1])
    total = max(end - start, 0)
    run: list[int] = []
    for offset, size, ours, theirs in _blocks(first, second, start, end):
        found.compared_bytes += size
        progress(offset + size - start, total)
        if np.array_equal(ours, theirs):
            continue
        for place in (np.flatnonzero(ours != theirs) + offset).tolist():
            if run and place == run[1] and place % BLOCK:
                run[1] = place + 1
                continue
            if run:
                found.add(_at(first, DifferenceKind.OTHER_BYTES, "", run[0], run[1] - run[0]))
            run = [place, place + 1]
    if run:
        found.add(_at(first, DifferenceKind.OTHER_BYTES, "", run[0], run[1] - run[0]))


def _blocks(
    first: ReadOnlyStore, second: ReadOnlyStore, start: int, end: int
) -> Iterator[tuple[int, int, Bytes, Bytes]]:
    file_size = first.commit_log_files.file_size
    offset = start
    while offset < end:
        size = min(BLOCK, end - offset, file_size - offset % file_size)
        files: list[MappedFile] = []
        for store in (first, second):
            mapped_file = store.commit_log_files.find_mapped_file_by_offset(offset)
            if mapped_file is None:
                raise ConfigError(f"the file with offset {offset} went while the stores were compared")
            files.append(mapped_file)
        position = offset % file_size
        ours, theirs = (mapped_file.array[position : position + size] for mapped_file in files)
        yield offset, size, ours, theirs
        for mapped_file in files:
            mapped_file.evict(position, position + size)
        offset += size


def _queues(found: StoreDiff, first: ReadOnlyStore, second: ReadOnlyStore) -> None:
    """Units of messages that both logs have."""
    start, end = max(found.a_range[0], found.b_range[0]), min(found.a_range[1], found.b_range[1])
    for queue in first.consume_queues:
        other = second.consume_queues.get(queue.topic, queue.queue_id)
        if not isinstance(queue, ConsumeQueue) or not isinstance(other, ConsumeQueue):
            continue
        at = max(queue.min_offset_in_queue, other.min_offset_in_queue)
        high = min(queue.max_offset_in_queue, other.max_offset_in_queue)
        while at < high:
            ours, theirs = (each.get_range(at, min(UNITS, high - at)) for each in (queue, other))
            count = min(len(ours), len(theirs))
            if not count:
                at += 1
                continue
            ours, theirs = ours[:count], theirs[:count]
            both = (ours["offset"] >= start) & (ours["offset"] + ours["size"] <= end)
            found.compared_units += int(both.sum())
            for number in np.flatnonzero((ours != theirs) & both).tolist():
                found.add(_unit(queue, at + number))
            at += count


def _unit(queue: ConsumeQueue, queue_offset: int) -> Difference:
    files, at = queue.files, queue_offset * CQ_UNIT_SIZE
    base = at - at % files.file_size
    path = os.path.join(files.directory, offset_to_file_name(base))
    name = f"{queue.topic}/{queue.queue_id}"
    return Difference(DifferenceKind.OTHER_BYTES, name, "", queue_offset, 1, path, at - base)
