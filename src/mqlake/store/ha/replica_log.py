"""MappedReplicaLog: the commit log of a slave, which takes the master's bytes.

    bytes ──▶ scan: whole records that belong here ──▶ copied behind the log's end, the first size last ──▶ dispatch

Only whole records become visible, so a slave's log ends like any other: recovery, readers in other processes and a
promotion need to know nothing of frames. The bytes are the master's, blank records at the ends of files included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mqlake.formats.columns import ScanStop, Walk, walk_records
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.ha.protocol import ReplicationError

SIZE_BYTES = 4


class MappedReplicaLog:
    """Appends to `files`. `check_crc`: also the CRC of every body; `why_not()`: why nothing may be appended, or "";
    `on_first(offset)` and `on_appended()` are called after the first bytes of an empty log, and after any; `flush()`
    is called before a report when `sync_flush`."""

    def __init__(
        self,
        files: MappedFileQueue,
        *,
        check_crc: bool = True,
        sync_flush: bool = False,
        why_not: Callable[[], str] = lambda: "",
        flush: Callable[[], object] = lambda: None,
        on_first: Callable[[int], None] = lambda offset: None,
        on_appended: Callable[[], None] = lambda: None,
    ) -> None:
        self.file_size = files.file_size
        self._files = files
        self._check_crc = check_crc
        self._sync_flush = sync_flush
        self._why_not = why_not
        self._flush = flush
        self._on_first = on_first
        self._on_appended = on_appended

    @property
    def min_offset(self) -> int:
        return self._files.min_offset

    @property
    def max_offset(self) -> int:
        return self._files.max_wrote_position

    @property
    def acknowledged_offset(self) -> int:
        return self._files.flushed_where if self._sync_flush else self.max_offset

    @property
    def is_empty(self) -> bool:
        return self.max_offset == self.min_offset

    def select(self, offset: int, size: int) -> memoryview | None:
        return self._files.select(offset, size)

    def sync(self) -> None:
        if self._sync_flush:
            self._flush()

    def append(self, offset: int, data: memoryview) -> tuple[int, int]:
        """As ReplicaLog.append()."""
        if reason := self._why_not():
            raise OSError(reason)
        found = walk_records(np.frombuffer(data, np.uint8), 0, len(data), offset, check_crc=self._check_crc)
        taken = found.end
        if taken == 0:
            if found.stop is ScanStop.INVALID:
                raise ReplicationError(
                    f"what the master sent for offset {offset} is no record: {found.stop_reason}; "
                    "nothing was stored of it. Check the master with `mqlake store verify`"
                )
            return 0, self._needed(data, offset, 0, found)
        mapped_file = self._file_for(offset)
        mapped_file.append_through_descriptor(
            data[:taken], found.store_timestamp or mapped_file.store_timestamp
        )
        self._on_appended()
        return taken, self._needed(data, offset, taken, found)

    def _needed(self, data: memoryview, offset: int, taken: int, found: Walk) -> int:
        """Bytes that the record after the first `taken` has; 0: unknown."""
        if len(data) - taken < SIZE_BYTES:
            return 0
        size = int.from_bytes(data[taken : taken + SIZE_BYTES], "big", signed=True)
        at = offset + taken
        if taken == 0 and (found.stop is ScanStop.END or size > self.file_size - at % self.file_size):
            raise ReplicationError(
                f"what the master sent for offset {at} is no record: a size of {size} bytes; nothing was stored of it. "
                "Check the master with `mqlake store verify`"
            )
        return max(size, 0)

    def _file_for(self, offset: int) -> MappedFile:
        """The file that `offset`, the end of the log, lies in. OSError when it cannot be made; ReplicationError."""
        files = self._files
        if self.is_empty and files.mapped_files and files.min_offset != offset:
            for unused in list(files.mapped_files):  # allocated, and never written to
                files.delete_file(unused)
        first = not files.mapped_files
        if first and offset % self.file_size:
            raise ReplicationError(f"offset {offset} is no start of a file of {self.file_size} bytes")
        mapped_file = files.get_last_mapped_file(start_offset=offset)
        if mapped_file is None:
            raise files.create_error or OSError(f"cannot create {files.path_of(offset)}")
        if mapped_file.file_from_offset + mapped_file.wrote_position != offset:
            raise ReplicationError(f"offset {offset} is not the end of this log, {self.max_offset}")
        if first:
            files.flushed_where = files.committed_where = offset
            self._on_first(offset)
        return mapped_file
