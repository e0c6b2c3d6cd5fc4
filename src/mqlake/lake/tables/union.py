"""A topic's table and what the log has after it, as one Arrow dataset: exact, and as fresh as the log.

    table as of a version │ log from its position on
    ══════════════════════╪─────────────────────────▶
                          └ one seam: the position in that version's own commit

Version and end of the log are fixed when the union is made. Commits and compactions that come later change nothing of
what it shows; make it again to see more.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from mqlake.errors import TableError
from mqlake.lake.arrow.expressions import conditions_of
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.bodies.decoder import BODY
from mqlake.lake.dataset import Columns, LogDataset, LogScanner, needed_columns
from mqlake.lake.tables.latest import KEY, LatestWriter, live, with_deleted_flag
from mqlake.lake.tables.latest import NEEDED as LATEST_NEEDED
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Source, Tail
from mqlake.lake.tables.table import LATEST, Table


class UnionScanner(LogScanner):
    """One scan of both sides."""

    def __init__(self, union: UnionDataset, columns: Columns, filter: pc.Expression | None) -> None:
        self._union, self._columns, self._filter = union, columns, filter
        schema = union.schema
        needed = needed_columns(schema.names, columns, filter)
        if union.before is not None:
            needed.add("storeTimestamp")
        wanted = [field for field in schema if field.name in needed]
        self._schema = pa.schema(wanted or [schema.field("topic")])

    @property
    def projected_schema(self) -> pa.Schema:
        return self._projected(self._schema.empty_table()).schema

    dataset_schema = projected_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Raises TableError, OSError, and what reading a log raises."""
        before = self._union.before
        filter, conditions = self._filter, conditions_of(self._filter)
        if before is not None:
            earlier = pc.field("storeTimestamp") < pa.scalar(before, pa.timestamp("us", tz="UTC"))
            filter = earlier if filter is None else filter & earlier
            conditions = (*conditions, Condition("storeTimestamp", operator.lt, (before,)))
        for batch in self._batches(conditions, filter):
            table = pa.Table.from_batches([batch])
            if filter is not None:
                table = table.filter(filter)
            if table.num_rows:
                yield from self._projected(table).to_batches()

    def _batches(
        self, conditions: tuple[Condition, ...], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        union, schema = self._union, self._schema
        if LATEST in union.table.properties and union.tail is not None:
            yield from self._latest(filter)
            return
        yield from union.table.scan(union.version, schema.names, filter)
        if union.tail is None:
            return
        columns = union.rows.read_for(schema.names)
        for piece in union.tail.pieces(conditions):
            for _, batch in piece.read(columns):
                yield union.rows.some_of(batch, piece.name, schema)

    def _latest(self, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Rows of the table whose keys the log has not gone on with, then the log's."""
        union, schema = self._union, self._schema
        assert union.tail is not None
        writer = LatestWriter()
        columns = [*union.rows.read_for([*schema.names, *LATEST_NEEDED]), "topic", "queueId", BODY]
        fields = pa.schema(
            [*schema, *(union.schema.field(name) for name in LATEST_NEEDED if name not in schema.names)]
        )
        for piece in union.tail.pieces(()):
            for _, batch in piece.read(list(dict.fromkeys(columns))):
                writer.add(
                    with_deleted_flag(union.rows.some_of(batch, piece.name, fields), batch.column(BODY))
                )
        changes = writer.changes()
        if changes is None:
            yield from union.table.scan(union.version, schema.names, filter)
            return
        keys = changes[KEY].combine_chunks()
        for batch in union.table.scan(union.version, fields.names, filter):
            yield batch.filter(pc.invert(pc.is_in(batch.column(KEY), value_set=keys))).select(schema.names)
        yield from live(changes).select(schema.names).to_batches()


class UnionDataset(LogDataset):
    """Made by TopicTable.union(). `version`: of the table; `tail` None: nothing of the log; `before`: rows stored
    earlier only."""

    def __init__(
        self,
        table: Table,
        rows: TableRows,
        version: int | None,
        tail: Tail | None,
        before: datetime | None = None,
    ) -> None:
        self.table, self.rows, self.version, self.tail, self.before = table, rows, version, tail, before
        self._schema = table.schema

    def scanner(
        self, columns: Columns = None, filter: pc.Expression | None = None, **_: object
    ) -> UnionScanner:
        return UnionScanner(self, columns, filter)

    @property
    def body_format(self) -> Any:
        return None

    def __repr__(self) -> str:
        return f"UnionDataset({self.table.name} at version {self.version})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a union of table and log is of this process: make it again in the other one")


def union_of(
    table: Table, rows: TableRows, source: Source, topic: str, as_of: int | datetime | None = None
) -> UnionDataset:
    """All that a topic has: its table, and the log from there. `as_of` a version (a snapshot's id): the table as it was
    then, without the log; a time: what had been stored before it, exactly, as long as the log reaches back.

    Raises OffsetOutOfRangeError when the log no longer has what comes after the table, TableError.
    """
    head = table.head()
    if isinstance(as_of, int):
        if as_of not in {each.version for each in table.versions()}:
            raise TableError(f"table {table.name} has no version {as_of} (any more)")
        return UnionDataset(table, rows, as_of, None)
    if as_of is None:
        return UnionDataset(table, rows, head.version, source.tail(topic, head.state))
    if LATEST in table.properties:
        raise TableError(
            f"table {table.name} has the latest rows only: give a version that it had then (mqlake lake rewind "
            "--dry-run shows which), or ask the table of all messages"
        )
    before = as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of
    return UnionDataset(table, rows, head.version, source.tail(topic, head.state), before)
