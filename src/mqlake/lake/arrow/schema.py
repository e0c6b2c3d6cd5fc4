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

COLUMNS: dict[str, str] = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "long",
    "physicalOffset": "long",
    "msgId": "string",
    "uniqKey": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "bodyCrc": "int",
    "properties": "map",
    "flag": "int",
    "sysFlag": "int",
    "bornTimestamp": "timestamp",
    "bornHost": "string",
    "storeTimestamp": "timestamp",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "long",
    "size": "int",
    "brokerName": "string",
    "path": "string",
}

ON_REQUEST = {"bodySize": "int"}
"""Columns of a log that a read has only if it names them: the bytes of the body."""

CORRUPT_COLUMN = "_corrupt"
"""In mode permissive: what is wrong, with file and offset, in a row that stands for damage; else null."""


def kind_of(name: str) -> str:
    """The kind of a column. UnknownKeyError for a name that none has."""
    kind = "string" if name == CORRUPT_COLUMN else {**COLUMNS, **ON_REQUEST}.get(name)
    if kind is None:
        raise UnknownKeyError(name, COLUMNS, what="column")
    return kind


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The named columns. UnknownKeyError for a name not in COLUMNS."""
    return table_schema({name: kind_of(name) for name in names})


def table_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The schema of another table: the kind of each column."""
    return pa.schema([pa.field(name, ARROW_TYPES[kind], nullable=True) for name, kind in columns.items()])
