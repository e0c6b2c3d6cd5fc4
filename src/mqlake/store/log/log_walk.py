"""LogWalk: every record of a commit log that can still be read, and what lies between them.

    [rec][rec]▒▒▒▒▒▒▒▒[rec][rec][blank]  [rec]▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  [rec][rec]▒▒▒▒▒  0 0 0 0 ...
              CORRUPT                         CORRUPT                    TORN
                                                                         or STALE: whole records of an
                                                                         earlier life of the file

A walk for recovery or dispatch (`log_scan`) ends at the first thing that is no record. This one looks behind it
for the next record that says the physical offset at which it lies, and goes on there. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator

from mqlake.base.progress import Progress
from mqlake.errors import ForeignFormatError
from mqlake.formats.columns import Scan, ScanStop, find_record, scan_records
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, RecordKind, check_record
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_scan import LogChunk

# what a pass reads twice (sizes and CRCs, then properties) should still be in the cache the second time
CHUNK_RECORDS = 8192

IsKnown = Callable[[Scan, int], bool]


class HoleKind(enum.Enum):
    CORRUPT = "corruption"
    """Something that had been stored is gone: later records follow, or consume queues point here."""
    TORN = "torn tail"
    """The log ends with something that is no whole record: a write that was interrupted."""
    STALE = "stale bytes"
    """Behind the log's end lie records older than its last: left over from before the log was cut there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, end) of the log (physical offsets, all in one file) that are no records of it."""

    kind: HoleKind
    path: str
    position: int
    """Where it begins in the file."""
    start: int
    end: int
    reason: str
    records_follow: bool
    """In the same file."""

    @property
    def size(self) -> int:
        return self.end - self.start


def open_log(config: MessageStoreConfig) -> MappedFileQueue:
    """The commit log's files, read-only. Raises WrongFileSizeError, StoreCorruptError (a file is missing)."""
    queue = MappedFileQueue(config.commit_log_dir, config.mapped_file_size_commit_log, read_only=True)
    queue.load()
    return queue


