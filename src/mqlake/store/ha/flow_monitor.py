"""FlowMonitor: bytes that went over a connection in each second, and how many more may."""

from __future__ import annotations


class FlowMonitor:
    """`limit` bytes a second; 0: no limit. Times are monotonic seconds."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._window = 0
        self._bytes = 0
        self._last = 0

    def add(self, size: int, now: float) -> None:
        self._turn(now)
        self._bytes += size

    def allowance(self, now: float) -> int | None:
        """Bytes that may still go in this second; None: as many as there are."""
        if not self.limit:
            return None
        self._turn(now)
        return max(0, self.limit - self._bytes)

    def next_window(self, now: float) -> float:
        return int(now) + 1.0

    def transferred_byte_in_second(self, now: float) -> int:
        """In the last full second."""
        self._turn(now)
        return self._last

    def _turn(self, now: float) -> None:
        second = int(now)
        if second != self._window:
            self._last = self._bytes if second == self._window + 1 else 0
            self._window, self._bytes = second, 0
