"""The ends of local logs as of this process's last query, so that the next one walks only over what is new.

    planned before   [rec][rec][rec][rec]│                 walked over to find the end: 0.4 ms a MB
    planned now      [rec][rec][rec][rec]│[rec][rec] 0     walked from there, if the bytes before it are still the same

Spark keeps the process that plans for a minute after each query: this helps a session, not a single query.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage

TAIL = 4096
"""Bytes before the end that show that it is the same log still."""


@dataclass(frozen=True)
class _End:
    file: LogFile
    inode: int
    tail: bytes


_ends: dict[str, _End] = {}


def known_end(storage: Storage) -> int:
    """The physical offset where the log ended before, 0 when that is not known or not so any more."""
    known = _ends.get(storage.root) if storage.is_local else None
    if known is None or _look(storage, known.file) != known:
        return 0
    return known.file.end_offset


def remember(storage: Storage, files: Sequence[LogFile]) -> None:
    """Keeps where `files`, all of a log's, end."""
    end = _look(storage, files[-1]) if storage.is_local and files else None
    if end is None:
        _ends.pop(storage.root, None)
    else:
        _ends[storage.root] = end


def _look(storage: Storage, file: LogFile) -> _End | None:
    """None when the file is gone."""
    try:
        tail = storage.read(file.file, max(0, file.limit - TAIL), file.limit).tobytes()
        return _End(file, os.stat(file.file).st_ino, tail)
    except OSError:
        return None
