"""Table and log as one: the rows of the oracle, while commits and compactions go on, and as of another time."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest

from mqlake.errors import OffsetOutOfRangeError, TableError
from tests.lake.tables.lakes import FORMATS, as_rows, expected, open_topic, put
from tests.spark.stores import log_files


@pytest.mark.parametrize("format", FORMATS)
def test_exact_while_the_table_moves(tmp_path: Path, format: str) -> None:
    store = tmp_path / "store"
    put(store, 30)
    orders = open_topic(tmp_path, store, format)
    assert as_rows(orders.union().to_table()) == expected(store)  # nothing in the table
    for first in (30, 60):
        orders.append_new()
        put(store, 30, first)
    both, rows = orders.union(), expected(store)
    assert as_rows(both.to_table()) == rows
    assert as_rows(orders.read().to_table()) == rows[:30]
    assert orders.append_new().rows == 15
    assert orders.table.compact(1 << 20)[1] == 1
    put(store, 10, 90)
    assert as_rows(both.to_table()) == rows  # as it was when it was made
    assert both.count_rows() == 45 and orders.union().count_rows() == 50
    with pytest.raises(TypeError, match="of this process"):
        pickle.dumps(both)


def test_engines_and_filters(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 60)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    put(store, 60, 60)
    both, rows = orders.union(), expected(store)
    rng = random.Random(1)
    for _ in range(30):
        low, queue = rng.randrange(20), rng.randrange(3)
        chosen = [row for row in rows if row["queueId"] == queue and row["queueOffset"] >= low]
        filter = (pc.field("queueId") == queue) & (pc.field("queueOffset") >= low)
        assert as_rows(both.to_table(filter=filter)) == chosen
        sql = f"select count(*), sum(octet_length(body)) from t where queueId = {queue} and queueOffset >= {low}"
        counted = duckdb.connect().from_arrow(both).query("t", sql).fetchall()
        assert counted == [(len(chosen), sum(len(row["body"]) for row in chosen) if chosen else None)]
    lazy = (
        pl.scan_pyarrow_dataset(both).filter(pl.col("keys") == "key-100").select("queueOffset", "brokerName")
    )
    assert lazy.collect().rows() == [(16, "broker-a")]
    assert both.to_table(columns={"twice": pc.field("queueOffset") * 2}).schema.names == ["twice"]


@pytest.mark.parametrize("format", FORMATS)
def test_as_of(tmp_path: Path, format: str) -> None:
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, format)
    orders.append_new()
    first = orders.table.head().version
    put(store, 20, 20)
    orders.append_new()
    put(store, 20, 40)
    rows = expected(store)
    assert as_rows(orders.at(first).to_table()) == rows[:10]
    for moment in {row["storeTimestamp"] for row in rows}:
        earlier = [row for row in rows if row["storeTimestamp"] < moment]
        assert as_rows(orders.at(moment).to_table()) == earlier
        assert orders.at(moment).count_rows() == len(earlier)
    assert orders.at(datetime.now(UTC) + timedelta(days=1)).count_rows() == 30
    with pytest.raises(TableError, match="has no version 999"):
        orders.at(999)


def test_a_hole_between_table_and_log_is_no_answer(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 100)
    orders: Any = open_topic(tmp_path, store, "delta", bytes_max=3000)
    from mqlake.lake.tables.step import LocalEngine
    from mqlake.lake.tables.topic import one_step

    one_step([orders], LocalEngine())
    put(store, 200, 100)
    log_files(store)[0].unlink()
    with pytest.raises(OffsetOutOfRangeError, match="begins at 16384"):
        orders.union()
