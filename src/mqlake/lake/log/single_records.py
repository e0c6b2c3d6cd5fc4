"""Single records read at the places where consume queues or the index say they are, for units that lie far apart.

    file       .....[rec]...........[rec]....................[rec]......      only the pages of these are touched
    gathered   [rec][rec][rec]                                                scanned at once, as a small log

A place says what it expects: the size, and whose message of which queue it is. Whatever is not exactly there is Damage,
so that a wrong unit never passes for an absent message.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import Scan, gather, scan_records
from mqlake.formats.record import PHYSICAL_OFFSET_POSITION, RECORD_SIZE_MIN
from mqlake.lake.log.splits import CHUNK_RECORDS, PIECE_BYTES, VERIFY_NONE, Damage, LogFile, map_file
from mqlake.lake.log.storage import Storage

Ints = npt.NDArray[np.int64]

UNKNOWN = -1
"""Stands for a size, or for a message's number, that nothing is known of."""
_QUEUE_OFFSET_BITS = 44


def message_number(queue_id: npt.NDArray[np.integer] | int, queue_offset: Ints) -> Ints:
    """A number for a message of a topic: queue offsets below 2⁴⁴ and queue ids below 2¹⁹ never collide."""
    return (np.asarray(queue_id, np.int64) << _QUEUE_OFFSET_BITS) ^ queue_offset


@dataclass(frozen=True, eq=False)
class Places:
    """Records by physical offset, sorted, each once. `size` and `number` (message_number) may be UNKNOWN."""

    offset: Ints
    size: Ints
    number: Ints

    @classmethod
    def of(cls, offset: Ints, size: Ints, number: Ints) -> Places:
        """In any order; of equal offsets the first counts."""
        offset, first = np.unique(offset, return_index=True)
        return cls(offset, size[first], number[first])

    @classmethod
    def none(cls) -> Places:
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty)

    def __len__(self) -> int:
        return len(self.offset)

    def where(self, mask: npt.NDArray[np.bool_]) -> Places:
        return Places(self.offset[mask], self.size[mask], self.number[mask])


@dataclass(frozen=True, eq=False)
class Pick:
    """The places of one local file that one task reads: positions in the file, otherwise as Places."""

    storage: Storage
    file: LogFile
    position: Ints
    expected_size: Ints
    number: Ints

    @property
    def start(self) -> int:
        return int(self.position[0])

    @property
    def end(self) -> int:
        return int(self.position[-1]) + 1

    @property
    def base_offset(self) -> int:
        return self.file.base_offset

    @property
    def bytes(self) -> int:
        """About how many are read."""
        return int(np.maximum(self.expected_size, RECORD_SIZE_MIN).sum())

    @property
    def store(self) -> str:
        return self.storage.root


def picks(storage: Storage, files: Sequence[LogFile], places: Places, records_max: int) -> list[Pick]:
    """The places as the work of tasks, at most `records_max` each."""
    found = []
    for file in files:
        first, last = np.searchsorted(places.offset, [file.base_offset, file.end_offset])
        for start in range(int(first), int(last), records_max):
            part = slice(start, min(start + records_max, int(last)))
            position = places.offset[part] - file.base_offset
            found.append(Pick(storage, file, position, places.size[part], places.number[part]))
    return found


def read_picked(
    pick: Pick, *, verify: str, chunk_records: int = CHUNK_RECORDS
) -> Iterator[tuple[Bytes, Scan] | Damage]:
    """The picked records in order, a chunk at a time, each chunk with the buffer that its scan is over.

    FileNotFoundError when the file has been deleted since the pick was planned.
    """
    with io.FileIO(pick.file.file) as file:
        buf = map_file(file, pick.file.file_size, random=True)
    limit = min(pick.file.limit, len(buf))
    inside = pick.position <= limit - RECORD_SIZE_MIN
    size = pick.expected_size.copy()
    size[inside] = _sizes(buf, pick.position[inside])
    chunk = (np.cumsum(np.clip(size, 0, PIECE_BYTES)) // PIECE_BYTES) * 2
    borders = np.union1d(np.flatnonzero(np.diff(chunk)) + 1, np.arange(0, len(size), chunk_records)).tolist()
    for first, last in zip(borders, [*borders[1:], len(size)], strict=True):
        part = slice(first, last)
        found = _gathered(buf, limit, pick, part, size[part], verify)
        if found is not None:
            yield from found
        else:
            for row in range(first, last):
                yield _alone(buf, limit, pick, row, verify)


def _sizes(buf: Bytes, position: Ints) -> Ints:
    sizes: Ints = buf[position[:, None] + np.arange(4)].view(">i4").reshape(-1).astype(np.int64)
    return sizes


def _gathered(
    buf: Bytes, limit: int, pick: Pick, part: slice, size: Ints, verify: str
) -> list[tuple[Bytes, Scan]] | None:
    """None unless every record of the chunk is exactly what is expected."""
    position, expected, number = pick.position[part], pick.expected_size[part], pick.number[part]
    if (size < RECORD_SIZE_MIN).any() or (position + size > limit).any():
        return None
    if ((expected != UNKNOWN) & (expected != size)).any():
        return None
    offsets, data = gather(buf, position, size, large=True)
    starts, physical_offset = offsets[:-1].astype(np.int64), pick.base_offset + position
    fields = starts[:, None] + np.arange(PHYSICAL_OFFSET_POSITION, PHYSICAL_OFFSET_POSITION + 8)
    if (data[fields].view(">i8").reshape(-1) != physical_offset).any():
        return None
    # a scan insists that a record says its own place
    data[fields] = starts.astype(">i8").view(np.uint8).reshape(-1, 8)
    found: list[tuple[Bytes, Scan]] = []
    done = end = 0
    while done < len(size):  # the first scans of a process take small steps
        scan = scan_records(
            data, end, len(data), 0, max_records=len(size) - done, check_crc=verify != VERIFY_NONE
        )
        here = slice(done, done + len(scan))
        if len(scan) == 0 or (scan.position != starts[here]).any() or not _is_expected(scan, number[here]):
            return None
        scan.physical_offset = physical_offset[here]
        found.append((data, scan))
        done, end = here.stop, scan.end
    return found


def _is_expected(scan: Scan, number: Ints) -> bool:
    found = message_number(scan.queue_id, scan.queue_offset)
    return bool(((number == UNKNOWN) | (number == found)).all())


def _alone(buf: Bytes, limit: int, pick: Pick, row: int, verify: str) -> tuple[Bytes, Scan] | Damage:
    position, expected = int(pick.position[row]), int(pick.expected_size[row])
    scan = scan_records(
        buf, min(position, limit), limit, pick.base_offset, max_records=1, check_crc=verify != VERIFY_NONE
    )
    if (
        len(scan)
        and expected in (UNKNOWN, int(scan.size[0]))
        and _is_expected(scan, pick.number[row : row + 1])
    ):
        return buf, scan
    reason = scan.stop_reason or (
        "another record than the consume queue or the index says (`mqlake store rebuild` makes them again; "
        "skipping=false reads without them)"
    )
    until = position + max(expected, RECORD_SIZE_MIN)
    return Damage(pick.file.file, position, until, pick.base_offset + position, reason)
