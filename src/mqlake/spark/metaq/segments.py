"""MetaQ's segment files for tasks: split where records begin, and walked wherever they are stored.

    driver   data directory ─▶ partitions ─▶ segments ─▶ splits, each from one record's first byte to another's
    task     split ─▶ mapped, or read in pieces ─▶ Records (columns), or Damage up to the next record

A record has no mark by which a task could find one in the middle of a file, and a body may contain what looks like
one. So the driver walks over the headers of a large segment, and splits it only where the checksum of the next record
is right. Segments that cannot be walked, or are not on a local disk, are not split.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mqlake.errors import FormatError, NotAStoreError
from mqlake.formats.arrow import Bytes
from mqlake.lake.log.storage import Storage
from mqlake.metaq.formats.names import parse_store_name, segment_offset
from mqlake.metaq.formats.scan import CUT_OFF, ScanStop, is_record, scan_records, walk_records
from mqlake.metaq.store.columns import CHUNK_RECORDS, Damage, Records, as_columns, read_segment
from mqlake.metaq.store.inspect import DataDirectory, PartitionFiles, SegmentFile, open_data_directory

PIECE_BYTES = 32 << 20
"""Files that are not on a local disk are read in pieces of this size."""


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
    """True if a writer may be writing at its end, or died there."""

    @property
    def place(self) -> str:
        return self.storage.root

    @property
    def bytes(self) -> int:
        return self.end - self.start


# ---------------------------------------------------------------------- planning


def open_directory(storage: Storage) -> DataDirectory:
    """The partitions of a data directory; foreign files are skipped. NotAStoreError, OSError."""
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


def splits(
    storage: Storage,
    files: PartitionFiles,
    split_size: int | None = None,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Split]:
    """The splits of one partition from the offset `start` to `end` (None: its current end), both record boundaries.

    `split_size` None: a split per segment. OSError.
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
    """The offset after a partition's last whole record; `known`: a record boundary to search from. OSError.

    A record in the last segment that claims more bytes than there are may still be written: the end stays before it
    until a new segment shows that it was damage.
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
        segment = SegmentFile(split.base, split.end, split.file)
        yield from read_segment(
            segment,
            split.start,
            may_be_torn=split.may_be_torn,
            verify=verify,
            chunk_records=chunk_records,
        )
        return
    position, size = split.start, PIECE_BYTES
    while position < split.end:
        limit = min(position + size, split.end)
        buf = split.storage.read(split.file, position, limit)
        before = position
        for found in _walk_piece(split, buf, before, verify, chunk_records):
            if isinstance(found, Damage) and limit < split.end:
                break  # a record that only this piece cuts off, or damage that may end in the next one
            yield found
            position = found.end - split.base
        size = PIECE_BYTES if position > before else 2 * size
        if limit == split.end:
            return


def _walk_piece(
    split: Split, buf: Bytes, origin: int, verify: bool, chunk_records: int
) -> Iterator[Records | Damage]:
    """`buf`: the segment's bytes from `origin` on."""
    for found in walk_records(
        buf, 0, len(buf), may_be_torn=split.may_be_torn, max_records=chunk_records, check_crc=verify
    ):
        yield from as_columns(found, buf, split.file, split.base + origin, origin)
