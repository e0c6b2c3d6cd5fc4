"""Rows of tables: the log's columns, and a decoder's in place of the body."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import mqlake.lake
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.bodies.decoder import decoded_fields
from mqlake.lake.tables.config import DEFAULT_COLUMNS
from mqlake.lake.tables.rows import NEEDED, TableRows


class Lengths:
    """A decoder that likes bodies with an even number of bytes."""

    spec = '{"kind": "lengths"}'
    fields: Sequence[pa.Field] = (pa.field("length", pa.int32()), *decoded_fields(pa.int32())[1:])

    def decode(self, batch: pa.RecordBatch) -> list[pa.Array]:
        body = batch.column("body")
        length = pc.binary_length(body)
        odd = pc.equal(pc.bit_wise_and(length, 1), 1)
        nothing = pa.nulls(len(body))
        return [
            pc.if_else(odd, None, length),
            pc.if_else(odd, body, nothing.cast(pa.binary())),
            pc.if_else(odd, "odd", nothing.cast(pa.string())),
        ]


def test_raw_rows_are_those_of_the_log_with_the_name_of_the_store(every_kind: Path) -> None:
    rows = TableRows()
    log = mqlake.lake.scan(every_kind, columns=rows.columns)
    made = pa.Table.from_batches([rows.of(batch, "a") for batch in log.to_reader()])
    assert tuple(made.schema.names) == DEFAULT_COLUMNS and made.schema == rows.schema
    assert set(made["brokerName"].to_pylist()) == {"a"}
    assert made.drop(["brokerName"]).equals(log.to_table().drop(["brokerName"]))


def test_a_decoder_replaces_the_body_and_loses_no_row(every_kind: Path) -> None:
    rows = TableRows((*NEEDED, "body"), Lengths())
    log = mqlake.lake.scan(every_kind, columns=rows.columns)
    made = pa.Table.from_batches([rows.of(batch, "a") for batch in log.to_reader()])
    assert made.schema.names == [*NEEDED, "length", "undecoded", "undecoded_reason"]
    bodies = log.to_table()["body"].to_pylist()
    assert made["length"].to_pylist() == [None if len(body) % 2 else len(body) for body in bodies]
    assert made["undecoded"].to_pylist() == [body if len(body) % 2 else None for body in bodies]
    assert set(made["undecoded_reason"].to_pylist()) == {None, "odd"}


def test_columns_that_a_table_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs the column 'queueOffset'"):
        TableRows(("topic", "brokerName", "queueId"))
    with pytest.raises(ConfigError, match="nothing to decode"):
        TableRows(NEEDED, Lengths())
    with pytest.raises(UnknownKeyError):
        TableRows((*NEEDED, "bodies"))


def test_what_of_the_log_some_columns_need() -> None:
    plain, decoded = TableRows(), TableRows((*NEEDED, "body"), Lengths())
    assert plain.read_for(["keys", "queueId", "other"]) == ["queueId", "keys"]
    assert plain.read_for(["body"]) == ["body"]
    assert plain.read_for([]) == [plain.columns[0]], "rows are counted by one"
    assert decoded.read_for(["queueId"]) == ["queueId"]
    assert decoded.read_for(["length", "queueId"]) == ["queueId", "body"]
    assert decoded.read_for(["undecoded", "body"]) == ["body"]


@pytest.mark.parametrize("decoder", [None, Lengths()])
def test_some_columns_of_rows(decoder: Lengths | None) -> None:
    """Those that the log does not have are null; the name of the store is there where the rows do not say a broker."""
    rows = TableRows((*NEEDED, "body"), decoder)
    names = ["brokerName", "queueId", "body"]
    nobody, somebody = (
        pa.record_batch([pa.array([broker] * 2, pa.string()), [1, 2], [b"abc", b"ab"]], names)
        for broker in (None, "b")
    )
    wanted = pa.schema(
        [("queueId", pa.int64()), ("brokerName", pa.string()), ("note", pa.string()), ("length", pa.int32())]
    )
    lengths = [None, 2] if decoder is not None else [None, None]
    for batch, name in ((nobody, "a"), (somebody, "b")):
        found = rows.some_of(batch, "a", wanted)
        assert found.schema == wanted
        assert found.to_pydict() == {
            "queueId": [1, 2],
            "brokerName": [name] * 2,
            "note": [None] * 2,
            "length": lengths,
        }
    without = rows.some_of(nobody.select(["queueId"]), "a", pa.schema([("queueId", pa.int32())]))
    assert without.to_pydict() == {"queueId": [1, 2]}
    assert rows.some_of(nobody.slice(0, 0), "a", wanted).num_rows == 0
