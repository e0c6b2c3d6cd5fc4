"""TimerCheckpoint: config/timercheck (drawn in formats/timer.py), kept up to date.

    write   fields ──▶ one pwrite of 72 bytes, within one sector ──▶ fdatasync

After it comes what is mqlake's own: below which offset of the commit log nothing was delivered that the checkpoint does
not know of. RocketMQ keeps these bytes; they count only while `lastReadTimeMs` is the one they were written with.
"""

from __future__ import annotations

import os

from mqlake.base.durable import make_dirs, write_durably
from mqlake.formats.timer import (
    TIMER_CHECKPOINT_FILE_SIZE,
    TIMER_CHECKPOINT_SIZE,
    TimerCheckpointData,
    decode_done,
    encode_done,
)


class TimerCheckpoint:
    """`data` is what the file holds after the next flush(). A missing or short file reads as zeros. OSError."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                found = file.read(TIMER_CHECKPOINT_FILE_SIZE)
        except FileNotFoundError:
            found = b""
        whole = found.ljust(TIMER_CHECKPOINT_FILE_SIZE, b"\0")
        self.data = TimerCheckpointData.decode(whole[:TIMER_CHECKPOINT_SIZE])
        done_until, read_time = decode_done(whole)
        known = read_time == self.data.last_read_time_ms and not self.is_empty
        self.done_until = done_until if known else -1
        """Physical offset below which all delivered copies are from before lastReadTimeMs; -1: not known."""
        self._fd = -1

    @property
    def is_empty(self) -> bool:
        """True if it says nothing."""
        return self.data.last_read_time_ms <= 0

    def flush(self) -> None:
        """Writes it and waits for the disk. OSError: the file holds the old values or the new ones."""
        if self._fd < 0:
            self._fd = self._open()
        content = self.data.encode() + encode_done(max(self.done_until, 0), self.data.last_read_time_ms)
        if os.pwrite(self._fd, content, 0) != len(content):
            raise OSError(f"{self.path}: short write")
        os.fdatasync(self._fd)

    def _open(self) -> int:
        if not os.path.exists(self.path) or os.path.getsize(self.path) < TIMER_CHECKPOINT_FILE_SIZE:
            make_dirs(os.path.dirname(self.path))
            write_durably(self.path, bytes(TIMER_CHECKPOINT_FILE_SIZE))
        return os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        """Without flushing; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
