"""LogReader: the one way to read a commit log, its records in columns, thousands at a time.

    scan()      [rec][rec][rec][blank]  [rec][rec]▒                  ends at the first thing that is not a record
    walk()      [rec][rec]▒▒▒▒[rec][rec][blank]  [rec]▒▒▒▒▒▒▒ 0 0    goes on at the next record that names its own
                          CORRUPT                     TORN           physical offset; reports the holes between
                                                      or STALE: whole records of an earlier life of the file
    find_end()  [rec][rec][rec] 0 0 0 0                              where a log ends that somebody may be writing
                               ^

Dispatch, recovery and the read-only view scan; verify, rebuild, dump and search walk. The scrub, which reads past the
mapped files, and the end of a log whose files need not be local are read in pieces (`scan_pieces`). Nothing writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol, TypeVar

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ForeignFormatError, StoreCorruptError
from mqlake.formats.columns import Bytes, Scan, ScanRoom, ScanStop, find_record, scan_records
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, RecordKind, check_record
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import OS_PAGE_SIZE, MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.misnamed import raise_if_misnamed

CHUNK_RECORDS = 8192
"""Few enough that what a pass has read is still in the processor's cache when the next pass over it comes."""

SCANNERS = 2
PIECE_BYTES = 8 << 20
"""Bytes that one thread reads and scans before it is another one's turn. Its scan and the work on it find it in the
cache."""
BUFFER_PIECES = 2
"""So large is the buffer for a piece, which ends only where a record does. Larger ones are scanned where they are."""
PIECES_AHEAD = 4
NEARBY = 1 << 20
"""Bytes through which a record is looked for: where there are larger ones, the rest of the file is one piece."""

ZEROS = "zeros where a record should be"

IsKnown = Callable[[Scan, int], bool]
T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class LogChunk:
    """Records of one file. `start` and `end` are physical offsets; positions in `scan` count from the start of `array`,
    which is the file, or a copy of a part of it."""

    mapped_file: MappedFile
    scan: Scan
    start: int
    end: int
    array: Bytes

    @property
    def path(self) -> str:
        return self.mapped_file.path

    @property
    def count(self) -> int:
        return len(self.scan.position)

    def evict(self) -> None:
        """Lets the chunk's pages go (from this process, not from the page cache): a long log must not fill memory."""
        base = self.mapped_file.file_from_offset
        self.mapped_file.evict(self.start - base, self.end - base)

    @property
    def stopped(self) -> bool:
        """The scan cannot go on after this chunk: zeros, a torn record or damage."""
        return self.scan.stop in (ScanStop.END, ScanStop.TRUNCATED, ScanStop.INVALID)


class RecordChunk(Protocol):
    """Records that lie together somewhere, for checks that do not care where: `array` holds them, positions in `scan`
    are its own; `start` and `end` are physical offsets."""

    @property
    def path(self) -> str: ...
    @property
    def array(self) -> Bytes: ...
    @property
    def scan(self) -> Scan: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def end_of_whole(array: Bytes, scan: Scan) -> int:
    """Position after the last whole record of `scan`: `scan.end`, or one record less.

    RocketMQ writes a record from front to back, its size first, so while it runs (or after its crash) the newest
    record may be visible while its end is still zeros. A record ends with its properties' separator; one without
    properties ends with their length, two zeros, so the last byte of the topic before them counts.
    """
    if scan.stop != ScanStop.END or len(scan) == 0:
        return scan.end
    last = scan.end - 1 if scan.properties_length[-1] else int(scan.properties_start[-1]) - 3
    return scan.end if array[last] else int(scan.position[-1])


Read = Callable[[int, int], Bytes]
"""(start, end) -> these bytes of a file."""
ScanAt = Callable[[Bytes, int], Scan]
"""(bytes, their physical offset) -> the records in them."""


