"""verify finds what is missing, twice or different in a table, and nothing in a sound one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mqlake.cli.main import cli
from mqlake.lake.tables import verify
from mqlake.lake.tables.verify import Runs
from tests.lake.tables.lakes import FORMATS, open_topic, put, rows_in, save
from tests.spark.stores import log_files

TABLE = Path("lake", "mqlake", "Orders")


def filled(tmp_path: Path, format: str) -> Any:
    put(tmp_path / "store", 120)
    orders = open_topic(tmp_path, tmp_path / "store", format)
    orders.append_new()
    return orders


@pytest.mark.parametrize("format", FORMATS)
def test_a_sound_table(tmp_path: Path, format: str) -> None:
    orders = filled(tmp_path, format)
    found = orders.verify()
    assert found.is_sound and (found.rows, found.compared) == (60, 60)
    assert [(each.queue, each.first, each.last, each.rows) for each in found.queues] == [
        (f"broker-a:{number}", 0, 19, 20) for number in range(3)
    ]
    put(tmp_path / "store", 10, 120)
    assert orders.verify(sample=0).is_sound  # that it lacks what came since is no fault


def test_a_table_without_rows_is_sound_and_nothing_was_compared(tmp_path: Path) -> None:
    put(tmp_path / "store", 2)
    found = open_topic(tmp_path, tmp_path / "store", "delta").verify()
    assert (found.rows, found.compared, found.deleted, found.queues) == (0, 0, 0, [])
    assert found.verdict == "each message once"


def test_what_another_hand_did_is_found(tmp_path: Path) -> None:
    orders = filled(tmp_path, "delta")
    native = deltalake.DeltaTable(tmp_path / TABLE)
    native.delete("queueId = 0 and queueOffset in (4, 5, 19)")
    once = native.to_pyarrow_table(filters=[("queueId", "=", 1), ("queueOffset", "=", 7)])
    deltalake.write_deltalake(native, once, mode="append")
    native.update({"tags": "'x'"}, predicate="queueId = 2 and queueOffset = 3")
    found = orders.verify(sample=1000)
    assert found.findings == [
        "queue broker-a:0: offsets 4 to 5 are missing",
        "queue broker-a:0: the rows end at 18, its position says 20",
        "queue broker-a:1: offset 7 is there twice",
        "queue broker-a:2, offset 3: not as in the log: tags",
    ]
    assert [(each.missing, each.repeated) for each in found.queues] == [(2, 0), (0, 1), (0, 0)]


def forged(tmp_path: Path, orders: Any, name: str, value: Any) -> None:
    """All rows of the table with another value in a column; its position stays."""
    native = deltalake.DeltaTable(tmp_path / TABLE)
    state = orders.table.head().state
    rows = native.to_pyarrow_table()
    column = rows.schema.get_field_index(name)
    rows = rows.set_column(column, rows.field(column), value(rows[name]))
    kept = deltalake.CommitProperties(custom_metadata=state.to_properties())
    deltalake.write_deltalake(native, rows, mode="overwrite", partition_by=["date"], commit_properties=kept)


@pytest.mark.parametrize("name", ["physicalOffset", "body"])
def test_rows_that_are_in_no_log_are_findings(tmp_path: Path, name: str) -> None:
    """Where a message must be and none is, nothing is `deleted by now`."""
    orders = filled(tmp_path, "delta")

    def other(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.add(column, 1) if name != "body" else pc.binary_join_element_wise(column, b"x", b"")

    forged(tmp_path, orders, name, other)
    found = orders.verify(sample=20)
    assert (found.rows, found.compared, found.deleted) == (60, 0 if name != "body" else 20, 0)
    said = {
        "body": "not as in the log: body",
        "physicalOffset": "the log has no such message at physical offset",
    }[name]
    assert len(found.findings) == 20 and all(said in line for line in found.findings)
    assert found.verdict == "NOT SOUND"


def test_moved_queue_offsets_are_found(tmp_path: Path) -> None:
    """Dense as ever: only the log itself says that they are not its own."""
    orders = filled(tmp_path, "delta")
    state = orders.table.head().state
    moved = replace(state, queues={name: following + 1 for name, following in state.queues.items()})
    orders.table.commit([], moved, orders.table.head())
    forged(tmp_path, orders, "queueOffset", lambda column: pc.add(column, 1))
    findings = orders.verify().findings
    assert any("the log has no such message" in line for line in findings)
    assert "queue broker-a:0: the table has 21 messages, the log ends at 20" in findings


def test_what_cannot_be_compared_is_counted_and_proves_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 200)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    put(store, 200, 200, ("Other",))
    first, *others = log_files(store)
    first.unlink()
    found = orders.verify(sample=1000)
    assert (found.findings, found.verdict) == ([], "each message once")
    assert found.deleted > 0 and found.compared > 0 and found.compared + found.deleted == found.rows == 100
    end = max(row["physicalOffset"] for row in rows_in(orders.table))
    for file in others:
        if int(file.name) <= end:
            file.unlink()
    found = orders.verify()
    assert (found.findings, found.compared, found.deleted) == ([], 0, 100)
    assert found.verdict == "NOT COMPARED" and not found.is_sound
    assert orders.verify(sample=0).verdict == "each message once, counted only"
    file = save(tmp_path, store, "delta", "Orders")
    ended = CliRunner().invoke(cli, ["lake", "verify", str(file), "--json"])
    [told] = json.loads(ended.stdout)
    assert (ended.exit_code, told["sound"], told["compared"], told["deleted"]) == (1, False, 0, 100)
    ended = CliRunner().invoke(cli, ["lake", "verify", str(file)])
    assert ended.exit_code == 1 and "NOT COMPARED" in ended.stdout and "--sample 0" in ended.stderr


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=6))
def test_runs_against_counting(batches: list[list[int]]) -> None:
    runs = Runs()
    for offsets in batches:
        size = len(offsets)
        columns = [pa.array(["a"] * size), pa.array([1] * size, pa.int32()), pa.array(offsets, pa.int64())]
        runs.add(pa.RecordBatch.from_arrays(columns, names=["brokerName", "queueId", "queueOffset"]))
    everything = [offset for offsets in batches for offset in offsets]
    if not everything:
        assert runs.queues() == set()
        return
    found, lines = runs.judge("a:1")
    counts = np.bincount(everything)
    inside = counts[min(everything) :]
    assert (found.first, found.last, found.rows) == (min(everything), max(everything), len(everything))
    assert found.missing == int((inside == 0).sum())
    assert found.repeated == int((inside - 1).clip(min=0).sum())
    assert bool(lines) == bool((inside != 1).any())


def test_a_log_that_is_not_the_tables_is_a_finding(tmp_path: Path) -> None:
    """Though it has as many messages in each queue."""
    orders = filled(tmp_path, "delta")
    shutil.rmtree(tmp_path / "store")
    put(tmp_path / "store", 1, 7, ("Another",))
    put(tmp_path / "store", 120)
    found = orders.verify(sample=0)
    assert [line for line in found.findings if "is not the log that the table was filled from" in line]


def test_no_more_findings_are_told_than_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "FINDINGS_MAX", 5)
    orders = filled(tmp_path, "delta")
    forged(tmp_path, orders, "body", lambda column: pc.binary_join_element_wise(column, b"x", b""))
    assert len(orders.verify(sample=20).findings) == 5


def test_runs_are_joined_where_one_follows_the_other() -> None:
    runs = [(9, 12), (0, 2), (4, 5), (5, 6), (6, 8), (11, 13)]
    assert verify._joined(runs) == [(0, 2), (4, 8), (9, 12), (11, 13)], "what overlaps is there twice"
