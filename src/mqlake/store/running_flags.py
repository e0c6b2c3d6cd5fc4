"""RunningFlags: why the store does not accept messages, one bit per reason.

    bit   name
      4   WRITE_LOGICS_QUEUE_ERROR   writing a consume queue, or the index, failed
     16   DISK_FULL
     32   FENCED                     after an error of a flush, until the next start

The bits are RocketMQ's.
"""

from __future__ import annotations

import threading

WRITE_LOGICS_QUEUE_ERROR = 1 << 2
DISK_FULL = 1 << 4
FENCED = 1 << 5

_MEANING = {
    DISK_FULL: "the disk is full",
    FENCED: "fenced",
}
_BITS = (WRITE_LOGICS_QUEUE_ERROR, DISK_FULL, FENCED)


class RunningFlags:
    """Set and cleared from any thread. `make_*` return whether the bit was clear before."""

    __slots__ = ("_lock", "_reasons", "flag_bits")

    def __init__(self) -> None:
        self.flag_bits = 0
        self._reasons: dict[int, str] = {}
        self._lock = threading.Lock()

    @property
    def is_fenced(self) -> bool:
        return bool(self.flag_bits & FENCED)

    @property
    def is_logics_queue_error(self) -> bool:
        return bool(self.flag_bits & WRITE_LOGICS_QUEUE_ERROR)

    def make_logics_queue_error(self, detail: str = "", what: str = "a consume queue") -> bool:
        """`what`: what cannot be written."""
        return self._set(WRITE_LOGICS_QUEUE_ERROR, detail, f"writing {what} failed")

    def clear_logics_queue_error(self) -> None:
        self._clear(WRITE_LOGICS_QUEUE_ERROR)

    def make_fenced(self, detail: str = "") -> bool:
        return self._set(FENCED, detail)

    def make_disk_full(self, detail: str = "") -> bool:
        return self._set(DISK_FULL, detail)

    def make_disk_ok(self) -> bool:
        """Clears DISK_FULL; returns True if it was clear before."""
        return self._clear(DISK_FULL)

    def reasons(self) -> list[str]:
        """Why the store accepts no messages; empty if it does."""
        with self._lock:
            return [self._reasons[bit] for bit in _BITS if self.flag_bits & bit]

    def _set(self, bit: int, detail: str, meaning: str = "") -> bool:
        with self._lock:
            was_clear = not self.flag_bits & bit
            self.flag_bits |= bit
            # The first detail names the cause; later ones are mostly its consequences.
            if was_clear:
                self._reasons[bit] = ": ".join(filter(None, (meaning or _MEANING[bit], detail)))
            return was_clear

    def _clear(self, bit: int) -> bool:
        with self._lock:
            was_clear = not self.flag_bits & bit
            self.flag_bits &= ~bit
            self._reasons.pop(bit, None)
            return was_clear
