"""Many records at a time: a segment file to columns. Recovery, verify, dump and Spark walk through here.

├─rec─┼──rec──┼rec┼────rec────┼─½ rec─┤       position  length  id  flag      end → ┐
                               └ end, why ┘       0      ...                         where the walk stopped
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqlake.formats.columns import twin as columns_twin
from mqlake.metaq.formats.record import HEADER_SIZE, checksum

PLAIN_BYTES_MAX = 4 << 20
"""Up to here plain Python is through before the compiled walk would be loaded."""
CHUNK_RECORDS = 1 << 16

_HEADER = Struct(">iIqi")


class ScanStop(enum.IntEnum):
    LIMIT = 0
    """Everything up to the limit is records."""
    MAX_RECORDS = 1
    """There may be more: go on at `end`."""
    TRUNCATED = 2
    """The record at `end` is cut off by the limit."""
    INVALID = 3
    """What is at `end` has a negative length or the wrong checksum."""


class Scan(NamedTuple):
    """n records that lie back to back; positions are those of the scanned buffer."""

    position: NDArray[np.int64]
    length: NDArray[np.int32]
    """Of the payload, bytes."""
    message_id: NDArray[np.int64]
    flag: NDArray[np.int32]
    end: int
    stop: ScanStop

    def __len__(self) -> int:
        return len(self.position)

    def __bool__(self) -> bool:
        return True


def scan_records(
    buf: NDArray[np.uint8],
    start: int,
    limit: int,
    *,
    max_records: int = CHUNK_RECORDS,
    check_crc: bool = True,
) -> Scan:
    """The records from `start` on, none of them beyond `limit`, up to the first that is none."""
    if not 0 <= start <= limit <= len(buf):
        raise ValueError(f"positions {start} to {limit} do not lie in a buffer of {len(buf)} bytes")
    capacity = min(max_records, (limit - start) // HEADER_SIZE + 1)
    position = np.empty(capacity, np.int64)
    length = np.empty(capacity, np.int32)
    message_id = np.empty(capacity, np.int64)
    flag = np.empty(capacity, np.int32)
    walk = _plain_scan if limit - start <= PLAIN_BYTES_MAX or not _has_kernels() else _kernel_scan
    data = buf.view()
    data.flags.writeable = False
    n, end, stop = walk(data, start, limit, check_crc, position, length, message_id, flag)
    return Scan(position[:n], length[:n], message_id[:n], flag[:n], end, ScanStop(stop))


def _has_kernels() -> bool:
    return columns_twin().__name__.endswith("kernels")


def _kernel_scan(
    buf: NDArray[np.uint8],
    start: int,
    limit: int,
    check_crc: bool,
    position: NDArray[np.int64],
    length: NDArray[np.int32],
    message_id: NDArray[np.int64],
    flag: NDArray[np.int32],
) -> tuple[int, int, int]:
    from mqlake.metaq.formats import kernels

    n, end, stop = kernels.scan(buf, start, limit, check_crc, position, length, message_id, flag)
    return int(n), int(end), int(stop)


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
