"""Walks the records of a commit log, many at a time, over the borders of its files.

    file n     [rec][rec][rec][rec][rec][blank]      file n+1  [rec][rec][0 0 0 0 ...
               └── chunk ──┘└── chunk ──────┘                  └─ chunk ─┘ END

Dispatch, recovery, rebuild, verify and dump all read the log through this one walk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from mqlake.formats.columns import Scan, ScanStop, scan_records
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue

CHUNK_RECORDS = 8192
"""Few enough that what the scan has read is still in the processor's cache when the next pass over it comes."""


@dataclasses.dataclass(slots=True)
class LogChunk:
    """Records of one file. `start` and `end` are physical offsets; positions in `scan` count from the file's start."""

    mapped_file: MappedFile
    scan: Scan
    start: int
    end: int

    @property
    def count(self) -> int:
        return len(self.scan.position)

    @property
    def stopped(self) -> bool:
        """The walk cannot go on behind this chunk: zeros, a torn record or damage."""
        return self.scan.stop in (ScanStop.END, ScanStop.TRUNCATED, ScanStop.INVALID)


def end_of_whole(mapped_file: MappedFile, scan: Scan) -> int:
    """Position behind the last record of `scan` that is whole; `scan.end`, or one record less.

    RocketMQ writes a record from front to back, its size first, so beside it (or after its crash) the newest
    record may show while its end is still zeros. The end of a record is its properties' separator, or without
    properties their length, and then the topic before it.
    """
    if scan.stop != ScanStop.END or len(scan) == 0:
        return scan.end
    last = scan.end - 1 if scan.properties_length[-1] else int(scan.properties_start[-1]) - 3
    return scan.end if mapped_file.array[last] else int(scan.position[-1])


def scan_log(
    queue: MappedFileQueue,
    start: int,
    end: int | None = None,
    *,
    check_crc: bool,
    force_prop_crc: bool = False,
    chunk_records: int = CHUNK_RECORDS,
) -> Iterator[LogChunk]:
    """The records from physical offset `start` (where a record begins) up to `end` (None: to the log's end).

    The last chunk says by `scan.stop` why the walk ended; a chunk without records may come.
    """
    for mapped_file in queue.files_from(start):
        base = mapped_file.file_from_offset
        if end is not None and base >= end:
            return
        position = max(0, start - base)
        limit = mapped_file.read_position if end is None else min(mapped_file.read_position, end - base)
        while True:
            scan = scan_records(
                mapped_file.array,
                position,
                limit,
                base,
                max_records=chunk_records,
                check_crc=check_crc,
                force_prop_crc=force_prop_crc,
            )
            chunk = LogChunk(mapped_file, scan, base + position, base + scan.end)
            yield chunk
            if chunk.stopped:
                return
            if scan.stop != ScanStop.MAX_RECORDS:
                break
            position = scan.end
        if scan.stop == ScanStop.LIMIT and limit < mapped_file.file_size:
            return


def one_ahead(chunks: Iterator[LogChunk]) -> Iterator[LogChunk]:
    """The same chunks, each scanned by another thread while its predecessor is worked on (neither needs the
    interpreter lock for long)."""
    with ThreadPoolExecutor(1, "LogScan") as scanner:
        following = scanner.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = scanner.submit(next, chunks, None)
            yield chunk
