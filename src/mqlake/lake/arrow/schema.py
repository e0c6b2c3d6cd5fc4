"""The row that every reader of messages gives: one table, from which Arrow's and Spark's schemas are made.

    topic queueId queueOffset physicalOffset msgId uniqKey tags keys body bodyCrc properties flag sysFlag
    bornTimestamp bornHost storeTimestamp storeHost reconsumeTimes preparedTransactionOffset size
    brokerName path

Every column may be null: `brokerName` is where a store directory is read, all but `path`, `physicalOffset` and
`_corrupt` are in a row that stands for damage. Timestamps are Spark timestamps (µs, UTC; a message has whole
ms); one beyond the years 1 to 9999 is null. A host is `ip:port`, `[ip]:port` for IPv6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mqlake.errors import UnknownKeyError

ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map": pa.map_(pa.string(), pa.string()),
}
"""Kinds of columns."""


@dataclass(frozen=True)
class Column:
    """A column of a message's row. One that a scan has as it is needs nothing but its line in COLUMNS."""

    kind: str
    field: str | None = None
    """The field of Scan with its numbers, or with its times in ms; None: `lake.arrow.rows` makes it."""
    of_a_message: bool = False
    """The messages of an inner batch differ in it from the record that holds them."""


COLUMNS: dict[str, Column] = {
    "topic": Column("string"),
    "queueId": Column("int", "queue_id"),
    "queueOffset": Column("long", "queue_offset", of_a_message=True),
    "physicalOffset": Column("long", "physical_offset"),
    "msgId": Column("string"),
    "uniqKey": Column("string", of_a_message=True),
    "tags": Column("string", of_a_message=True),
    "keys": Column("string", of_a_message=True),
    "body": Column("binary", of_a_message=True),
    "bodyCrc": Column("int", "body_crc"),
    "properties": Column("map", of_a_message=True),
    "flag": Column("int", "flag", of_a_message=True),
    "sysFlag": Column("int", "sys_flag"),
    "bornTimestamp": Column("timestamp", "born_timestamp"),
    "bornHost": Column("string"),
    "storeTimestamp": Column("timestamp", "store_timestamp"),
    "storeHost": Column("string"),
    "reconsumeTimes": Column("int", "reconsume_times"),
    "preparedTransactionOffset": Column("long", "prepared_transaction_offset"),
    "size": Column("int", "size"),
    "brokerName": Column("string"),
    "path": Column("string"),
}

ON_REQUEST = {"bodySize": Column("int", "body_length", of_a_message=True)}
"""Columns of a log that a read has only if it names them: the bytes of the body."""

NUMBERS = {
    name: column.field for name, column in COLUMNS.items() if column.field and column.kind != "timestamp"
}
"""Column → field of Scan. `bodySize` is none: a filter of it is left to the engine."""
TIMES = {
    name: column.field for name, column in COLUMNS.items() if column.field and column.kind == "timestamp"
}
OF_A_MESSAGE = frozenset(name for name, column in COLUMNS.items() if column.of_a_message)

CORRUPT_COLUMN = "_corrupt"
"""In mode permissive: what is wrong, with file and offset, in a row that stands for damage; else null."""


def kind_of(name: str) -> str:
    """The kind of a column. UnknownKeyError for a name that none has."""
    if name == CORRUPT_COLUMN:
        return "string"
    column = COLUMNS.get(name) or ON_REQUEST.get(name)
    if column is None:
        raise UnknownKeyError(name, COLUMNS, what="column")
    return column.kind


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The named columns. UnknownKeyError for a name not in COLUMNS."""
    return table_schema({name: kind_of(name) for name in names})


def table_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The schema of another table: the kind of each column."""
    return pa.schema([pa.field(name, ARROW_TYPES[kind], nullable=True) for name, kind in columns.items()])
