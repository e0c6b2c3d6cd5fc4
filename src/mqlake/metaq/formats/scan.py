"""Many records at a time: a segment file to columns. Recovery, verify, dump and Spark use this walk.

├─rec─┼──rec──┼rec┼────rec────┼─½ rec─┤       position  length  id  flag      end → ┐
                               └ end, why ┘       0      ...                         where the walk stopped
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqlake import native
from mqlake.metaq.formats.record import HEADER_SIZE, checksum
from mqlake.metaq.message import HAS_ATTRIBUTE

CHUNK_RECORDS = 1 << 16
_WINDOW = 1 << 20
_LIKELY_LENGTH_MAX = 4 << 20
ATTRIBUTE_LENGTH_SIZE = 4

_HEADER = Struct(">iIqi")


class ScanStop(enum.IntEnum):
    LIMIT = 0
    """There are only records up to the limit."""
    MAX_RECORDS = 1
    """There may be more: continue at `end`."""
    TRUNCATED = 2
    """The limit cuts off the record at `end`."""
    INVALID = 3
    """The bytes at `end` have a negative length or the wrong checksum."""


class Scan(NamedTuple):
    """n consecutive records; positions are those of the scanned buffer."""

    position: NDArray[np.int64]
    length: NDArray[np.int32]
    """Length of the payload, bytes."""
    message_id: NDArray[np.int64]
    flag: NDArray[np.int32]
    end: int
    stop: ScanStop

    def __len__(self) -> int:
        return len(self.position)

    def __bool__(self) -> bool:
        return True

    @property
    def is_zeros(self) -> NDArray[np.bool_]:
        """Which records are 20 zero bytes, as a power cut may leave them."""
        zeros: NDArray[np.bool_] = (self.message_id == 0) & (self.length == 0) & (self.flag == 0)
        return zeros

    def rows(self, rows: slice, end: int, stop: ScanStop) -> Scan:
        return Scan(self.position[rows], self.length[rows], self.message_id[rows], self.flag[rows], end, stop)


def scanner() -> Callable[..., tuple[int, int, int]]:
    """mqlake.native.metaq's scan, or `_plain_scan` where it is not compiled."""
    kernels = native.module("metaq")
    return _plain_scan if kernels is None else kernels.scan


