"""Which parts of a log a query has to read, found out by the driver from what lies beside the log.

    physical offsets      from the filter itself
    store times           from the first record of each file
    topic, queue, tag     from the consume queues: where the units with the tag's hash point to
    key                   from the index: where the entries with the key's hash point to

What is found is a set of blocks of 256 KiB. Where the derived files do not reach, the log is read: behind the
last unit and the last entry, a topic without queues, and, in a store that is in use or was not closed, what is
newer than the checkpoint says is safe. Store times are taken to rise but for a minute, as RocketMQ takes them to.
Raw reads do not go by the consume queues, which have no units for half and rolled back records.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqlake.errors import ConfigError, StoreCorruptError, StoreError
from mqlake.formats.checkpoint import CHECKPOINT_SIZE, SAFETY_MARGIN_MS, Checkpoint
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.formats.record import BLANK_MAGIC_CODE
from mqlake.message import MessageSysFlag, tags_code
from mqlake.spark.arrow.filters import NUMBERS, RowFilter, indexed_keys, time_ms
from mqlake.spark.log.queue_files import SIMPLE, QueueFile, index_files, queue_files
from mqlake.spark.log.splits import LogFile
from mqlake.spark.log.storage import Storage
from mqlake.spark.offsets import PositionKind
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.index.index_service import IndexService

I64_MAX = (1 << 63) - 1
BLOCK = 256 << 10
RANGES_MAX = 10_000
"""More than so many ranges are made fewer by reading what lies between them."""
CLOCK_BACK_MS = 60_000
INDEX_ASKED = 1 << 20

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


def ranges_to_read(storage: Storage, files: Sequence[LogFile], wanted: RowFilter) -> Ranges:
    """Ranges of physical offsets, sorted and apart, in which all records lie that may pass."""
    if not files:
        return []
    physical = _bounds(wanted, "physicalOffset", PositionKind.PHYSICAL)
    low = max(files[0].base_offset, int(physical.low))
    high = min(files[-1].end_offset, int(physical.high) + 1)
    ranges = [(low, high)] if low < high else []
    ranges = _meet(
        ranges, _by_time(storage, files, _bounds(wanted, "storeTimestamp", PositionKind.TIMESTAMP))
    )
    if not wanted.options.skipping:
        return ranges
    try:
        if wanted.options.unpack and wanted.topics is not None:
            ranges = _meet(ranges, _by_queues(storage, files, wanted))
        if storage.is_local:
            ranges = _meet(ranges, _by_index(storage, files, wanted))
    except (FileNotFoundError, StoreError, ConfigError):  # deleted meanwhile, or damaged: the log counts
        pass
    return ranges


def _bounds(wanted: RowFilter, column: str, kind: PositionKind | None = None) -> Bounds:
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


def _meet(a: Ranges, b: Ranges | None) -> Ranges:
    """What lies in both; `b` None stands for everything."""
    if b is None:
        return a
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


# ---------------------------------------------------------------------- store times


def _by_time(storage: Storage, files: Sequence[LogFile], times: Bounds) -> Ranges | None:
    if times == Bounds():
        return None
    firsts = [first_timestamp(storage, file) for file in files]
    found: Ranges = []
    for number, file in enumerate(files):
        begins, ends = firsts[number], firsts[number + 1] if number + 1 < len(files) else None
        too_new = begins is not None and begins > times.high + CLOCK_BACK_MS
        too_old = ends is not None and ends < times.low - CLOCK_BACK_MS
        if not too_new and not too_old:
            found.append((file.base_offset, file.end_offset))
    return found


def first_timestamp(storage: Storage, file: LogFile) -> int | None:
    """Store time (ms) of a file's first record, None when no record begins it."""
    head = storage.read(file.file, 0, 88).tobytes()
    size, magic = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big", signed=True)
    if len(head) < 88 or size == 0 or magic == BLANK_MAGIC_CODE:
        return None
    sys_flag = int.from_bytes(head[36:40], "big")
    at = 68 if sys_flag & MessageSysFlag.BORNHOST_V6_FLAG else 56
    return int.from_bytes(head[at : at + 8], "big", signed=True)


# ---------------------------------------------------------------------- consume queues


