"""Pages that were in use a moment ago, so that what a round writes costs on both sides what a page costs.

A virtual machine may give its free memory back to the host, and gets each page again when it is touched first: ten
times the price, paid by whoever is first to write. So before each timed round of each side a file much larger than what
the round writes is made, its pages touched, and deleted: the kernel does not take the pages that were freed last.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

from bench.measure import first_of

MADV_POPULATE_WRITE = first_of(
    "mqlake.store.files.mapped_file", "mqlake.store.mapped_file"
).MADV_POPULATE_WRITE
A_MESSAGE = 512
"""Bytes that a message takes beside its body, about: properties, queue unit, index entry."""


def round_size(messages: float, body: int) -> int:
    """Bytes that a round of so many messages writes."""
    return int(messages) * (body + A_MESSAGE)


def touch_pages(directory: Path, size: int) -> None:
    """Touches `size` bytes of pages and frees them: a quarter of the memory that is available at most."""
    size = min(size, _available() // 4)
    if size > 0:
        touched_pages(directory, size).close()


def touched_pages(directory: Path, size: int) -> mmap.mmap:
    """`size` bytes of touched pages, which are free when it is closed.

    Pages of a file: those of other memory come from other lists of the kernel's, which a log does not take its from.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        memory = mmap.mmap(file.fileno(), size)
    memory.madvise(MADV_POPULATE_WRITE)
    return memory


def _available() -> int:
    """Bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
