"""Delta: where the state is found after what others do to a table, and what tools that are not ours read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mqlake.errors import TableConflictError, TableUnavailableError
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.tables import delta
from mqlake.lake.tables.topic import RunOptions, TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.lake.tables import contract, reader_filters
from tests.lake.tables.lakes import as_rows, expected, lake_of, open_topic, put, rows_in, topic_of
from tests.spark.stores import SETTINGS

pytestmark = pytest.mark.filterwarnings("error::DeprecationWarning")
"""What the library takes out next is heard of before."""

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


def test_a_storage_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with --follow waits for it, as for a catalog."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    away = {"endpoint_url": "http://127.0.0.1:9", "allow_http": "true", "max_retries": "0"}
    monkeypatch.setattr(delta, "storage_options", lambda: away)
    said = r"^table t: its storage does not answer: .*: Connection refused \(os error 111\); try again$"
    with pytest.raises(TableUnavailableError, match=said):
        delta.DeltaTable.load("s3://bucket/table", "t")


def test_care(tmp_path: Path) -> None:
    orders = filled(tmp_path, 4)
    table = orders.table
    assert table.compact(1 << 20) == (4, 1)
    stray = tmp_path / TABLE / "stray.parquet"
    stray.write_bytes(b"x" * 100)
    assert table.orphans(datetime.now(UTC) + timedelta(hours=1)) == [(str(stray), 100)]
    assert table.orphans(datetime.now(UTC) - timedelta(hours=1)) == []
    assert table.expire(datetime.now(UTC) - timedelta(hours=2), 1) == (
        0,
        0,
    )  # all younger than its log's month
    assert rows_in(table) == expected(tmp_path / "store")


@pytest.mark.parametrize(
    "check",
    [
        contract.check_an_empty_table,
        contract.check_versions,
        contract.check_commits,
        contract.check_columns_of_two_writers,
        contract.check_what_clients_set,
        contract.check_years_that_words_do_not_reach,
        reader_filters.check_filters,
    ],
)
def test_what_every_table_promises(tmp_path: Path, check: Callable[[Path, str], None]) -> None:
    check(tmp_path, "delta")


def test_columns_that_change_while_another_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are written again, and those of the other one would not be among them."""
    orders = filled(tmp_path, 1)
    put(tmp_path / "store", 20, 20)
    other = open_topic(tmp_path, tmp_path / "store", "delta")
    before = orders.table.schema
    at = before.get_field_index("queueId")
    wider = before.set(at, before.field(at).with_type(pa.int64())).append(pa.field("note", pa.string()))
    scan = delta.scan_files

    def meanwhile(*given: Any) -> Any:
        with ThreadPoolExecutor(
            1
        ) as pool:  # deltalake is waiting for these rows, and takes no call in its thread
            assert pool.submit(other.append_new).result().rows == 10
        return scan(*given)

    with monkeypatch.context() as patch:
        patch.setattr(delta, "scan_files", meanwhile)
        with pytest.raises(TableConflictError, match="its columns are as before: try again"):
            orders.table.evolve(wider, {})
    assert other.table.schema == before
    orders.table.evolve(wider, {"a": "b"})
    assert orders.table.schema.field("queueId").type == pa.int64() and orders.table.properties["a"] == "b"
    found = pa.Table.from_batches(orders.table.scan(orders.table.head().version, None, None))
    assert as_rows(found) == expected(tmp_path / "store") and found["note"].null_count == 20
    assert orders.append_new().rows == 0, "its position is kept"


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        (pa.int32(), pa.int32(), False),
        (pa.int32(), pa.int64(), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.string())]), False),
        (pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.struct([("b", pa.int64())]), True),
        (pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.struct([("b", pa.int32())]), False),
        (pa.list_(pa.int32()), pa.list_(pa.int32()), False),
        (pa.list_(pa.struct([("a", pa.int32())])), pa.list_(pa.struct([("a", pa.int64())])), True),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32()), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
        (pa.struct([("a", pa.int32())]), pa.int32(), True),
    ],
)
def test_what_is_a_wider_number(old: pa.DataType, new: pa.DataType, wider: bool) -> None:
    """It cannot be added beside the rows that are there."""
    assert delta.widens(old, new) is wider


def test_fields_of_bodies_are_found_whatever_their_files_hold(tmp_path: Path) -> None:
    """Nested columns are counted, too: a reader takes what is not counted for rows that are not there."""
    bodies = (b'{"id": 1, "tags": ["a"]}', b'{"id": null, "tags": []}', b"[]", b"")
    for body in bodies:
        with open_store(tmp_path / "store", {**SETTINGS}) as store:
            assert store.put_message(MessageExtBrokerInner("Orders", body)).is_ok
        given = topic_of(tmp_path / "store", bodies=BodyFormat.given(json="id long, tags array<string>").spec)
        TopicTable.open(lake_of(tmp_path, "delta"), given, RunOptions()).append_new()
    native = deltalake.DeltaTable(tmp_path / TABLE)
    messages = native.to_pyarrow_dataset()
    assert messages.count_rows(filter=pc.field("value", "id").is_null()) == 3
    assert messages.count_rows(filter=pc.field("value", "id") == 1) == 1
    assert messages.count_rows(filter=pc.field("undecoded").is_null()) == 3
    sql = deltalake.QueryBuilder().register("t", native)
    for condition, rows in {
        "value['id'] is null": 3,
        "value['id'] = 1": 1,
        "value['tags'] is null": 2,
        "value['tags'] is not null": 2,
        "value is null": 2,
        "undecoded is not null": 1,
    }.items():
        found = pa.table(sql.execute(f"select count(*) as n from t where {condition}"))
        assert found["n"].to_pylist() == [rows]
