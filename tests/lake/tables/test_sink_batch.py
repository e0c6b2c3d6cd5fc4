"""A batch of a stream becomes files and one commit: which of its rows, whose they are, and what stays when it is
refused, comes again, or another commit comes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake.errors import TableConflictError, TableError
from mqlake.lake.tables import sink_batch as module
from mqlake.lake.tables.delta import DeltaTable
from mqlake.lake.tables.files import QueueRange, Written
from mqlake.lake.tables.sink import FAIL, Batch, SinkState, decide
from mqlake.lake.tables.sink_batch import SinkWriter, above, commit_batch, has_place, places, sink_queue

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("body", pa.string()),
    ]
)
NAMES = SCHEMA.names[:4]


def rows(*each: tuple[str | None, str | None, int | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(NAMES, row, strict=True)) for row in each], SCHEMA)


def test_how_a_queue_is_named() -> None:
    assert sink_queue("Orders", "broker-a", 3) == "Orders@broker-a:3"
    assert sink_queue("Orders", None, 0) == "Orders@:0"


@pytest.mark.parametrize("number", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
def test_rows_say_their_place_by_three_columns(number: pa.DataType) -> None:
    fields = {"topic": pa.string(), "queueId": number, "queueOffset": pa.int64()}
    assert has_place(pa.schema({"x": pa.int32(), **fields}))
    for name in fields:
        assert not has_place(pa.schema({key: kind for key, kind in fields.items() if key != name}))
        other = pa.float64() if name != "topic" else pa.binary()
        assert not has_place(pa.schema({**fields, name: other}))
    assert not has_place(pa.schema({"queueId": number, "queueOffset": number, "topic": pa.int32()}))


def test_the_queues_of_rows() -> None:
    batch = rows(("T", "a", 0, 5), ("T", "b", 0, 1), ("T", "a", 0, 7), ("T", None, 0, 2), ("U", "a", 0, 9))
    assert places(batch) == {
        "T@a:0": QueueRange(5, 7, 2),
        "T@b:0": QueueRange(1, 1, 1),
        "T@:0": QueueRange(2, 2, 1),
        "U@a:0": QueueRange(9, 9, 1),
    }
    assert places(batch.drop_columns(["brokerName"])) == {
        "T@:0": QueueRange(1, 7, 4),
        "U@:0": QueueRange(9, 9, 1),
    }


@pytest.mark.parametrize("row", [(None, "a", 0, 5), ("T", "a", None, 5), ("T", "a", 0, None)])
def test_a_row_without_a_place_is_refused(row: Any) -> None:
    with pytest.raises(TableError, match="a row has no topic, queueId or queueOffset: fill them in"):
        places(rows(("T", "a", 0, 1), row))


def test_rows_below_the_floor_of_their_queue_are_left_out() -> None:
    batch = rows(
        *(("T", "a", 0, n) for n in range(4)),
        ("T", "a", 1, 0),
        ("T", "b", 0, 0),
        ("U", "a", 0, 0),
        ("T", None, 0, 0),
        ("T", None, 0, 3),
    )
    kept = above(batch, {"T@a:0": 2, "T@:0": 1, "Gone@a:0": 9})
    assert [tuple(row.values())[:4] for row in kept.to_pylist()] == [
        ("T", "a", 0, 2),
        ("T", "a", 0, 3),
        ("T", "a", 1, 0),
        ("T", "b", 0, 0),
        ("U", "a", 0, 0),
        ("T", None, 0, 3),
    ]
    plain = batch.drop_columns(["brokerName"])
    assert above(plain, {"U@:0": 1, "T@a:0": 100})["queueOffset"].to_pylist() == [0, 1, 2, 3, 0, 0, 0, 3]
    for floors in ({}, {"Gone@a:0": 9}):
        assert above(batch, floors) == batch
    assert above(batch, {}) is batch and above(batch.slice(0, 0), {"T@a:0": 2}).num_rows == 0


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable.create(str(tmp_path / "table"), "shop.Orders", SCHEMA, {}, day="")


def written(table: DeltaTable, *batches: pa.RecordBatch) -> Written:
    writer = SinkWriter(table.write_spec(1 << 20))
    for batch in batches:
        writer.write(batch)
    return writer.close()


def test_a_writer_counts_rows_and_queues(table: DeltaTable, tmp_path: Path) -> None:
    found = written(table, rows(("T", "a", 0, 1), ("T", "a", 0, 2)), rows(("T", "a", 0, 3), ("T", "b", 0, 0)))
    assert found.rows == 4
    assert found.queues == {"T@a:0": QueueRange(1, 3, 3), "T@b:0": QueueRange(0, 0, 1)}
    schema = pa.schema([("n", pa.int64())])
    other = DeltaTable.create(str(tmp_path / "other"), "shop.Other", schema, {}, day="")
    found = written(other, pa.record_batch({"n": [1, 2, 3]}))
    assert (found.rows, found.queues) == (3, {})


def batch_of(number: int, *parts: Written) -> Batch:
    found = {name: each for part in parts for name, each in part.queues.items()}
    return Batch("q", "q", number, found, False)


def put(table: DeltaTable, number: int, *parts: Written) -> bool:
    return commit_batch(table, batch_of(number, *parts), parts, FAIL, table.write_spec(1 << 20))


def offsets(table: DeltaTable) -> list[int]:
    found = table.scan(table.head().version, ["queueOffset"], None)
    return sorted(row["queueOffset"] for batch in found for row in batch.to_pylist())


def files(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "table").rglob("*.parquet"))


def test_a_batch_is_one_commit(table: DeltaTable) -> None:
    parts = [written(table, rows(("T", "a", 0, 0))), written(table, rows(("T", "a", 1, 7), ("T", "a", 1, 8)))]
    before = table.head().version
    assert before is not None and put(table, 0, *parts)
    head = table.head()
    assert head.version == before + 1 and offsets(table) == [0, 7, 8]
    state = table.last(SinkState, head.version)
    assert state is not None and state.rows == 3 and state.queues == {"T@a:0": (1, "q"), "T@a:1": (9, "q")}
    assert len(state.commit_id) == 32


def test_a_batch_that_comes_again_leaves_no_files(table: DeltaTable, tmp_path: Path) -> None:
    put(table, 0, written(table, rows(("T", "a", 0, 0))))
    there = files(tmp_path)
    again = written(table, rows(("T", "a", 0, 0)))
    assert files(tmp_path) > there
    assert not put(table, 0, again)
    assert files(tmp_path) == there and offsets(table) == [0]


def test_files_of_a_commit_that_landed_stay(table: DeltaTable, tmp_path: Path) -> None:
    """A driver that was killed before it knew hands over the same files again."""
    part = written(table, rows(("T", "a", 0, 0)))
    put(table, 0, part)
    assert not put(table, 0, part)
    assert len(files(tmp_path)) == 1 and offsets(table) == [0]


def test_a_batch_that_is_refused_leaves_no_files(table: DeltaTable, tmp_path: Path) -> None:
    for number in range(2):
        put(table, number, written(table, rows(("T", "a", 0, number))))
    there = files(tmp_path)
    with pytest.raises(TableError, match="the checkpoint is older"):
        put(table, 0, written(table, rows(("T", "a", 0, 0))))
    assert files(tmp_path) == there


def test_where_the_tables_files_cannot_be_told_all_stay(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, 0, written(table, rows(("T", "a", 0, 0))))
    again = written(table, rows(("T", "a", 0, 0)))
    monkeypatch.setattr(table, "paths", lambda _: None)
    assert not put(table, 0, again)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("others", [1, 2, 3])
def test_other_commits_may_come_first(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """It looks again, but not for ever."""
    monkeypatch.setattr(module, "COMMIT_TRIES", 3)
    commit, left = table.commit, [others]

    def too_late(*given: Any) -> None:
        if left[0]:
            number = others - left[0]
            left[0] -= 1
            batch = Batch("other", "other", number, {}, False)
            state = decide(table.last(SinkState, table.head().version), batch, FAIL, "t")
            assert state is not None
            commit([], replace(state, commit_id=f"{number:032}", rows=0), table.head())
        commit(*given)

    monkeypatch.setattr(table, "commit", too_late)
    part = written(table, rows(("T", "a", 0, 0)))
    if others < 3:
        assert put(table, 0, part) and offsets(table) == [0]
        return
    with pytest.raises(
        TableConflictError, match=r"shop.Orders: 3 other commits came first; start the stream"
    ):
        put(table, 0, part)
    assert offsets(table) == []
