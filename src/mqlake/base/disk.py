"""DiskSpace: how full a disk is. What a broker decides by, what it says when it refuses, and `mqlake doctor` use this
one formula.

Blocks that the file system keeps for root are neither free nor part of the whole, as in df's `Use%`: a user cannot have
them.
"""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True, slots=True)
class DiskSpace:
    """In bytes; `free` is what a user may still write."""

    used: int
    free: int

    @classmethod
    def of(cls, path: str) -> DiskSpace:
        """The space of the disk that holds `path`. OSError."""
        disk = os.statvfs(path)
        used = disk.f_blocks - disk.f_bfree
        return cls(used * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    @property
    def used_ratio(self) -> float | None:
        """Used share (0..1) of what a user may use; None of a file system without blocks."""
        entire = self.used + self.free
        return self.used / entire if entire > 0 else None

    def __str__(self) -> str:
        return f"{100 * (self.used_ratio or 0):.1f} % used, {self.free >> 20} MiB free"
