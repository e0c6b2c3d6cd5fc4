"""MetaQ's segment files for tasks: cut where records begin, walked many records at a time, damage named.

    driver   data directory ─▶ partitions ─▶ segments ─▶ splits, each from a record's first byte to another's
    task     split ─▶ map, or read piece by piece ─▶ scan ─▶ Records (columns), or Damage up to the next record

A record has no mark of its own by which a task could find one in the middle of a file, and a body may hold what
looks like one. So the driver walks over the headers of segments that are to be cut, and cuts only where the checksum
of the record behind the cut is right; what cannot be walked is not cut, nor is what does not lie on a local disk.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqlake.errors import FormatError, NotAStoreError, StoreCorruptError
from mqlake.formats.columns import gather
from mqlake.metaq.formats.names import parse_store_name, segment_offset
from mqlake.metaq.formats.record import HEADER_SIZE, checksum
from mqlake.metaq.formats.scan import Scan, ScanStop, scan_records
from mqlake.metaq.message import HAS_ATTRIBUTE
from mqlake.metaq.store.inspect import DataDirectory, PartitionFiles, SegmentFile, open_data_directory
from mqlake.spark.memory import WRITTEN_BYTES_KEPT, give_up_read
from mqlake.spark.properties import Bytes, Ints, gather_text
from mqlake.spark.storage import Storage

CHUNK_RECORDS = 16384
PIECE_BYTES = 32 << 20
"""What is not on a local disk is read so much at a time."""
_WINDOW = 1 << 20
_LIKELY_LENGTH_MAX = 4 << 20
_ATTRIBUTE_LENGTH = 4
_CUT_OFF = "the record says more bytes than there are"
REPAIR_HINT = "`mqlake metaq store repair` says what can be done"


@dataclass(frozen=True)
class Split:
    """Bytes `start` to `end` of one segment, whose first byte has the offset `base`. A record begins at `start`."""

    storage: Storage
    topic: str
    partition: int
    file: str
    base: int
    start: int
    end: int
    may_be_torn: bool
    """Whether a writer may be at work at its end, or died there."""

    @property
    def place(self) -> str:
        return self.storage.root


@dataclass(frozen=True)
class Damage:
    """Bytes `position` to `until` of a file hold no record; `offset` is that of the first in the partition."""

    file: str
    position: int
    until: int
    offset: int
    reason: str

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.offset + self.until - self.position

    def moved(self, by: int) -> Damage:
        """The same where positions are counted from so many bytes before."""
        return Damage(self.file, self.position + by, self.until + by, self.offset, self.reason)

    def error(self) -> StoreCorruptError:
        return StoreCorruptError(self.file, self.position, self.reason, hint=REPAIR_HINT)


@dataclass(frozen=True)
class Records:
    """Whole records of one segment, a field an array; positions are those of `buf`."""

    buf: Bytes
    base: int
    scan: Scan

    def __len__(self) -> int:
        return len(self.scan)

    @property
    def offset(self) -> Ints:
        """In the partition, of the first byte."""
        return self.scan.position + self.base

    @property
    def end(self) -> int:
        """Offset behind the last; there must be one."""
        return int(self.offset[-1] + self.size[-1])

    @property
    def size(self) -> npt.NDArray[np.int32]:
        """With the header."""
        return self.scan.length + np.int32(HEADER_SIZE)

    @property
    def checksum(self) -> npt.NDArray[np.int32]:
        return _int32_at(self.buf, self.scan.position + 4)

    @functools.cached_property
    def has_attribute(self) -> npt.NDArray[np.bool_]:
        has: npt.NDArray[np.bool_] = (self.scan.flag & HAS_ATTRIBUTE) != 0
        return has

    @functools.cached_property
    def attribute_length(self) -> Ints:
        """Bytes; 0 also where there is none. Below 0 or too large where the payload is no payload."""
        length = np.zeros(len(self), np.int64)
        holders = self.has_attribute & (self.scan.length >= _ATTRIBUTE_LENGTH)
        length[holders] = _int32_at(self.buf, self.scan.position[holders] + HEADER_SIZE)
        return length

    @property
    def payload_is_wrong(self) -> npt.NDArray[np.bool_]:
        """Where the attribute does not fit into the payload."""
        room = self.scan.length - _ATTRIBUTE_LENGTH
        return self.has_attribute & (
            (room < 0) | (self.attribute_length < 0) | (self.attribute_length > room)
        )

    @property
    def body_start(self) -> Ints:
        return self.scan.position + HEADER_SIZE + self._body_from

    @property
    def body_length(self) -> Ints:
        return self.scan.length - self._body_from

    @property
    def _body_from(self) -> Ints:
        return np.where(self.has_attribute, _ATTRIBUTE_LENGTH + self.attribute_length, 0)

    def attributes(self) -> pa.Array:
        """Arrow strings; null where there is none, "" where it is empty."""
        starts = np.where(self.has_attribute, self.scan.position + HEADER_SIZE + _ATTRIBUTE_LENGTH, 0)
        return gather_text(self.buf, starts, self.attribute_length, self.has_attribute)

    def bodies(self) -> pa.Array:
        """Arrow binary."""
        offsets, data = gather(self.buf, self.body_start, self.body_length)
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def part(self, rows: slice) -> Records:
        return Records(self.buf, self.base, _rows(self.scan, rows, self.scan.end, self.scan.stop))

    def pieces(self, records_max: int, bytes_max: int) -> Iterator[Records]:
        """In their order, so many records and about so many bytes at most a piece."""
        filled = np.cumsum(self.scan.length, dtype=np.int64) // bytes_max
        cuts = np.union1d(np.arange(0, len(self), records_max), np.flatnonzero(np.diff(filled)) + 1)
        for first, last in zip(cuts, [*cuts[1:], len(self)], strict=True):
            yield self.part(slice(first, last))


def _rows(scan: Scan, rows: slice, end: int, stop: ScanStop) -> Scan:
    return Scan(scan.position[rows], scan.length[rows], scan.message_id[rows], scan.flag[rows], end, stop)


# ---------------------------------------------------------------------- planning


def open_directory(storage: Storage) -> DataDirectory:
    """The partitions that lie there; what is not MetaQ's is passed over. NotAStoreError, OSError."""
    if storage.is_local:
        return open_data_directory(storage.root)
    found = DataDirectory(storage.root, in_use=False)
    for name in storage.directories(""):
        try:
            topic, partition = parse_store_name(name)
        except FormatError:
            continue
        segments = [
            SegmentFile(start, size, storage.path(name, file))
            for file, size in storage.files(name)
            if (start := segment_offset(file)) is not None
        ]
        found.partitions.append(PartitionFiles(topic, partition, storage.path(name), segments))
    if not found.partitions:
        raise NotAStoreError(
            f"{storage.root} is not a MetaQ data directory: there is no <topic>-<partition> in it"
        )
    found.partitions.sort(key=lambda each: (each.topic, each.partition))
    return found


