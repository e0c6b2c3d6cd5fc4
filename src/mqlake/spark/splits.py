"""Byte ranges of commit log files: planned by the driver, each walked by one task that needs nothing else.

    file   [rec][rec][rec│ord][rec][rec]│[rec][ ... damage ... ]│[rec][rec][blank]
    split   0 ───────────┘ 1 ───────────┘ 2 ────────────────────┘ 3
            reads to ─────────▶reads to ─▶ reads to, damage too ─▶

A split knows only where its range begins. It reads from the first record found there (`find_record`) to the
first record that the next split finds; so every byte of the file belongs to one split, whatever it holds, and
records and damage come out once however the file is cut.

The end of the log is looked for once, by the driver, so that a table is the same for all its tasks while a
writer goes on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mqlake.errors import StoreCorruptError
from mqlake.formats.columns import Scan, ScanStop, find_record, scan_records
from mqlake.formats.record import CRC32_TAIL_LENGTH, END_FILE_MIN_BLANK_LENGTH
from mqlake.message import PROPERTY_CRC32
from mqlake.spark.properties import Bytes
from mqlake.store.mapped_file import MappedFile
from mqlake.store.mapped_file_queue import MappedFileQueue
from mqlake.store.message_store import check_is_store
from mqlake.store.read_only import detect_settings

DEFAULT_SPLIT_SIZE = 64 << 20
CHUNK_RECORDS = 16384

VERIFY_NONE, VERIFY_CRC, VERIFY_FULL = "none", "crc", "full"
"""What is checked: sizes, magic and offsets; body CRCs too; and each record's `__CRC32#` where it has one."""

MADV_POPULATE_READ = 22  # not named by the mmap module before Python 3.14; refused by kernels before 5.14


@dataclass(frozen=True)
class Split:
    """Positions `start` to `end` of one file that holds `file_size` bytes, data up to `limit`."""

    store: str
    file: str
    base_offset: int
    start: int
    end: int
    limit: int
    file_size: int


@dataclass(frozen=True)
class Damage:
    """No record begins at `position` of `file` where one should; the next one found begins at `until`."""

    file: str
    position: int
    until: int
    physical_offset: int
    reason: str

    def error(self) -> StoreCorruptError:
        return StoreCorruptError(self.file, self.position, self.reason)


# ---------------------------------------------------------------------- planning


def plan(store: str, split_size: int = DEFAULT_SPLIT_SIZE) -> list[Split]:
    """The splits of a store directory, in the order of the log.

    Raises NotAStoreError, ForeignFormatError, WrongFileSizeError, and StoreCorruptError when a file between
    two others is missing.
    """
    check_is_store(store, must_exist=True)
    file_size = detect_settings(store).get("mappedFileSizeCommitLog", 0)
    assert isinstance(file_size, int)
    queue = MappedFileQueue(os.path.join(store, "commitlog"), file_size, read_only=True)
    try:
        queue.load()
        return [
            Split(
                store,
                mapped_file.path,
                mapped_file.file_from_offset,
                start,
                min(start + split_size, limit),
                limit,
                file_size,
            )
            for mapped_file, limit in _data(queue.mapped_files, os.path.exists(os.path.join(store, "abort")))
            for start in range(0, limit, split_size)
        ]
    finally:
        queue.close()


def _data(files: list[MappedFile], running: bool) -> list[tuple[MappedFile, int]]:
    """Each file with the end of its data: all of it, but in the newest file that holds any."""
    for number in range(len(files) - 1, -1, -1):
        end = _end_of_data(files[number], running)
        if end:
            return [*((file, file.file_size) for file in files[:number]), (files[number], end)]
    return []


