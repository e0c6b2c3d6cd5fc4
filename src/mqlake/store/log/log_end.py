"""LogEnd: what the bytes after a log's last valid record are, decided by evidence.

    [rec][rec]▒▒▒▒▒▒ 0 0 0 0         nothing whole follows: a torn tail
    [rec][rec]▒▒▒▒▒▒[old][old]       whole, but older than the log's last, and no queue knows them: stale
    [rec][rec]▒▒▒▒▒▒[rec][rec]       whole records of this log: a hole, or damage
              ^ P

A record is whole when its sizes, magic, CRC and physical offset are right. Damage (StoreCorruptError) it is when
nothing else can have made the hole:

    the last exit was clean                 then all had been flushed
    the machine has been up since           a process that dies alone tears no pages, and writes front to back
    the checkpoint is later than a record   that follows: all before it had been flushed
    a consume queue knows one that follows  and the writer gave the queues flushed messages only (SYNC_FLUSH)
    no part of the hole reads as zeros      a power cut leaves whole sectors unwritten, and never garbles one

Otherwise a power cut may have left the hole in what had not been flushed, which is legal. Then every whole record
stays: the hole is to be fenced off (see filler.py). A record that lacks its size alone, which is written last, is
to be given it; unless a process died in the append of which it is the first record, and all that follows is of the
same append: then the log ends before it.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreCorruptError
from mqlake.formats.columns import Bytes, Scan
from mqlake.formats.record import (
    END_FILE_MIN_BLANK_LENGTH,
    RecordKind,
    check_record,
    encode_blank,
    store_timestamp,
)
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.log.filler import FILLER_SIZE_MIN
from mqlake.store.log.log_reader import Hole, IsKnown, LogChunk, LogReader, end_of_whole

SECTOR = 512
"""Bytes: what a disk writes as a whole."""

ZEROS_MIN = 3
"""Bytes: fewer zeros may be the end of a whole record."""

HINT = "`mqlake store verify` shows how far the damage goes, `mqlake store repair` saves the rest"


@dataclasses.dataclass(frozen=True, slots=True)
class LastExit:
    """How the last writer of a store ended, as far as that is known."""

    clean: bool
    machine_stayed_up: bool = False
    """It died, and the machine has been up ever since."""
    queued_only_flushed: bool = False
    """It gave the consume queues only what had been flushed."""

    @property
    def keeps_queues_behind(self) -> bool:
        """Nothing that can have happened leaves the consume queues ahead of the log: they prove what it held."""
        return self.clean or self.machine_stayed_up or self.queued_only_flushed


@dataclasses.dataclass(frozen=True, slots=True)
class Fence:
    """Bytes [position, end) of a file that are no records, between whole ones; `end` is the file's when what
    follows is in the next file."""

    mapped_file: MappedFile
    position: int
    end: int
    reason: str
    store_timestamp: int
    """ms, of the record that follows."""
    missing_size: int = 0
    """Not 0: the record is whole but for its size, which is this."""

    @property
    def start(self) -> int:
        """Physical offset."""
        return self.mapped_file.file_from_offset + self.position

    @property
    def size(self) -> int:
        return self.end - self.position


@dataclasses.dataclass(slots=True)
class LogEnd:
    """The end of the log (physical offset), and what has to be fenced off before that."""

    end: int
    last_timestamp: int
    fences: list[Fence] = dataclasses.field(default_factory=list)
    records: int = 0
    """Whole records after the first fence."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Gap:
    mapped_file: MappedFile
    position: int
    end: int
    reason: str


