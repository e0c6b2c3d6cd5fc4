"""Single records of a log, looked at in place: the first bytes of the one at a physical offset, and its topic.

size  magic  queue id  queue offset  physical offset  system flag … store time … body length │ body │ topic
└──────────────────────────── HEAD_BYTES at most ───────────────────────────────────────────┘
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from struct import Struct

from mqlake.formats.arrow import Bytes
from mqlake.formats.record import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2, store_timestamp_position
from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage
from mqlake.message import MessageSysFlag

HEAD_BYTES = 128
MAPPED_MAX = 100
"""Files of a log that are mapped at a time, each with a descriptor: it may have more than a process may open."""

# size, magic, queue id, queue offset, physical offset, system flag
_HEAD = Struct(">ii4xi4xqqi")
_TIME, _LENGTH = Struct(">q"), Struct(">i")


class RecordHeads:
    """Reads the heads of records in the files of one log, oldest first."""

    def __init__(self, storage: Storage, files: Sequence[LogFile]) -> None:
        self.storage, self.files = storage, files
        self._begins = [file.base_offset for file in files]
        self._mapped: dict[str, Bytes] = {}

    def _read(self, file: LogFile, start: int, end: int) -> Bytes:
        end = min(end, file.limit)
        if not self.storage.is_local:
            return self.storage.read(file.file, start, end)
        if file.file not in self._mapped:
            if len(self._mapped) >= MAPPED_MAX:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[file.file] = self.storage.map(file.file, file.limit, random=True)
        return self._mapped[file.file][start:end]

    def _file_of(self, offset: int) -> LogFile | None:
        """The file that has data at a physical offset."""
        number = bisect.bisect_right(self._begins, offset) - 1
        return self.files[number] if number >= 0 and offset < self.files[number].end_offset else None

    def _head(self, offset: int) -> tuple[LogFile, bytes, int, int] | None:
        """Returns of the record at `offset` its file, first bytes, and the positions in them of store time and body
        length."""
        file = self._file_of(offset)
        if file is None:
            return None
        position = offset - file.base_offset
        head = self._read(file, position, position + HEAD_BYTES).tobytes()
        if len(head) < HEAD_BYTES and len(head) < 88:
            return None
        _, magic, _, _, physical_offset, sys_flag = _HEAD.unpack_from(head)
        if magic not in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2) or physical_offset != offset:
            return None
        time = store_timestamp_position(sys_flag)
        body = time + 8 + (20 if sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG else 8) + 12
        return (file, head, time, body) if body + 4 <= len(head) else None

    def store_time_at(self, offset: int) -> int | None:
        """Store time (ms) of the record that begins at a physical offset, None where none does."""
        found = self._head(offset)
        return None if found is None else int(_TIME.unpack_from(found[1], found[2])[0])

    def message_at(self, offset: int) -> tuple[str, int, int] | None:
        """Topic, queue id and queue offset of the record that begins at a physical offset, None where none does."""
        found = self._head(offset)
        if found is None:
            return None
        file, head, _, at = found
        _, magic, queue_id, queue_offset, _, _ = _HEAD.unpack_from(head)
        width = 1 if magic == MESSAGE_MAGIC_CODE else 2
        start = offset - file.base_offset + at + 4 + max(0, _LENGTH.unpack_from(head, at)[0])
        tail = self._read(file, start, start + width + (0xFF if width == 1 else 0x7FFF)).tobytes()
        length = int.from_bytes(tail[:width], "big")
        return tail[width : width + length].decode("utf-8", "replace"), queue_id, queue_offset
