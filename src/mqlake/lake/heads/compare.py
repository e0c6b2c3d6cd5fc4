"""Compares the heads of a store with its log, each row and each byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreCorruptError, UnfitHeadsError
from mqlake.lake.heads.rows import HeadsOfFile
from mqlake.lake.heads.schema import SCHEMA
from mqlake.lake.heads.seal import check_pages
from mqlake.lake.heads.valid import Heads, StoreHeads, open_valid
from mqlake.lake.log.storage import Storage
from mqlake.store.heads import SUFFIX, offset_of_heads


@dataclass(frozen=True)
class Difference:
    """The fault of the file of heads `path`."""

    path: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of `files` files of heads with `records` records. `left_over`: heads whose log file is gone."""

    files: int
    records: int
    differences: list[Difference]
    left_over: list[str]


def compare_heads(root: str, progress: Progress = no_progress) -> Comparison:
    """Compares all heads in the store at `root`. Raises what open_valid() raises."""
    found = open_valid(Storage(root), quiet=True)
    differences = [Difference(path, why) for path, why in found.passed_over]
    total = sum(heads.file.file_size for heads in found.valid)
    done = records = 0
    for heads in found.valid:
        progress(done, total)
        done += heads.file.file_size
        records += heads.origin.records
        try:
            why = _difference(found.storage, found.place, heads)
        except FileNotFoundError:  # deleted with its log file
            continue
        if why:
            differences.append(Difference(heads.path, why))
    return Comparison(len(found.valid) + len(found.passed_over), records, differences, _left_over(found))


def _left_over(found: StoreHeads) -> list[str]:
    names = {os.path.basename(file.file) + SUFFIX for file, _ in found.files}
    there = [name for name, _ in found.place.files("") if offset_of_heads(name) is not None]
    return [found.place.path(name) for name in there if name not in names]


def _difference(storage: Storage, place: Storage, heads: Heads) -> str:
    """Empty if there is none. FileNotFoundError."""
    try:
        check_pages(lambda start, end: place.read(heads.path, start, end).tobytes(), heads.sealed)
        return _of_rows(storage, heads)
    except (UnfitHeadsError, StoreCorruptError) as error:
        return str(error)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        return f"it cannot be read: {error}"


def _of_rows(storage: Storage, heads: Heads) -> str:
    log = HeadsOfFile(storage, heads.file)
    rows = _Rows(heads.path)
    done = 0
    for table in log.groups():
        there = rows.take(len(table))
        if not there.equals(table):
            return _first_difference(done, there, table)
        done += len(table)
    if len(rows.take(1)):
        return f"it has more rows than the {done:,} records of the log file"
    if replace(log.origin(), writer=heads.origin.writer) != heads.origin:
        return "what it says of the log file is not so"
    return ""


class _Rows:
    """The rows of a Parquet file, as many at a time as are asked for."""

    def __init__(self, path: str) -> None:
        self._groups = self._read(path)
        self._left = SCHEMA.empty_table()

    @staticmethod
    def _read(path: str) -> Iterator[pa.Table]:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)

    def take(self, count: int) -> pa.Table:
        """Fewer where the file ends."""
        while len(self._left) < count:
            group = next(self._groups, None)
            if group is None:
                break
            self._left = pa.concat_tables([self._left, group])
        taken, self._left = self._left.slice(0, count), self._left.slice(count)
        return taken


def _first_difference(done: int, there: pa.Table, log: pa.Table) -> str:
    """In words; `done`: rows before these."""
    for row, (mine, right) in enumerate(zip(there.to_pylist(), log.to_pylist(), strict=False)):
        for name, value in right.items():
            if mine[name] != value:
                return (
                    f"row {done + row:,} (physical offset {right['physicalOffset']}): {name} is {mine[name]!r}, "
                    f"in the log it is {value!r}"
                )
    return f"it has {done + len(there):,} rows, the log file has more records"
