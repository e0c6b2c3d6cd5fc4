"""Brings heads to an archive, beside the log files that it has of a store.

    DIR/heads/NAME.parquet, or made from DIR/commitlog/NAME in a temporary directory ─▶ TARGET/heads/NAME.parquet

Nothing is written to the store.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreCorruptError
from mqlake.lake.heads.valid import is_full, name_of, open_valid
from mqlake.lake.heads.writer import write_heads
from mqlake.lake.log.storage import Storage
from mqlake.store.archive.heads import put_heads
from mqlake.store.archive.manifest import LOG
from mqlake.store.archive.target import Target
from mqlake.store.heads import HEADS


@dataclass(slots=True)
class HeadsOffload:
    """Files of heads that were brought, and their bytes; `damaged`: log files that get none, and why."""

    copied: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)


def offload_heads(
    directory: str, target: Target, *, again: bool = False, progress: Progress = no_progress
) -> HeadsOffload:
    """Brings the heads that the target lacks of log files that both it and the store have; `again`: of all of them.

    Raises NotAStoreError, ForeignFormatError, ArchiveUnavailableError, OSError.
    """
    storage, report = Storage(directory), HeadsOffload()
    storage.check()
    log, there = target.sizes(LOG), {} if again else target.sizes(HEADS)
    lacking = [
        (file, heads)
        for file, heads in open_valid(storage, quiet=True).files
        if is_full(file)
        and log.get(f"{LOG}/{os.path.basename(file.file)}") == file.file_size
        and f"{HEADS}/{name_of(file)}" not in there
    ]
    with tempfile.TemporaryDirectory(prefix="mqlake-heads-") as temporary:
        for number, (file, heads) in enumerate(lacking):
            progress(number, len(lacking))
            path = os.path.join(temporary, name_of(file)) if heads is None else heads.path
            try:
                if heads is None:
                    write_heads(storage, file, temporary)
                report.bytes += put_heads(target, path)
            except FileNotFoundError:  # the store has deleted its file meanwhile
                continue
            except StoreCorruptError as error:
                report.damaged.append(str(error))
                continue
            report.copied += 1
            if heads is None:
                os.unlink(path)
    progress(len(lacking), len(lacking))
    return report
