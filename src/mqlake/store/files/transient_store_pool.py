"""TransientStorePool: private memory that messages are written to first, to be committed to the file later.

With `transientStorePoolEnable` an append touches no page cache at all: CommitRealTimeService (or, under
SYNC_FLUSH, the group commit itself) moves the bytes to the file. What was not committed is lost when the
process dies, which is the mode's bargain under ASYNC_FLUSH.

The buffers are locked in memory, as RocketMQ's are, but each page only when it is first written: a pool of gigabytes
costs nothing at the start, and a broker with little to do stays small.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque

import numpy as np

from mqlake.store.files.memory import how_to_lock, lock_memory

logger = logging.getLogger(__name__)


class TransientStorePool:
    """`pool_size` buffers of `file_size` bytes each. borrow() and give_back() are safe from any thread."""

    def __init__(self, pool_size: int, file_size: int) -> None:
        self.pool_size = pool_size
        self.file_size = file_size
        self._free: deque[memoryview] = deque(memoryview(mmap.mmap(-1, file_size)) for _ in range(pool_size))
        self.locked = sum(_lock(buffer) for buffer in self._free)
        """Buffers that cannot be swapped out."""
        if self.locked < pool_size:
            logger.warning(
                "transientStorePoolEnable: %d of %d buffers cannot be locked in memory and may be swapped out, which "
                "makes puts wait for the disk: %s",
                pool_size - self.locked,
                pool_size,
                how_to_lock(pool_size * file_size),
            )

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


def _lock(buffer: memoryview) -> bool:
    return lock_memory(np.frombuffer(buffer, np.uint8).ctypes.data, len(buffer), on_fault=True)