def check_gaps(directory: DataDirectory) -> None:
    """StoreCorruptError when a segment does not begin where the one before it ends."""
    for files in directory.partitions:
        for segment, following in itertools.pairwise(files.segments):
            if segment.end != following.start:
                raise StoreCorruptError(
                    segment.path,
                    segment.size,
                    f"it ends at offset {segment.end}, the next begins at {following.start}",
                    hint=REPAIR_HINT,
                )


def splits(
    storage: Storage,
    files: PartitionFiles,
    split_size: int | None = None,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Split]:
    """Of one partition, in order, from the offset `start` to `end` (None: to where it ends now); at both a record
    begins.

    `split_size` None: a split a segment. OSError.
    """
    for segment in files.segments:
        last = segment.size if end is None else min(segment.size, end - segment.start)
        first = max(0, start - segment.start)
        if first >= last:
            continue
        whole_size = split_size if storage.is_local else None
        cuts = [first, *_cuts(storage, segment.path, first, last, whole_size), last]
        for begin, until in itertools.pairwise(cuts):
            yield Split(
                storage,
                files.topic,
                files.partition,
                segment.path,
                segment.start,
                begin,
                until,
                end is None and segment is files.segments[-1] and until == last,
            )


def _cuts(storage: Storage, file: str, position: int, size: int, split_size: int | None) -> Iterator[int]:
    if split_size is None or size - position <= split_size:
        return
    buf = storage.map(file, size)
    wanted = position + split_size
    while wanted < size:
        scan = scan_records(buf, position, size, check_crc=False)
        at = int(np.searchsorted(scan.position, wanted))
        if at < len(scan):
            position = int(scan.position[at])
            if _is_record(buf, position, size):
                yield position
                wanted = position + split_size
            else:
                wanted = position + 1
        elif scan.stop is ScanStop.MAX_RECORDS:
            position = scan.end
        else:
            return


def written_end(storage: Storage, files: PartitionFiles, known: int) -> int:
    """The offset behind a partition's last whole record; `known`: where one begins, or the end once was. OSError.

    A record in the last segment that says more bytes than there are is taken for one that is being written, and is
    not passed before a new segment shows that it was not.
    """
    if not files.segments:
        return 0
    last = files.segments[-1]
    end = max(last.start, min(known, last.end))
    for split in splits(storage, files, start=end):
        for found in walk(split):
            if isinstance(found, Damage) and found.reason == _CUT_OFF:
                return end
            end = found.end
    return end


# ---------------------------------------------------------------------- walking


