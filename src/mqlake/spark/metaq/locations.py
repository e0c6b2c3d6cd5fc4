"""The places that the source `metaq` reads, for batches and streams: data directories, or live brokers.

    bounds     the first offset and the end of each partition
    pieces     the work of tasks, from one offset of a partition to another
    end_after  the offset after so many messages, or bytes

Offsets are MetaQ's, in bytes; a record begins at each one that is returned.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mqlake.errors import ConfigError, StoreCorruptError
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.topics import require_topics
from mqlake.lake.offsets import EARLIEST, LATEST, Position, PositionKind
from mqlake.metaq.store.columns import Damage, Records
from mqlake.metaq.store.inspect import PartitionFiles
from mqlake.spark.metaq.live import LiveRange, fetch_range, live_ranges
from mqlake.spark.metaq.segments import Split, open_directory, splits, walk, written_end

logger = logging.getLogger(__name__)

Piece = Split | LiveRange
Bounds = tuple[int, int]


@dataclass(frozen=True, order=True)
class PartitionKey:
    """A partition: `place` is a data directory, or a broker's id."""

    topic: str
    place: str
    partition: int

    @property
    def name(self) -> str:
        """The location's name in JSON offsets."""
        return f"{self.place}:{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of {self.place}"


Offsets = dict[PartitionKey, int]


class Place(Protocol):
    def bounds(self, known: Mapping[PartitionKey, int] | None = None) -> dict[PartitionKey, Bounds]:
        """The current bounds. `known`: how far partitions were read; with it, ends are those of whole records.

        Raises ConfigError for an unknown topic, NotAStoreError, StoreCorruptError, RemotingError, ResponseError.
        """

    def pieces(self, part: PartitionKey, start: int, end: int | None = None) -> Iterator[Piece]:
        """Yields the pieces of a partition that `bounds` has returned; `end` None: to its end, a torn record
        included."""


class Directories:
    """Data directories, local or remote."""

    def __init__(
        self,
        storages: tuple[Storage, ...],
        topics: frozenset[str] | None,
        split_size: int,
        *,
        must_be_whole: bool,
    ) -> None:
        """`must_be_whole`: a gap between segments is an error."""
        self._storages = storages
        self._topics = topics
        self._split_size = split_size
        self._must_be_whole = must_be_whole
        self._found: dict[PartitionKey, tuple[Storage, PartitionFiles]] = {}
        self._ends: Offsets = {}

    def bounds(self, known: Mapping[PartitionKey, int] | None = None) -> dict[PartitionKey, Bounds]:
        self._found = {}
        known_topics: set[str] = set()
        for storage in self._storages:
            directory = open_directory(storage)
            known_topics |= {files.topic for files in directory.partitions}
            directory.partitions = [
                files for files in directory.partitions if self._topics is None or files.topic in self._topics
            ]
            try:
                directory.check_gaps()
            except StoreCorruptError as error:
                if self._must_be_whole:
                    raise
                logger.warning("%s; reading continues after the gap", error)
            for files in directory.partitions:
                self._found[PartitionKey(files.topic, storage.root, files.partition)] = storage, files
        if self._topics is not None:
            require_topics(self._topics, known_topics)
        if known is None:
            return {part: (files.min_offset, files.max_offset) for part, (_, files) in self._found.items()}
        for part, (storage, files) in self._found.items():
            seen = max(self._ends.get(part, 0), known.get(part, 0))
            self._ends[part] = written_end(storage, files, seen)
        return {part: (files.min_offset, self._ends[part]) for part, (_, files) in self._found.items()}

    def pieces(self, part: PartitionKey, start: int, end: int | None = None) -> Iterator[Piece]:
        storage, files = self._found[part]
        return splits(storage, files, self._split_size, start, end)


class Brokers:
    """All masters in a ZooKeeper. They report the end of their messages themselves."""

    def __init__(
        self, zookeeper: str, zk_root: str, topics: frozenset[str] | None, *, fail_on_data_loss: bool
    ) -> None:
        self._where = zookeeper, zk_root, topics
        self._fail_on_data_loss = fail_on_data_loss
        self._found: dict[PartitionKey, LiveRange] = {}

    def bounds(self, known: Mapping[PartitionKey, int] | None = None) -> dict[PartitionKey, Bounds]:
        self._found = {
            PartitionKey(each.topic, str(each.broker_id), each.partition): each
            for each in live_ranges(*self._where, fail_on_data_loss=self._fail_on_data_loss)
        }
        return {part: (each.start, each.end) for part, each in self._found.items()}

    def pieces(self, part: PartitionKey, start: int, end: int | None = None) -> Iterator[Piece]:
        found = self._found[part].part(start, end)
        return iter([found] if found.start < found.end else [])


def read_piece(piece: Piece, *, verify: bool) -> Iterator[Records | Damage]:
    """Records and the damage between them, in their order."""
    return walk(piece, verify=verify) if isinstance(piece, Split) else fetch_range(piece, verify=verify)


def end_after(
    pieces: Iterator[Piece], start: int, end: int, *, records: int | None = None, size: int | None = None
) -> int:
    """The offset after the first `records` records from `start` on, or of the first one `size` bytes later; at most
    `end`."""
    for found in itertools.chain.from_iterable(read_piece(piece, verify=True) for piece in pieces):
        if isinstance(found, Damage):
            continue
        if size is not None:
            n = int(np.searchsorted(found.offset, start + size))
        else:
            assert records is not None
            n, records = records, records - min(records, len(found))
        if n < len(found):
            return int(found.offset[n])
    return end


def resolve(position: Position, bounds: Mapping[PartitionKey, Bounds], default: int) -> Offsets:
    """Returns the offsets at which partitions begin or end; `default` (EARLIEST or LATEST) for those that `position`
    does not name.

    ConfigError for an unknown partition.
    """
    named = dict(position.queues)
    if position.kind is not PositionKind.QUEUES:
        default = EARLIEST if position.kind is PositionKind.EARLIEST else LATEST
    found = {}
    for part, (low, high) in bounds.items():
        own = named.pop((part.topic, part.name), None)
        offset = default if own is None else own
        for_all = position.queues.get((part.topic, str(part.partition)))
        if own is None and for_all is not None:
            offset = for_all
        found[part] = {EARLIEST: low, LATEST: high}.get(offset, offset)
    plain = {(part.topic, str(part.partition)) for part in bounds}
    for topic, name in named:
        if (topic, name) not in plain:
            raise ConfigError(
                f"{position.name} names partition {name} of topic {topic}, which does not exist"
            )
    return found
