"""Small Parquet files of one day as large ones: what a compaction writes before it commits.

bins    files below a third of the target size, of the same day, in the order they were committed
rewrite read with pyarrow and written again: same rows, same order, with the columns that the table has now
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mqlake.lake.tables.files import TableWriter, WriteSpec, WrittenFile
from mqlake.lake.tables.parquet import scan_files

SMALL = 3
"""A file is small below the target size divided by this."""


@dataclass(frozen=True)
class Small:
    """A small file, and its size in bytes."""

    path: str
    size: int


def bins(files: Iterable[tuple[str, int, object]], target_bytes: int) -> list[list[Small]]:
    """Groups of at least two small files of the same part, each of about the target size. `files`: path, size, part."""
    parts: dict[object, list[Small]] = {}
    for path, size, part in files:
        if size < target_bytes / SMALL:
            parts.setdefault(part, []).append(Small(path, size))
    found: list[list[Small]] = []
    for small in parts.values():
        group: list[Small] = []
        total = 0
        for each in small:
            if group and total + each.size > target_bytes:
                found.append(group)
                group, total = [], 0
            group.append(each)
            total += each.size
        found.append(group)
    return [group for group in found if len(group) > 1]


def rewritten(paths: Sequence[str], spec: WriteSpec) -> list[WrittenFile]:
    """The rows of these files in new ones. OSError, TableError."""
    writer = TableWriter(spec)
    try:
        for path in paths:
            for batch in scan_files([path], spec.schema, spec.schema, None):
                writer.write(batch)
        return writer.close().files
    except BaseException:
        writer.discard()
        raise