def walk(
    split: Split, *, verify: bool = True, chunk_records: int = CHUNK_RECORDS
) -> Iterator[Records | Damage]:
    """The split's records and the damage between them, in their order. OSError."""
    if split.storage.is_local:
        buf = split.storage.map(split.file, split.end)
        kept = split.start
        for found in _walk(split, buf, 0, split.start, verify, chunk_records):
            yield found
            position = found.end - split.base
            if position - kept >= WRITTEN_BYTES_KEPT:
                give_up_read(buf, kept, position)
                kept = position
        return
    position, size = split.start, PIECE_BYTES
    while position < split.end:
        limit = min(position + size, split.end)
        buf = split.storage.read(split.file, position, limit)
        before = position
        for found in _walk(split, buf, position, 0, verify, chunk_records):
            if isinstance(found, Damage) and limit < split.end:
                break  # of a record that is only cut off here, or it needs more to be seen as what it is
            yield found
            position = found.end - split.base
        size = PIECE_BYTES if position > before else 2 * size
        if limit == split.end:
            return


def _walk(
    split: Split, buf: Bytes, origin: int, position: int, verify: bool, chunk_records: int
) -> Iterator[Records | Damage]:
    """`buf`: the segment's bytes from `origin` to the split's end, or not so far; `position` is one in it."""
    base, limit = split.base + origin, len(buf)
    while position < limit:
        scan = scan_records(buf, position, limit, max_records=chunk_records, check_crc=verify)
        zeros = (scan.message_id == 0) & (scan.length == 0) & (scan.flag == 0)
        reason = ""
        if zeros.any():
            n = int(zeros.argmax())
            scan = _rows(scan, slice(n), int(scan.position[n]), ScanStop.INVALID)
            reason = "zeros where a record should be"
        for found in whole(Records(buf, base, scan), split.file):
            yield found.moved(origin) if isinstance(found, Damage) else found
        position = scan.end
        if scan.stop is ScanStop.LIMIT:
            return
        if scan.stop is not ScanStop.MAX_RECORDS:
            following = find_record(buf, position + 1, limit)
            if following < 0 and split.may_be_torn:
                return
            until = following if following >= 0 else limit
            reason = reason or _reason(scan.stop, buf, position)
            yield Damage(split.file, position, until, base + position, reason).moved(origin)
            position = until


def _reason(stop: ScanStop, buf: Bytes, position: int) -> str:
    if stop is ScanStop.TRUNCATED:
        return _CUT_OFF
    if buf[position] & 0x80:
        return "the record's length is below 0"
    return "the payload does not match its checksum"


def whole(records: Records, file: str) -> Iterator[Records | Damage]:
    """Without those whose payload is none."""
    wrong = records.payload_is_wrong
    first = 0
    for row in np.flatnonzero(wrong).tolist():
        if row > first:
            yield records.part(slice(first, row))
        position = int(records.scan.position[row])
        end = position + int(records.size[row])
        reason = f"an attribute of {records.attribute_length[row]} bytes does not fit into the payload"
        yield Damage(file, position, end, records.base + position, reason)
        first = row + 1
    if first < len(records):
        yield records.part(slice(first, None)) if first else records


def find_record(buf: Bytes, start: int, limit: int) -> int:
    """The first position from `start` on where a record with a payload and the right checksum begins, or -1.

    A length of over 4 MiB is believed only when a header follows behind it: in random bytes such lengths are many.
    """
    for first in range(start, limit - HEADER_SIZE, _WINDOW):
        last = min(first + _WINDOW, limit - HEADER_SIZE)
        if not buf[first : last + 3].any():
            continue
        at = np.arange(first, last)
        length = _int32_at(buf, at)
        fits = (length > 0) & (length <= limit - HEADER_SIZE - at) & (buf[first + 4 : last + 4] < 0x80)
        for position in at[fits].tolist():
            size = int(length[position - first])
            likely = size <= _LIKELY_LENGTH_MAX or _is_header(buf, position + HEADER_SIZE + size, limit)
            if likely and _is_record(buf, position, limit):
                return int(position)
    return -1


def _is_header(buf: Bytes, position: int, limit: int) -> bool:
    if position == limit:
        return True
    return (
        position + HEADER_SIZE <= limit
        and 0 <= int(_int32_at(buf, np.array([position]))[0]) <= limit - position - HEADER_SIZE
    )


def _is_record(buf: Bytes, position: int, limit: int) -> bool:
    length, crc = _int32_at(buf, np.array([position, position + 4])).tolist()
    end = position + HEADER_SIZE + length
    return bool(length > 0 and end <= limit and checksum(buf[position + HEADER_SIZE : end].data) == crc)


def _int32_at(buf: Bytes, positions: Ints) -> npt.NDArray[np.int32]:
    """Big-endian numbers at these positions."""
    four = buf[positions[:, None] + np.arange(4)]
    return np.ascontiguousarray(four).view(">i4").reshape(-1).astype(np.int32)
