"""RunningFlags: why the store does not take or give messages, one bit a reason.

    bit   name                      readable   writeable   queues writeable
      1   NOT_READABLE              no
      2   NOT_WRITEABLE                        no          no
      4   WRITE_LOGICS_QUEUE_ERROR             no          no
      8   WRITE_INDEX_FILE_ERROR               no          no
     16   DISK_FULL                            no
     32   FENCED                               no
     64   LOGIC_DISK_FULL                      no          no

The bits are RocketMQ's. Unlike there, making the store not writeable always sets its own bit, so it lasts
when another reason (a full disk) goes away.
"""

from __future__ import annotations

import threading

NOT_READABLE = 1
NOT_WRITEABLE = 1 << 1
WRITE_LOGICS_QUEUE_ERROR = 1 << 2
WRITE_INDEX_FILE_ERROR = 1 << 3
DISK_FULL = 1 << 4
FENCED = 1 << 5
LOGIC_DISK_FULL = 1 << 6

_STOPS_QUEUE_WRITES = NOT_WRITEABLE | WRITE_LOGICS_QUEUE_ERROR | WRITE_INDEX_FILE_ERROR | LOGIC_DISK_FULL
_STOPS_WRITES = _STOPS_QUEUE_WRITES | DISK_FULL | FENCED

_MEANING = {
    NOT_READABLE: "not readable",
    NOT_WRITEABLE: "not writeable",
    WRITE_LOGICS_QUEUE_ERROR: "writing a consume queue failed",
    WRITE_INDEX_FILE_ERROR: "writing the index failed",
    DISK_FULL: "the disk is full",
    FENCED: "fenced",
    LOGIC_DISK_FULL: "the disk of the consume queues is full",
}


class RunningFlags:
    """Set and cleared from any thread. Setters answer whether the bit was clear before."""

    __slots__ = ("_details", "_lock", "flag_bits")

    def __init__(self) -> None:
        self.flag_bits = 0
        self._details: dict[int, str] = {}
        self._lock = threading.Lock()

    @property
    def is_readable(self) -> bool:
        return not self.flag_bits & NOT_READABLE

    @property
    def is_writeable(self) -> bool:
        return not self.flag_bits & _STOPS_WRITES

    @property
    def is_cq_writeable(self) -> bool:
        """True also while the commit log's disk is full: what the log holds is still dispatched."""
        return not self.flag_bits & _STOPS_QUEUE_WRITES

    @property
    def is_fenced(self) -> bool:
        return bool(self.flag_bits & FENCED)

    @property
    def is_disk_full(self) -> bool:
        return bool(self.flag_bits & DISK_FULL)

    @property
    def is_logics_queue_error(self) -> bool:
        return bool(self.flag_bits & WRITE_LOGICS_QUEUE_ERROR)

    @property
    def is_index_file_error(self) -> bool:
        return bool(self.flag_bits & WRITE_INDEX_FILE_ERROR)

    def make_readable(self) -> None:
        self._clear(NOT_READABLE)

    def make_not_readable(self, detail: str = "") -> bool:
        return self._set(NOT_READABLE, detail)

    def make_writeable(self) -> None:
        self._clear(NOT_WRITEABLE)

    def make_not_writeable(self, detail: str = "") -> bool:
        return self._set(NOT_WRITEABLE, detail)

    def make_logics_queue_error(self, detail: str = "") -> bool:
        return self._set(WRITE_LOGICS_QUEUE_ERROR, detail)

    def clear_logics_queue_error(self) -> None:
        self._clear(WRITE_LOGICS_QUEUE_ERROR)

    def make_index_file_error(self, detail: str = "") -> bool:
        return self._set(WRITE_INDEX_FILE_ERROR, detail)

    def make_fenced(self, fenced: bool, detail: str = "") -> bool:
        """Fences, or lifts the fence. Answers whether the store was not fenced before."""
        return self._set(FENCED, detail) if fenced else self._clear(FENCED)

    def make_disk_full(self, detail: str = "") -> bool:
        return self._set(DISK_FULL, detail)

    def make_disk_ok(self) -> bool:
        """Clears DISK_FULL; answers whether it was clear before."""
        return self._clear(DISK_FULL)

    def make_logic_disk_full(self, detail: str = "") -> bool:
        return self._set(LOGIC_DISK_FULL, detail)

    def make_logic_disk_ok(self) -> bool:
        """Clears LOGIC_DISK_FULL; answers whether it was clear before."""
        return self._clear(LOGIC_DISK_FULL)

    def reasons(self) -> list[str]:
        """What stops reads or writes, in words; empty when nothing does."""
        with self._lock:
            return [
                f"{meaning}: {self._details[bit]}" if self._details.get(bit) else meaning
                for bit, meaning in _MEANING.items()
                if self.flag_bits & bit
            ]

    def _set(self, bit: int, detail: str) -> bool:
        with self._lock:
            was_clear = not self.flag_bits & bit
            self.flag_bits |= bit
            # The first detail names the cause; later ones are mostly its consequences.
            if was_clear:
                self._details[bit] = detail
            return was_clear

    def _clear(self, bit: int) -> bool:
        with self._lock:
            was_clear = not self.flag_bits & bit
            self.flag_bits &= ~bit
            self._details.pop(bit, None)
            return was_clear
