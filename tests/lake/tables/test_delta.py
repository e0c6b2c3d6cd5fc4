"""Delta: where the state is found after what others do to a table, and what tools that are not ours read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa

from tests.lake.tables.lakes import as_rows, expected, open_topic, put, rows_in

TABLE = Path("lake", "mqlake", "Orders")


def filled(tmp_path: Path, commits: int = 3) -> Any:
    orders = None
    for number in range(commits):
        put(tmp_path / "store", 20, 20 * number)
        orders = orders or open_topic(tmp_path, tmp_path / "store", "delta")
        assert orders.append_new().commits == 1
    return orders


def test_others_read_what_is_written(tmp_path: Path) -> None:
    filled(tmp_path)
    rows = expected(tmp_path / "store")
    native = deltalake.DeltaTable(tmp_path / TABLE)
    assert as_rows(native.to_pyarrow_table()) == rows
    assert pl.scan_delta(str(tmp_path / TABLE)).filter(pl.col("queueOffset") == 3).collect().height == 3
    messages = duckdb.from_arrow(native.to_pyarrow_dataset())
    assert messages.aggregate("count(*), max(queueOffset)").fetchall() == [(len(rows), 9)]
    actions = pa.table(native.get_add_actions(flatten=True))
    assert sum(actions["num_records"].to_pylist()) == len(rows)
    assert {each.date() for each in actions["max.storeTimestamp"].to_pylist()} == {datetime.now(UTC).date()}
    assert {str(each) for each in actions["partition.date"].to_pylist()} == {str(datetime.now(UTC).date())}


def test_a_restore_takes_the_position_back_with_the_rows(tmp_path: Path) -> None:
    orders = filled(tmp_path)
    first = next(each for each in reversed(orders.table.versions()) if each.state)
    for _ in range(2):  # and a restore of what was restored
        native = deltalake.DeltaTable(tmp_path / TABLE)
        native.restore(first.version)
        assert orders.table.head().state == first.state
        assert len(rows_in(orders.table)) == 10
    native.update_incremental()
    log = tmp_path / TABLE / "_delta_log" / f"{first.version:020d}.json"
    written = log.stat().st_mtime + 0.002  # what deltalake goes by
    native.restore(datetime.fromtimestamp(written, UTC).isoformat())
    assert orders.table.head().state == first.state
    orders.append_new()
    assert rows_in(orders.table) == expected(tmp_path / "store")


def test_the_state_outlives_the_notes_in_the_log(tmp_path: Path) -> None:
    orders = filled(tmp_path)
    state = orders.table.head().state
    native = deltalake.DeltaTable(tmp_path / TABLE)
    native.optimize.compact()
    native.create_checkpoint()
    for note in sorted((tmp_path / TABLE / "_delta_log").glob("*.json"))[:-1]:
        note.unlink()  # as their cleanup does after a month
    orders = open_topic(tmp_path, tmp_path / "store", "delta")
    found = orders.table.head().state
    assert found is not None and state is not None
    assert (found.stores, found.queues, found.until) == (state.stores, state.queues, state.until)
    put(tmp_path / "store", 20, 60)
    assert orders.append_new().rows == 10
    assert rows_in(orders.table) == expected(tmp_path / "store")


def test_rows_that_another_engine_changed_are_read_as_they_are(tmp_path: Path) -> None:
    orders = filled(tmp_path)
    native = deltalake.DeltaTable(tmp_path / TABLE)
    native.delete("queueOffset < 2")
    native.alter.add_columns(deltalake.Field("note", deltalake.schema.PrimitiveType("string")))
    put(tmp_path / "store", 20, 60)
    orders = open_topic(tmp_path, tmp_path / "store", "delta")
    assert orders.append_new().rows == 10
    found = pa.Table.from_batches(orders.table.scan(orders.table.head().version, None, None))
    assert as_rows(found) == [row for row in expected(tmp_path / "store") if row["queueOffset"] >= 2]
    assert "note" in found.schema.names


def test_care(tmp_path: Path) -> None:
    orders = filled(tmp_path, 4)
    table = orders.table
    assert table.compact(1 << 20) == (4, 1)
    stray = tmp_path / TABLE / "stray.parquet"
    stray.write_bytes(b"x" * 100)
    assert table.orphans(datetime.now(UTC) + timedelta(hours=1)) == [(str(stray), 100)]
    assert table.orphans(datetime.now(UTC) - timedelta(hours=1)) == []
    table.expire(datetime.now(UTC) - timedelta(hours=2), 1)
    assert rows_in(table) == expected(tmp_path / "store")
