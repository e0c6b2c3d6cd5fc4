"""Copies of what is removed from a data directory: nothing that may be a message is thrown away.

<data directory>/repair_<time>/<topic>-<partition>/<segment>.<byte>      the bytes from this one on
"""

from __future__ import annotations

import os
import time

from mqlake.base.durable import fsync_dir, make_dirs

BACKUP_PREFIX = "repair_"
"""With a dash it would look like a partition."""
_STEP = 1 << 20


def backup_directory(data_path: str, now: time.struct_time) -> str:
    return os.path.join(data_path, time.strftime(f"{BACKUP_PREFIX}%Y%m%dT%H%M%S", now))


def keep_copy(backup: str, path: str, start: int, size: int) -> str:
    """Copies `size` bytes of a segment from `start` on, durably; returns the path. No copy after an OSError."""
    directory = os.path.join(backup, os.path.basename(os.path.dirname(path)))
    make_dirs(directory)
    kept = os.path.join(directory, f"{os.path.basename(path)}.{start}")
    temporary = f"{kept}.tmp"
    try:
        with open(path, "rb") as source, open(temporary, "wb") as target:
            source.seek(start)
            while size > 0 and (data := source.read(min(size, _STEP))):
                target.write(data)
                size -= len(data)
            target.flush()
            os.fsync(target.fileno())
        os.replace(temporary, kept)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    fsync_dir(directory)
    return kept
