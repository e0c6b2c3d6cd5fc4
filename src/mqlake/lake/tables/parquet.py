"""Parquet files of a table, whichever format lists them: read with filters, and those that no format lists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

from mqlake.errors import TableError
from mqlake.lake.tables.files import file_system_of


def unknown_files(roots: Iterable[str], known: Iterable[str], older_than: datetime) -> list[tuple[str, int]]:
    """Files below the roots that are not known by their paths and older than a moment: paths or URIs, and sizes."""
    names = {file_system_of(path)[1] for path in known}
    found = []
    for root in roots:
        file_system, inside = file_system_of(root)
        selector = pyarrow.fs.FileSelector(inside, recursive=True, allow_not_found=True)
        for each in file_system.get_file_info(selector):
            is_old = each.mtime is not None and each.mtime < older_than
            if each.type == pyarrow.fs.FileType.File and is_old and each.path not in names:
                scheme = root.partition("://")[0] + "://" if "://" in root else ""
                found.append((f"{scheme}{each.path}" if scheme != "file://" else each.path, each.size))
    return sorted(found)


def scan_files(
    paths: Sequence[str], wanted: pa.Schema, schema: pa.Schema, filter: Any
) -> Iterator[pa.RecordBatch]:
    """The rows of Parquet files, with filters pushed into them; memory stays bounded. TableError, OSError."""
    if not paths:
        return
    file_system, _ = file_system_of(paths[0])
    inside = [file_system_of(path)[1] for path in paths]
    with readable():
        dataset = pyarrow.dataset.dataset(inside, schema=schema, format="parquet", filesystem=file_system)
        scanner = dataset.scanner(
            columns=wanted.names, filter=filter, batch_readahead=2, fragment_readahead=1, batch_size=32 << 10
        )
        yield from scanner.to_batches()


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """TableError for a data file that is gone or damaged; pyarrow's errors name it."""
    try:
        yield
    except FileNotFoundError as error:
        raise TableError(
            f"a data file of the table is gone: {error}; if it was expired meanwhile, read the table again"
        ) from error
    except pa.ArrowInvalid as error:
        raise TableError(f"a data file of the table is damaged: {error}") from error
