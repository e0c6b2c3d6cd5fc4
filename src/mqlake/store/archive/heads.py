"""The heads of archived log files (`lake.heads` makes them), beside these: TARGET/heads/NAME.parquet.

They are derived, and whoever reads them compares them with the log, so the manifest does not name them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from mqlake.errors import ArchiveUnavailableError
from mqlake.store.archive.manifest import ArchivedObject
from mqlake.store.archive.target import PIECE_BYTES, Target
from mqlake.store.heads import HEADS, SUFFIX


def heads_name(archived: ArchivedObject) -> str:
    """The object with the heads of a whole file of the log."""
    return f"{HEADS}/{archived.start:020d}{SUFFIX}"


def put_heads(target: Target, path: str) -> int:
    """Brings a file of heads to the archive, in place of what is there; its bytes. FileNotFoundError, OSError,
    ArchiveUnavailableError."""
    name, size = f"{HEADS}/{os.path.basename(path)}", 0
    with open(path, "rb") as file:

        def pieces() -> Iterator[bytes]:
            nonlocal size
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                yield piece

        target.write(name, pieces())
    if target.size(name) != size:
        raise ArchiveUnavailableError(f"{target}/{name} is not there as it was written")
    return size
