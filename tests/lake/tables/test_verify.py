"""verify finds what is missing, twice or different in a table, and nothing in a sound one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.lake.tables.verify import Runs
from tests.lake.tables.lakes import FORMATS, open_topic, put

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
