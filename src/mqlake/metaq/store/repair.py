"""Repairs a data directory that cannot be opened or that misleads its readers.

    torn tail       cut off (as the next start would do), zeros too
    damage inside   replaced by one record of the same size, so that all later offsets stay the same
    wrong flag      bit 0 cleared if no attribute fits into the payload: no checksum covers flags
    journal         cut off at its first damage, as the next start would do
    gap             the segments before it are moved away: a partition must be contiguous

The original bytes are kept in `<data directory>/repair_<time>/`. A filler record has the attribute FILLER if there is
room for it, and zeros for the rest; its id is not 0, so that readers take it for a message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.metaq.formats.ids import IdWorker
from mqlake.metaq.formats.record import HEADER_SIZE, decode_header, encode_payload, encode_record
from mqlake.metaq.formats.scan import Scan
from mqlake.metaq.message import HAS_ATTRIBUTE
from mqlake.metaq.store.backup import backup_directory, keep_copy
from mqlake.metaq.store.inspect import (
    PartitionFiles,
    SegmentFile,
    SegmentReader,
    open_data_directory,
)
from mqlake.metaq.store.inspect_journal import find_journal_damage
from mqlake.metaq.store.lock import DirectoryLock

FILLER = "mqlake:damaged"
FLAG_AT = 16
"""Bytes from a record's start to its flag."""
_ATTRIBUTE_ROOM = 4 + len(FILLER)


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One change: `kind` is cut, fill, flag or put aside, `offset` counts bytes from the start of the file."""

    kind: str
    path: str
    offset: int
    size: int
    text: str


@dataclass(slots=True)
class RepairPlan:
    path: str
    actions: list[RepairAction] = field(default_factory=list)
    backup: str = ""
    """Directory of the original bytes; empty until something is changed."""


def plan_repair(path: str) -> RepairPlan:
    """The changes that a repair would make. NotAStoreError, OSError."""
    plan = RepairPlan(path)
    for files in open_data_directory(path).partitions:
        kept = _contiguous(files, plan)
        for segment in kept:
            _plan_segment(segment, segment is kept[-1], plan)
    for each in find_journal_damage(path):
        text = f"not a journal record: {each.reason}"
        plan.actions.append(RepairAction("cut", each.path, each.offset, each.size, text))
    return plan


def _contiguous(files: PartitionFiles, plan: RepairPlan) -> list[SegmentFile]:
    """The segments after the last gap; those before it are put aside."""
    first = 0
    for i in range(len(files.segments) - 1):
        if files.segments[i].end != files.segments[i + 1].start:
            first = i + 1
    for segment in files.segments[:first]:
        text = f"offsets {segment.start} to {segment.end} are before a gap"
        plan.actions.append(RepairAction("put aside", segment.path, 0, segment.size, text))
    return files.segments[first:]


def _plan_segment(segment: SegmentFile, is_last: bool, plan: RepairPlan) -> None:
    with SegmentReader(segment) as reader:
        spans, flags, cut_at = _find_damage(reader, is_last)
        limit = len(reader.array)
    for at in flags:
        text = "it promises an attribute that does not fit: bit 0 is cleared"
        plan.actions.append(RepairAction("flag", segment.path, at + FLAG_AT, 4, text))
    for start, end in _merged(spans):
        text = "not records: replaced by one record of the same size"
        plan.actions.append(RepairAction("fill", segment.path, start, end - start, text))
    if cut_at < limit:
        plan.actions.append(RepairAction("cut", segment.path, cut_at, limit - cut_at, "a torn tail"))


def _find_damage(reader: SegmentReader, is_last: bool) -> tuple[list[tuple[int, int]], list[int], int]:
    """Returns (spans of 20 bytes or more without a record, positions of records with a wrong flag, where to cut)."""
    limit = len(reader.array)
    spans: list[tuple[int, int]] = []
    flags: list[int] = []
    end = last_record = 0
    for found in reader.walk(may_be_torn=is_last):
        end = found.end
        if isinstance(found, Scan):
            last_record = int(found.position[-1]) if len(found) else last_record
            flags += reader.misfits(found)
            continue
        start = found.start
        if end - start < HEADER_SIZE:
            # too short for a filler: the next record, or at the end the one before, is replaced as well
            if end < limit:
                end += HEADER_SIZE + decode_header(reader.array.data, end).length
            else:
                start = last_record
        spans.append((start, end))
    return spans, flags, end


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges spans that touch or overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def repair_data_directory(path: str, *, now: Callable[[], time.struct_time] = time.localtime) -> RepairPlan:
    """Carries out `plan_repair`. StoreLockedError while a broker runs, NotAStoreError, OSError."""
    lock = DirectoryLock(path)
    try:
        plan = plan_repair(path)
        if not plan.actions:
            return plan
        plan.backup = backup_directory(path, now())
        ids = IdWorker(0)
        for action in plan.actions:
            _do(action, plan, ids)
        return plan
    finally:
        lock.release()


def _do(action: RepairAction, plan: RepairPlan, ids: IdWorker) -> None:
    if action.kind == "put aside":
        _put_aside(action.path, plan.backup)
        return
    keep_copy(plan.backup, action.path, action.offset, action.size)
    fd = os.open(action.path, os.O_RDWR)
    try:
        if action.kind == "cut":
            os.ftruncate(fd, action.offset)
        elif action.kind == "flag":
            flag = int.from_bytes(os.pread(fd, 4, action.offset))
            os.pwrite(fd, (flag & ~HAS_ATTRIBUTE).to_bytes(4), action.offset)
        else:
            os.pwrite(fd, filler_record(action.size, ids.next_id()), action.offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def _put_aside(path: str, backup: str) -> None:
    directory = os.path.dirname(path)
    kept = os.path.join(backup, os.path.basename(directory))
    make_dirs(kept)
    os.rename(path, os.path.join(kept, os.path.basename(path)))
    fsync_dir(kept)
    fsync_dir(directory)


def filler_record(size: int, message_id: int) -> bytes:
    """A whole record of exactly `size` bytes (20 or more)."""
    room = size - HEADER_SIZE
    if room < _ATTRIBUTE_ROOM:
        return encode_record(bytes(room), message_id, 0)
    return encode_record(encode_payload(bytes(room - _ATTRIBUTE_ROOM), FILLER), message_id, HAS_ATTRIBUTE)
