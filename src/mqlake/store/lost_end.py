"""The end of a log that held more: what proves that messages which had been flushed or dispatched follow it no more.

    consume queues    ├─────────────────────┤ reached         ahead of the log: nothing that can have happened since
    commit log        ├───────────┤ log_end                   leaves them so (LastExit.keeps_queues_behind)
    checkpoint        messages up to this time are on disk    later than the log's newest message

Either is proof where the last writer is known; of another one's crash (RocketMQ's, a copy's) both together are: after a
power cut its queues may be ahead, and with a transient store pool its checkpoint. A time in the future proves nothing:
the clock was set back. Recovery, verify and repair all ask here.
"""

from __future__ import annotations

import dataclasses
import datetime

from mqlake.store.config import FlushDiskType
from mqlake.store.files.store_lock import AbortFile, StoreLock
from mqlake.store.log.log_end import LastExit
from mqlake.store.log.log_reader import LogReader

HINT = (
    "put its files back from a backup or a slave if you can; `mqlake store repair --accept-loss`, or a start with "
    "--accept-loss, goes on without these messages"
)


def last_exit_of(abort_file: AbortFile, lock: StoreLock) -> LastExit:
    """How the last writer of a store ended, by what it has left there."""
    if not abort_file.exists():
        return LastExit(clean=True)
    writer = abort_file.last_writer()
    return LastExit(
        clean=False,
        machine_stayed_up=writer.machine_stayed_up(lock),
        queued_only_flushed=writer.flush_disk_type == FlushDiskType.SYNC_FLUSH.value,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LostEnd:
    """The log ends at physical offset `log_end`; its newest message was stored at `newest` (ms, 0: it has none). The
    queues reach to physical offset `reached`, the checkpoint to `flushed_until` (ms)."""

    log_end: int
    newest: int
    reached: int
    flushed_until: int

    def is_proven(self, last_exit: LastExit, now_ms: int) -> bool:
        """True if messages are gone that no crash can have taken."""
        by_queues, by_time = self._by_queues, self._by_time and self.flushed_until <= now_ms
        if last_exit.keeps_queues_behind:
            return by_queues or by_time
        return by_queues and by_time

    @property
    def _by_queues(self) -> bool:
        return self.reached > self.log_end

    @property
    def _by_time(self) -> bool:
        return self.flushed_until > self.newest

    def __str__(self) -> str:
        evidence = []
        if self._by_queues:
            evidence.append(f"the consume queues reach to offset {self.reached}")
        if self._by_time:
            last = (
                f"the log's newest was stored at {_time(self.newest)}" if self.newest else "the log has none"
            )
            evidence.append(f"messages up to {_time(self.flushed_until)} had been flushed, and {last}")
        return f"messages are gone from the end of the log, which is at {self.log_end}: {'; '.join(evidence)}"


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC).isoformat(
            " ", "milliseconds"
        )
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"


def newest_in(reader: LogReader, start: int) -> int:
    """The latest store time (ms) of the records from physical offset `start` on, 0 without any."""
    return max((int(chunk.scan.store_timestamp.max()) for chunk in reader.walk(start).chunks()), default=0)
