"""The checkpoint file: up to where each kind of file was safe when it was written.

    0                   8                   16                 24                   32               40
    ├───────────────────┼───────────────────┼──────────────────┼────────────────────┼────────────────┤
    │physicMsgTimestamp │logicsMsgTimestamp │indexMsgTimestamp │masterFlushedOffset │confirmPhyOffset│
    └───────────────────┴───────────────────┴──────────────────┴────────────────────┴────────────────┘

Each field is an i64, big-endian. The file is one page (4096 bytes), the rest of it zeros. Timestamps are
store times (ms) of messages.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from struct import Struct

from mqlake.errors import TruncatedRecordError

CHECKPOINT = Struct(">qqqqq")
CHECKPOINT_SIZE = 40
CHECKPOINT_FILE_SIZE = 4096

# The files are flushed apart from each other, so recovery begins a little before the earliest timestamp.
SAFETY_MARGIN_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    physic_msg_timestamp: int = 0
    """Store time of the last message whose commit log bytes were flushed."""
    logics_msg_timestamp: int = 0
    """The same for the consume queues."""
    index_msg_timestamp: int = 0
    """The same for the index."""
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Store time (ms) at and before which commit log and consume queues were both flushed."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SAFETY_MARGIN_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Store time (ms) at and before which commit log, consume queues and index were flushed."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def encode(self) -> bytes:
        """The 40 bytes at the start of the file."""
        return CHECKPOINT.pack(*astuple(self))

    @classmethod
    def decode(cls, buf: bytes | bytearray | memoryview) -> Checkpoint:
        """Decodes the file's first 40 bytes (more are ignored). Raises TruncatedRecordError."""
        if len(buf) < CHECKPOINT_SIZE:
            raise TruncatedRecordError(len(buf), f"a checkpoint needs {CHECKPOINT_SIZE} bytes")
        return cls(*CHECKPOINT.unpack_from(buf))
