"""Iceberg: where the state is found after what others do to a table, and what tools that are not ours read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyiceberg.table
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from mqlake.errors import ConfigError, TableError
from mqlake.lake.tables import iceberg as module
from mqlake.lake.tables.iceberg import open_catalog
from mqlake.lake.tables.topic import TopicTable
from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from tests.lake.tables import contract, reader_filters
from tests.lake.tables.lakes import as_rows, expected, lake_of, open_topic, put, rows_in, topic_of
from tests.spark.stores import SETTINGS

pytestmark = pytest.mark.filterwarnings("error::DeprecationWarning")
"""What the library takes out next is heard of before."""


def native(table: Any) -> Any:
    table.table.head()
    return table.table._native


def filled(tmp_path: Path, commits: int = 3, partition: str = "day") -> Any:
    orders = None
    for number in range(commits):
        put(tmp_path / "store", 20, 20 * number)
        orders = orders or open_topic(tmp_path, tmp_path / "store", "iceberg", partition=partition)
        assert orders.append_new().commits == 1
    return orders


def test_others_read_what_is_written(tmp_path: Path) -> None:
    orders = filled(tmp_path)
    rows = expected(tmp_path / "store")
    assert as_rows(native(orders).scan().to_arrow().cast(orders.table.schema)) == rows
    found = pl.scan_iceberg(native(orders).metadata_location).collect()
    assert found.height == len(rows)
    assert sorted(found["queueOffset"].to_list()) == sorted(row["queueOffset"] for row in rows)
    assert {row["day"] for row in native(orders).inspect.partitions()["partition"].to_pylist()} == {
        datetime.now(UTC).date()
    }


def test_a_rollback_takes_the_position_back_with_the_rows(tmp_path: Path) -> None:
    orders = filled(tmp_path)
    first = orders.table.versions()[-1]
    native(orders).manage_snapshots().rollback_to_snapshot(first.version).commit()
    assert orders.table.head().state == first.state
    assert len(rows_in(orders.table)) == 10
    orders.append_new()
    assert rows_in(orders.table) == expected(tmp_path / "store")


def test_the_state_outlives_the_expiry_of_its_snapshots(tmp_path: Path) -> None:
    orders = filled(tmp_path, partition="none")  # pyiceberg writes days with another package
    state = orders.table.head().state
    # another engine rewrites without a word of ours, and forgets all that came before
    table = native(orders)
    rows = table.scan().to_arrow()
    table.overwrite(rows)
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert len(native(orders).metadata.snapshots) == 1
    assert orders.table.head().state == state
    put(tmp_path / "store", 20, 100)
    assert open_topic(tmp_path, tmp_path / "store", "iceberg").append_new().rows == 10
    assert rows_in(orders.table) == expected(tmp_path / "store")


def test_a_version_does_not_get_the_position_of_a_later_one(tmp_path: Path) -> None:
    """The rows of the later one would never be read again. Rolled back to what another engine wrote, all before it
    expired."""
    orders = filled(tmp_path, 1, partition="none")
    table = native(orders)
    table.overwrite(table.scan().to_arrow())
    foreign = native(orders).metadata.current_snapshot_id
    put(tmp_path / "store", 20, 20)
    assert orders.append_new().rows == 10
    later = orders.table.head().version
    table = native(orders)
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in (foreign, later)]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    orders.table.rewind(foreign)
    with pytest.raises(TableError, match=f"version {foreign} was made by another engine.*such as {later}"):
        open_topic(tmp_path, tmp_path / "store", "iceberg").append_new()
    orders.table._native.manage_snapshots().set_current_snapshot(later).commit()
    assert open_topic(tmp_path, tmp_path / "store", "iceberg").append_new().rows == 0
    assert rows_in(orders.table) == expected(tmp_path / "store")


def test_rows_that_another_engine_changed_are_read_as_they_are(tmp_path: Path) -> None:
    orders = filled(tmp_path, partition="none")  # pyiceberg writes days with another package
    table = native(orders)
    table.delete("queueOffset < 2")
    with table.update_schema() as update:
        update.add_column("note", StringType())
    put(tmp_path / "store", 20, 60)
    orders = open_topic(tmp_path, tmp_path / "store", "iceberg")
    assert orders.append_new().rows == 10
    found = pa.Table.from_batches(orders.table.scan(orders.table.head().version, None, None))
    left = [row for row in expected(tmp_path / "store") if row["queueOffset"] >= 2]
    assert as_rows(found) == left and found.schema.names[-1] == "note"


def test_expiry_deletes_only_what_no_snapshot_has(tmp_path: Path) -> None:
    orders = filled(tmp_path, 4)
    table = orders.table
    assert table.compact(1 << 20) == (4, 1)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert table.expire(datetime.now(UTC) - timedelta(hours=1), 1) == (0, 0)
    snapshots, files = table.expire(later, 1)
    assert snapshots == 4 and files > 8
    assert rows_in(table) == expected(tmp_path / "store")
    assert [path for path, _ in table.orphans(later) if path.endswith(".parquet")] == []
    stray = tmp_path / "lake" / "mqlake" / "Orders" / "data" / "stray.parquet"
    stray.write_bytes(b"x" * 100)
    assert (str(stray), 100) in table.orphans(later)
    assert str(stray) not in dict(table.orphans(datetime.now(UTC) - timedelta(hours=1)))


def test_runs_forget_old_versions_as_the_table_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those beyond the number kept and older than the age, some at a time; with a tag, and files that a compaction
    replaced. Nothing is left of them, and all rows are there."""
    orders = filled(tmp_path, 1)
    table = orders.table
    assert len(table.versions()) == 1 and {module.KEEP, module.KEEP_MS} <= table.properties.keys()
    table.evolve(table.schema, {module.KEEP: "4"})
    counts = []
    for number in range(1, 10):
        if number == 5:
            table.evolve(table.schema, {module.KEEP_MS: "0"})
            native(orders).manage_snapshots().create_tag(table.versions()[-1].version, "first").commit()
        if number == 7:
            assert table.compact(1 << 20)[1] == 1
        put(tmp_path / "store", 20, 20 * number)
        assert orders.append_new().commits == 1
        counts.append(len(native(orders).metadata.snapshots))
    # an hour is kept; then four and the tag's; each time a commit is forgotten together with what came before it
    assert counts == [2, 3, 4, 5, 5, 5, 5, 5, 5]
    assert rows_in(table) == expected(tmp_path / "store")
    assert orders.verify().is_sound
    assert table.orphans(datetime.now(UTC) + timedelta(hours=1)) == []
    assert "old versions" not in caplog.text
    orders.table.evolve(table.schema, {module.KEEP: "many"})
    put(tmp_path / "store", 20, 200)
    assert orders.append_new().rows == 10  # what cannot be read is no reason to stop
    assert "old versions stay for now" in caplog.text


