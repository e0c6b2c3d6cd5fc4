"""Byte ranges of commit log files: planned once, each walked by one task that needs nothing else.

    file   [rec][rec][rec│ord][rec][rec]│[rec][ ... damage ... ]│[rec][rec][blank]
    split   0 ───────────┘ 1 ───────────┘ 2 ────────────────────┘ 3
            reads to ─────────▶reads to ─▶ reads to, damage too ─▶

A split knows only where its range begins. It reads from the first record found there (`find_record`) to the
first record that the next split finds; so every byte of the file belongs to one split, whatever it holds, and
records and damage come out once however the file is cut.

Whoever plans finds the end of the log once (`log_reader.end_of_records`), so that all tasks read the same table while a
writer goes on. A task does not use LogReader, which needs all files of a store, mapped: it has one range of one file,
which may be in an object store.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mqlake.errors import StoreCorruptError, WrongFileSizeError
from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import Scan, ScanStop, find_record, scan_records
from mqlake.formats.names import file_name_to_offset
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH
from mqlake.lake.log.storage import Storage, mapped
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import ZEROS, end_in_file, end_of_records

DEFAULT_SPLIT_SIZE = 64 << 20
CHUNK_RECORDS = 8192

SPLITS_MAX = 10_000
"""Splits of one log or one query's part of it, at most: a `splitSize` that would make more is made larger."""

VERIFY_NONE, VERIFY_CRC, VERIFY_FULL = "none", "crc", "full"
"""Checks: sizes, magic and offsets; body CRCs too; and each record's `__CRC32#` where it has one."""

PIECE_BYTES = 4 << 20
"""Bytes of a file that are looked at together: the most that a task holds in memory."""

REMOTE_MARGIN = 1 << 20
"""Bytes read after a split of a file that is not mapped, for the record that begins in it and ends after it."""


@dataclass(frozen=True)
class LogFile:
    """One file of a commit log: `file_size` bytes, data up to `limit`."""

    file: str
    base_offset: int
    limit: int
    file_size: int

    @property
    def end_offset(self) -> int:
        """Physical offset of the end of its data."""
        return self.base_offset + self.limit


@dataclass(frozen=True)
class Split:
    """Positions `start` to `end` of one file that holds `file_size` bytes, data up to `limit`."""

    storage: Storage
    file: str
    base_offset: int
    start: int
    end: int
    limit: int
    file_size: int

    @property
    def store(self) -> str:
        return self.storage.root

    @property
    def bytes(self) -> int:
        return self.end - self.start


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


def splits_of_store(store: str | Storage, split_size: int = DEFAULT_SPLIT_SIZE) -> list[Split]:
    """The splits of a whole store directory, in the order of the log. Raises what log_files() raises."""
    storage = Storage(store) if isinstance(store, str) else store
    return cut(storage, log_files(storage), split_size)


def runs(files: Sequence[LogFile], chosen: Sequence[LogFile]) -> list[list[LogFile]]:
    """The chosen ones of `files`, which are in order, grouped where no other lies between them."""
    found: list[list[LogFile]] = []
    names, before = {file.file for file in chosen}, False
    for file in files:
        if file.file in names:
            if before:
                found[-1].append(file)
            else:
                found.append([file])
        before = file.file in names
    return found


