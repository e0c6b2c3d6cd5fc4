"""The bytes that travel between master and slave, and the logs that the two ends work on.

    slave ─▶ master    i64 offset                                    "I have everything before it", 8 bytes
    master ─▶ slave    i64 physical offset │ i32 size │ size bytes   commit log bytes as they lie in the file
                       i64 physical offset │ 0                       heartbeat: where the next bytes would begin

In a group with failover a slave says first who it is, and whose log it follows; the master answers before its frames.
Neither can be taken for a report or a frame: one is an offset below 0, the other a size.

    slave ─▶ master    i64 HELLO │ i64 epoch │ i64 replica │ i64 number of its store
    master ─▶ slave    i64 epoch │ i32 WELCOME

A frame never crosses the end of a commit log file, and may end anywhere inside a record. There is no handshake:
the slave's first report is where the master begins to send. All numbers are big-endian and signed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from mqlake.errors import StoreError

REPORT = struct.Struct(">q")
HEADER = struct.Struct(">qi")

HELLO_FRAME = struct.Struct(">qqqq")
HELLO = -0x4D514C414B455F31
WELCOME = -0x57454C43

Buffer = bytes | bytearray | memoryview


class ReplicationError(StoreError):
    """The other side said something that this log cannot follow: the connection ends, nothing was changed."""


class SourceLog(Protocol):
    """The master's log: a MappedFileQueue, or a model of one."""

    file_size: int

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int:
        """End of what may be sent."""
        ...

    def select(self, offset: int, size: int) -> memoryview | None:
        """`size` bytes of one file; None if they are not there (any more)."""
        ...


class ReplicaLog(Protocol):
    """The slave's log: MappedReplicaLog, or a model of one."""

    file_size: int

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int:
        """End of the whole records it has."""
        ...

    @property
    def acknowledged_offset(self) -> int:
        """The offset that may be reported: max_offset, or less where reports wait for the disk."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if it has no file yet, so that any start of a file may become its first offset."""
        ...

    def select(self, offset: int, size: int) -> memoryview | None: ...

    def append(self, offset: int, data: memoryview) -> tuple[int, int]:
        """Appends the whole records at the beginning of `data`, bytes of one file that belong at max_offset.

        Returns how many bytes it took, and how many the record after them needs (0: unknown). ReplicationError for
        bytes that are no record; OSError when the disk has no room.
        """
        ...

    def sync(self) -> None:
        """Before a report: brings to the disk what has to be there for it. OSError."""
        ...


def split_at_file_ends(offset: int, data: memoryview, file_size: int) -> Sequence[tuple[int, memoryview]]:
    """(offset, bytes) of each file that bytes at `offset` belong to."""
    parts = []
    while data:
        room = file_size - offset % file_size
        parts.append((offset, data[:room]))
        offset += min(room, len(data))
        data = data[room:]
    return parts


Clock = Callable[[], float]
"""Monotonic seconds."""
