"""Disks as statvfs describes them, for tests that need a fuller one."""

from __future__ import annotations

import os
from collections.abc import Callable


def statvfs_of(*, blocks: int, free: int, available: int) -> Callable[[object], os.statvfs_result]:
    """For os.statvfs: a disk of so many blocks of 1 MiB, `available` of the `free` ones to everybody."""
    disk = os.statvfs_result((1 << 20, 1 << 20, blocks, free, available, 0, 0, 0, 0, 255))
    return lambda _: disk
