"""Giving up the mapped pages that a bulk writer has touched: the page cache keeps them, the process does not.

Without this, whoever limits the memory of a process would see it take as much as it writes.
"""

from __future__ import annotations

from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.index.index_service import IndexService

WRITTEN_BYTES_KEPT = 64 << 20
"""Pages are given up each time this much has been written."""


def give_up_pages(log: MappedFileQueue | None, index: IndexService | None) -> None:
    """The pages of a store's log and index; the next access brings them back. Consume queues are not mapped."""
    files = list(log.mapped_files) if log is not None else []
    files += [each.mapped_file for each in index.files] if index is not None else []
    for file in files:
        file.evict(0, file.file_size)


class WrittenPages:
    """Gives up the pages of a store's log and index each time WRITTEN_BYTES_KEPT were added to them."""

    def __init__(self, log: MappedFileQueue | None, index: IndexService | None) -> None:
        self._log, self._index = log, index
        self._kept = 0

    def add(self, nbytes: int) -> None:
        self._kept += nbytes
        if self._kept >= WRITTEN_BYTES_KEPT:
            give_up_pages(self._log, self._index)
            self._kept = 0