def scan_pieces(
    read: Read, scan_at: ScanAt, start: int, limit: int, base: int, piece_bytes: int, most: int
) -> Iterator[tuple[int, Bytes, Scan]]:
    """The records of [start, limit) of a file whose physical offset is `base`, a piece at a time: its position, its
    bytes and their scan. A record begins at `start`; the last scan says why they end. A piece grows up to `most` bytes
    until it holds a record."""
    position, piece = start, piece_bytes
    while position < limit:
        until = min(position + piece, limit)
        array = read(position, until)
        scan = scan_at(array, base + position)
        yield position, array, scan
        end = position + end_of_whole(array, scan)
        # less than a blank record reads as zeros where it is the beginning of a size
        cut = scan.stop in (ScanStop.LIMIT, ScanStop.TRUNCATED) or until - end < END_FILE_MIN_BLANK_LENGTH
        if not (cut and until < limit) and scan.stop != ScanStop.MAX_RECORDS:
            return
        if end == position and piece == most:
            return
        position, piece = end, piece_bytes if end > position else min(2 * piece, most)


def end_of_records(
    read: Read, start: int, file_size: int, base: int, *, piece_bytes: int
) -> tuple[int, ScanStop]:
    """Position after the last whole record from `start` (where one begins) on, and why the records end there."""

    def scan_at(array: Bytes, offset: int) -> Scan:
        return scan_records(array, 0, len(array), offset, check_crc=False)

    end, stop = start, ScanStop.LIMIT
    for position, array, scan in scan_pieces(read, scan_at, start, file_size, base, piece_bytes, file_size):
        end, stop = position + end_of_whole(array, scan), ScanStop(scan.stop)
    return end, stop


def end_in_file(mapped_file: MappedFile, start: int = 0) -> tuple[int, ScanStop]:
    """As end_of_records(), of a mapped file; what was read does not stay in memory."""

    def read(first: int, last: int) -> Bytes:
        mapped_file.evict(0, first)
        return mapped_file.array[first:last]

    start = min(start, mapped_file.file_size)
    size, base = mapped_file.file_size, mapped_file.file_from_offset
    found = end_of_records(read, start, size, base, piece_bytes=size)
    mapped_file.evict(0, found[0])
    return found


def used_files(log: MappedFileQueue) -> int:
    """Files of the log without the empty ones after its end, which were allocated ahead; the first counts always."""
    count = len(log.mapped_files)
    while count > 1 and not end_in_file(log.mapped_files[count - 1])[0]:
        count -= 1
    return count


def first_timestamp(mapped_file: MappedFile) -> int:
    """Store time (ms) of a file's first record, -1 when there is none."""
    scan = scan_records(
        mapped_file.array,
        0,
        mapped_file.file_size,
        mapped_file.file_from_offset,
        max_records=1,
        check_crc=False,
    )
    return int(scan.store_timestamp[0]) if len(scan) else -1


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Positions [start, end) of a file of which [.., limit) is to be scanned."""

    mapped_file: MappedFile
    start: int
    end: int
    limit: int


class _FromDisk:
    """Brings what is only on the disk into memory, from front to back: the kernel then reads far ahead, in large parts
    of its page cache. One that is read in pieces by two threads, or asked for (WILLNEED), comes in pages of 4 KB, which
    takes ten times as much processor time and leaves the disk idle in between."""

    def __init__(self) -> None:
        self._null = self._fd = -1
        self._path = ""

    def bring(self, mapped_file: MappedFile, start: int, end: int) -> None:
        """The bytes [start, end) of the file, if they are on the disk and not in memory."""
        # space that was never written would become pages of zeros, which then count as data
        if mapped_file.is_cached(start, end) or mapped_file.is_unwritten(start):
            return
        # whoever reads the bytes after this meets the error, or needs no such help
        with contextlib.suppress(OSError):
            self._read(mapped_file.path, start, end)

    def _read(self, path: str, start: int, end: int) -> None:
        if path != self._path:
            self.close()
            self._null = os.open(os.devnull, os.O_WRONLY)
            # its own: how far the kernel reads ahead goes by descriptor
            self._fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._path = path
        while start < end and (read := os.sendfile(self._null, self._fd, start, end - start)):
            start += read

    def close(self) -> None:
        for fd in (self._null, self._fd):
            if fd >= 0:
                os.close(fd)
        self._null = self._fd = -1
        self._path = ""


def _seeming_record(mapped_file: MappedFile, start: int, limit: int) -> int:
    """Position of the first whole record after `start`, -1 without one nearby."""
    array = mapped_file.array
    # to touch such a page would read ahead: megabytes of zeros, which then count as data
    if start >= limit or mapped_file.is_unwritten(start) or not array[start : start + OS_PAGE_SIZE].any():
        return -1
    return find_record(array, start, min(start + NEARBY, limit), mapped_file.file_from_offset)


class HoleKind(enum.Enum):
    CORRUPT = "corruption"
    """Stored messages are gone: later records follow, or consume queues point here."""
    TORN = "torn tail"
    """The log ends with an incomplete record: a write that was interrupted."""
    STALE = "stale bytes"
    """Records after the end of the log that are older than its last: left over from before a truncation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, end) of the log (physical offsets, all in one file) that are not records of it."""

    kind: HoleKind
    path: str
    position: int
    """Position of the hole in its file."""
    start: int
    end: int
    reason: str
    records_follow: bool
    """In the same file."""

    @property
    def size(self) -> int:
        return self.end - self.start


def open_log(config: MessageStoreConfig) -> MappedFileQueue:
    """The commit log's files, read-only. Raises WrongFileSizeError, StoreCorruptError (a file is missing, or has
    another's name)."""
    files = MappedFileQueue(config.commit_log_dir, config.mapped_file_size_commit_log, read_only=True)
    try:
        files.load()
    except StoreCorruptError:
        raise_if_misnamed(files.directory, files.file_size)
        raise
    return files