class LogEndFinder:
    """Looks at what follows the valid records of one log. Changes nothing."""

    def __init__(
        self,
        reader: LogReader,
        last_exit: LastExit,
        *,
        flushed_until: int,
        is_known: IsKnown,
        force_prop_crc: bool,
        progress: Progress = no_progress,
    ) -> None:
        """`flushed_until` (ms): messages stored earlier had been flushed. `is_known(scan, record)`: True if a
        consume queue points to the record."""
        self._reader = reader
        self._exit = last_exit
        self._flushed_until = flushed_until
        self._is_known = is_known
        self._force_prop_crc = force_prop_crc
        self._progress = progress
        # store time of an append that may have been interrupted, as long as all that follows can be of it
        self._append_time: int | None = None

    def torn_records(self, chunk: LogChunk) -> list[int]:
        """Records of a chunk that scan as valid, but lack a part that no CRC covers; none where that cannot be."""
        if self._exit.clean or self._exit.machine_stayed_up:
            return []
        return torn_records(chunk, self._flushed_until)

    def find(self, end: int, last_timestamp: int, reason: str, torn_size: int) -> LogEnd:
        """Judges the log from `end` on, where its valid records end because of `reason`; `last_timestamp` (ms)
        is the last one's. `torn_size`: that of a torn record at `end`. Raises StoreCorruptError for damage."""
        found = LogEnd(end, last_timestamp)
        walk = self._reader.walk(end + torn_size, is_known=self._is_known, progress=self._progress)
        walk.last_timestamp = last_timestamp
        pending: list[_Gap] = []
        if torn_size:
            first = self._file_at(end)
            position = end - first.file_from_offset
            pending.append(_Gap(first, position, position + torn_size, reason))
        holes_seen = 0
        for chunk in walk.chunks():
            pending += [self._gap(hole) for hole in walk.holes[holes_seen:]]
            holes_seen = len(walk.holes)
            if torn_size and not found.fences and self._is_stale(chunk, last_timestamp):
                break
            self._judge_chunk(chunk, found, pending)
        self._refuse_half_a_record(found)
        if self._append_time is not None:
            return LogEnd(end, last_timestamp)
        return found

    def _gap(self, hole: Hole) -> _Gap:
        """The hole, without the blank that may end it: where that is whole the rest of the file is as it should be."""
        file = self._file_at(hole.start)
        end = hole.end - file.file_from_offset
        if not hole.records_follow:
            blank = file.last_data(hole.position) - END_FILE_MIN_BLANK_LENGTH
            if blank >= hole.position + FILLER_SIZE_MIN and file.view[
                blank : blank + END_FILE_MIN_BLANK_LENGTH
            ] == encode_blank(file.file_size - blank):
                end = blank
        return _Gap(file, hole.position, end, hole.reason)

    # ------------------------------------------------------------------ one chunk

    def _judge_chunk(self, chunk: LogChunk, found: LogEnd, pending: list[_Gap]) -> None:
        """Judges the gaps before the chunk's whole records; those after the last one stay pending."""
        scan, torn = chunk.scan, set(self.torn_records(chunk))
        position, size = scan.position, scan.size
        whole = [record for record in range(len(scan)) if record not in torn] if torn else None
        last = len(scan) - 1 if whole is None else (whole[-1] if whole else -1)
        for record in sorted(torn):
            if record < last:
                at = int(position[record])
                pending.append(_Gap(chunk.mapped_file, at, at + int(size[record]), TORN))
        if last >= 0:
            first = 0 if whole is None else whole[0]
            for gap in pending:
                self._judge(gap, chunk, first, found)
            pending.clear()
            self._same_append(scan, found)
            if self._exit.queued_only_flushed and found.fences and self._knows(scan):
                follows = chunk.mapped_file.file_from_offset + int(position[0])
                self._corrupt(found.fences[0], f"the consume queues have messages from offset {follows} on")
            found.end = chunk.mapped_file.file_from_offset + int(position[last]) + int(size[last])
            found.last_timestamp = int(scan.store_timestamp[last])
            found.records += len(scan) - len(torn)
        for record in sorted(torn):
            if record > last:
                at = int(position[record])
                pending.append(_Gap(chunk.mapped_file, at, at + int(size[record]), TORN))

    def _judge(self, gap: _Gap, chunk: LogChunk, first: int, found: LogEnd) -> None:
        """A gap before the record `first` of `chunk`: raises when it is damage, else notes the fence."""
        file, scan = gap.mapped_file, chunk.scan
        timestamp = int(scan.store_timestamp[first])
        missing = self._missing_size(gap)
        fence = Fence(file, gap.position, gap.end, gap.reason, timestamp, missing)
        follows = chunk.mapped_file.file_from_offset + int(scan.position[first])
        if self._exit.clean:
            self._corrupt(fence, f"the last exit was clean, and whole messages follow at offset {follows}")
        if timestamp < self._flushed_until:
            self._corrupt(fence, f"flushed messages follow at offset {follows}")
        if missing:
            if not found.fences and self._exit.machine_stayed_up:
                self._append_time = store_timestamp(file.view, gap.position)
        elif self._exit.machine_stayed_up:
            self._corrupt(
                fence,
                f"whole messages follow at offset {follows}, and the machine has been up since they were written",
            )
        elif gap.reason != TORN and not may_be_torn(file.array, gap.position, gap.end):
            self._corrupt(
                fence,
                f"whole messages follow at offset {follows}, and no sector between is missing, as after a power cut",
            )
        elif fence.size < FILLER_SIZE_MIN and fence.end < file.file_size:
            self._corrupt(
                fence, f"{fence.size} bytes to the next message, which is less than any message has"
            )
        found.fences.append(fence)

    def _same_append(self, scan: Scan, found: LogEnd) -> None:
        if self._append_time is not None and (
            len(found.fences) > 1 or (scan.store_timestamp != self._append_time).any() or self._knows(scan)
        ):
            self._append_time = None

    def _knows(self, scan: Scan) -> bool:
        return self._is_known(scan, 0) or self._is_known(scan, len(scan) - 1)

    def _is_stale(self, chunk: LogChunk, last_timestamp: int) -> bool:
        return int(chunk.scan.store_timestamp[0]) < last_timestamp and not self._is_known(chunk.scan, 0)

    def _missing_size(self, gap: _Gap) -> int:
        """The size of the record that fills the gap, when it lacks nothing else; else 0."""
        array, position = gap.mapped_file.array, gap.position
        if array[position : position + 4].any():
            return 0
        size = gap.end - position
        record = bytearray(gap.mapped_file.view[position : gap.end])
        record[:4] = size.to_bytes(4, "big")
        start = gap.mapped_file.file_from_offset + position
        check = check_record(record, 0, size, start, force_prop_crc=self._force_prop_crc)
        return size if check.kind is RecordKind.MESSAGE else 0

    # ------------------------------------------------------------------ the end

    def _refuse_half_a_record(self, found: LogEnd) -> None:
        """Raises for a record at the end that has a size and is not whole, where nothing can have torn it."""
        if not self._exit.machine_stayed_up or any(fence.missing_size for fence in found.fences):
            return  # after a record without its size: the same write was interrupted here
        file = self._reader.files.find_mapped_file_by_offset(found.end)
        if file is None:
            return
        position = found.end - file.file_from_offset
        if file.array[position : position + 4].any():
            check = check_record(
                file.view, position, file.file_size, found.end, force_prop_crc=self._force_prop_crc
            )
            self._corrupt(
                Fence(file, position, file.file_size, check.reason, 0),
                "the record was finished, and the machine has been up since",
            )

    def _corrupt(self, fence: Fence, evidence: str) -> None:
        raise StoreCorruptError(
            fence.mapped_file.path, fence.position, f"{fence.reason}; {evidence}", hint=HINT
        )

    def _file_at(self, offset: int) -> MappedFile:
        file = self._reader.files.find_mapped_file_by_offset(offset)
        assert file is not None
        return file


