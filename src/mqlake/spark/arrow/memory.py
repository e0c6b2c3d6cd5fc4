"""How a task's memory is taken, and given back.

Freed buffers are kept for the next batch instead of given back and faulted in anew: each batch of rows makes buffers
of a few MB. By itself glibc hands many of them back to the kernel, which zeroes the pages again when the next batch
touches them: measured as a quarter of a scan's processor time.

What a task has written to the mapped files of a store is taken out of its memory: the page cache keeps it, but to
whoever limits a worker's memory the task would seem to need as much as it writes.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqlake.spark.arrow.properties import Bytes
    from mqlake.store.files.mapped_file_queue import MappedFileQueue
    from mqlake.store.index.index_service import IndexService

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Once a process; whether the C library can be told (glibc can)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


WRITTEN_BYTES_KEPT = 64 << 20
"""After so much was written, or read from a mapped file, it is time to give up pages."""


def give_up_pages(log: MappedFileQueue | None, index: IndexService | None) -> None:
    """The pages of a store's log and index; they are back when somebody looks at them. Queues are not mapped."""
    files = list(log.mapped_files) if log is not None else []
    files += [each.mapped_file for each in index.files] if index is not None else []
    for file in files:
        file.evict(0, file.file_size)


class WrittenPages:
    """Gives up the pages of a store's log and index whenever WRITTEN_BYTES_KEPT have come to them."""

    def __init__(self, log: MappedFileQueue | None, index: IndexService | None) -> None:
        self._log, self._index = log, index
        self._kept = 0

    def add(self, nbytes: int) -> None:
        self._kept += nbytes
        if self._kept >= WRITTEN_BYTES_KEPT:
            give_up_pages(self._log, self._index)
            self._kept = 0


def give_up_read(array: Bytes, start: int, end: int) -> None:
    """The pages between two positions of a mapped file (`Storage.map`); they, too, are back when looked at."""
    view: object = array.base
    mapping = view.obj if isinstance(view, memoryview) else None
    page = mmap.PAGESIZE
    first, last = start // page * page, end // page * page
    if isinstance(mapping, mmap.mmap) and last > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
