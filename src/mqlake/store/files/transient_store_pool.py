"""TransientStorePool: private memory that messages are written to first, to be committed to the file later.

With `transientStorePoolEnable` an append touches no page cache at all: CommitRealTimeService (or, under
SYNC_FLUSH, the group commit itself) moves the bytes to the file. What was not committed is lost when the
process dies, which is the mode's bargain under ASYNC_FLUSH.
"""

from __future__ import annotations

import mmap
from collections import deque


class TransientStorePool:
    """`pool_size` buffers of `file_size` bytes each. borrow() and give_back() are safe from any thread."""

    def __init__(self, pool_size: int, file_size: int) -> None:
        self.pool_size = pool_size
        self.file_size = file_size
        self._free: deque[memoryview] = deque(memoryview(mmap.mmap(-1, file_size)) for _ in range(pool_size))

    @property
    def available_buffer_nums(self) -> int:
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """A buffer, or None when all are in use. It may hold old bytes: writers end what they write with zeros."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give_back(self, buffer: memoryview) -> None:
        self._free.append(buffer)