TORN = "a part of the record never reached the disk"


def may_be_torn(array: Bytes, start: int, end: int) -> bool:
    """True if a power cut can have left these bytes, which began as a record. A sector that never came, or was written
    while the record was being copied, ends with zeros; a record without its size begins with them."""
    ends = np.arange(start - start % SECTOR + SECTOR, end, SECTOR)
    return bool(
        not array[start : start + 4].any()
        or (array[ends - 1] == 0).any()
        # without properties a whole record ends with two
        or not array[end - ZEROS_MIN : end].any()
    )


def torn_records(chunk: LogChunk, flushed_until: int) -> list[int]:
    """The records that lack a sector of their topic or properties, and the last one when it lacks its end.

    A power cut takes whole sectors of what was not flushed, and where nothing had been before, zeros are left.
    The body has a CRC and the fields of fixed place contradict a body of no length, but topic and properties have
    no guard of their own. The end is what a RocketMQ had not written yet that was killed within an append.
    """
    scan, array = chunk.scan, chunk.array
    found = set()
    whole = end_of_whole(array, scan)
    if whole < scan.end and scan.store_timestamp[-1] >= flushed_until:
        found.add(len(scan) - 1)
    # each topic counts once: of one no longer than a sector it is the beginning or the end that a lost sector took
    fields = [(scan.properties_start, scan.properties_length)]
    if any(topic and not (topic[0] and topic[-1] and len(topic) <= SECTOR) for topic in scan.topics):
        fields.append((scan.topic_start, scan.topic_length))
    for starts, lengths in fields:
        ends = starts + lengths
        doubtful = (array.take(starts, mode="clip") == 0) | (array.take(ends - 1) == 0) | (lengths > SECTOR)
        doubtful &= (lengths > 0) & (scan.store_timestamp >= flushed_until)
        for record in np.flatnonzero(doubtful).tolist():
            if _lacks_sector(array, int(starts[record]), int(ends[record])):
                found.add(record)
    return sorted(found)


def _lacks_sector(array: Bytes, start: int, end: int) -> bool:
    borders = [start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end]
    return any(not array[a:b].any() for a, b in itertools.pairwise(borders))
