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
from mqlake.metaq.formats.record import HEADER_SIZE
from mqlake.metaq.formats.scan import (
    ATTRIBUTE_LENGTH_SIZE,
    CUT_OFF,
    Scan,
    ScanStop,
    attribute_lengths,
    int32_at,
    is_record,
    misfits,
    scan_records,
    walk_records,
)
from mqlake.metaq.message import HAS_ATTRIBUTE
from mqlake.metaq.store.inspect import (
    REPAIR_HINT,
    DataDirectory,
    PartitionFiles,
    SegmentFile,
    open_data_directory,
)
from mqlake.spark.arrow.memory import WRITTEN_BYTES_KEPT, give_up_read
from mqlake.spark.arrow.properties import Bytes, Ints, gather_text
from mqlake.spark.log.storage import Storage

CHUNK_RECORDS = 16384
PIECE_BYTES = 32 << 20
"""What is not on a local disk is read so much at a time."""


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
        return int32_at(self.buf, self.scan.position + 4)

    @functools.cached_property
    def has_attribute(self) -> npt.NDArray[np.bool_]:
        has: npt.NDArray[np.bool_] = (self.scan.flag & HAS_ATTRIBUTE) != 0
        return has

    @functools.cached_property
    def attribute_length(self) -> Ints:
        """Bytes: `attribute_lengths`."""
        return attribute_lengths(self.buf, self.scan)

    @property
    def payload_is_wrong(self) -> npt.NDArray[np.bool_]:
        """Where the attribute does not fit into the payload."""
        return misfits(self.scan, self.attribute_length)

    @property
    def body_start(self) -> Ints:
        return self.scan.position + HEADER_SIZE + self._body_from

    @property
    def body_length(self) -> Ints:
        return self.scan.length - self._body_from

    @property
    def _body_from(self) -> Ints:
        return np.where(self.has_attribute, ATTRIBUTE_LENGTH_SIZE + self.attribute_length, 0)

    def attributes(self) -> pa.Array:
        """Arrow strings; null where there is none, "" where it is empty."""
        starts = np.where(self.has_attribute, self.scan.position + HEADER_SIZE + ATTRIBUTE_LENGTH_SIZE, 0)
        return gather_text(self.buf, starts, self.attribute_length, self.has_attribute)

    def bodies(self) -> pa.Array:
        """Arrow binary."""
        offsets, data = gather(self.buf, self.body_start, self.body_length)
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def part(self, rows: slice) -> Records:
        return Records(self.buf, self.base, self.scan.rows(rows, self.scan.end, self.scan.stop))

    def pieces(self, records_max: int, bytes_max: int) -> Iterator[Records]:
        """In their order, so many records and about so many bytes at most a piece."""
        filled = np.cumsum(self.scan.length, dtype=np.int64) // bytes_max
        cuts = np.union1d(np.arange(0, len(self), records_max), np.flatnonzero(np.diff(filled)) + 1)
        for first, last in zip(cuts, [*cuts[1:], len(self)], strict=True):
            yield self.part(slice(first, last))


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
            if is_record(buf, position, size):
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
            if isinstance(found, Damage) and found.reason == CUT_OFF:
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
    base = split.base + origin
    found = walk_records(
        buf,
        position,
        len(buf),
        may_be_torn=split.may_be_torn,
        max_records=chunk_records,
        check_crc=verify,
    )
    for each in found:
        if isinstance(each, Scan):
            for part in whole(Records(buf, base, each), split.file):
                yield part.moved(origin) if isinstance(part, Damage) else part
        else:
            yield Damage(split.file, each.start, each.end, base + each.start, each.reason).moved(origin)


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
