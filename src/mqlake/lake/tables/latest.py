"""Tables of the latest row of each key: what an upsert changes, and one commit for all of it.

    log      k1=a  k2=b  k1=c  k3=d  k2=(empty)          a message without a body deletes its key's row
    table    k1=c  k3=d

The key is the column `keys`. Of one broker's messages the one that was stored last counts, between brokers the one with
the later store time; so the messages of a key belong to one broker, as those that keep their order do.

    changes ─▶ the last of each key ─▶ files that have rows of these keys are read, and written again without them
            ─▶ one commit: new files, those they replace, and how far the log was read

A commit is whole or not there, so the rows and the position are never apart, and a step that is run again finds both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import TableConflictError, TableError
from mqlake.lake.tables.files import TARGET_BYTES, TableWriter, Written, count_rows, delete_files
from mqlake.lake.tables.parquet import scan_files
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.table import Head, Table

KEY = "keys"
DELETED = "_deleted"
"""A column of changes: the message had no body."""
ORDER = ("brokerName", "physicalOffset", "queueOffset", "storeTimestamp")
NEEDED = (KEY, *ORDER)
REDUCE_BYTES = 64 << 20
"""Changes are held in memory; those that others replaced are dropped whenever there is so much."""
STEP_BYTES = 256 << 20
"""Bytes of log that a step reads at most."""


def newest(rows: pa.Table) -> pa.Table:
    """The last row of each key, which none lacks. `rows` has NEEDED, and whatever else."""
    if not rows.num_rows:
        return rows
    rows = rows.combine_chunks()
    by_offset = [(name, "ascending") for name in (KEY, "brokerName", "physicalOffset", "queueOffset")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by_offset))
    rows = rows.filter(pa.array(_ends(rows, (KEY, "brokerName"))))
    by_time = [(KEY, "ascending"), ("storeTimestamp", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by_time))
    return rows.filter(pa.array(_ends(rows, (KEY,))))


def _ends(rows: pa.Table, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """True where the next row has other values."""
    found = np.ones(rows.num_rows, bool)
    if rows.num_rows > 1:
        found[:-1] = False
        for name in names:
            column = rows[name].combine_chunks()
            differs = pc.not_equal(column.slice(0, len(column) - 1), column.slice(1))
            found[:-1] |= np.asarray(pc.fill_null(differs, True))
    return found


def with_deleted_flag(rows: pa.RecordBatch, bodies: pa.Array) -> pa.RecordBatch:
    """Rows with the column DELETED, by the bodies as they are in the log."""
    empty = pc.fill_null(pc.equal(pc.binary_length(bodies), 0), True)
    return pa.RecordBatch.from_arrays(
        [*rows.columns, empty], schema=rows.schema.append(pa.field(DELETED, pa.bool_()))
    )


class LatestWriter:
    """Takes a step's rows, with DELETED; close() gives the changes."""

    def __init__(self) -> None:
        self._written = Written()
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            count_rows(self._written, batch)
            self.add(batch)

    def add(self, batch: pa.RecordBatch) -> None:
        """The same without counting: rows with NEEDED and DELETED, and any others."""
        key = batch.column(KEY)
        has_key = pc.and_(pc.is_valid(key), pc.not_equal(pc.fill_null(key, ""), ""))
        keyed = batch.filter(has_key)
        self._written.unkeyed += batch.num_rows - keyed.num_rows
        self._batches.append(keyed)
        self._bytes += keyed.nbytes
        if self._bytes >= REDUCE_BYTES:
            self._batches = newest(pa.Table.from_batches(self._batches)).to_batches()
            self._bytes = sum(each.nbytes for each in self._batches)

    def changes(self) -> pa.Table | None:
        return newest(pa.Table.from_batches(self._batches)) if self._batches else None

    def close(self) -> Written:
        self._written.changes = self.changes()
        return self._written

    def discard(self) -> None:
        self._batches = []


def upsert(
    table: Table, changes: pa.Table | None, state: TableState, head: Head, target_bytes: int = TARGET_BYTES
) -> Written:
    """One commit that makes the table have the newest row of each key in `changes` (with DELETED), or none.

    Raises as Table.commit() does; TableError for a table that somebody else's engine deleted rows of.
    """
    if changes is None or not changes.num_rows:
        table.commit([], state, head)
        return Written()
    paths = table.paths(head.version)
    if paths is None:
        raise TableError(
            f"table {table.name} has rows that another engine deleted, or columns that were changed: an upsert cannot "
            "read its files alone; compact it with that engine, or make a new table (--table)"
        )
    spec = table.write_spec(target_bytes)
    writer = TableWriter(spec)
    replaced = []
    try:
        candidates = [_conformed(changes, spec.schema)]
        keys = changes[KEY].combine_chunks()
        for path in paths:
            touched = _touched(path, spec.schema, keys)
            if not touched:
                continue
            replaced.append(path)
            for batch in scan_files([path], spec.schema, spec.schema, None):
                mask = pc.is_in(batch.column(KEY), value_set=keys)
                writer.write(batch.filter(pc.invert(mask)))
                found = pa.Table.from_batches([batch.filter(mask)])
                candidates.append(found.append_column(DELETED, pa.repeat(False, found.num_rows)))
        rows = newest(pa.concat_tables(candidates))
        for batch in live(rows).select(spec.schema.names).to_batches():
            writer.write(batch)
        written = writer.close()
    except BaseException:
        writer.discard()
        raise
    try:
        table.commit(written.files, state, head, replaced)
    except TableConflictError:
        delete_files(spec, written.files)
        raise
    return written


def live(rows: pa.Table) -> pa.Table:
    """Returns the rows that do not delete their key, without the column that says so."""
    return rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED])


def _touched(path: str, schema: pa.Schema, keys: pa.Array) -> bool:
    """Returns True if a file has a row of these keys."""
    only = pa.schema([schema.field(KEY)])
    found: Iterator[pa.RecordBatch] = scan_files([path], only, schema, pc.field(KEY).isin(keys))
    return any(batch.num_rows for batch in found)


def _conformed(changes: pa.Table, schema: pa.Schema) -> pa.Table:
    """With all columns of the table, null in those that are not the log's."""
    arrays = [
        changes[field.name] if field.name in changes.column_names else pa.nulls(changes.num_rows, field.type)
        for field in schema
    ]
    return pa.table([*arrays, changes[DELETED]], schema=schema.append(pa.field(DELETED, pa.bool_())))
