"""The sources of a table's rows: what a step has to read of store directories, and how far it leads.

    state of each table ─▶ from where on     end of each log, or as much as a step may read ─▶ up to where
    pieces [ … ][ … ][ … ]   pickled to tasks; each gives the rows of each topic that its table does not have

Several topics are read in one pass that begins at the least position; each table passes over what it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ConfigError, TableError
from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.log.log_ends import known_end, remember
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.log.queue_files import QueueFile, queue_files
from mqlake.lake.log.single_records import Pick
from mqlake.lake.log.splits import DEFAULT_SPLIT_SIZE, LogFile, Split, log_files
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import LogTask, read_task, tasks_of
from mqlake.lake.log.topics import check_topics
from mqlake.lake.offsets import Position, PositionKind, Span
from mqlake.lake.options import VERIFY, LogOptions, one_of
from mqlake.lake.plan import splits_of
from mqlake.lake.tables.state import TableState, queue_name

QUIET_BYTES = 1 << 30
"""A table without new rows is moved on when its position is so far from the end of the log."""

OWN = ("topic", "physicalOffset")
"""Columns that a piece reads in any case."""

States = Mapping[str, TableState | None]
"""For each topic, the state of its table; None: nothing yet."""


class Piece(Protocol):
    """Work of one task."""

    @property
    def bytes(self) -> int: ...

    @property
    def name(self) -> str:
        """The store's name, written to `brokerName`; empty for brokers, whose rows have it."""

    def read(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Topics, and rows that their tables do not have yet. Raises what read_task() raises."""


@dataclass(frozen=True)
class StepPlan:
    """`reached`: by topic, the positions of stores after the step. `is_due`: the topics whose tables are to be moved
    on even without rows. `is_last`: it leads to where the source ends now. `gaps`: as Source.gaps(), by topic."""

    pieces: Sequence[Piece]
    reached: Mapping[str, Mapping[str, Mark]]
    is_due: frozenset[str] = frozenset()
    is_last: bool = True
    gaps: Mapping[str, Mapping[str, Sequence[Span]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


@dataclass(frozen=True)
class Lag:
    """The lag of a table. `bytes` of log, those of other topics included (of brokers a guess); `seconds` since the
    latest message it has, 0 when it has all; `kept`: bytes that the log has in all, None when that is not known."""

    messages: int
    bytes: int
    seconds: float
    kept: int | None = None


def waiting_seconds(messages: int, state: TableState) -> float:
    """The age of the latest message in a table that lacks some; 0 for one that lacks none or has none."""
    return max(0.0, time.time() - state.until / 1000) if messages and state.until else 0.0


class Tail(Protocol):
    """The messages of a source after a table's position, up to its end when this was created."""

    @property
    def begins(self) -> Mapping[str, int]:
        """The physical offset at which each store's log begins; nothing of brokers."""

    def pieces(self, conditions: tuple[Condition, ...]) -> Sequence[Piece]:
        """Returns the pieces that may have rows which fulfil the conditions."""


class Source(Protocol):
    """Store directories, or brokers."""

    def names(self, topic: str) -> Sequence[str]:
        """Returns the names of the stores or brokers, as they are in `brokerName` and in the tables' state."""

    def check(self, topics: Sequence[str]) -> None:
        """ConfigError for a topic that is not there."""

    def plan(self, states: States, bytes_max: int) -> StepPlan:
        """OffsetOutOfRangeError when messages are gone that a table lacks, TableError when it is another log."""

    def lag(self, topic: str, state: TableState | None) -> Lag: ...

    def ends(self) -> Mapping[str, tuple[int, int]] | None:
        """The physical offsets at which each store's log begins and ends, without a look at its queues; None of
        brokers, which know no more cheaply that they have messages."""

    def bounds(self, topic: str) -> dict[str, tuple[int, int]]:
        """Returns for each queue the first queue offset that is there, and the one that the next message will have."""

    def gaps(self, topic: str) -> Mapping[str, Sequence[Span]]:
        """Returns the offsets in queues of static topics that no message ever had: where the queue moved to another
        broker."""

    def tail(self, topic: str, state: TableState | None) -> Tail:
        """The messages that the source has now and the table lacks. Raises what plan() raises."""


@dataclass(frozen=True)
class _Log:
    storage: Storage
    files: Sequence[LogFile]

    @property
    def first(self) -> int:
        return self.files[0].base_offset if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].end_offset if self.files else 0


