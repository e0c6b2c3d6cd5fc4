"""Every message once in the table: runs killed at named points, at the same time, and with answers that get lost."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import OffsetOutOfRangeError, TableError
from mqlake.lake.tables import append_run, files
from mqlake.lake.tables.append_run import LocalEngine, Target, check_dense, write_pieces
from mqlake.lake.tables.files import QueueRange, Written
from mqlake.lake.tables.source import StoreSource
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import TopicTable, one_step, steps
from tests.lake.tables.conftest import Runs
from tests.lake.tables.lakes import (
    FORMATS,
    ORDERS,
    STORE,
    expected,
    lake_of,
    open_topic,
    put,
    rows_in,
    save,
    topic_of,
)
from tests.lake.tables.victim import points_of

CAMPAIGN = bool(os.environ.get("MQLAKE_CAMPAIGN"))


@pytest.mark.parametrize("format", FORMATS)
def test_killed_at_named_points(tmp_path: Path, runs: Runs, format: str) -> None:
    store = tmp_path / "store"
    put(store, 60)
    file = save(tmp_path, store, format, ORDERS, "Other")
    rng = random.Random(format)
    points = [(point, when) for point in points_of(format) for when in ("before", "after")]
    chosen = points * 4 if CAMPAIGN else rng.sample(points, 4)
    killed = 0
    for number, (point, when) in enumerate(chosen):
        put(store, rng.randrange(1, 40), 60 + 40 * number)
        case = {"file": str(file), "point": point, "when": when, "nth": rng.randrange(1, 4)}
        [ended] = runs(case)
        assert ended["status"] in (0, -9), (case, ended)
        killed += ended["status"] == -9
        if CAMPAIGN:
            for topic in (ORDERS, "Other"):
                found = rows_in(open_topic(tmp_path, store, format, topic).table)
                assert found == expected(store, topic)[: len(found)], case
    assert killed >= len(chosen) // 2
    [ended] = runs({"file": str(file)})
    assert ended == {"status": 0, "error": ""}
    for topic in (ORDERS, "Other"):
        assert rows_in(open_topic(tmp_path, store, format, topic).table) == expected(store, topic)


@pytest.mark.parametrize("format", FORMATS)
def test_runs_at_the_same_time(tmp_path: Path, runs: Runs, format: str) -> None:
    store = tmp_path / "store"
    put(store, 200)
    file = save(tmp_path, store, format, ORDERS)
    for number in range(6 if CAMPAIGN else 1):
        ended = runs(*[{"file": str(file), "step_bytes": 6000}] * 3)
        assert [each["status"] for each in ended] == [0, 0, 0], ended
        assert rows_in(open_topic(tmp_path, store, format).table) == expected(store)
        put(store, 100, 200 + 100 * number)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_a_commit_whose_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, lands: bool
) -> None:
    store = tmp_path / "store"
    put(store, 50)
    orders = open_topic(tmp_path, store, format)
    native: Any = orders.table._native  # type: ignore[attr-defined]
    name = "_do_commit" if format == "iceberg" else "create_write_transaction"
    commit = getattr(native, name)

    def timed_out(*given: Any, **named: Any) -> None:
        if lands:
            commit(*given, **named)
        raise TimeoutError("the catalog did not answer")

    monkeypatch.setattr(native, name, timed_out)
    if lands:
        assert orders.append_new().commits == 1
    else:
        with pytest.raises(TableError, match=r"not committed.*did not answer.*run again"):
            orders.append_new()
    again = open_topic(tmp_path, store, format)
    assert again.append_new().rows == (0 if lands else len(expected(store)))
    assert rows_in(again.table) == expected(store)


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_that_cannot_be_read_after_a_commit_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    store = tmp_path / "store"
    put(store, 50)
    orders = open_topic(tmp_path, store, format)
    native: Any = orders.table._native  # type: ignore[attr-defined]
    commit, look = (
        ("_do_commit", "refresh")
        if format == "iceberg"
        else ("create_write_transaction", "update_incremental")
    )
    landing = getattr(native, commit)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the catalog is away")

    def lands_and_is_away(*given: Any, **named: Any) -> None:
        landing(*given, **named)
        monkeypatch.setattr(native, look, away)
        away()

    monkeypatch.setattr(native, commit, lands_and_is_away)
    with pytest.raises(TableError, match=r"outcome of a commit is unknown.*is away.*run again"):
        orders.append_new()
    again = open_topic(tmp_path, store, format)
    assert again.append_new().rows == 0
    assert rows_in(again.table) == expected(store)  # no file of it was deleted


@pytest.mark.parametrize("format", FORMATS)
def test_a_compaction_in_between_is_no_conflict_for_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    store = tmp_path / "store"
    put(store, 40)
    orders = open_topic(tmp_path, store, format)
    orders.append_new()
    put(store, 40, 40)
    orders.append_new()
    put(store, 40, 80)
    other = open_topic(tmp_path, store, format)

    def compacting(*given: Any, **named: Any) -> Any:
        assert other.table.compact(1 << 20)[1] == 1
        return write_pieces(*given, **named)

    monkeypatch.setattr("mqlake.lake.tables.append_run.write_pieces", compacting)
    report = orders.append_new()
    assert (report.commits, report.conflicts) == (1, 1)
    assert rows_in(orders.table) == expected(store)
    assert orders.append_new().rows == 0


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    store = tmp_path / "store"
    put(store, 50)
    orders = open_topic(tmp_path, store, format)
    close = "mqlake.lake.tables.files._OpenFile.close"

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(close, full)
        orders.append_new()
    assert not list((tmp_path / "lake").rglob("*.parquet"))
    assert orders.table.head().state is None
    orders.append_new()
    assert rows_in(orders.table) == expected(store)


def test_gaps_and_repeats_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "store", 2)
    orders = TopicTable.open(lake_of(tmp_path, "delta"), topic_of(tmp_path / "store"))
    target = Target(ORDERS, orders.table, orders.target.rows)
    assert not target.latest, "a table has all messages unless somebody says otherwise"
    state = TableState(queues={"a:0": 10})

    def check(first: int, last: int, count: int, *, strict: bool = True) -> None:
        written = Written(queues={"a:0": QueueRange(first, last, count)})
        check_dense(target, state, written, {}, fail_on_data_loss=strict)

    check(10, 19, 10)
    for gap in [(12, 19, 8), (10, 19, 9)]:
        with pytest.raises(OffsetOutOfRangeError, match=r"queue a:0 .*lacks"):
            check(*gap)
        check(*gap, strict=False)
    with pytest.raises(TableError, match="deleted and made again"):
        check(0, 4, 5, strict=False)


@pytest.mark.parametrize("format", FORMATS)
def test_many_small_topics_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """The source is asked once for all of them, and their files are open one after the other."""
    topics = [f"Small{number}" for number in range(6)]
    put(tmp_path / "store", 90, topics=tuple(topics))
    asked, opened = [], []
    monkeypatch.setattr(StoreSource, "check", lambda self, given: asked.append(given))
    made = files.pq.ParquetWriter

    def counted(sink: Any, *given: Any, **named: Any) -> Any:
        opened.append([each for each in opened_sinks if not each.closed])
        opened_sinks.append(sink)
        return made(sink, *given, **named)

    opened_sinks: list[Any] = []
    monkeypatch.setattr(files.pq, "ParquetWriter", counted)
    wanted = [topic_of(tmp_path / "store", topic) for topic in topics]
    tables = TopicTable.open_all(lake_of(tmp_path, format), wanted)
    assert [table.topic.topic for table in tables] == topics and asked == [topics]
    assert [each.is_done for each in steps(tables, LocalEngine())] == [True]
    assert opened == [[]] * len(topics)
    for table in tables:
        assert rows_in(table.table) == expected(tmp_path / "store", table.topic.topic)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000)), max_size=12),
    st.sampled_from([100, 64 << 20]),
)
def test_gathering_keeps_the_rows_of_each_topic_in_their_order(
    sizes: list[tuple[str, int]], most: int
) -> None:
    batches, first = [], 0
    for topic, size in sizes:
        batches.append((topic, pa.record_batch({"n": np.arange(first, first + size)})))
        first += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_run, "GATHERED_BYTES", most)
        found = list(append_run.gathered(batches))
    for topic in "abc":
        rows, expected_rows = (
            [n for name, batch in each if name == topic for n in batch.column("n").to_pylist()]
            for each in (found, batches)
        )
        assert rows == expected_rows
    assert len(found) <= len(batches)
    if most > 100:
        for topic in "abc":
            sizes_of = [batch.num_rows for name, batch in found if name == topic]
            assert all(size >= append_run.GATHERED_ROWS for size in sizes_of[:-1]), (
                "what is small waits for more"
            )


@pytest.mark.parametrize("format", FORMATS)
def test_status_says_when_a_run_committed_last(tmp_path: Path, format: str) -> None:
    """Not when somebody else changed the table."""
    put(tmp_path / "store", 20)
    orders = open_topic(tmp_path, tmp_path / "store", format)
    assert orders.status().committed_at == 0
    orders.append_new()
    status, newest = orders.status(), orders.table.versions()[0]
    assert (status.committed_at, status.version) == (newest.at, newest.version)
    assert (status.rows, status.files, status.lag.messages) == (10, 1, 0)
    assert status.positions == {STORE: orders.source.log(STORE).end}  # type: ignore[attr-defined]


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_written_before_an_error_is_deleted(tmp_path: Path, format: str) -> None:
    """In the middle of the reading, when files are finished already."""
    put(tmp_path / "store", 80)
    orders = open_topic(tmp_path, tmp_path / "store", format)
    pieces = orders.source.plan({ORDERS: None}, 1 << 20).pieces

    class Broken:
        bytes, name = 10, STORE

        def read(self, columns: Any) -> Any:
            assert list((tmp_path / "lake").rglob("*.parquet")), "there is something to delete"
            raise OSError(5, "Input/output error")

    target = append_run.WriteTarget(
        orders.target.rows, orders.table.write_spec(1, orders.target.rows.schema.names), False
    )
    with pytest.raises(OSError, match="Input/output error"):
        write_pieces([*pieces, Broken()], {ORDERS: target})
    assert not list((tmp_path / "lake").rglob("*.parquet"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_another_one_came_before_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """It has committed nothing, leaves no file, and has to look again."""
    put(tmp_path / "store", 40)
    orders, other = (open_topic(tmp_path, tmp_path / "store", format) for _ in range(2))
    commit = orders.table.commit

    def too_late(*given: Any) -> None:
        monkeypatch.setattr(orders.table, "commit", commit)
        assert other.append_new().rows == 20
        commit(*given)

    monkeypatch.setattr(orders.table, "commit", too_late)
    first = one_step([orders], LocalEngine())
    [made] = first.tables
    assert (made.commits, made.conflicts, made.rows, first.is_done) == (0, 1, 0, False)
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
    again = one_step([orders], LocalEngine())
    assert again.is_done and again.tables == [] and again.bytes == 0
    assert rows_in(orders.table) == expected(tmp_path / "store")
