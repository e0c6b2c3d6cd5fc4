"""The names of the heads that may lie in a store (`lake.heads` makes them), and their deletion with their log files.

    commitlog/00000000001073741824   heads/00000000001073741824.parquet

Heads are derived from full log files. The store neither reads nor writes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from mqlake.formats.names import file_name_to_offset

HEADS = "heads"
SUFFIX = ".parquet"
TEMPORARY = ".parquet.tmp"


def offset_of_heads(name: str) -> int | None:
    """The offset at which the log file begins whose heads have this name; None for any other name."""
    return file_name_to_offset(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None


def heads_in(root: str) -> list[str]:
    """The names of the files of heads in a store, oldest first."""
    try:
        return sorted(
            name for name in os.listdir(os.path.join(root, HEADS)) if offset_of_heads(name) is not None
        )
    except (FileNotFoundError, NotADirectoryError):
        return []


def delete_heads_before(root: str, log_begin: int) -> int:
    """Deletes the heads of log files that begin before `log_begin`, which are gone; how many. OSError."""
    old = [name for name in heads_in(root) if (offset_of_heads(name) or 0) < log_begin]
    return _delete(root, old)


def delete_heads_of(root: str, log_files: Iterable[str]) -> int:
    """Deletes the heads of these log files, which are to be changed; how many there were. OSError."""
    return _delete(root, [os.path.basename(path) + SUFFIX for path in log_files])


def _delete(root: str, names: Iterable[str]) -> int:
    deleted = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(root, HEADS, name))
            deleted += 1
    return deleted
