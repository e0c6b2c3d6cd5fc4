"""Looks into a data directory that may be in use, and changes nothing.

DataDirectory ─▶ PartitionFiles ─▶ segments ─▶ records
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mqlake.errors import FormatError, NotAStoreError, OffsetOutOfRangeError
from mqlake.metaq.formats.names import parse_store_name, segment_offset
from mqlake.metaq.formats.record import HEADER, HEADER_SIZE, check_record, decode_payload
from mqlake.metaq.formats.scan import Scan, ScanStop, scan_records
from mqlake.metaq.message import Message, Partition
from mqlake.metaq.store.lock import is_locked
from mqlake.store.findings import Finding, Findings, Severity

_ARCHIVED = re.compile(r"[0-9]{20}\.meta\.(arc|zip)")
OWN_DIRECTORIES = {"transactions", "zookeeper"}
BACKUP_PREFIX = "repair_"


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
    """Files that an archive policy has put aside."""
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


@dataclass(slots=True)
class DataDirectory:
    path: str
    in_use: bool
    partitions: list[PartitionFiles] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """What is neither a partition nor the broker's own."""

    def partition(self, topic: str, partition: int) -> PartitionFiles:
        """NotAStoreError when there is none."""
        for each in self.partitions:
            if (each.topic, each.partition) == (topic, partition):
                return each
        raise NotAStoreError(f"{self.path}: there is no partition {topic}-{partition}")


def open_data_directory(path: str) -> DataDirectory:
    """What lies in a MetaQ data directory. NotAStoreError when nothing of MetaQ's does, OSError."""
    if not os.path.isdir(path):
        raise NotAStoreError(f"{path} is not a directory")
    found = DataDirectory(path, is_locked(path))
    own = False
    for name in sorted(os.listdir(path)):
        full = os.path.join(path, name)
        if name in OWN_DIRECTORIES or name.startswith(BACKUP_PREFIX):
            own = own or name == "transactions"
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


class SegmentReader:
    """One segment, mapped; `with` it."""

    def __init__(self, segment: SegmentFile) -> None:
        """OSError."""
        self.segment = segment
        self._file = open(segment.path, "rb")  # noqa: SIM115 - closed by __exit__
        size = min(segment.size, os.fstat(self._file.fileno()).st_size)
        self._map = mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ) if size else None
        self.array = np.frombuffer(self._map, np.uint8) if self._map is not None else np.empty(0, np.uint8)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)
        if self._map is not None:
            self._map.close()
        self._file.close()

    def scans(self, position: int = 0, *, check_crc: bool = True) -> Iterator[Scan]:
        """The records from `position` on, many at a time; the last scan says why the walk ended."""
        while True:
            scan = scan_records(self.array, position, len(self.array), check_crc=check_crc)
            yield scan
            if scan.stop is not ScanStop.MAX_RECORDS:
                return
            position = scan.end

    def find_record(self, position: int) -> int:
        """The first position from `position` on where a whole record with the right checksum begins, or -1.

        Records without a payload do not count: zeros look like them.
        """
        view = self.array.data
        limit = len(self.array)
        while position + HEADER_SIZE < limit:
            length, crc, _, _ = HEADER.unpack_from(view, position)
            if 0 < length <= limit - position - HEADER_SIZE and crc >= 0:
                try:
                    check_record(view, position, limit)
                    return position
                except FormatError:
                    pass
            position += 1
        return -1


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    size: int
    """With its header."""
    message: Message


def read_records(files: PartitionFiles, offset: int | None = None, broker_id: int = 0) -> Iterator[Record]:
    """The messages of a partition from `offset` (None: its first) on, to the end of what is whole.

    OffsetOutOfRangeError when no segment has the offset; FormatError at damage, and at an offset where no
    record begins.
    """
    given, offset = offset, files.min_offset if offset is None else offset
    if not files.min_offset <= offset <= files.max_offset:
        raise OffsetOutOfRangeError(
            f"{files.name}: offset {offset}; there are {files.min_offset} to {files.max_offset}"
        )
    partition = Partition(broker_id, files.partition)
    for segment in files.segments:
        if segment.end <= offset:
            continue
        with SegmentReader(segment) as reader:
            for scan in reader.scans(max(0, offset - segment.start)):
                columns = (scan.position, scan.length, scan.message_id, scan.flag)
                for position, length, identity, flag in zip(*(c.tolist() for c in columns), strict=True):
                    body_start = position + HEADER_SIZE
                    payload = reader.array[body_start : body_start + length].tobytes()
                    attribute, data = decode_payload(payload, flag)
                    message = Message(files.topic, data, attribute, flag, identity, partition)
                    yield Record(segment.start + position, HEADER_SIZE + length, message)
                at_given = segment.start + scan.end == given
                if scan.stop is ScanStop.INVALID or (
                    scan.stop is ScanStop.TRUNCATED and (at_given or segment is not files.segments[-1])
                ):
                    raise FormatError(segment.start + scan.end, f"{files.name}: no whole record begins here")


# --- verify

Progress = Callable[[int, int], None]
"""Told (done, in all)."""


def _no_progress(done: int, total: int) -> None:
    pass


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


def verify_data_directory(path: str, progress: Progress = _no_progress) -> VerifyReport:
    """Checks every record of every partition, and that segments follow one another.

    `progress` is told (bytes done, bytes in all). NotAStoreError, OSError.
    """
    directory = open_data_directory(path)
    total = sum(files.size for files in directory.partitions)
    done = 0
    findings = Findings()
    report = VerifyReport(path, directory.in_use, len(directory.partitions))
    for foreign in directory.foreign:
        findings.note("foreign file", foreign, 0, "neither a partition nor the broker's; it is left alone")
    for files in directory.partitions:
        for foreign in files.foreign:
            findings.note("foreign file", foreign, 0, "no segment; it is left alone")
        for segment, following in zip(files.segments, files.segments[1:], strict=False):
            if segment.end != following.start:
                text = f"it ends at offset {segment.end}, the next begins at {following.start}"
                findings.damage("gap", segment.path, segment.size, text)
        for segment in files.segments:
            base = done

            def reached(position: int, base: int = base) -> None:
                progress(base + position, total)

            _verify_segment(segment, segment is files.segments[-1], findings, report, reached)
            done += segment.size
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
        position = 0
        while True:
            scan = None
            for scan in reader.scans(position):
                reached(scan.end)
                zeros = (scan.message_id == 0) & (scan.length == 0) & (scan.flag == 0)
                count = int(zeros.sum())
                report.records += len(scan) - count
                report.record_bytes += int(scan.length.sum()) + HEADER_SIZE * (len(scan) - count)
                if count:
                    at = int(scan.position[int(zeros.argmax())])
                    text = f"{count} empty records without an id: zeros that a power cut left"
                    findings.add(
                        Finding(
                            Severity.NOTE if is_last else Severity.DAMAGE, "zeros", segment.path, at, text
                        )
                    )
            assert scan is not None
            if scan.stop is ScanStop.LIMIT:
                return
            following = reader.find_record(scan.end + 1)
            if following < 0 and is_last:
                rest = len(reader.array) - scan.end
                text = f"{rest} bytes are no whole record; the next start cuts them off"
                findings.note("torn tail", segment.path, scan.end, text)
                return
            until = following if following >= 0 else len(reader.array)
            findings.damage("damage", segment.path, scan.end, f"{until - scan.end} bytes are no record")
            if following < 0:
                return
            position = following