def _end_of_data(newest: MappedFile, running: bool) -> int:
    position = 0
    while True:
        scan = scan_records(
            newest.array, position, newest.file_size, newest.file_from_offset, check_crc=False
        )
        position = scan.end
        if scan.stop != ScanStop.MAX_RECORDS:
            break
    if scan.stop in (ScanStop.TRUNCATED, ScanStop.INVALID):
        found = find_record(newest.array, position, newest.file_size, newest.file_from_offset)
        # A record that was never finished ends the log of a writer that runs or died; with records behind it,
        # or after a clean exit, it is damage, which the tasks will meet and report.
        if found >= 0 or not running:
            return newest.last_data(position)
    return position


# ---------------------------------------------------------------------- walking


def map_file(split: Split) -> Bytes:
    """The split's file, mapped until the last array that looks into it is gone; the split's pages come at once."""
    with open(split.file, "rb") as file:
        mapping = mmap.mmap(file.fileno(), split.file_size, access=mmap.ACCESS_READ)
    page = mmap.PAGESIZE
    first = split.start // page * page
    with contextlib.suppress(OSError):
        mapping.madvise(MADV_POPULATE_READ, first, min(split.end, split.file_size) - first)
    return np.frombuffer(mapping, np.uint8)


def walk(split: Split, buf: Bytes, *, verify: str = VERIFY_CRC) -> Iterator[Scan | Damage]:
    """The split's records, a chunk at a time, and the damage between them, in the order of the log."""
    check_crc = verify != VERIFY_NONE
    position = 0 if split.start == 0 else _first_record(split, buf, split.start)
    end = split.limit if split.end >= split.limit else _first_record(split, buf, split.end)
    while position < end:
        scan = scan_records(
            buf, position, end, split.base_offset, max_records=CHUNK_RECORDS, check_crc=check_crc
        )
        if verify == VERIFY_FULL:
            scan = _checked_in_full(split, buf, scan)
        if len(scan):
            yield scan
        reason = _damage(split, scan, end)
        if reason is None:
            if scan.stop != ScanStop.MAX_RECORDS:
                return
            position = scan.end
        else:
            position = min(_first_record(split, buf, scan.end + 1), end)
            yield Damage(split.file, scan.end, position, split.base_offset + scan.end, reason)


def _first_record(split: Split, buf: Bytes, position: int) -> int:
    """Position of the first record from `position` on, the end of the data when there is none."""
    found = find_record(buf, min(position, split.limit), split.limit, split.base_offset)
    return split.limit if found < 0 else found


def _damage(split: Split, scan: Scan, end: int) -> str | None:
    if scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
        return scan.stop_reason or "the record says more bytes than there are"
    if scan.stop == ScanStop.END and end - scan.end >= END_FILE_MIN_BLANK_LENGTH:
        return "zeros where a record should be"
    if scan.stop == ScanStop.BLANK and scan.end != split.file_size:
        return "the blank record before does not reach to the end of the file"
    return None


def _checked_in_full(split: Split, buf: Bytes, scan: Scan) -> Scan:
    """The scan up to the first record whose own checksum, the last of its properties, does not match it."""
    if len(scan) == 0:
        return scan
    tail = np.frombuffer(PROPERTY_CRC32.encode() + b"\x01", np.uint8)
    ends = scan.position + scan.size
    has_tail = scan.properties_length >= CRC32_TAIL_LENGTH
    for at, byte in enumerate(tail):
        has_tail &= buf[ends - CRC32_TAIL_LENGTH + at] == byte
    borders = np.flatnonzero(np.diff(has_tail)) + 1
    for first, last in zip([0, *borders], [*borders, len(scan)], strict=True):
        if not has_tail[first]:
            continue
        checked = scan_records(
            buf,
            int(scan.position[first]),
            int(ends[last - 1]),
            split.base_offset,
            max_records=CHUNK_RECORDS,
            force_prop_crc=True,
        )
        if checked.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
            good = scan_records(
                buf,
                int(scan.position[0]),
                checked.end,
                split.base_offset,
                max_records=CHUNK_RECORDS,
            )
            good.stop, good.stop_reason = checked.stop, checked.stop_reason
            return good
    return scan
