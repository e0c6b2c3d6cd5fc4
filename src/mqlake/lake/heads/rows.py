"""The heads of one log file, read from the log in columns: tables of about 16 MiB of log, and the file's Origin."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from mqlake import __version__
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH
from mqlake.lake.arrow.memory import keep_freed_memory
from mqlake.lake.arrow.rows import RowBuilder
from mqlake.lake.heads.schema import COLUMNS, SCHEMA, Origin
from mqlake.lake.log.splits import VERIFY_CRC, Damage, LogFile, Split, open_window, walk
from mqlake.lake.log.storage import Storage

GROUP_BYTES = 16 << 20
"""Bytes of log in one row group."""

TAIL = 64 << 10
"""Bytes before the end of the last record that `Origin.tail` is of, fewer where the file is shorter."""


class HeadsOfFile:
    """Reads a full log file once. `origin()` is known when all of `groups()` have been taken."""

    def __init__(self, storage: Storage, file: LogFile) -> None:
        self._storage, self._file = storage, file
        self.records = 0
        self._checksum = 0
        self._last, self._last_size = file.base_offset, 0

    def groups(self) -> Iterator[pa.Table]:
        """Rows of about GROUP_BYTES of log each.

        StoreCorruptError where a record does not pass its checks, FileNotFoundError when the file has been deleted.
        """
        keep_freed_memory()
        file = self._file
        split = Split(self._storage, file.file, file.base_offset, 0, file.limit, file.limit, file.file_size)
        builder, window = RowBuilder(COLUMNS, None), open_window(split)
        batches: list[pa.RecordBatch] = []
        size = 0
        for found in walk(split, window, verify=VERIFY_CRC):
            if isinstance(found, Damage):
                raise found.error()
            batches += builder.batches(window.array, found)
            sizes = found.size.astype("<i4")
            self._checksum = zlib.crc32(
                np.stack([sizes, found.body_crc.astype("<i4")], 1).tobytes(), self._checksum
            )
            self.records += len(found)
            self._last, self._last_size = int(found.physical_offset[-1]), int(sizes[-1])
            size += int(sizes.sum(dtype=np.int64))
            if size >= GROUP_BYTES:
                yield pa.Table.from_batches(batches, SCHEMA)
                batches, size = [], 0
        if batches:
            yield pa.Table.from_batches(batches, SCHEMA)

    def origin(self) -> Origin:
        """FileNotFoundError when the file has been deleted."""
        file = self._file
        return Origin(
            file.file.rpartition("/")[2],
            file.base_offset,
            file.base_offset + file.file_size,
            self.records,
            self._checksum,
            self._last,
            self._last_size,
            tail_of(self._storage, file, self._last + self._last_size),
            f"mqlake {__version__}",
        )


def tail_of(storage: Storage, file: LogFile, end: int) -> int:
    """CRC-32 of the log before a physical offset, and of the head of the blank there. FileNotFoundError."""
    position = end - file.base_offset
    until = min(file.file_size, position + END_FILE_MIN_BLANK_LENGTH)
    return zlib.crc32(storage.read(file.file, max(0, position - TAIL), until).tobytes())
