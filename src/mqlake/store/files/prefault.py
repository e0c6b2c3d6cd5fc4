"""PrefaultService: the pages that puts will write next are there before them.

    ├── written ──────┼── prefaulted ────────────┼── untouched ──────────┤
                      wrote     ▲ wake_position   prefaulted_position
                                └ a put that ends after it wakes the service

The first store to a page of a mapped file costs as much as a small message: the kernel zeroes the page, tells the
file system, and enters it. A thread that needs no interpreter lock for it (MADV_POPULATE_WRITE) does the same a
few MiB ahead. Where the kernel does not know that advice nothing is lost but the time.
"""

from __future__ import annotations

import logging

from mqlake.base.service_thread import ServiceThread
from mqlake.store.files.mapped_file import READY_BYTES, MappedFile

logger = logging.getLogger(__name__)

STEP = 1 << 20


class PrefaultService(ServiceThread):
    """One thread. wake(file) is called by the writer, at most once until the service has answered."""

    def __init__(self) -> None:
        super().__init__()
        self._file: MappedFile | None = None

    def wake(self, mapped_file: MappedFile) -> None:
        """The writer has come to `wake_position` of its file."""
        mapped_file.wake_position = mapped_file.file_size
        self._file = mapped_file
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            mapped_file, self._file = self._file, None
            if self._stopped:
                return
            if mapped_file is not None and not self._go_ahead(mapped_file):
                logger.info("pages cannot be prefaulted here: puts touch them themselves")
                return

    def _go_ahead(self, mapped_file: MappedFile) -> bool:
        start = max(mapped_file.prefaulted_position, mapped_file.wrote_position)
        target = min(mapped_file.wrote_position + READY_BYTES, mapped_file.file_size)
        while start < target and not self._stopped:
            end = min(start + STEP, target)
            if not mapped_file.prefault(start, end):
                return False
            start = mapped_file.prefaulted_position = end
            target = min(mapped_file.wrote_position + READY_BYTES, mapped_file.file_size)
        if start < mapped_file.file_size:
            mapped_file.wake_position = start - READY_BYTES // 2
        return True