def refuse_foreign(queue: MappedFileQueue) -> None:
    """Raises ForeignFormatError when the first file holds something, but no record at all."""
    if not queue.mapped_files:
        return
    first = queue.mapped_files[0]
    if not first.array[:END_FILE_MIN_BLANK_LENGTH].any():
        return
    check = check_record(first.view, 0, first.file_size, first.file_from_offset, check_crc=False)
    if check.kind in (RecordKind.MESSAGE, RecordKind.BLANK):
        return
    if find_record(first.array, 0, first.file_size, first.file_from_offset) < 0:
        raise ForeignFormatError(
            f"{first.path}: there is no RocketMQ record in it ({check.reason}); "
            "it is of another program, of a newer version, or nothing can be saved of it"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
    """Positions [position, end) of a file, where a walk came upon `stop`."""

    mapped_file: MappedFile
    position: int
    end: int
    stop: ScanStop
    reason: str


def _nothing_known(_scan: Scan, _record: int) -> bool:
    return False


class LogWalk:
    """One walk from physical offset `start` (None: the first).

    `is_known(scan, record)` says whether a consume queue points to a record: such a one is not stale.
    `known_until` is the physical offset to which the consume queues of a cleanly ended store reach.

    `holes`, `end` (behind the last record or blank) and `last_timestamp` (ms) are complete when `chunks()` is.
    """

    def __init__(
        self,
        queue: MappedFileQueue,
        *,
        start: int | None = None,
        check_crc: bool = True,
        force_prop_crc: bool = False,
        is_known: IsKnown = _nothing_known,
        known_until: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.holes: list[Hole] = []
        self.start = queue.min_offset if start is None else start
        self.end = self.start
        self.last_timestamp = 0
        self._queue = queue
        self._check_crc = check_crc
        self._force_prop_crc = force_prop_crc
        self._is_known = is_known
        self._known_until = known_until
        self._progress = progress
        # holes that are corruption if records follow, and the log's end if none do
        self._pending: list[_Gap] = []

    def chunks(self) -> Iterator[LogChunk]:
        """The records in order. A chunk's memory is given up when the next one is asked for."""
        files = list(self._queue.files_from(self.start))
        total = sum(mapped_file.file_size for mapped_file in files)
        for number, mapped_file in enumerate(files):
            base = mapped_file.file_from_offset
            position = max(0, self.start - base)
            while True:
                scan = self._scan(mapped_file, position)
                if len(scan):
                    if self._pending and not self._goes_on(scan):
                        return
                    yield LogChunk(mapped_file, scan, base + position, base + scan.end)
                    self.end = base + scan.end
                    self.last_timestamp = int(scan.store_timestamp[-1])
                    mapped_file.evict(position, scan.end)
                position = scan.end
                if self._progress is not None:
                    self._progress(number * mapped_file.file_size + position, total)
                if scan.stop == ScanStop.MAX_RECORDS:
                    continue
                if scan.stop == ScanStop.BLANK and not self._pending:
                    self.end = base + position
                if scan.stop in (ScanStop.BLANK, ScanStop.LIMIT):
                    break
                following = self._find(mapped_file, position, scan.stop)
                end = following if following >= 0 else mapped_file.file_size
                reason = scan.stop_reason or "zeros where a record should be"
                self._pending.append(_Gap(mapped_file, position, end, scan.stop, reason))
                if following < 0:
                    break
                position = following
        self._end_of_log()

    def _scan(self, mapped_file: MappedFile, position: int, max_records: int = CHUNK_RECORDS) -> Scan:
        return scan_records(
            mapped_file.array,
            position,
            mapped_file.file_size,
            mapped_file.file_from_offset,
            max_records=max_records,
            check_crc=self._check_crc,
            force_prop_crc=self._force_prop_crc,
        )

    @staticmethod
    def _find(mapped_file: MappedFile, position: int, stop: ScanStop) -> int:
        """Position of the next record behind `position` in the file, -1 when there is none."""
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
        """Records after holes: whether they belong to the log. If not, the log has ended before the holes."""
        if self._writer_came_by():
            return False
        if int(scan.store_timestamp[0]) < self.last_timestamp and not self._is_known(scan, 0):
            self._tail(HoleKind.STALE)
            return False
        for gap in self._pending:
            self._add(HoleKind.CORRUPT, gap.mapped_file, gap.position, gap.end, gap.reason)
        self._pending.clear()
        return True

    def _writer_came_by(self) -> bool:
        """Whether a hole has been filled since: the log was being written there, and this walk ends there.

        A writer goes from front to back, so where records follow what it has left is final.
        """
        if any(self._scan(gap.mapped_file, gap.position, 1).stop != gap.stop for gap in self._pending):
            self._pending.clear()
            return True
        return False

    def _end_of_log(self) -> None:
        if self._known_until > self.end:
            self._tail(HoleKind.CORRUPT, f"; the consume queues reach to offset {self._known_until}")
        else:
            self._tail(HoleKind.TORN)

    def _tail(self, kind: HoleKind, more: str = "") -> None:
        """What lies behind the log's end, file by file; zeros are nothing, unless something should be there."""
        if not self._pending:
            return
        found = len(self.holes)
        gap = self._pending[0]
        first = gap.mapped_file
        for mapped_file in self._queue.files_from(first.file_from_offset):
            is_first = mapped_file is first
            position, reason = (gap.position, gap.reason) if is_first else (0, "no record")
            end = mapped_file.last_data(position)
            if kind is HoleKind.CORRUPT and is_first:
                end = max(end, min(self._known_until - mapped_file.file_from_offset, mapped_file.file_size))
            if end > position:
                self._add(kind, mapped_file, position, end, reason + more if is_first else reason)
            mapped_file.evict(0, mapped_file.file_size)
        if kind is HoleKind.TORN and self._writer_came_by():
            del self.holes[found:]
        self._pending.clear()

    def _add(self, kind: HoleKind, mapped_file: MappedFile, position: int, end: int, reason: str) -> None:
        base = mapped_file.file_from_offset
        follow = kind is HoleKind.CORRUPT and end < mapped_file.file_size
        self.holes.append(Hole(kind, mapped_file.path, position, base + position, base + end, reason, follow))