def scan_records(
    buf: NDArray[np.uint8],
    start: int,
    limit: int,
    *,
    max_records: int = CHUNK_RECORDS,
    check_crc: bool = True,
) -> Scan:
    """The records from `start` up to `limit`, or to the first position without a record."""
    if not 0 <= start <= limit <= len(buf):
        raise ValueError(f"positions {start} to {limit} are not in a buffer of {len(buf)} bytes")
    capacity = min(max_records, (limit - start) // HEADER_SIZE + 1)
    position = np.empty(capacity, np.int64)
    length = np.empty(capacity, np.int32)
    message_id = np.empty(capacity, np.int64)
    flag = np.empty(capacity, np.int32)
    walk = scanner()
    data = buf.view()
    data.flags.writeable = False
    n, end, stop = walk(data, start, limit, check_crc, position, length, message_id, flag)
    return Scan(position[:n], length[:n], message_id[:n], flag[:n], int(end), ScanStop(stop))


def _plain_scan(
    buf: NDArray[np.uint8],
    start: int,
    limit: int,
    check_crc: bool,
    position: NDArray[np.int64],
    length: NDArray[np.int32],
    message_id: NDArray[np.int64],
    flag: NDArray[np.int32],
) -> tuple[int, int, int]:
    view = buf.data
    at, n, capacity = start, 0, len(position)
    while at != limit:
        if n == capacity:
            return n, at, ScanStop.MAX_RECORDS
        if limit - at < HEADER_SIZE:
            return n, at, ScanStop.TRUNCATED
        size, crc, identity, flags = _HEADER.unpack_from(view, at)
        if size < 0:
            return n, at, ScanStop.INVALID
        end = at + HEADER_SIZE + size
        if end > limit:
            return n, at, ScanStop.TRUNCATED
        if check_crc and checksum(view[at + HEADER_SIZE : end]) != crc:
            return n, at, ScanStop.INVALID
        position[n], length[n], message_id[n], flag[n] = at, size, identity, flags
        n += 1
        at = end
    return n, at, ScanStop.LIMIT


# --- attributes


def attribute_lengths(buf: NDArray[np.uint8], scan: Scan) -> NDArray[np.int64]:
    """Bytes of each record's attribute, 0 if it has none. Damaged lengths are returned as they are."""
    length = np.zeros(len(scan), np.int64)
    holders = has_attribute(scan) & (scan.length >= ATTRIBUTE_LENGTH_SIZE)
    length[holders] = int32_at(buf, scan.position[holders] + HEADER_SIZE)
    return length


def misfits(scan: Scan, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which records have a flag that promises an attribute, and a length that does not fit into the payload."""
    room = scan.length - ATTRIBUTE_LENGTH_SIZE
    found: NDArray[np.bool_] = has_attribute(scan) & ((room < 0) | (lengths < 0) | (lengths > room))
    return found


def has_attribute(scan: Scan) -> NDArray[np.bool_]:
    """Which flags promise an attribute."""
    has: NDArray[np.bool_] = (scan.flag & HAS_ATTRIBUTE) != 0
    return has


# --- over damage


class NoRecords(NamedTuple):
    """Bytes `start` to `end` of the buffer are not records."""

    start: int
    end: int
    reason: str


CUT_OFF = "the record says more bytes than there are"


def walk_records(
    buf: NDArray[np.uint8],
    position: int,
    limit: int,
    *,
    may_be_torn: bool,
    max_records: int = CHUNK_RECORDS,
    check_crc: bool = True,
) -> Iterator[Scan | NoRecords]:
    """Everything from `position` on, in order: records, many at a time, and the bytes that are not records.

    20 zero bytes are not a record here: no broker gives a message the id 0. `may_be_torn`: bytes at the end that are
    not a record are where a writer died, or is writing, and are not reported.
    """
    while position < limit:
        scan = scan_records(buf, position, limit, max_records=max_records, check_crc=check_crc)
        reason = ""
        zeros = scan.is_zeros
        if zeros.any():
            n = int(zeros.argmax())
            scan = scan.rows(slice(n), int(scan.position[n]), ScanStop.INVALID)
            reason = "zeros where a record should be"
        yield scan
        position = scan.end
        if scan.stop is ScanStop.LIMIT:
            return
        if scan.stop is not ScanStop.MAX_RECORDS:
            following = find_record(buf, position + 1, limit)
            if following < 0 and may_be_torn:
                return
            until = following if following >= 0 else limit
            yield NoRecords(position, until, reason or _reason(scan.stop, buf, position))
            position = until


def _reason(stop: ScanStop, buf: NDArray[np.uint8], position: int) -> str:
    if stop is ScanStop.TRUNCATED:
        return CUT_OFF
    if buf[position] & 0x80:
        return "the record's length is below 0"
    return "the payload does not match its checksum"


def find_record(buf: NDArray[np.uint8], start: int, limit: int) -> int:
    """The first position from `start` on where a record with a payload and the right checksum begins, or -1.

    Records without a payload do not count, because zeros look like them. A length of more than 4 MiB counts only
    if a plausible header follows: random bytes contain many such lengths.
    """
    for first in range(start, limit - HEADER_SIZE, _WINDOW):
        last = min(first + _WINDOW, limit - HEADER_SIZE)
        if not buf[first : last + 3].any():
            continue
        at = np.arange(first, last)
        length = int32_at(buf, at)
        fits = (length > 0) & (length <= limit - HEADER_SIZE - at) & (buf[first + 4 : last + 4] < 0x80)
        for position in at[fits].tolist():
            size = int(length[position - first])
            likely = size <= _LIKELY_LENGTH_MAX or _is_header(buf, position + HEADER_SIZE + size, limit)
            if likely and is_record(buf, position, limit):
                return int(position)
    return -1


def _is_header(buf: NDArray[np.uint8], position: int, limit: int) -> bool:
    if position == limit:
        return True
    return (
        position + HEADER_SIZE <= limit
        and 0 <= int(int32_at(buf, np.array([position]))[0]) <= limit - position - HEADER_SIZE
    )


def is_record(buf: NDArray[np.uint8], position: int, limit: int) -> bool:
    """True if a record with a payload and the right checksum begins at `position`, which is before `limit` - 20."""
    length, crc = int32_at(buf, np.array([position, position + 4])).tolist()
    end = position + HEADER_SIZE + length
    return bool(length > 0 and end <= limit and checksum(buf[position + HEADER_SIZE : end].data) == crc)


def int32_at(buf: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.int32]:
    """Big-endian numbers at these positions."""
    four = buf[positions[:, None] + np.arange(4)]
    return np.ascontiguousarray(four).view(">i4").reshape(-1).astype(np.int32)
