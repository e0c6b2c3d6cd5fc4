"""Which tasks read a query's part of one or more logs: planned once, where the query begins.

    options, conditions ─▶ what has to be read ─▶ ranges and places ─▶ splits ─▶ tasks
                             files with heads: by these (heads.choose); the others: by queues and index (skipping)

Where each log ends is decided here, so that all tasks read the same rows while a writer goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mqlake.errors import OffsetOutOfRangeError, StoreCorruptError
from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.log.archive import WholeLog
from mqlake.lake.log.log_ends import known_end, remember
from mqlake.lake.log.queue_files import queue_bounds, queue_files
from mqlake.lake.log.reading import Reading
from mqlake.lake.log.single_records import Pick, picks
from mqlake.lake.log.skipping import what_to_read
from mqlake.lake.log.splits import LogFile, Split, cut, log_files, runs
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import LogTask, check_in_log, lost_tasks, tasks_of
from mqlake.lake.log.topics import check_topics
from mqlake.lake.offsets import Position, PositionKind
from mqlake.lake.options import LogOptions, Mode
from mqlake.store.heads import HEADS

PICKS_A_TASK = 100_000
"""Single records that one task reads."""


@dataclass(frozen=True)
class ReadPlan:
    """Bytes of the logs, and of them those that are read."""

    tasks: list[LogTask]
    bytes_to_read: int
    bytes_of_log: int


def plan_read(
    options: LogOptions,
    conditions: tuple[Condition, ...] = (),
    to_read: Callable[[Storage, Sequence[LogFile]], Sequence[LogFile]] = lambda storage, files: files,
) -> ReadPlan:
    """The parts of the logs that have to be read. `to_read`: of the files at a place, those that are.

    Raises what check_topics() and log_files() raise; OffsetOutOfRangeError for an offset that is not in the log.
    """
    check_topics(options)
    splits: list[Split | Pick] = []
    lost: list[LogTask] = []
    size = 0
    positions = (options.start, options.end)
    if options.skipping and options.archive is None:  # else the log alone is asked
        for position in positions:
            check_in_queues(options.stores, position)
    wanted = RowFilter(options, conditions)
    for storage in options.stores:
        files = log_files(storage, known_end(storage), must_be_whole=options.mode is Mode.FAIL_FAST)
        log = WholeLog.of(storage, files, options.archive)
        for position in positions:
            check_in_log(storage, log.all_files, position)
        remember(storage, files)
        wanted_from, wanted_to = (
            each.value if each.kind is PositionKind.PHYSICAL else None for each in positions
        )
        if loss := log.deleted(wanted_from or log.begin, log.end if wanted_to is None else wanted_to):
            options.data_loss(f"{storage.root}: {loss}")
        for place, there in log.parts:
            lost += lost_tasks(place, there)
            for run in runs(there, to_read(place, there)):
                splits += splits_of(place, run, wanted)
        size += sum(file.limit for file in log.all_files)
    tasks = [*lost, *tasks_of(splits, options.split_size)]
    return ReadPlan(tasks, sum(split.bytes for split in splits), size)


def splits_of(storage: Storage, files: Sequence[LogFile], wanted: RowFilter) -> list[Split | Pick]:
    """The parts of one log that have to be read, in its order."""
    split_size = wanted.options.split_size
    by_heads, others = _by_heads(storage, files, wanted, split_size)
    readings = [by_heads, *(what_to_read(storage, run, wanted, split_size) for run in others)]
    ranges = sorted(each for reading in readings for each in reading.ranges)
    parts: list[Split | Pick] = [*cut(storage, files, split_size, ranges)]
    for reading in readings:
        parts += picks(storage, files, reading.places, PICKS_A_TASK)
    return sorted(parts, key=lambda part: part.base_offset + part.start)


def _by_heads(
    storage: Storage, files: Sequence[LogFile], wanted: RowFilter, split_size: int
) -> tuple[Reading, list[list[LogFile]]]:
    """As choose(), for a store that may have heads."""
    names = dict(storage.files(HEADS)) if files and _may_be_narrowed(wanted) else {}
    if not names:
        return Reading([]), [list(files)] if files else []
    from mqlake.lake.heads.choose import choose  # with pyarrow.dataset, which loads pandas

    return choose(storage, files, names, wanted, split_size)


def _may_be_narrowed(wanted: RowFilter) -> bool:
    """True if heads can say more of what is wanted than its physical offsets. Not in the mode that has rows for damage:
    what came after the heads were written is not in them, wherever it is."""
    options = wanted.options
    if not options.skipping or options.mode is Mode.PERMISSIVE:
        return False
    everywhere = (PositionKind.EARLIEST, PositionKind.LATEST, PositionKind.PHYSICAL)
    return (
        wanted.topics is not None
        or options.keys is not None
        or options.start.kind not in everywhere
        or options.end.kind not in everywhere
        or any(condition.column != "physicalOffset" for condition in wanted.conditions)
    )


def check_in_queues(stores: Sequence[Storage], position: Position) -> None:
    """OffsetOutOfRangeError for a topic or queue offset that no store has. Nothing is known without consume queues, or
    where one is damaged: they are derived from the log, which is read then."""
    if not position.queues:
        return
    topics = {topic for topic, _ in position.queues}
    files = [file for storage in stores for file in queue_files(storage, topics)]
    if not files and not any(queue_files(storage) for storage in stores):
        return
    for topic in sorted(topics - {file.topic for file in files}):
        raise OffsetOutOfRangeError(f"{position.name}: topic {topic} is not there")
    if position.kind is not PositionKind.QUEUES:
        return
    wanted = {name: offset for name, offset in position.queues.items() if offset >= 0}
    try:
        bounds = [queue_bounds(each for each in files if each.storage == storage) for storage in stores]
    except StoreCorruptError:
        return
    for (topic, queue), offset in wanted.items():
        known = [found[topic, queue] for found in bounds if (topic, queue) in found]
        if not any(low <= offset <= high for low, high in known):
            there = " and ".join(f"{low} to {high}" for low, high in known)
            raise OffsetOutOfRangeError(
                f"{position.name}: topic {topic}, queue {queue} "
                + (f"has offsets {there}, not {offset}" if known else "is not there")
            )
