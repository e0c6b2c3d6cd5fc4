"""The records of a segment as columns, and the damage between them. Needs pyarrow: for Spark and migrations.

segment ─▶ SegmentReader.walk ─▶ Records (columns), Damage, Records, ...          in the order of the file
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mqlake.errors import StoreCorruptError
from mqlake.formats.arrow import Bytes, Ints, gather_binary, gather_text
from mqlake.metaq.formats.record import HEADER_SIZE
from mqlake.metaq.formats.scan import (
    ATTRIBUTE_LENGTH_SIZE,
    NoRecords,
    Scan,
    attribute_lengths,
    has_attribute,
    int32_at,
    misfits,
)
from mqlake.metaq.store.inspect import REPAIR_HINT, PartitionFiles, SegmentFile, SegmentReader

CHUNK_RECORDS = 16384


@dataclass(frozen=True)
class Damage:
    """Bytes `position` to `until` of a file hold no record; `offset`, in the partition, is that of the first."""

    file: str
    position: int
    until: int
    offset: int
    reason: str

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.offset + self.until - self.position

    def error(self) -> StoreCorruptError:
        return StoreCorruptError(self.file, self.position, self.reason, hint=REPAIR_HINT)


@dataclass(frozen=True)
class Records:
    """Whole records of one segment, a field an array; positions are those of `buf`, which begins at offset `base`."""

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
        """The offset after the last record; there must be one."""
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
        return has_attribute(self.scan)

    @functools.cached_property
    def attribute_length(self) -> Ints:
        """Bytes; 0 where there is no attribute."""
        return attribute_lengths(self.buf, self.scan)

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
        return gather_binary(self.buf, self.body_start, self.body_length)

    def rows(self, rows: slice) -> Records:
        return Records(self.buf, self.base, self.scan.rows(rows, self.scan.end, self.scan.stop))

    def batches(self, records_max: int, bytes_max: int) -> Iterator[Records]:
        """In their order, at most so many records and about so many bytes in each."""
        filled = np.cumsum(self.scan.length, dtype=np.int64) // bytes_max
        cuts = np.union1d(np.arange(0, len(self), records_max), np.flatnonzero(np.diff(filled)) + 1)
        for first, last in zip(cuts, [*cuts[1:], len(self)], strict=True):
            yield self.rows(slice(first, last))


def read_segment(
    segment: SegmentFile,
    position: int = 0,
    *,
    may_be_torn: bool,
    verify: bool = True,
    chunk_records: int = CHUNK_RECORDS,
) -> Iterator[Records | Damage]:
    """The records from `position` on and the damage between them. `verify`: checksums are compared. OSError."""
    with SegmentReader(segment) as reader:
        for found in reader.walk(
            position, may_be_torn=may_be_torn, max_records=chunk_records, check_crc=verify
        ):
            yield from as_columns(found, reader.array, segment.path, segment.start)
        if (size := len(reader.array)) < segment.size and not may_be_torn:
            first = max(size, position)
            yield Damage(
                segment.path, first, segment.size, segment.start + first, "the file was cut short before"
            )


def read_partition(files: PartitionFiles, start: int = 0) -> Iterator[Records]:
    """The records of a partition from the offset `start` on. StoreCorruptError at damage, OSError."""
    for segment in files.segments:
        if segment.end <= start:
            continue
        is_last = segment is files.segments[-1]
        for found in read_segment(segment, max(0, start - segment.start), may_be_torn=is_last):
            if isinstance(found, Damage):
                raise found.error()
            yield found


def as_columns(
    found: Scan | NoRecords, buf: Bytes, file: str, base: int, origin: int = 0
) -> Iterator[Records | Damage]:
    """One step of `walk_records` over `buf`, which is the file's bytes from `origin` on and begins at offset `base`.

    A record whose flag promises an attribute that does not fit into the payload is damage.
    """
    if isinstance(found, NoRecords):
        yield Damage(file, origin + found.start, origin + found.end, base + found.start, found.reason)
        return
    records = Records(buf, base, found)
    first = 0
    for row in np.flatnonzero(misfits(found, records.attribute_length)).tolist():
        if row > first:
            yield records.rows(slice(first, row))
        position = int(found.position[row])
        end = position + int(records.size[row])
        reason = f"an attribute of {records.attribute_length[row]} bytes does not fit into the payload"
        yield Damage(file, origin + position, origin + end, base + position, reason)
        first = row + 1
    if first < len(records):
        yield records.rows(slice(first, None)) if first else records