def test_a_commit_copies_all_snapshots_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg copies all metadata when it is asked for with updates: else a commit takes longer with each version."""
    orders, copies = filled(tmp_path, 1), []
    made = pyiceberg.table.update_table_metadata

    def counted(*given: Any, **named: Any) -> Any:
        copies.append(given)
        return made(*given, **named)

    monkeypatch.setattr(pyiceberg.table, "update_table_metadata", counted)
    put(tmp_path / "store", 20, 20)
    assert orders.append_new().commits == 1
    assert copies == []
    put(tmp_path / "store", 20, 40)
    orders.append_new()
    assert orders.table.compact(1 << 20) == (3, 1)
    assert copies == []


def test_a_run_in_the_middle_of_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = filled(tmp_path)
    put(tmp_path / "store", 20, 60)
    rewritten = module.rewritten

    def appending(*given: Any) -> Any:
        assert open_topic(tmp_path, tmp_path / "store", "iceberg").append_new().rows == 10
        return rewritten(*given)

    monkeypatch.setattr(module, "rewritten", appending)
    assert orders.table.compact(1 << 20) == (3, 2)
    assert rows_in(orders.table) == expected(tmp_path / "store")
    assert orders.append_new().rows == 0 and orders.verify().is_sound


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="catalog nothing cannot be opened"):
        open_catalog("nothing", {"type": "no such kind"})
    filled(tmp_path, 1)
    put(tmp_path / "other", 4)
    with pytest.raises(TableError, match="is that of topic Orders"):
        TopicTable.open(lake_of(tmp_path, "iceberg"), topic_of(tmp_path / "other", "Other", table="Orders"))


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
    check(tmp_path, "iceberg")


def test_a_namespace_that_another_process_makes_meanwhile(tmp_path: Path) -> None:
    """SQL catalogs report it in their own words; a namespace that is not there afterwards is an error all the same."""
    catalog: Any = open_catalog(
        "t", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    )
    make = catalog.create_namespace_if_not_exists

    def fails(_name: str) -> None:
        raise RuntimeError("UNIQUE constraint failed")

    def fails_afterwards(name: str) -> None:
        make(name)
        fails(name)

    schema = pa.schema([pa.field("storeTimestamp", pa.timestamp("us", "UTC"))])
    catalog.create_namespace_if_not_exists = fails
    with pytest.raises(TableError, match="UNIQUE constraint"):
        module.IcebergTable.create(catalog, "n.t", schema, {}, day="")
    catalog.create_namespace_if_not_exists = fails_afterwards
    assert module.IcebergTable.create(catalog, "n.t", schema, {}, day="").name == "n.t"


def test_a_compaction_with_nothing_to_do_commits_nothing(tmp_path: Path) -> None:
    """Neither of one small file, nor of a table that no run has filled: its rows have no position to keep."""
    orders = filled(tmp_path, 1)
    version = orders.table.head().version
    assert orders.table.compact(1 << 20) == (1, 1) and orders.table.head().version == version
    empty = TopicTable.open(
        lake_of(tmp_path, "iceberg"), topic_of(tmp_path / "store", "Other", partition="none")
    )
    rows = native(orders).scan().to_arrow().cast(orders.table.schema)
    for _ in range(2):
        native(empty).append(rows)
    version = empty.table.head().version
    assert empty.table.head().state is None
    assert empty.table.compact(1 << 20) == (2, 2) and empty.table.head().version == version


def test_the_innermost_error_is_told() -> None:
    inner = ConnectionRefusedError("nobody is there")
    wrapped = ValueError(RuntimeError("pool", "more"), inner)
    assert str(module.root_cause(wrapped)) == "('pool', 'more')"
    told = ValueError("the reason", inner)
    assert module.root_cause(told) is told, "only what comes first is what it was raised for"
    for name in ("orig", "reason"):
        error = RuntimeError("outer")
        setattr(error, name, ValueError(inner))
        assert module.root_cause(error) is inner
    assert module.root_cause(inner) is inner


def test_a_table_that_does_not_say_what_is_kept_keeps_all(tmp_path: Path) -> None:
    """One that another tool has made, or that somebody told so."""
    for name in (module.KEEP, module.KEEP_MS):
        put(tmp_path / name, 10)
        orders = open_topic(tmp_path / name, tmp_path / name, "iceberg")
        orders.append_new()
        native = orders.table._native  # type: ignore[attr-defined]
        with native.transaction() as transaction:
            transaction.remove_properties(name)
        orders.table.head()
        orders.table.tidy()
        assert rows_in(orders.table) == expected(tmp_path / name)


def test_a_row_group_without_bounds_leaves_the_file_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow notes no bounds of texts beyond 4 KB: those of the other row groups would hide the row."""
    monkeypatch.setattr("mqlake.lake.tables.files.GROUP_ROWS", 1)
    with open_store(tmp_path / "store", {**SETTINGS}) as store:
        for keys in ("a", "z" * 5000):
            assert store.put_message(MessageExtBrokerInner("Orders", b"", keys=keys)).is_ok
    orders = open_topic(tmp_path, tmp_path / "store", "iceberg")
    orders.append_new()
    found = native(orders).scan(row_filter=EqualTo("keys", "z" * 5000)).to_arrow()
    assert found.num_rows == 1