def _by_queues(storage: Storage, files: Sequence[LogFile], wanted: RowFilter) -> Ranges | None:
    topics = wanted.topics
    assert topics is not None
    everything = queue_files(storage)
    chosen = [file for file in everything if file.topic in topics]
    if {file.topic for file in chosen} != topics or not _are_whole(everything):
        return None
    queue_ids = wanted.allowed("queueId")
    offsets = _bounds(wanted, "queueOffset")
    tags = wanted.allowed("tags")
    codes = None if tags is None else np.array([tags_code(tag) for tag in tags], np.int64)
    blocks = [
        _blocks_of(file, offsets, codes) for file in chosen if queue_ids is None or file.queue_id in queue_ids
    ]
    covered = _dispatched_until(storage, files, everything)
    return _ranges(np.concatenate([*blocks, np.zeros(0, np.int64)]), [(covered, files[-1].end_offset)])


def _are_whole(files: Sequence[QueueFile]) -> bool:
    """Whether no file was cut short: those of a kind have one size in a store, whatever is in them."""
    sizes = {(file.kind, file.size) for file in files}
    return len(sizes) == len({kind for kind, _ in sizes})


def _blocks_of(file: QueueFile, offsets: Bounds, codes: Ints | None) -> Ints:
    units, queue_offset = file.units()
    mask = queue_offset <= offsets.high
    if file.kind == SIMPLE:
        mask &= queue_offset >= offsets.low
        if codes is not None:  # an address in the extension may stand for any code
            mask &= np.isin(units["tags_code"], codes) | (units["tags_code"] <= MAX_ADDRESS)
    else:
        mask &= queue_offset + units["batch_size"] > offsets.low
    return np.unique(units["offset"][mask].astype(np.int64) // BLOCK)


def _dispatched_until(storage: Storage, files: Sequence[LogFile], queues: list[QueueFile]) -> int:
    """Physical offset up to which every record is sure to have its unit."""
    newest = {(queue.kind, queue.topic, queue.queue_id): queue for queue in queues}.values()
    until = max((queue.end() for queue in newest), default=0)
    if not storage.exists("abort"):
        return until
    raw = (
        storage.read(storage.path("checkpoint"), 0, CHECKPOINT_SIZE).tobytes()
        if storage.exists("checkpoint")
        else b""
    )
    if len(raw) < CHECKPOINT_SIZE:
        return 0
    safe = Checkpoint.decode(raw).logics_msg_timestamp - SAFETY_MARGIN_MS
    for file in files:
        begins = first_timestamp(storage, file)
        if begins is None or begins > safe:
            return min(until, file.base_offset)
    return min(until, files[-1].base_offset)


# ---------------------------------------------------------------------- index


def _by_index(storage: Storage, files: Sequence[LogFile], wanted: RowFilter) -> Ranges | None:
    asked = [keys for keys in map(indexed_keys, wanted.conditions) if keys is not None]
    if wanted.options.keys is not None:
        asked.append(wanted.options.keys)
    files_of_index = index_files(storage) if asked else []
    if not files_of_index:
        return None
    try:
        files_of_index[0].check_slots()
    except StoreCorruptError:  # other sizes than RocketMQ's: nothing is known, all is read
        return None
    topics = wanted.topics
    if topics is None:
        topics = frozenset(file.topic for file in queue_files(storage))
    config = MessageStoreConfig.from_mapping(
        {**detect_settings(storage.root), "storePathRootDir": storage.root}
    )
    index = IndexService(config, read_only=True)
    try:
        index.load(True, None)
        used = [file for file in index.files if file.index_count > 1]
        if not used or not all(file.is_sound for file in index.files):
            return None
        covered = used[0].header.begin_phy_offset, used[-1].header.end_phy_offset
        found: list[int] = []
        for topic in topics:
            for key in min(asked, key=len):
                hits = index.query_offset(topic, key, INDEX_ASKED, 0, I64_MAX)
                if len(hits) == INDEX_ASKED:
                    return None
                found += hits
    finally:
        index.close()
    around = [(files[0].base_offset, covered[0]), (covered[1], files[-1].end_offset)]
    return _ranges(np.array(found, np.int64) // BLOCK, around)


def _ranges(blocks: Ints, around: Ranges) -> Ranges:
    """The blocks as ranges, joined with the ranges `around` them."""
    blocks = np.unique(blocks)
    size = BLOCK
    while True:
        borders = np.flatnonzero(np.diff(blocks) > 1)
        if len(borders) < RANGES_MAX:
            break
        blocks, size = np.unique(blocks // 4), size * 4
    firsts, lasts = np.append(0, borders + 1), np.append(borders, len(blocks) - 1)
    found = [
        (int(blocks[first]) * size, (int(blocks[last]) + 1) * size)
        for first, last in zip(firsts, lasts, strict=True)
        if len(blocks)
    ]
    joined: Ranges = []
    for start, end in sorted(each for each in [*found, *around] if each[0] < each[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
