"""The rows of a topic's table: columns of the log, and what a decoder makes of the bodies.

    log batch   topic … body    ─▶  topic brokerName queueId … body                               raw
                                ─▶  topic brokerName queueId … value undecoded undecoded_reason   with a decoder

A decoder replaces the column `body` by columns of its own. It gives a row for each row, in the same order: what it
cannot decode goes into `undecoded` with a reason and stays in the same table, so it can neither lose nor repeat a
message. Everything here is pickled with a task and does without Spark, pyiceberg and deltalake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from mqlake.errors import ConfigError
from mqlake.lake.arrow.schema import COLUMNS, arrow_schema
from mqlake.lake.bodies.decoder import BODY
from mqlake.lake.bodies.evolution import conform
from mqlake.lake.options import check_columns
from mqlake.lake.tables.config import DEFAULT_COLUMNS

NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "storeTimestamp")
"""Columns that every table has: how far it has come and whether it is whole is told by them."""


class BodyDecoder(Protocol):
    """Turns bodies into columns. Pickled with each task."""

    @property
    def spec(self) -> str:
        """JSON from which the same decoder can be made again; kept in the table's properties."""

    @property
    def fields(self) -> Sequence[pa.Field]:
        """The columns that replace `body`; see lake.bodies.decoder.decoded_fields()."""

    def decode(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """An array for each of `fields`, as long as the batch, which has at least the column `body`."""


@dataclass(frozen=True)
class TableRows:
    """The columns of one table. `columns` are named as those of the log; `decoder` None keeps the bodies as they are.

    Raises ConfigError for a column that a table cannot do without, UnknownKeyError for an unknown one.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    decoder: BodyDecoder | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns, COLUMNS)
        for name in NEEDED:
            if name not in self.columns:
                raise ConfigError(f"a table needs the column {name!r}")
        if self.decoder is not None and BODY not in self.columns:
            raise ConfigError("without the column 'body' there is nothing to decode")

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        log = arrow_schema(self.columns)
        if self.decoder is None:
            return log
        kept = [field for field in log if field.name != BODY]
        return pa.schema([*kept, *self.decoder.fields])

    def of(self, batch: pa.RecordBatch, broker_name: str) -> pa.RecordBatch:
        """The table's rows for rows of the log with `columns`; `broker_name`: of a log, which does not say it."""
        arrays = []
        for name in self.columns:
            array = batch.column(name)
            if name == "brokerName" and array.null_count:
                array = pa.repeat(pa.scalar(broker_name), len(array))
            arrays.append(array)
        if self.decoder is not None:
            arrays = [array for name, array in zip(self.columns, arrays, strict=True) if name != BODY]
            arrays += self.decoder.decode(batch)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # ------------------------------------------------------------------ some of the columns

    def read_for(self, names: Sequence[str]) -> list[str]:
        """The columns of the log that these columns of the table are made of; at least one."""
        made = {field.name for field in self.decoder.fields} if self.decoder is not None else set()
        found = [name for name in self.columns if name in names and name not in made]
        if not made.isdisjoint(names) and BODY not in found:
            found.append(BODY)
        return found or [self.columns[0]]

    def some_of(self, batch: pa.RecordBatch, broker_name: str, schema: pa.Schema) -> pa.RecordBatch:
        """Rows with just the columns of `schema` for rows of the log with read_for() of them; null in columns that are
        not the log's."""
        found = {name: batch.column(name) for name in batch.schema.names}
        if "brokerName" in found and found["brokerName"].null_count:
            found["brokerName"] = pa.repeat(pa.scalar(broker_name), batch.num_rows)
        if self.decoder is not None:
            fields = [field.name for field in self.decoder.fields]
            if not set(fields).isdisjoint(schema.names):
                found.update(zip(fields, self.decoder.decode(batch), strict=True))
        arrays = []
        for field in schema:
            array = found[field.name] if field.name in found else pa.nulls(batch.num_rows, field.type)
            arrays.append(conform(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
