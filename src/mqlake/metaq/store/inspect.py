"""Reads a data directory, which may be in use, and modifies nothing.

DataDirectory ─▶ PartitionFiles ─▶ segments ─▶ records
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mqlake.base.findings import Finding, Findings
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import FormatError, NotAStoreError, OffsetOutOfRangeError, StoreCorruptError
from mqlake.metaq.formats.names import parse_store_name, segment_offset
from mqlake.metaq.formats.record import HEADER_SIZE, decode_payload
from mqlake.metaq.formats.scan import (
    CHUNK_RECORDS,
    NoRecords,
    Scan,
    ScanStop,
    attribute_lengths,
    misfits,
    scan_records,
    walk_records,
)
from mqlake.metaq.message import Message, Partition
from mqlake.metaq.store.backup import BACKUP_PREFIX
from mqlake.metaq.store.inspect_journal import TRANSACTIONS, verify_journal
from mqlake.metaq.store.lock import is_locked

_ARCHIVED = re.compile(r"[0-9]{20}\.meta\.(arc|zip)")
OWN_DIRECTORIES = {TRANSACTIONS, "zookeeper"}
REPAIR_HINT = "`mqlake metaq store repair --dry-run` shows what can be done"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    start: int
    """Offset of its first byte."""
    size: int
    path: str

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(slots=True)
class PartitionFiles:
    """One partition's directory."""

    topic: str
    partition: int
    path: str
    segments: list[SegmentFile] = field(default_factory=list)
    archived: int = 0
    """Files that an archive policy has renamed or compressed."""
    foreign: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def min_offset(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def max_offset(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def gaps(self) -> Iterator[StoreCorruptError]:
        """An error for each segment that does not end where the next one begins."""
        for segment, following in itertools.pairwise(self.segments):
            if segment.end != following.start:
                text = f"it ends at offset {segment.end}, the next begins at {following.start}"
                yield StoreCorruptError(segment.path, segment.size, text, hint=REPAIR_HINT)


@dataclass(slots=True)
class DataDirectory:
    path: str
    in_use: bool
    partitions: list[PartitionFiles] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Paths that are neither partitions nor the broker's own files."""

    def partition(self, topic: str, partition: int) -> PartitionFiles:
        """NotAStoreError if it does not exist."""
        for each in self.partitions:
            if (each.topic, each.partition) == (topic, partition):
                return each
        raise NotAStoreError(f"{self.path}: there is no partition {topic}-{partition}")

    def check_gaps(self) -> None:
        """StoreCorruptError for the first gap between two segments of a partition."""
        for files in self.partitions:
            for gap in files.gaps():
                raise gap


def open_data_directory(path: str) -> DataDirectory:
    """The contents of a MetaQ data directory. NotAStoreError if it is not one, OSError."""
    if not os.path.isdir(path):
        raise NotAStoreError(f"{path} is not a directory")
    found = DataDirectory(path, is_locked(path))
    own = False
    for name in sorted(os.listdir(path)):
        full = os.path.join(path, name)
        if name in OWN_DIRECTORIES or name.startswith(BACKUP_PREFIX):
            own = own or name == TRANSACTIONS
            continue
        try:
            topic, partition = parse_store_name(name)
        except FormatError:
            found.foreign.append(full)
            continue
        files = _partition_files(topic, partition, full) if os.path.isdir(full) else None
        if files is None:
            found.foreign.append(full)
        else:
            found.partitions.append(files)
    if not found.partitions and not own and found.foreign:
        raise NotAStoreError(f"{path} is not a MetaQ data directory: there is no <topic>-<partition> in it")
    found.partitions.sort(key=lambda each: (each.topic, each.partition))
    return found


def _partition_files(topic: str, partition: int, path: str) -> PartitionFiles:
    files = PartitionFiles(topic, partition, path)
    for name in sorted(os.listdir(path)):
        full = os.path.join(path, name)
        start = segment_offset(name)
        if start is not None:
            files.segments.append(SegmentFile(start, os.path.getsize(full), full))
        elif _ARCHIVED.fullmatch(name):
            files.archived += 1
        else:
            files.foreign.append(full)
    return files


# --- records


READ_BYTES_KEPT = 64 << 20
"""A walk gives up the pages that it has read each time there are so many bytes of them: the page cache keeps them, and
the process does not seem to need as much memory as it reads."""


class SegmentReader:
    """One segment, mapped; use it in a `with`."""

    def __init__(self, segment: SegmentFile) -> None:
        """OSError."""
        self.segment = segment
        with open(segment.path, "rb") as file:
            size = min(segment.size, os.fstat(file.fileno()).st_size)
            self._mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else None
        self.array = np.frombuffer(self._mapped or b"", np.uint8)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)
        self._mapped = None  # unmapped when no array refers to it

    def headers(self) -> Iterator[Scan]:
        """The records by their headers alone, many at a time, up to the first position without one."""
        position = 0
        while True:
            scan = scan_records(self.array, position, len(self.array), check_crc=False)
            yield scan
            if scan.stop is not ScanStop.MAX_RECORDS:
                return
            position = scan.end

    def walk(
        self,
        position: int = 0,
        *,
        may_be_torn: bool,
        max_records: int = CHUNK_RECORDS,
        check_crc: bool = True,
    ) -> Iterator[Scan | NoRecords]:
        """The records from `position` on and the damage between them: `walk_records`."""
        kept = position
        for found in walk_records(
            self.array,
            position,
            len(self.array),
            may_be_torn=may_be_torn,
            max_records=max_records,
            check_crc=check_crc,
        ):
            yield found
            if found.end - kept >= READ_BYTES_KEPT:
                self._give_up(kept, found.end)
                kept = found.end

    def _give_up(self, start: int, end: int) -> None:
        page = mmap.PAGESIZE
        first, last = start // page * page, end // page * page
        if self._mapped is not None and last > first:
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

    def misfits(self, scan: Scan) -> list[int]:
        """Positions of records whose flag promises an attribute that does not fit."""
        positions: list[int] = scan.position[misfits(scan, attribute_lengths(self.array, scan))].tolist()
        return positions


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    size: int
    """With its header."""
    message: Message


def read_records(files: PartitionFiles, offset: int | None = None, broker_id: int = 0) -> Iterator[Record]:
    """The messages of a partition from `offset` (None: its first) to its last whole one.

    Raises OffsetOutOfRangeError if no segment has the offset, FormatError if no record begins there,
    StoreCorruptError at damage.
    """
    given, offset = offset, files.min_offset if offset is None else offset
    if not files.min_offset <= offset <= files.max_offset:
        raise OffsetOutOfRangeError(
            f"{files.name}: offset {offset} is not in the partition, which has {files.min_offset} to {files.max_offset}"
        )
    for segment in files.segments:
        if segment.end <= offset:
            continue
        is_last = segment is files.segments[-1]
        with SegmentReader(segment) as reader:
            end = start = max(0, offset - segment.start)
            for found in reader.walk(start, may_be_torn=is_last):
                if isinstance(found, NoRecords):
                    if segment.start + found.start == given:
                        break
                    raise StoreCorruptError(segment.path, found.start, found.reason, hint=REPAIR_HINT)
                yield from _messages(reader, found, Partition(broker_id, files.partition), files.topic)
                end = found.end
            if end == start < len(reader.array) and given is not None:
                raise FormatError(given, f"{files.name}: no whole record begins here")


def _messages(reader: SegmentReader, scan: Scan, partition: Partition, topic: str) -> Iterator[Record]:
    segment = reader.segment
    columns = (scan.position, scan.length, scan.message_id, scan.flag)
    for position, length, identity, flag in zip(*(each.tolist() for each in columns), strict=True):
        start = position + HEADER_SIZE
        payload = reader.array[start : start + length].tobytes()
        try:
            attribute, data = decode_payload(payload, flag)
        except FormatError as error:
            raise StoreCorruptError(segment.path, position, error.reason, hint=REPAIR_HINT) from None
        message = Message(topic, data, attribute, flag, identity, partition)
        yield Record(segment.start + position, HEADER_SIZE + length, message)


# --- verify


@dataclass(slots=True)
class VerifyReport:
    path: str
    in_use: bool
    partitions: int = 0
    segments: int = 0
    records: int = 0
    record_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    damage_count: int = 0

    @property
    def ok(self) -> bool:
        return self.damage_count == 0


def verify_data_directory(path: str, progress: Progress = no_progress) -> VerifyReport:
    """Checks every record of every partition, gaps between segments, and the transaction journal.

    NotAStoreError, OSError.
    """
    directory = open_data_directory(path)
    total = sum(files.size for files in directory.partitions)
    done = 0
    findings = Findings()
    report = VerifyReport(path, directory.in_use, len(directory.partitions))
    for foreign in directory.foreign:
        findings.note(
            "foreign file", foreign, 0, "neither a partition nor a file of the broker; it is ignored"
        )
    for files in directory.partitions:
        for foreign in files.foreign:
            findings.note("foreign file", foreign, 0, "not a segment; it is ignored")
        for gap in files.gaps():
            findings.damage("gap", gap.path, gap.offset, gap.reason)
        for segment in files.segments:
            base = done

            def reached(position: int, base: int = base) -> None:
                progress(base + position, total)

            _verify_segment(segment, segment is files.segments[-1], findings, report, reached)
            done += segment.size
    verify_journal(path, findings)
    report.findings = findings.kept
    report.damage_count = findings.damage_count
    return report


def _verify_segment(
    segment: SegmentFile,
    is_last: bool,
    findings: Findings,
    report: VerifyReport,
    reached: Callable[[int], None],
) -> None:
    report.segments += 1
    with SegmentReader(segment) as reader:
        end = 0
        for found in reader.walk(may_be_torn=is_last):
            end = found.end
            reached(end)
            if isinstance(found, Scan):
                report.records += len(found)
                report.record_bytes += int(found.length.sum()) + HEADER_SIZE * len(found)
                for at in reader.misfits(found):
                    text = "the flag promises an attribute that does not fit into the payload"
                    findings.damage("flag", segment.path, at, text)
            else:
                text = f"{found.end - found.start} bytes are not a record: {found.reason}"
                findings.damage("damage", segment.path, found.start, text)
        rest = reader.array[end:]
        if len(rest) == 0:
            return
        if rest.any():
            kind, text = (
                "torn tail",
                f"{len(rest)} bytes are not a whole record; the next start cuts them off",
            )
        else:
            kind, text = "zeros", f"{len(rest)} zeros that a power cut left; the next start cuts them off"
        findings.note(kind, segment.path, end, text)
