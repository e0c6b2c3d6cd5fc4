"""What a table promises whatever its format: Iceberg's and Delta's tests ask the same."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import TableConflictError
from mqlake.lake.arrow.arrays import batch_of
from mqlake.lake.dataset import scan
from mqlake.lake.tables.files import TableWriter
from mqlake.lake.tables.table import TableFiles
from mqlake.store import open_store
from tests.lake.tables.lakes import ORDERS, as_rows, expected, open_topic, put, rows_in
from tests.spark.stores import EPOCH, SETTINGS, extremes


def check_an_empty_table(tmp_path: Path, format: str) -> None:
    put(tmp_path / "store", 2)
    table = open_topic(tmp_path, tmp_path / "store", format).table
    assert table.head().state is None
    assert table.files(None) == TableFiles(0, 0, 0) == table.files(table.head().version)
    assert table.paths(None) == [] and table.state_of(None) is None
    assert list(table.scan(None, None, None)) == [] and rows_in(table) == []
    assert all(each.state is None and not each.rows for each in table.versions())
    assert table.version_at(datetime.now(UTC) - timedelta(days=1)) is None


def check_versions(tmp_path: Path, format: str) -> None:
    """Each with its own state, rows, files and moment, newest first."""
    orders, store = None, tmp_path / "store"
    for number in range(3):
        put(store, 20, 20 * number)
        orders = orders or open_topic(tmp_path, store, format)
        assert orders.append_new().rows == 10
    assert orders is not None
    table, rows = orders.table, expected(store)
    found = [each for each in table.versions() if each.state is not None]
    assert [each.rows for each in found] == [10, 10, 10]
    assert found[0].version == table.head().version and found[0].state == table.head().state
    assert [each.at for each in found] == sorted((each.at for each in found), reverse=True)
    for number, each in enumerate(reversed(found), 1):
        assert table.state_of(each.version) == each.state
        batches = table.scan(each.version, None, None)
        assert as_rows(pa.Table.from_batches(batches, table.schema)) == rows[: 10 * number]
        paths, files = table.paths(each.version), table.files(each.version)
        assert paths is not None and len(paths) == number
        sizes = sum(os.path.getsize(path.removeprefix("file://")) for path in paths)
        assert files == TableFiles(number, sizes, 10 * number)
        assert table.version_at(datetime.fromtimestamp(each.at / 1000, UTC)) in {
            other.version for other in found if other.at == each.at
        }
    first = datetime.fromtimestamp(found[-1].at / 1000, UTC)
    assert table.version_at(first - timedelta(milliseconds=1)) not in {each.version for each in found}
    some = pc.field("queueOffset") >= 8
    offsets = [
        row for batch in table.scan(found[0].version, ["queueOffset"], some) for row in batch.to_pylist()
    ]
    assert sorted(row["queueOffset"] for row in offsets) == sorted(
        row["queueOffset"] for row in rows if row["queueOffset"] >= 8
    )
    table.rewind(found[2].version)
    assert rows_in(table) == rows[:10] and table.head().state == found[2].state


def check_commits(tmp_path: Path, format: str) -> None:
    """Files that are replaced take their rows with them, and a table that has moved is left as it is."""
    orders, store = None, tmp_path / "store"
    for number in range(2):
        put(store, 20, 20 * number)
        orders = orders or open_topic(tmp_path, store, format)
        orders.append_new()
    assert orders is not None
    table, before = orders.table, orders.table.head()
    later = open_topic(tmp_path, store, format)
    assert before.state is not None
    state = replace(before.state, commit_id="ab" * 16, rows=0)
    paths = table.paths(before.version)
    assert paths is not None
    gone = pa.Table.from_batches(table.scan(before.version, None, None))
    table.commit([], state, before, paths[:1])
    assert len(rows_in(table)) == gone.num_rows - 10 and table.head().state == state
    assert table.paths(table.head().version) == paths[1:]
    with pytest.raises(TableConflictError):
        later.table.commit([], replace(state, commit_id="cd" * 16), before, paths[1:])
    assert len(rows_in(table)) == 10 and rows_in(later.table) == rows_in(table)


def check_columns_of_two_writers(tmp_path: Path, format: str) -> None:
    """The second one has not seen the first one's change, and takes nothing back."""
    put(tmp_path / "store", 20)
    one, other = (open_topic(tmp_path, tmp_path / "store", format).table for _ in range(2))
    for table, name in ((one, "a"), (other, "b")):
        grown: Any = table.schema.append(pa.field(name, pa.string()))
        table.evolve(grown, {f"property-{name}": name})
    one.head()
    assert {"a", "b"} <= set(open_topic(tmp_path, tmp_path / "store", format).table.schema.names)
    assert {"property-a", "property-b"} <= set(one.properties)


def check_what_clients_set(tmp_path: Path, format: str) -> None:
    """No value that a client may choose stops a table, or is another one in it."""
    store, orders = tmp_path / "store", None
    for _ in range(2):  # the second run begins with what the first one noted
        with open_store(store, {**SETTINGS, "mappedFileSizeCommitLog": 1 << 20}) as opened:
            for message in extremes(ORDERS):
                result = opened.put_message(message)
                assert result.is_ok, (message, result.reason)
        orders = orders or open_topic(tmp_path, store, format)
        assert orders.append_new().rows > 40
    assert orders is not None
    found, wanted = rows_in(orders.table), expected(store)
    for row in wanted:  # Arrow has no properties without a value
        row["properties"] = {name: value for name, value in row["properties"].items() if name and value}
        row.update({name: row[name] or None for name in ("uniqKey", "tags", "keys")})
    assert found == wanted
    assert orders.verify().is_sound
    for command in (["store", "verify", str(store)], ["store", "dump", str(store)]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
    log = scan(store, ORDERS).to_table()
    assert log.select(["bornTimestamp"]).to_pylist() == [
        {"bornTimestamp": row["bornTimestamp"]} for row in found
    ]


def check_years_that_words_do_not_reach(tmp_path: Path, format: str) -> None:
    """A stream of one's own may hold any time: the file's statistics have no words for it, the commit goes through."""
    put(tmp_path / "store", 2)
    orders = open_topic(tmp_path, tmp_path / "store", format)
    orders.append_new()
    table, at = orders.table, pa.timestamp("us", tz="UTC")
    table.evolve(table.schema.append(pa.field("at", at)), {})
    head, writer = table.head(), TableWriter(table.write_spec(1 << 20))
    row = {"brokerName": "b", "queueId": 0, "queueOffset": 0, "physicalOffset": 0, "storeTimestamp": EPOCH}
    batch = batch_of([row, row], table.schema)
    times = pa.array([-(2**62), 2**62]).view(at)
    writer.write(batch.set_column(batch.num_columns - 1, "at", times))
    assert head.state is not None
    table.commit(writer.close().files, replace(head.state, commit_id="ab" * 16), head)
    found = pa.Table.from_batches(table.scan(table.head().version, ["at"], None))
    assert sorted(found["at"].drop_null().cast(pa.int64()).to_pylist()) == [-(2**62), 2**62]
