"""The work of one task: records of logs, and the rows made of them.

splits ─▶ read or map ─▶ scan ─▶ choose rows ─▶ unpack ─▶ Arrow batches
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqlake.errors import OffsetOutOfRangeError
from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import Scan
from mqlake.lake.arrow.filters import Condition, RowFilter
from mqlake.lake.arrow.memory import keep_freed_memory
from mqlake.lake.arrow.rows import RowBuilder
from mqlake.lake.arrow.unpack import PACKED, unpack
from mqlake.lake.log.archive import in_archive
from mqlake.lake.log.grouped import grouped
from mqlake.lake.log.single_records import Pick, read_picked
from mqlake.lake.log.splits import CHUNK_RECORDS, Damage, LogFile, Split, missing, open_window, walk
from mqlake.lake.log.storage import Storage
from mqlake.lake.offsets import Position, PositionKind
from mqlake.lake.options import LogOptions, Mode
from mqlake.message import MessageSysFlag

logger = logging.getLogger(__name__)

BODY_COLUMNS = frozenset({"body", "bodySize"})
"""Columns for which compressed bodies are unpacked."""

SelectedRecords = tuple[Bytes, Scan, npt.NDArray[np.int64] | None]
"""A buffer, a scan of it, and the numbers of the records of it that are wanted (None: all)."""


@dataclass(frozen=True)
class LogTask:
    """The work of one task; `lost`: bytes of the log that are missing, from which physical offset on, and why."""

    splits: tuple[Split | Pick, ...]
    lost: tuple[Storage, int, str] | None = None


def check_in_log(storage: Storage, files: Sequence[LogFile], position: Position) -> None:
    """OffsetOutOfRangeError for a physical offset that is not in the log."""
    if position.kind is not PositionKind.PHYSICAL:
        return
    first, last = (files[0].base_offset, files[-1].end_offset) if files else (0, 0)
    if not first <= position.value <= last:
        raise OffsetOutOfRangeError(
            f"{position.name} is {position.value}, but the log of {storage.root} holds {first} to {last}"
        )


def lost_tasks(
    storage: Storage, files: Sequence[LogFile], start: int = 0, end: int | None = None
) -> list[LogTask]:
    """A task for each part of the log between two physical offsets that is not there."""
    return [
        LogTask((), (storage, offset, str(error)))
        for offset, error in missing(files)
        if start <= offset and (end is None or offset < end)
    ]


def tasks_of(splits: Sequence[Split | Pick], split_size: int) -> list[LogTask]:
    """Small splits that follow each other become one task's work."""
    return [LogTask(group) for group in grouped(splits, lambda split: split.bytes, split_size)]


def read_task(
    task: LogTask, options: LogOptions, conditions: tuple[Condition, ...], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Raises StoreCorruptError (mode failFast), OffsetOutOfRangeError (a file is gone)."""
    wanted = RowFilter(options, conditions)
    if task.lost is not None and options.mode is Mode.PERMISSIVE:
        storage, offset, text = task.lost
        yield RowBuilder(columns, storage.root).damage(offset, text)
    for split in task.splits:
        builder = RowBuilder(columns, split.store)
        for found in read_selected(split, wanted, with_bodies=not BODY_COLUMNS.isdisjoint(columns)):
            if isinstance(found, Damage):
                yield builder.damage(found.physical_offset, str(found.error()))
            else:
                yield from builder.batches(*found)


def read_selected(
    split: Split | Pick, wanted: RowFilter, *, with_bodies: bool, chunk_records: int = CHUNK_RECORDS
) -> Iterator[SelectedRecords | Damage]:
    """The split's records that are wanted, unpacked when that is; damage in mode permissive only."""
    options = wanted.options
    keep_freed_memory()
    packed = packed_flags(options.mode, with_bodies=with_bodies)
    try:
        for walked in _walked(split, options, chunk_records):
            parts = (
                iter([walked])
                if isinstance(walked, Damage)
                else select_records(*walked, wanted, packed, _path(split), split.base_offset)
            )
            for found in parts:
                if not isinstance(found, Damage):
                    yield found
                elif options.mode is Mode.FAIL_FAST:
                    raise found.error()
                elif options.mode is Mode.PERMISSIVE:
                    yield found
    except FileNotFoundError:
        text = (
            f"{_path(split)}: gone while it was read; physical offsets {split.base_offset + split.start} "
            f"to {split.base_offset + split.end} are lost"
        )
        options.data_loss(text, "reads on")
        if options.mode is Mode.PERMISSIVE:
            offset = split.base_offset + split.start
            yield Damage(_path(split), split.start, split.end, offset, "gone while it was read")


def packed_flags(mode: Mode, *, with_bodies: bool) -> int:
    """The flags of records that are unpacked. Compressed bodies that nobody asks for are not, unless damage is left out
    or has rows: a body that cannot be unpacked is damage, and the number of rows must not depend on the columns."""
    return PACKED if with_bodies or mode is not Mode.FAIL_FAST else MessageSysFlag.NEED_UNWRAP_FLAG


def _path(split: Split | Pick) -> str:
    return split.file if isinstance(split, Split) else split.file.file


def _walked(
    split: Split | Pick, options: LogOptions, chunk_records: int
) -> Iterator[tuple[Bytes, Scan] | Damage]:
    if isinstance(split, Pick):
        yield from read_picked(split, verify=options.verify, chunk_records=chunk_records)
        return
    try:
        window = open_window(split)
    except FileNotFoundError:
        if options.archive is None or split.storage == options.archive:
            raise
        split = in_archive(split, options.archive)  # deleted since it was planned
        window = open_window(split)
    for found in walk(split, window, verify=options.verify, chunk_records=chunk_records):
        yield found if isinstance(found, Damage) else (window.array, found)


def select_records(
    buf: Bytes, scan: Scan, wanted: RowFilter, packed: int, file: str = "", base_offset: int = 0
) -> Iterator[SelectedRecords | Damage]:
    """The wanted records of one scan; those with a flag of `packed` come unpacked, after the others."""
    rows = wanted.rows(buf, scan)
    if not wanted.options.unpack or not (scan.sys_flag & packed).any():
        if rows is None or len(rows):
            yield buf, scan, rows
        return
    rows = np.arange(len(scan)) if rows is None else rows
    plain = rows[scan.sys_flag[rows] & packed == 0]
    if len(plain):
        yield buf, scan, plain
    holders = wanted.rows(buf, scan, packed=True)
    holders = np.arange(len(scan)) if holders is None else holders
    holders = holders[scan.sys_flag[holders] & MessageSysFlag.NEED_UNWRAP_FLAG != 0]
    compressed = rows[scan.sys_flag[rows] & packed == MessageSysFlag.COMPRESSED_FLAG]
    for found in unpack(buf, scan, np.union1d(holders, compressed), file, base_offset):
        if isinstance(found, Damage):
            yield found
            continue
        unpacked, messages = found
        rows = wanted.rows(unpacked, messages)
        if rows is None or len(rows):
            yield unpacked, messages, rows