def refuse_foreign(files: MappedFileQueue) -> None:
    """Raises ForeignFormatError if the first file holds data, but no record at all; StoreCorruptError if its records
    are another file's."""
    if not files.mapped_files:
        return
    first = files.mapped_files[0]
    if not first.array[:END_FILE_MIN_BLANK_LENGTH].any():
        return
    check = check_record(first.view, 0, first.file_size, first.file_from_offset, check_crc=False)
    if check.kind in (RecordKind.MESSAGE, RecordKind.BLANK):
        return
    if find_record(first.array, 0, first.file_size, first.file_from_offset) < 0:
        raise_if_misnamed(files.directory, files.file_size)
        raise ForeignFormatError(
            f"{first.path}: there is no RocketMQ record in it ({check.reason}); "
            "it is of another program, of a newer version, or nothing can be saved of it"
        )


class LogReader:
    """Reads the files of one log. `check_crc`: the CRCs of bodies too, not only sizes, magic codes and physical
    offsets; `force_prop_crc`: a record without a property CRC is invalid; `one_at_a_time`: a chunk is good until the
    next one."""

    def __init__(
        self,
        files: MappedFileQueue,
        *,
        check_crc: bool = True,
        force_prop_crc: bool = False,
        one_at_a_time: bool = False,
    ) -> None:
        self.files = files
        self._check_crc = check_crc
        self._force_prop_crc = force_prop_crc
        self._room = ScanRoom(CHUNK_RECORDS) if one_at_a_time else None

    def scan_file(
        self, mapped_file: MappedFile, position: int, limit: int, max_records: int = CHUNK_RECORDS
    ) -> Scan:
        """At most `max_records` records of one file, from `position` (where one begins) to `limit`."""
        return self._scan(mapped_file.array, position, limit, mapped_file.file_from_offset, max_records)

    def _scan(self, array: Bytes, position: int, limit: int, base: int, max_records: int) -> Scan:
        return scan_records(
            array,
            position,
            limit,
            base,
            max_records=max_records,
            check_crc=self._check_crc,
            force_prop_crc=self._force_prop_crc,
            room=self._room,
        )

    def scan(
        self, start: int, end: int | None = None, *, chunk_records: int = CHUNK_RECORDS
    ) -> Iterator[LogChunk]:
        """The records from physical offset `start` (where a record begins) up to `end` (None: to the log's end).

        `scan.stop` of the last chunk says why the scan ended. A chunk may hold no records.
        """
        for mapped_file, position, limit in self._parts(start, end):
            for chunk in self._chunks(mapped_file, position, limit, chunk_records):
                yield chunk
                if chunk.stopped:
                    return

    def _parts(self, start: int, end: int | None) -> Iterator[tuple[MappedFile, int, int]]:
        """The files from physical offset `start` up to `end`, and from where to where in each."""
        for mapped_file in self.files.files_from(start):
            base = mapped_file.file_from_offset
            if end is not None and base >= end:
                return
            visible = mapped_file.read_position
            yield mapped_file, max(0, start - base), visible if end is None else min(visible, end - base)
            if visible < mapped_file.file_size:  # what waits in a write buffer comes before the next file
                return

    def _chunks(
        self, mapped_file: MappedFile, position: int, limit: int, chunk_records: int = CHUNK_RECORDS
    ) -> Iterator[LogChunk]:
        """The records of one file from `position` on, up to whatever ends them."""
        return self._chunks_of(mapped_file, mapped_file.array, 0, position, limit, chunk_records)

    def _chunks_of(
        self,
        mapped_file: MappedFile,
        array: Bytes,
        first: int,
        position: int,
        limit: int,
        chunk_records: int = CHUNK_RECORDS,
    ) -> Iterator[LogChunk]:
        """The same of the file's bytes from `first` on, which are in `array`."""
        base, stop = mapped_file.file_from_offset + first, ScanStop.MAX_RECORDS
        while stop == ScanStop.MAX_RECORDS:
            scan = self._scan(array, position, limit, base, chunk_records)
            yield LogChunk(mapped_file, scan, base + position, base + scan.end, array)
            position, stop = scan.end, scan.stop

    # ------------------------------------------------------------------ by two threads

    def scan_with(
        self, work: Callable[[LogChunk], T], start: int, end: int | None = None
    ) -> Iterator[tuple[LogChunk, T]]:
        """As scan(), with what `work` makes of each chunk. Two threads do both, in turn piece by piece:

        ├ PIECE_BYTES ─┼ PIECE_BYTES ─┼──
        [rec][rec][rec ][rec][rec][rec] ...     a piece begins where a record seems to; it counts only when
        └── one ───────┘└── other ────┘         the records before it end there

        Only `work` finds the bytes of the records in a chunk's `array`.
        """
        buffers: SimpleQueue[Bytes] = SimpleQueue()
        for _ in range(SCANNERS):
            buffers.put(np.empty(BUFFER_PIECES * PIECE_BYTES, np.uint8))
        with (
            ThreadPoolExecutor(SCANNERS, "LogScan") as scanners,
            contextlib.closing(self._pieces(start, end)) as pieces,
        ):
            ahead: deque[tuple[_Piece, Future[list[tuple[LogChunk, T]] | None]]] = deque()
            try:
                while True:
                    for piece in itertools.islice(pieces, PIECES_AHEAD - len(ahead)):
                        ahead.append((piece, scanners.submit(self._scan_piece, piece, work, buffers)))
                    if not ahead:
                        return
                    piece, future = ahead.popleft()
                    found = future.result()
                    if found is None:
                        first = piece.mapped_file.file_from_offset + piece.start
                        for chunk in self.scan(first, end):
                            yield chunk, work(chunk)
                            chunk.evict()
                        return
                    yield from found
                    if found[-1][0].stopped:
                        return
            finally:
                scanners.shutdown(wait=False, cancel_futures=True)

    def _pieces(self, start: int, end: int | None) -> Generator[_Piece, None, None]:
        with contextlib.closing(_FromDisk()) as from_disk:
            for mapped_file, position, limit in self._parts(start, end):
                while True:
                    following = position + PIECE_BYTES
                    from_disk.bring(mapped_file, position, min(following + OS_PAGE_SIZE, limit))
                    following = _seeming_record(mapped_file, following, limit)
                    if following < 0:
                        break
                    yield _Piece(mapped_file, position, following, limit)
                    position = following
                yield _Piece(mapped_file, position, limit, limit)

    def _scan_piece(
        self, piece: _Piece, work: Callable[[LogChunk], T], buffers: SimpleQueue[Bytes]
    ) -> list[tuple[LogChunk, T]] | None:
        """The chunks of the piece; None when its end is not where a record ends."""
        mapped_file = piece.mapped_file
        found: list[tuple[LogChunk, T]] = []
        first = piece.start // OS_PAGE_SIZE * OS_PAGE_SIZE  # what looks for lost sectors goes by positions
        if piece.end - first <= BUFFER_PIECES * PIECE_BYTES:
            buffer = buffers.get()
            try:
                array = mapped_file.read_into(buffer, first, piece.end - first)
                for chunk in self._chunks_of(mapped_file, array, first, piece.start - first, len(array)):
                    found.append((chunk, work(chunk)))
            finally:
                buffers.put(buffer)
        else:
            first = 0
            for chunk in self._chunks(mapped_file, piece.start, piece.end):
                found.append((chunk, work(chunk)))
                chunk.evict()
        if piece.end < piece.limit:
            scan = found[-1][0].scan
            if scan.stop != ScanStop.LIMIT:
                return None
            # whether a record is whole may depend on the next one
            last = first + int(scan.position[-1])
            is_whole = len(self.scan_file(mapped_file, last, piece.limit, 1)) == 1
            mapped_file.evict(max(0, last - NEARBY), min(piece.end + NEARBY, mapped_file.file_size))
            if not is_whole:
                return None
        return found

    def walk(
        self,
        start: int | None = None,
        *,
        is_known: IsKnown | None = None,
        known_until: int = 0,
        progress: Progress = no_progress,
    ) -> LogWalk:
        """A walk from physical offset `start` (None: the first).

        `is_known(scan, record)`: True if a consume queue points to a record, which then is not stale. `known_until`:
        the physical offset that the consume queues of a cleanly closed store reach.
        """
        return LogWalk(self, start, is_known or _nothing_known, known_until, progress)

    def leftovers(self, end: int) -> list[tuple[MappedFile, int, int]]:
        """Bytes after physical offset `end` that are not zeros: file, first position, one past the last of them."""
        found = []
        for mapped_file in self.files.files_from(end):
            position = max(0, end - mapped_file.file_from_offset)
            last = mapped_file.last_data(position)
            if last > position:
                found.append((mapped_file, position, last))
        return found

    def find_end(self) -> None:
        """Sets the positions of the files to the end of the newest one that holds records, as they are now; closes
        the empty files after it (allocated ahead)."""
        files = self.files.mapped_files
        while files:
            end, _ = end_in_file(files[-1])
            files[-1].set_positions(end)
            if end or len(files) == 1:
                break
            files.pop().close()
        for mapped_file in files[:-1]:  # a file that has a successor is complete
            mapped_file.set_positions(mapped_file.file_size)


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
    """Positions [position, end) of a file, where a scan ended with `stop`."""

    mapped_file: MappedFile
    position: int
    end: int
    stop: ScanStop
    reason: str


