"""What a step reads: a log that was cut, deleted at its beginning, exchanged; several stores and topics in one pass."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import ConfigError, NotAStoreError, OffsetOutOfRangeError, TableError
from mqlake.formats.batch import encode_messages
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.tables import source as module
from mqlake.lake.tables.append_run import LocalEngine
from mqlake.lake.tables.source import StoreSource, by_topic
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import RunOptions, TopicTable, one_step, steps
from mqlake.message import PROPERTY_INNER_NUM, Message, MessageExtBrokerInner, MessageSysFlag
from mqlake.store import DefaultMessageStore, MessageStoreConfig
from tests.lake.tables.lakes import ORDERS, STORE, expected, lake_of, open_topic, put, rows_in, topic_of
from tests.spark.stores import SETTINGS, log_files


def without_first_file(store: Path) -> None:
    log_files(store)[0].unlink()


def test_pieces_have_each_message_once_however_small_a_step_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 300)
    source = StoreSource({STORE: str(store)})
    states: dict[str, TableState | None] = {ORDERS: None, "Other": None}
    found: dict[str, list[int]] = {ORDERS: [], "Other": []}
    passes = 0
    while (plan := source.plan(states, 3000)).pieces:
        passes += 1
        for piece in plan.pieces:
            for topic, batch in piece.read(["topic", "physicalOffset"]):
                found[topic] += batch.column("physicalOffset").to_pylist()
        states = {topic: TableState(marks) for topic, marks in plan.reached.items()}
    assert passes > 5
    for topic in found:
        assert found[topic] == [row["physicalOffset"] for row in expected(store, topic)]


@given(st.lists(st.sampled_from(["a", "b", "c", "other", None]), max_size=40))
def test_rows_of_a_batch_by_topic(topics: list[str | None]) -> None:
    batch = pa.record_batch(
        {"topic": pa.array(topics, pa.string()), "n": pa.array(range(len(topics)), pa.int64())}
    )
    found = {
        topic: rows.column("n").to_pylist()
        for topic, rows in by_topic(batch, {"a": 1, "b": 2, "c": 3, "d": 4})
    }
    assert found == {
        topic: [n for n, each in enumerate(topics) if each == topic] for topic in {*topics} & {"a", "b", "c"}
    }


def test_a_topic_that_is_ahead_passes_over_what_it_has(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 100)
    orders = open_topic(tmp_path, store, "delta")
    assert orders.append_new().rows == 50
    put(store, 100, 100)
    both = [orders, open_topic(tmp_path, store, "delta", "Other")]
    reports = [each for step in steps(both, LocalEngine()) for each in step.tables]
    assert sorted((each.topic, each.rows) for each in reports) == [(ORDERS, 50), ("Other", 100)]
    for each in both:
        assert rows_in(each.table) == expected(store, each.topic.topic)


def test_deleted_log(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 200)
    before = expected(store)
    orders = open_topic(tmp_path, store, "delta", bytes_max=5000)
    one_step([orders], LocalEngine())
    some = rows_in(orders.table)
    assert 0 < len(some) < len(before) and some == before[: len(some)]
    without_first_file(store)
    with pytest.raises(OffsetOutOfRangeError, match=rf"begins at 16384.*deleted.*queue {STORE}:0 \d+ to \d+"):
        orders.append_new()
    again = TopicTable.open(lake_of(tmp_path, "delta"), topic_of(store), RunOptions(fail_on_data_loss=False))
    again.append_new()
    left = [row for row in before if row["physicalOffset"] >= 16384]
    assert rows_in(again.table) == sorted([*some, *left], key=lambda row: row["physicalOffset"])


def test_deleted_log_of_other_topics_is_no_loss(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 10)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    put(store, 200, 10, ("Other",))
    without_first_file(store)
    assert orders.append_new().rows == 0
    put(store, 10, 300)
    assert orders.append_new().rows == 5
    state = orders.table.head().state
    assert state is not None and orders.source.lag(ORDERS, state).messages == 0


def test_another_log_at_the_same_place(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 50)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    shutil.rmtree(store)
    put(store, 10)
    with pytest.raises(TableError, match=r"is not the log.*it ends at \d+, the table has it up to"):
        orders.append_new()
    put(store, 60, 10, ("Other",))
    with pytest.raises(TableError, match="other bytes lie before offset"):
        orders.append_new()
    state, log = orders.table.head().state, orders.source.log(STORE)  # type: ignore[attr-defined]
    assert state is not None
    at_the_end = replace(state, stores={STORE: Mark(log.end, 1)})
    with pytest.raises(TableError, match=f"other bytes lie before offset {log.end};"):
        orders.source.tail(ORDERS, at_the_end)


def test_a_step_is_the_last_when_all_stores_are_at_their_ends(tmp_path: Path) -> None:
    stores = {"a": tmp_path / "a", "b": tmp_path / "b"}
    put(stores["a"], 4)
    put(stores["b"], 200)
    for order in (("a", "b"), ("b", "a")):
        source = StoreSource({name: str(stores[name]) for name in order})
        plan = source.plan({ORDERS: None}, 3000)
        assert not plan.is_last and plan.is_due == {ORDERS}
        assert source.plan({ORDERS: None}, 1 << 20).is_last


def test_a_queue_without_units_has_no_bounds(tmp_path: Path) -> None:
    """As a writer leaves it that died after it had made the file."""
    store = tmp_path / "store"
    put(store, 40)
    source = StoreSource({STORE: str(store)})
    before = source.bounds(ORDERS)
    assert before == {f"{STORE}:{n}": (0, 7 if n < 2 else 6) for n in range(3)}
    begun = store / "consumequeue" / ORDERS / "7"
    begun.mkdir()
    (begun / f"{0:020}").write_bytes(bytes(2000))
    assert source.bounds(ORDERS) == before
    with pytest.raises(NotAStoreError, match="no such directory"):
        StoreSource({STORE: str(tmp_path / "none")}).check([ORDERS])


def test_names_of_stores(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 10)
    open_topic(tmp_path, store, "delta").append_new()
    renamed = TopicTable.open(lake_of(tmp_path, "delta"), topic_of(store))
    moved = StoreSource({"b": str(store)})
    with pytest.raises(TableError, match=f"messages of the store '{STORE}'.*and 'b' is new"):
        moved.plan({ORDERS: renamed.table.head().state}, 1 << 20)
    with pytest.raises(ConfigError, match="cannot be the name"):
        StoreSource({"a:b": str(store)})
    with pytest.raises(ConfigError, match=r"there is no topic 'Order'.*did you mean 'Orders'"):
        moved.check(["Order"])


def test_lag(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 40)
    orders = open_topic(tmp_path, store, "delta")
    behind = orders.source.lag(ORDERS, None)
    assert behind.messages == 20 and behind.bytes == behind.kept
    orders.append_new()
    state = orders.table.head().state
    assert orders.source.lag(ORDERS, state).messages == orders.source.lag(ORDERS, state).bytes == 0
    put(store, 8, 40)
    behind = orders.source.lag(ORDERS, state)
    assert behind.messages == 4 and 0 < behind.bytes < 2000 and behind.seconds >= 0
    assert state is not None and state.stores[STORE] != Mark(0)


def test_a_quiet_table_is_moved_on_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is far behind the log's end without lacking anything, or the log begins after its position: else each
    step would read the same again, or find the position deleted."""
    store = tmp_path / "store"
    put(store, 10)
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    put(store, 200, 10, ("Other",))
    state, source = orders.table.head().state, orders.source
    assert state is not None and isinstance(source, StoreSource)
    behind = source.log(STORE).end - state.stores[STORE].offset
    for quiet, due in ((behind + 1, set()), (behind, {ORDERS})):
        monkeypatch.setattr(module, "QUIET_BYTES", quiet)
        assert source.plan({ORDERS: state}, 1 << 20).is_due == due
        assert source.plan({ORDERS: None}, 1 << 20).is_due == set(), "it has nothing to move"
    monkeypatch.setattr(module, "QUIET_BYTES", 1 << 30)
    without_first_file(store)
    assert source.plan({ORDERS: state}, 1 << 20).is_due == {ORDERS}


def test_without_a_word_messages_that_are_gone_are_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    put(store, 200)
    source = StoreSource({STORE: str(store)})
    state = TableState({STORE: Mark.at(source.log(STORE).storage, source.log(STORE).files, 0)})
    without_first_file(store)
    with pytest.raises(OffsetOutOfRangeError, match="deleted before the table had them"):
        source.plan({ORDERS: state}, 1 << 20)
    assert StoreSource({STORE: str(store)}, fail_on_data_loss=False).plan({ORDERS: state}, 1 << 20).pieces


def test_a_queue_of_inner_batches_ends_after_the_last_ones_messages(tmp_path: Path) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig.from_mapping({**SETTINGS, "storePathRootDir": str(root)})
    with DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Inner") as store:
        store.load()
        store.start()
        for size in (2, 5, 3):
            items = encode_messages([Message("", b"%d" % n) for n in range(size)])
            batch = MessageExtBrokerInner("Inner", items, properties={PROPERTY_INNER_NUM: str(size)})
            batch.sys_flag = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
            assert store.put_message(batch).is_ok
    assert StoreSource({STORE: str(root)}).bounds("Inner") == {f"{STORE}:0": (0, 10)}