def cut(
    storage: Storage,
    files: Sequence[LogFile],
    split_size: int,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> list[Split]:
    """The files, or of them the `ranges` of physical offsets (sorted, apart), in splits of at most `split_size`.

    A range need not begin or end where a record does: it holds the records that begin in it.
    """
    inside = {file: [(0, file.limit)] if ranges is None else _inside(file, ranges) for file in files}
    split_size = bounded(split_size, sum(end - start for parts in inside.values() for start, end in parts))
    found = []
    for file, parts in inside.items():
        found += [
            Split(
                storage,
                file.file,
                file.base_offset,
                start,
                min(start + split_size, last),
                file.limit,
                file.file_size,
            )
            for first, last in parts
            for start in range(first, last, split_size)
        ]
    return found


def bounded(split_size: int, size: int) -> int:
    """The size of splits, or a larger one that cuts `size` bytes in no more than SPLITS_MAX."""
    return max(split_size, -(-size // SPLITS_MAX))


def _inside(file: LogFile, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of `ranges` in a file, as positions."""
    base = file.base_offset
    clipped = ((max(0, start - base), min(file.limit, end - base)) for start, end in ranges)
    return [(start, end) for start, end in clipped if start < end]


def log_files(storage: Storage, known_end: int = 0, *, must_be_whole: bool = True) -> list[LogFile]:
    """The files of a log, oldest first, up to the newest that holds data.

    `known_end`, a physical offset that was the end of whole records before, is where the end is looked for.

    Raises NotAStoreError and ForeignFormatError; with `must_be_whole` WrongFileSizeError, and StoreCorruptError when
    a file between two others is missing. Without, missing() says what is not there.
    """
    storage.check()
    try:
        return _local_files(storage, known_end) if storage.is_local else _files_anywhere(storage)
    except (StoreCorruptError, WrongFileSizeError):
        if must_be_whole:
            raise
        return _files_anywhere(storage, must_be_whole=False)


def missing(files: Sequence[LogFile]) -> list[tuple[int, StoreCorruptError]]:
    """Physical offsets from which on bytes of the log are missing: after a file that was cut short, or is gone."""
    full_size = max((file.file_size for file in files), default=0)
    found = []
    for file, following in itertools.zip_longest(files, files[1:]):
        end = file.base_offset + file.file_size
        if file.limit == file.file_size < full_size:
            reason = f"the file ends here, the others have {full_size} bytes"
        elif following is not None and following.base_offset > end:
            reason = f"the file that follows begins at physical offset {following.base_offset}, not {end}"
        else:
            continue
        found.append((end, StoreCorruptError(file.file, file.file_size, reason)))
    return found


def _local_files(storage: Storage, known_end: int) -> list[LogFile]:
    root = storage.root
    file_size = detect_settings(root).get("mappedFileSizeCommitLog", 0)
    assert isinstance(file_size, int)
    if file_size == 0:  # a new store, whose first file is being made
        return []
    paths = MappedFileQueue(os.path.join(root, "commitlog"), file_size, read_only=True).paths()
    files = [LogFile(path, _offset_of(path), file_size, file_size) for path in paths]
    running = os.path.exists(os.path.join(root, "abort"))
    # one file after the other is opened: a log may have more of them than a process may open
    while files:
        last = files.pop()
        newest = MappedFile(last.file, file_size, read_only=True)
        try:
            newest.set_positions(file_size)
            end = _end_of_data(newest, running, max(0, known_end - last.base_offset))
        finally:
            newest.close()
        if end:
            return [*files, replace(last, limit=end)]
    return []


def _offset_of(path: str) -> int:
    offset = file_name_to_offset(os.path.basename(path))
    assert offset is not None
    return offset


def _end_of_data(newest: MappedFile, running: bool, known: int = 0) -> int:
    """The end of the data of the newest file, searched from the position `known` on."""
    position, stop = end_in_file(newest, known)
    if stop in (ScanStop.TRUNCATED, ScanStop.INVALID):
        found = find_record(newest.array, position, newest.file_size, newest.file_from_offset)
        # A record that was never finished ends the log of a writer that runs or died; with records after it,
        # or after a clean exit, it is damage, which the tasks will meet and report.
        if found >= 0 or not running:
            return newest.last_data(position)
    return position


def _files_anywhere(storage: Storage, *, must_be_whole: bool = True) -> list[LogFile]:
    sizes = [
        (name, size) for name, size in storage.files("commitlog") if file_name_to_offset(name) is not None
    ]
    sizes = [(name, size) for name, size in sizes if size]
    if not sizes:
        return []
    file_size = max(Counter(size for _, size in sizes).items(), key=lambda item: item[::-1])[0]
    found: list[LogFile] = []
    for name, size in sizes:
        path, offset = storage.path("commitlog", name), file_name_to_offset(name)
        assert offset is not None
        if size != file_size and must_be_whole:
            raise WrongFileSizeError(path, size, file_size, key="mappedFileSizeCommitLog")
        if found and offset != found[-1].end_offset and must_be_whole:
            raise StoreCorruptError(
                path, 0, f"does not follow {found[-1].file}: a file between them is missing"
            )
        found.append(LogFile(path, offset, size, size))
    while found:
        newest = found.pop()
        end = _end_anywhere(storage, newest)
        if end:
            return [*found, LogFile(newest.file, newest.base_offset, end, newest.file_size)]
    return []


def _end_anywhere(storage: Storage, newest: LogFile) -> int:
    """As _end_of_data(). Bytes that are not a record are damage for the tasks, unless the store was in use."""

    def read(start: int, end: int) -> Bytes:
        return storage.read(newest.file, start, end)

    size, base = newest.file_size, newest.base_offset
    position, stop = end_of_records(read, 0, size, base, piece_bytes=DEFAULT_SPLIT_SIZE)
    is_damaged = stop in (ScanStop.TRUNCATED, ScanStop.INVALID)
    return size if is_damaged and not storage.exists("abort") else position


# ---------------------------------------------------------------------- walking


class Window:
    """A file, a piece at a time: `array` is what it holds from position `origin` on.

    Pieces of a local file are read into one buffer: that takes less time than to map their pages, and leaves them in
    the processor's cache for the next pass. `whole` is all that can be looked at, from position `first` on:
    the mapped file, or what was read of a file elsewhere.
    """

    def __init__(self, whole: Bytes, first: int = 0, file: io.FileIO | None = None) -> None:
        self.whole, self.first = whole, first
        self.array, self.origin = whole, first
        self._file = file
        self._buffer: Bytes | None = None

    def show(self, start: int, end: int) -> None:
        """Lets `array` be positions `start` to `end`, which the arrays before no longer hold.

        StoreCorruptError when the file ends before.
        """
        self.origin = start
        if self._file is None:
            self.array = self.whole[start - self.first : end - self.first]
            return
        if self._buffer is None or len(self._buffer) < end - start:
            self._buffer = np.empty(end - start, np.uint8)
        self.array = self._buffer[: end - start]
        got = os.preadv(self._file.fileno(), [self.array.data], start)
        if got < end - start:
            raise StoreCorruptError(str(self._file.name), start + got, "the file was cut short here")

    def show_whole(self) -> None:
        self.array, self.origin = self.whole, self.first

    def close(self) -> None:
        """Arrays over `array` and `whole` stay valid."""
        if self._file is not None:
            self._file.close()


def map_file(file: io.FileIO, size_max: int, *, random: bool = False) -> Bytes:
    """As mapped(), of a file that may be shorter or empty."""
    size = min(size_max, os.fstat(file.fileno()).st_size)
    return mapped(file, size, random=random) if size else np.zeros(0, np.uint8)


def open_window(split: Split) -> Window:
    """The bytes for a walk over the split, which closes the window; a mapped file stays mapped until the
    last array over it is gone.

    FileNotFoundError when the file has been deleted since the split was planned.
    """
    storage = split.storage
    if storage.is_local:
        file = io.FileIO(split.file)
        with contextlib.ExitStack() as undo:
            undo.callback(file.close)
            whole = map_file(file, split.file_size)
            undo.pop_all()
        return Window(whole, 0, file)
    margin = REMOTE_MARGIN
    while True:
        until = min(split.limit, split.end + margin)
        window = Window(storage.read(split.file, split.start, until), split.start)
        size, base = len(window.array), split.base_offset + split.start
        if until == split.limit or find_record(window.array, split.end - split.start, size, base) >= 0:
            return window
        margin *= 8


def walk(
    split: Split,
    window: Window,
    *,
    verify: str = VERIFY_CRC,
    chunk_records: int = CHUNK_RECORDS,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Scan | Damage]:
    """The split's records, a chunk at a time, and the damage between them, in the order of the log.

    Positions in a Scan are those of `window.array` until the next step; positions in a Damage those of the file.
    """
    first, end_of_file = window.first, split.file_size
    limit = min(split.limit, first + len(window.whole))

    def first_record(position: int) -> int:
        """From `position` on; the end of the data if no record follows."""
        at = min(position, limit) - first
        found = find_record(window.whole, at, limit - first, split.base_offset + first)
        return limit if found < 0 else first + found

    def look(end: int, records_max: int) -> Scan:
        """At what the window shows, from `position` on."""
        buf, base = window.array, split.base_offset + window.origin
        limits = position - window.origin, min(end - window.origin, len(buf))
        return scan_records(
            buf,
            *limits,
            base,
            max_records=records_max,
            check_crc=verify != VERIFY_NONE,
            force_prop_crc=verify == VERIFY_FULL,
        )

    with contextlib.closing(window):
        position = 0 if split.start == 0 else first_record(split.start)
        end = limit if split.end >= split.limit else first_record(split.end)
        while position < end:
            window.show(position, min(position + piece_bytes, end))
            scan = look(end, chunk_records)
            if len(scan) == 0:  # a record larger than a piece, or no record
                window.show_whole()
                scan = look(end, 1)
            position = window.origin + scan.end
            if len(scan):
                yield scan
                if scan.stop != ScanStop.BLANK:
                    continue
            reason = _damage(scan, end - window.origin, end_of_file - window.origin)
            if reason is None:
                return
            until = min(first_record(position + 1), end)
            yield Damage(split.file, position, until, split.base_offset + position, reason)
            position = until
        if limit < min(split.end, split.limit):
            lost = max(limit, split.start)
            reason = "the file was cut short here" if lost == limit else "the file was cut short before"
            yield Damage(split.file, lost, min(split.end, split.limit), split.base_offset + lost, reason)


def _damage(scan: Scan, end: int, file_end: int) -> str | None:
    if scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
        return scan.stop_reason or "the record says more bytes than there are"
    if scan.stop == ScanStop.END and end - scan.end >= END_FILE_MIN_BLANK_LENGTH:
        return ZEROS
    if scan.stop == ScanStop.BLANK and scan.end != file_end:
        return "the blank record before does not reach to the end of the file"
    return None