@dataclass(frozen=True)
class StorePiece:
    """A part of one log. `floors`: by topic the physical offset before which its table has everything."""

    name: str
    task: LogTask
    options: LogOptions
    floors: Mapping[str, int]
    conditions: tuple[Condition, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.task.splits)

    def read(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in read_task(
            self.task, self.options, self.conditions, list(dict.fromkeys([*columns, *OWN]))
        ):
            for topic, rows in by_topic(batch, self.floors):
                offsets = rows.column("physicalOffset")
                floor = self.floors[topic]
                if pc.min(offsets).as_py() < floor:
                    rows = rows.filter(pc.greater_equal(offsets, floor))
                if rows.num_rows:
                    yield topic, rows


def _as_many(splits: list[Split | Pick], bytes_max: int, end: int) -> tuple[list[Split | Pick], int]:
    """The first splits of about so many bytes, and the physical offset before which they have everything. What single
    records beyond it are among them is read again later."""
    size = 0
    for number, split in enumerate(splits):
        if number and size + split.bytes > bytes_max:
            return splits[:number], split.base_offset + split.start
        size += split.bytes
    return splits, end


@dataclass(frozen=True)
class StoreTail:
    """The messages of logs after a table's position, up to their ends when this was created."""

    topic: str
    logs: Sequence[tuple[str, _Log, LogOptions, int]]
    """Name, log, the read, and the physical offset up to which the table has it."""

    @property
    def begins(self) -> dict[str, int]:
        return {name: log.first for name, log, _, _ in self.logs}

    def pieces(self, conditions: tuple[Condition, ...]) -> list[StorePiece]:
        found = []
        for name, log, options, floor in self.logs:
            if floor < log.end:
                splits = splits_of(log.storage, log.files, RowFilter(options, conditions))
                for task in tasks_of(splits, options.split_size):
                    found.append(StorePiece(name, task, options, {self.topic: floor}, conditions))
        return found


def by_topic(batch: pa.RecordBatch, topics: Mapping[str, object]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each of the topics that are in a batch, in their order."""
    column = batch.column("topic").dictionary_encode()
    names = column.dictionary.to_pylist()
    if len(names) == 1 and not column.null_count:
        if names[0] in topics:
            yield names[0], batch
        return
    codes = column.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    rows = batch.take(pa.array(order))
    for number, topic in enumerate(names):
        if topic in topics:
            first = int(ends[number - 1]) if number else 0
            yield topic, rows.slice(first, int(ends[number]) - first)


class StoreSource:
    """Store directories by their names. `fail_on_data_loss`: messages that are gone from the log before the table
    had them are an error."""

    def __init__(
        self,
        stores: Mapping[str, str],
        *,
        fail_on_data_loss: bool = True,
        verify: str = "crc",
    ) -> None:
        self._stores = {name: Storage.at(path) for name, path in stores.items()}
        self._options = LogOptions(
            stores=tuple(self._stores.values()),
            verify=one_of("verify", verify, VERIFY),
            fail_on_data_loss=fail_on_data_loss,
            reads_on="fail_on_data_loss=False",
        )
        for name in stores:
            if not name or ":" in name:
                raise ConfigError(f"{name!r} cannot be the name of a store: it is empty, or has a colon")

    def names(self, topic: str) -> Sequence[str]:
        return list(self._stores)

    @property
    def paths(self) -> Mapping[str, str]:
        return {name: storage.root for name, storage in self._stores.items()}

    def check(self, topics: Sequence[str]) -> None:
        for storage in self._stores.values():
            storage.check()
        check_topics(replace(self._options, topics=frozenset(topics)))

    def options_of(
        self, name: str, topics: Sequence[str], start: int, end: int, split_max: int = DEFAULT_SPLIT_SIZE
    ) -> LogOptions:
        """A read of one store from one physical offset up to another."""
        return replace(
            self._options,
            split_size=min(self._options.split_size, split_max),
            stores=(self._stores[name],),
            topics=frozenset(topics),
            start=Position(PositionKind.PHYSICAL, start, name="start"),
            end=Position(PositionKind.PHYSICAL, end, name="end"),
        )

    # ------------------------------------------------------------------ planning

    def plan(self, states: States, bytes_max: int) -> StepPlan:
        for topic, state in states.items():
            self._check_names(topic, state or TableState())
        pieces: list[StorePiece] = []
        reached: dict[str, dict[str, Mark]] = {topic: {} for topic in states}
        due: set[str] = set()
        is_last = True
        for name in self._stores:
            log = self.log(name)
            floors = {topic: self.floor(topic, state, name, log) for topic, state in states.items()}
            low = min(floors.values(), default=log.end)
            options = self.options_of(name, list(states), low, log.end, bytes_max)
            splits = splits_of(log.storage, log.files, RowFilter(options)) if low < log.end else []
            splits, end = _as_many(splits, bytes_max, log.end)
            options = self.options_of(name, list(states), low, end, bytes_max)
            pieces += [
                StorePiece(name, task, options, floors) for task in tasks_of(splits, options.split_size)
            ]
            mark = Mark.at(log.storage, log.files, end)
            for topic, floor in floors.items():
                known = (states[topic] or TableState()).stores.get(name)
                reached[topic][name] = mark if floor <= end else Mark.at(log.storage, log.files, floor)
                moved = known is not None and (floor != known.offset or end - floor >= QUIET_BYTES)
                if moved or end < log.end:  # else the next step would read the same again
                    due.add(topic)
            is_last = is_last and end == log.end
        return StepPlan(pieces, reached, frozenset(due), is_last)

    def _check_names(self, topic: str, state: TableState) -> None:
        """TableError for a store that seems to have got another name: all of it would be read again."""
        gone = sorted(set(state.stores) - set(self._stores))
        added = sorted(set(self._stores) - set(state.stores))
        if gone and added:
            raise TableError(
                f"the table of {topic} has messages of the store {gone[0]!r}, which is not among those given, and "
                f"{added[0]!r} is new: if it is the same store at another place, give it as {gone[0]}=DIR, else give "
                "both"
            )

    def log(self, name: str) -> _Log:
        storage = self._stores[name]
        files = log_files(storage, known_end(storage))
        remember(storage, files)
        return _Log(storage, files)

    def floor(self, topic: str, state: TableState | None, name: str, log: _Log) -> int:
        """The physical offset up to which the table has the store."""
        mark = (state or TableState()).stores.get(name)
        if mark is None:
            return log.first
        root = log.storage.root
        if mark.offset > log.end or not mark.fits(log.storage, log.files):
            raise TableError(
                f"table of {topic}: {root} is not the log that the table was filled from: "
                + (
                    f"it ends at {log.end}, the table has it up to {mark.offset}"
                    if mark.offset > log.end
                    else f"other bytes lie before offset {mark.offset}"
                )
                + "; rewind the table (mqlake lake rewind), or make a new one"
            )
        if mark.offset >= log.first:
            return mark.offset
        lost = self._lost(topic, state or TableState(), name, log)
        if lost:
            self._options.data_loss(
                f"table of {topic}: the log of {root} begins at {log.first}, the table has it up to "
                f"{mark.offset}; deleted before the table had them: {lost}"
            )
        return log.first

    def _lost(self, topic: str, state: TableState, name: str, log: _Log) -> str:
        """Queue offsets that neither the table nor the log has, for people; empty if there are none."""
        found = []
        for queue, (first, following) in self._bounds(topic, name, log).items():
            known = state.queues.get(queue, 0)
            if known < first:
                found.append(f"queue {queue} {known} to {min(first, following)}")
        return ", ".join(found)

    # ------------------------------------------------------------------ what there is

    def tail(self, topic: str, state: TableState | None) -> StoreTail:
        self._check_names(topic, state or TableState())
        logs = []
        for name in self._stores:
            log = self.log(name)
            floor = self.floor(topic, state, name, log)
            logs.append((name, log, self.options_of(name, [topic], floor, log.end), floor))
        return StoreTail(topic, logs)

    def lag(self, topic: str, state: TableState | None) -> Lag:
        state = state or TableState()
        messages = behind = kept = 0
        for name in self._stores:
            log = self.log(name)
            for queue, (first, following) in self._bounds(topic, name, log).items():
                messages += max(0, following - max(state.queues.get(queue, first), first))
            mark = state.stores.get(name)
            behind += log.end - max(log.first, mark.offset if mark else log.first)
            kept += log.end - log.first
        return Lag(messages, behind if messages else 0, waiting_seconds(messages, state), kept)

    def ends(self) -> dict[str, tuple[int, int]]:
        logs = {name: self.log(name) for name in self._stores}
        return {name: (log.first, log.end) for name, log in logs.items()}

    def bounds(self, topic: str) -> dict[str, tuple[int, int]]:
        return {
            queue: each
            for name in self._stores
            for queue, each in self._bounds(topic, name, self.log(name)).items()
        }

    def gaps(self, topic: str) -> Mapping[str, Sequence[Span]]:
        """None: stores have physical queues."""
        return {}

    def _bounds(self, topic: str, name: str, log: _Log) -> dict[str, tuple[int, int]]:
        """By queue: the first offset whose message is in the log, and the next; from the units before the log's end."""
        by_queue: dict[int, list[QueueFile]] = {}
        for file in queue_files(log.storage, [topic]):
            by_queue.setdefault(file.queue_id, []).append(file)
        found = {}
        for queue_id, files in by_queue.items():
            first = _offset_at(files, log.first)
            following = _offset_at(files, log.end)
            if first is not None and following is not None:
                found[queue_name(name, queue_id)] = (first, following)
        return found


def _offset_at(files: Sequence[QueueFile], physical: int) -> int | None:
    """The queue offset of the first message at or after a physical offset: the next one if there is none."""
    following = None
    for file in files:
        run = file.run()
        if run is None or not len(run.offset):
            continue
        at = int(np.searchsorted(run.offset, physical))
        if at < len(run.number):
            return int(run.number[at])
        last = run.units[-1]
        size = int(last["batch_size"]) if "batch_size" in (run.units.dtype.names or ()) else 1
        following = int(run.number[-1]) + size
    return following