def _nothing_known(_scan: Scan, _record: int) -> bool:
    return False


class LogWalk:
    """One walk over a log: see LogReader.walk().

    `holes`, `end` (after the last record or blank) and `last_timestamp` (ms) are complete when `chunks()` is.
    """

    def __init__(
        self,
        reader: LogReader,
        start: int | None,
        is_known: IsKnown,
        known_until: int,
        progress: Progress,
    ) -> None:
        self.holes: list[Hole] = []
        self.start = reader.files.min_offset if start is None else start
        self.end = self.start
        self.last_timestamp = 0
        self._reader = reader
        self._files = reader.files
        self._is_known = is_known
        self._known_until = known_until
        self._progress = progress
        # corruption if records follow, and the end of the log if none do
        self._pending: list[_Gap] = []

    def chunks(self) -> Iterator[LogChunk]:
        """The records in order. A chunk's pages are evicted when the next one is requested."""
        files = list(self._files.files_from(self.start))
        total = sum(mapped_file.file_size for mapped_file in files)
        for number, mapped_file in enumerate(files):
            base = mapped_file.file_from_offset
            position = max(0, self.start - base)
            while True:
                scan = self._reader.scan_file(mapped_file, position, mapped_file.file_size)
                if len(scan):
                    if self._pending and not self._goes_on(scan):
                        return
                    yield LogChunk(mapped_file, scan, base + position, base + scan.end, mapped_file.array)
                    self.end = base + scan.end
                    self.last_timestamp = int(scan.store_timestamp[-1])
                    mapped_file.evict(position, scan.end)
                position = scan.end
                self._progress(number * mapped_file.file_size + position, total)
                if scan.stop == ScanStop.MAX_RECORDS:
                    continue
                if scan.stop == ScanStop.BLANK and not self._pending:
                    self.end = base + position
                if scan.stop in (ScanStop.BLANK, ScanStop.LIMIT):
                    break
                following = self._find(mapped_file, position, scan.stop)
                end = following if following >= 0 else mapped_file.file_size
                reason = scan.stop_reason or ZEROS
                self._pending.append(_Gap(mapped_file, position, end, scan.stop, reason))
                if following < 0:
                    break
                position = following
        self._end_of_log()

    @staticmethod
    def _find(mapped_file: MappedFile, position: int, stop: ScanStop) -> int:
        """Position of the next record after `position` in the file, -1 if there is none."""
        if stop == ScanStop.END:
            extents = mapped_file.data_extents(position)
            if not extents or mapped_file.last_data(position) == position:
                return -1
            position = max(position, extents[0][0] - 1)
        if position + 1 >= mapped_file.file_size:
            return -1
        return find_record(
            mapped_file.array, position + 1, mapped_file.file_size, mapped_file.file_from_offset
        )

    def _goes_on(self, scan: Scan) -> bool:
        """True if the records after the pending holes belong to the log; if not, it ended before the holes."""
        if self._is_being_written():
            return False
        if int(scan.store_timestamp[0]) < self.last_timestamp and not self._is_known(scan, 0):
            self._tail(HoleKind.STALE)
            return False
        for gap in self._pending:
            self._add(HoleKind.CORRUPT, gap.mapped_file, gap.position, gap.end, gap.reason)
        self._pending.clear()
        return True

    def _is_being_written(self) -> bool:
        """True if a hole has been filled since: then a writer is at work there, and this walk ends there.

        A writer goes from front to back, so a hole that records follow is final.
        """
        scan_file = self._reader.scan_file
        return any(
            scan_file(gap.mapped_file, gap.position, gap.mapped_file.file_size, 1).stop != gap.stop
            for gap in self._pending
        )

    def _end_of_log(self) -> None:
        if self._known_until > self.end:
            self._tail(HoleKind.CORRUPT, f"; the consume queues reach to offset {self._known_until}")
        else:
            self._tail(HoleKind.TORN)

    def _tail(self, kind: HoleKind, more: str = "") -> None:
        """Notes what lies after the log's end, file by file; zeros do not count, unless records should be there."""
        if not self._pending:
            return
        found = len(self.holes)
        gap = self._pending[0]
        first = gap.mapped_file
        for mapped_file in self._files.files_from(first.file_from_offset):
            is_first = mapped_file is first
            position, reason = (gap.position, gap.reason) if is_first else (0, "no record")
            end = mapped_file.last_data(position)
            if kind is HoleKind.CORRUPT and is_first:
                end = max(end, min(self._known_until - mapped_file.file_from_offset, mapped_file.file_size))
            if end > position:
                self._add(kind, mapped_file, position, end, reason + more if is_first else reason)
            mapped_file.evict(0, mapped_file.file_size)
        if kind is HoleKind.TORN and self._is_being_written():
            del self.holes[found:]
        self._pending.clear()

    def _add(self, kind: HoleKind, mapped_file: MappedFile, position: int, end: int, reason: str) -> None:
        base = mapped_file.file_from_offset
        follow = kind is HoleKind.CORRUPT and end < mapped_file.file_size
        self.holes.append(Hole(kind, mapped_file.path, position, base + position, base + end, reason, follow))