@pytest.mark.parametrize("change", ["renamed", "gone and made again"])
def test_columns_that_other_engines_changed(tmp_path: Path, change: str) -> None:
    """A file of before has the column by another name, or another one by the same: by names its rows are others."""
    put(tmp_path / "store", 20)
    orders = open_topic(tmp_path, tmp_path / "store", "iceberg", partition="none")
    orders.append_new()
    native = orders.table._native
    rows = native.refresh().scan().to_arrow()
    with native.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("tags", "labels") if change == "renamed" else update.delete_column("tags")
    if change == "renamed":
        rows = rows.rename_columns({"tags": "labels"})
    else:
        with native.update_schema() as update:
            update.add_column("tags", StringType())
    native.append(rows)
    table = orders.table
    version = table.head().version
    assert table.paths(version) is None
    found = pa.Table.from_batches(table.scan(version, None, None))
    assert found.num_rows == 20 and found.select(table.schema.names).to_pylist() == found.to_pylist()
    expected = native.refresh().scan().to_arrow().select(table.schema.names).cast(table.schema)
    assert found.sort_by("physicalOffset").to_pylist() == expected.sort_by("physicalOffset").to_pylist()
    with pytest.raises(TableError, match="columns that were renamed: compact it with that engine"):
        table.compact(1 << 30)


def test_a_column_with_a_default_that_files_lack(tmp_path: Path) -> None:
    put(tmp_path / "store", 2)
    orders = open_topic(tmp_path, tmp_path / "store", "iceberg")
    orders.append_new()
    native, version = orders.table._native, orders.table.head().version
    assert orders.table.paths(version)
    with_default = NestedField(1000, "country", StringType(), initial_default="nl")
    schema = Schema(*native.schema().fields, with_default, schema_id=1)
    metadata = native.metadata
    native.metadata = metadata.model_copy(update={"schemas": [*metadata.schemas, schema]})
    assert orders.table.paths(version) is None
