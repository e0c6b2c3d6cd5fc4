"""HeadsDataset: the heads of a store and the log after them as an Arrow dataset, for DuckDB, Polars and pyarrow.

    [0.parquet][1.parquet][2.parquet]│ log from there on
                                     └ one seam: a physical offset

A part of the log that has no valid heads is read from the log, too. What is there is looked up at each scan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import ConfigError
from mqlake.lake.arguments import stores_at
from mqlake.lake.arrow.expressions import conditions_of
from mqlake.lake.dataset import Columns, LogDataset, LogScanner, needed_columns
from mqlake.lake.heads.parquet import rows_of
from mqlake.lake.heads.schema import COLUMNS, SCHEMA
from mqlake.lake.heads.valid import Heads, open_valid, source_of
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import read_task
from mqlake.lake.offsets import Position, PositionKind
from mqlake.lake.options import LogOptions
from mqlake.lake.plan import plan_read


class HeadsScanner(LogScanner):
    """One scan of heads and log."""

    def __init__(self, dataset: HeadsDataset, columns: Columns, filter: pc.Expression | None) -> None:
        self._dataset, self._columns, self._filter = dataset, columns, filter
        needed = needed_columns(COLUMNS, columns, filter)
        self._names = [name for name in COLUMNS if name in needed] or [COLUMNS[0]]

    @property
    def projected_schema(self) -> pa.Schema:
        return self._projected(SCHEMA.empty_table().select(self._names)).schema

    dataset_schema = projected_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Raises what open_valid() raises and what reading the log raises."""
        for batch in self._batches():
            if batch.num_rows:
                yield from self._projected(pa.Table.from_batches([batch])).to_batches()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for storage in self._dataset.options.stores:
            found = open_valid(storage, self._dataset.place)
            for start, end, heads in found.parts:
                if heads:
                    yield from self._of_heads(found.place, heads)
                else:
                    yield from self._of_log(_part(found.storage, start, end))

    def _of_heads(self, place: Storage, heads: Sequence[Heads]) -> Iterator[pa.RecordBatch]:
        paths = [each.path for each in heads]
        if place.is_local:
            yield from rows_of(paths, self._names, self._filter)
            return
        for each in heads:
            yield from rows_of([source_of(place, each.path, each.size)], self._names, self._filter)

    def _of_log(self, options: LogOptions) -> Iterator[pa.RecordBatch]:
        conditions = conditions_of(self._filter)
        for task in plan_read(options, conditions).tasks:
            for batch in read_task(task, options, conditions, self._names):
                table = pa.Table.from_batches([batch])
                yield from (table if self._filter is None else table.filter(self._filter)).to_batches()


class HeadsDataset(LogDataset):
    """Made by scan_heads(). `place`: where the heads lie if not in the store."""

    def __init__(self, options: LogOptions, place: str | None = None) -> None:
        super().__init__(options)
        self.options, self.place = options, place

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def scanner(
        self, columns: Columns = None, filter: pc.Expression | None = None, **_: object
    ) -> HeadsScanner:
        return HeadsScanner(self, columns, filter)

    def __repr__(self) -> str:
        return f"HeadsDataset({', '.join(storage.root for storage in self.options.stores)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return HeadsDataset, (self.options, self.place)


def _part(storage: Storage, start: int | None, end: int | None) -> LogOptions:
    """A read of the records between two physical offsets, as they are in heads; None: where the log begins, and where
    it ends."""
    options = LogOptions(stores=(storage,), columns=tuple(COLUMNS), unpack=False)
    if start is not None:
        options = replace(options, start=Position(PositionKind.PHYSICAL, start, name="start"))
    if end is not None:
        options = replace(options, end=Position(PositionKind.PHYSICAL, end, name="end"))
    return options


def scan_heads(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    heads: str | os.PathLike[str] | None = None,
) -> HeadsDataset:
    """The heads of one or more stores' records: all columns of SCHEMA, and no bodies; every record, as with
    `unpack=False`. `heads`: where `mqlake store heads --out` has written those of one store. Without heads, and after
    them, the log is read.

    Raises NotAStoreError and ForeignFormatError for a place that is no store, ConfigError.
    """
    options = LogOptions(stores=stores_at(path), columns=tuple(COLUMNS), unpack=False)
    if heads is not None and len(options.stores) > 1:
        raise ConfigError("`heads` is of one store: read several stores with their heads one by one")
    for storage in options.stores:
        storage.check()
    return HeadsDataset(options, None if heads is None else os.fspath(heads))
