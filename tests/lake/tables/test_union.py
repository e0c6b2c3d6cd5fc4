"""Table and log as one: the rows of the oracle, while commits and compactions go on, and as of another time."""

from __future__ import annotations

import pickle
import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest

from mqlake.errors import OffsetOutOfRangeError, TableError
from tests.lake.tables.lakes import FORMATS, as_rows, expected, open_topic, put
from tests.spark.stores import log_files
from tests.waiting import until


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
def test_a_commit_while_the_position_is_read_drops_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """The position of the newer commit with the rows of the older version would leave out what lies between."""
    store = tmp_path / "store"
    put(store, 30)
    orders = open_topic(tmp_path, store, format)
    orders.append_new()
    put(store, 30, 30)
    last = orders.table.last

    def commits_before_it_reads(kind: Any, version: int | None) -> Any:
        monkeypatch.setattr(orders.table, "last", last)
        assert open_topic(tmp_path, store, format).append_new().rows == 15
        return last(kind, version)

    monkeypatch.setattr(orders.table, "last", commits_before_it_reads)
    assert as_rows(orders.union().to_table()) == expected(store)
    put(store, 30, 60)
    monkeypatch.setattr(orders.table, "last", commits_before_it_reads)
    report = orders.verify()
    assert (report.findings, report.rows) == ([], 30)


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
    from mqlake.lake.tables.append_run import LocalEngine
    from mqlake.lake.tables.topic import one_step

    one_step([orders], LocalEngine())
    put(store, 200, 100)
    log_files(store)[0].unlink()
    with pytest.raises(OffsetOutOfRangeError, match="begins at 16384"):
        orders.union()


def test_a_filter_and_a_time_hold_together_and_every_zone_is_understood(tmp_path: Path) -> None:
    """A time without a zone is in UTC, as those of the table are."""
    store = tmp_path / "store"
    put(store, 30)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    last = expected(store)[-1]["storeTimestamp"]
    until(lambda: datetime.now(UTC) > last + timedelta(milliseconds=1))
    put(store, 10, 30)
    orders.append_new()
    put(store, 10, 40)
    moment = last + timedelta(milliseconds=1)
    before = [row for row in expected(store) if row["storeTimestamp"] < moment]
    assert 0 < len(before) < len(expected(store))
    for given in (
        moment,
        moment.replace(tzinfo=None),
        moment.astimezone(timezone(timedelta(hours=2))),
    ):
        found = orders.at(given)
        assert as_rows(found.to_table()) == before
        chosen = [row for row in before if row["queueId"] == 1]
        assert as_rows(found.to_table(filter=pc.field("queueId") == 1)) == chosen
