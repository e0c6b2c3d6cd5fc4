"""A topic's table: whose it is and what it was made with, runs over several tables, status, verify and rewind."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from mqlake.base.progress import Progress
from mqlake.errors import ConfigError, NotAStoreError, TableError, UnknownKeyError
from mqlake.lake import topic_table
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.tables import topic as module
from mqlake.lake.tables.append_run import LocalEngine, TableReport, WriteTarget
from mqlake.lake.tables.broker_source import BrokerSource
from mqlake.lake.tables.config import Lake, Topic
from mqlake.lake.tables.files import Written
from mqlake.lake.tables.latest import STEP_BYTES as LATEST_STEP_BYTES
from mqlake.lake.tables.source import Lag, Piece, StoreSource
from mqlake.lake.tables.table import COLUMNS, DECODER, LATEST, TOPIC
from mqlake.lake.tables.topic import (
    RunOptions,
    TableStatus,
    TopicTable,
    add_report,
    groups_of,
    one_step,
    open_table,
    source_of,
    steps,
)
from tests.lake.tables.lakes import (
    ORDERS,
    STORE,
    as_rows,
    expected,
    lake_of,
    open_topic,
    put,
    rows_in,
    save,
    topic_of,
)
from tests.spark.stores import log_files
from tests.waiting import until

N = BodyFormat("json", "n int")
SOME = ("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "storeTimestamp", "keys", "body")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    put(tmp_path / "store", 40)
    return tmp_path / "store"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path, "delta")


def test_a_table_that_is_not_there_is_made_by_a_run_alone(lake: Lake, store: Path) -> None:
    with pytest.raises(
        TableError, match=r"no delta table mqlake.Orders in .*lake yet: mqlake lake run makes"
    ):
        open_table(lake, topic_of(store), create=False)
    with pytest.raises(TableError, match="mqlake lake run makes it"):
        TopicTable.open(lake, topic_of(store), create=False)
    assert not Path(lake.warehouse).exists()
    open_table(lake, topic_of(store, latest=True))
    with pytest.raises(TableError, match=r"makes it; there is one of latest rows: --table Orders_latest$"):
        open_table(lake, topic_of(store), create=False)
    made = open_table(lake, topic_of(store))
    assert open_table(lake, topic_of(store), create=False).location == made.location


@pytest.mark.parametrize(("partition", "parts"), [("day", ["date"]), ("none", [])])
def test_a_table_is_made_as_its_topic_says(lake: Lake, store: Path, partition: str, parts: list[str]) -> None:
    import deltalake

    table = open_table(lake, topic_of(store, partition=partition, columns=SOME, bodies=N.spec))
    assert {TOPIC: ORDERS, COLUMNS: ",".join(SOME)}.items() <= table.properties.items()
    assert table.properties[DECODER] == N.spec and LATEST not in table.properties
    assert deltalake.DeltaTable(table.location).metadata().partition_columns == parts
    latest = open_table(lake, topic_of(store, latest=True))
    assert latest.properties[LATEST] == "keys" and DECODER not in latest.properties


def test_a_table_keeps_the_columns_and_the_decoder_that_it_was_made_with(lake: Lake, store: Path) -> None:
    """Unless others are given: a topic without any says nothing of them."""
    made = TopicTable.open(lake, topic_of(store, columns=SOME, bodies=N.spec))
    assert (made.topic.columns, made.topic.bodies) == (SOME, N.spec)
    for create in (True, False):
        again = TopicTable.open(lake, topic_of(store), create=create)
        assert (again.topic.columns, again.topic.bodies) == (SOME, N.spec)
    inferred = replace(BodyFormat("json", "k long"), inferred=True)
    assert TopicTable.open(lake, topic_of(store, bodies=inferred.spec), create=False).topic.bodies == N.spec
    other = BodyFormat("json", "m int").spec
    assert TopicTable.open(lake, topic_of(store, bodies=other), create=False).topic.bodies == other
    with pytest.raises(TableError, match="no column 'tags'"):
        TopicTable.open(lake, topic_of(store, columns=(*SOME, "tags")))
    fewer = tuple(name for name in SOME if name != "keys")
    assert TopicTable.open(lake, topic_of(store, columns=fewer)).topic.columns == fewer


def test_a_table_without_a_decoder_keeps_its_bodies_raw(lake: Lake, store: Path) -> None:
    TopicTable.open(lake, topic_of(store))
    assert TopicTable.open(lake, topic_of(store)).topic.bodies == ""
    with pytest.raises(TableError, match="no column 'value': it was made with other columns"):
        TopicTable.open(lake, topic_of(store, bodies=N.spec), create=False)


def test_a_table_of_latest_rows_says_so_itself(lake: Lake, store: Path) -> None:
    TopicTable.open(lake, topic_of(store, latest=True, table="Here"))
    again = TopicTable.open(lake, topic_of(store, table="Here"))
    assert again.topic.latest and again.topic.table == "Here"
    assert TopicTable.open(lake, topic_of(store, latest=True, table="Here")).topic.latest
    TopicTable.open(lake, topic_of(store, table="All"))
    with pytest.raises(TableError, match="has all messages"):
        TopicTable.open(lake, topic_of(store, latest=True, table="All"))


def test_whose_table_it_is(lake: Lake, store: Path) -> None:
    TopicTable.open(lake, topic_of(store))
    with pytest.raises(TableError, match=r"mqlake.Orders is that of topic Orders: give Other another one"):
        TopicTable.open(lake, topic_of(store, "Other", table=ORDERS))
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake(str(Path(lake.warehouse, "mqlake", "Theirs")), pa.table({"a": [1]}))
    with pytest.raises(TableError, match=r"mqlake.Theirs is not one of mqlake's: give Orders"):
        TopicTable.open(lake, topic_of(store, table="Theirs"))


def loss_fails(source: Any) -> bool:
    return bool(source._options.fail_on_data_loss)


def verify_of(source: Any) -> str:
    return str(source._options.verify)


def test_where_rows_come_from() -> None:
    options = RunOptions(fail_on_data_loss=False, verify="none")
    of_stores = source_of(topic_of(Path("/data")), options)
    assert isinstance(of_stores, StoreSource) and of_stores.paths == {STORE: "/data"}
    assert (loss_fails(of_stores), verify_of(of_stores)) == (False, "none")
    of_brokers = source_of(Topic(ORDERS, namesrv="127.0.0.1:1"), options)
    assert isinstance(of_brokers, BrokerSource) and not loss_fails(of_brokers)
    default = source_of(topic_of(Path("/data")), RunOptions())
    assert (loss_fails(default), verify_of(default)) == (True, "crc")


def test_a_topic_that_is_nowhere_is_refused_before_a_table_is_made(lake: Lake, store: Path) -> None:
    with pytest.raises(ConfigError, match="Ordres"):
        TopicTable.open(lake, topic_of(store, "Ordres"))
    with pytest.raises(ConfigError, match="Ordres"):
        TopicTable.open_all(lake, [topic_of(store), topic_of(store, "Ordres")])
    assert not Path(lake.warehouse).exists()


def test_a_look_at_a_table_does_not_ask_its_source(lake: Lake, store: Path, tmp_path: Path) -> None:
    """`lake status` of a store that is away."""
    TopicTable.open_all(lake, [topic_of(store)])
    away = replace(topic_of(store), stores={STORE: str(tmp_path / "away")})
    [found] = TopicTable.open_all(lake, [away], create=False)
    assert found.table.head().state is None
    assert TopicTable.open(lake, away, create=False).table.name == "mqlake.Orders"
    with pytest.raises(NotAStoreError):
        TopicTable.open_all(lake, [away])


def test_topics_of_one_place_share_a_source(
    lake: Lake, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are given in the order that was asked for, each with the source of its own place."""
    put(tmp_path / "second", 4)
    asked: list[tuple[Mapping[str, str], list[str]]] = []
    check = StoreSource.check

    def counted(self: StoreSource, topics: Sequence[str]) -> None:
        asked.append((self.paths, list(topics)))
        check(self, topics)

    monkeypatch.setattr(StoreSource, "check", counted)
    elsewhere = topic_of(tmp_path / "second", "Other", table="There")
    wanted = [topic_of(store), elsewhere]
    first, second = TopicTable.open_all(lake, wanted, RunOptions(verify="none"))
    assert [first.topic.topic, second.topic.topic] == [ORDERS, "Other"]
    assert asked == [({STORE: str(store)}, [ORDERS]), ({STORE: str(tmp_path / "second")}, ["Other"])]
    assert first.source is not second.source and first.options.verify == "none"
    assert isinstance(second.source, StoreSource) and second.source.paths == elsewhere.stores
    asked.clear()
    one, two = TopicTable.open_all(lake, [topic_of(store, "Other"), topic_of(store)])
    assert one.source is two.source and [one.topic.topic, two.topic.topic] == ["Other", ORDERS]
    assert asked == [({STORE: str(store)}, ["Other", ORDERS])]
    assert len(groups_of([first, second])) == 2 and groups_of([one, two]) == [[one, two]]


def test_tables_of_all_and_of_latest_rows_are_filled_apart(lake: Lake, store: Path) -> None:
    everything = TopicTable.open(lake, topic_of(store))
    latest = TopicTable.open(lake, topic_of(store, latest=True))
    other = TopicTable.open(lake, topic_of(store, "Other"))
    assert groups_of([everything, latest, other]) == [[everything, other], [latest]]
    brokers = replace(everything, topic=Topic(ORDERS, namesrv="a:1"))
    others = replace(everything, topic=Topic(ORDERS, namesrv="b:1"))
    assert groups_of([brokers, others]) == [[brokers], [others]]
    assert [each.rows for step in steps([everything, latest, other], LocalEngine()) for each in step.tables]
    assert rows_in(everything.table) == expected(store)
    assert rows_in(other.table) == expected(store, "Other")
    assert len(rows_in(latest.table)) == len([row for row in expected(store) if row["body"]])


def test_a_run_goes_on_until_all_is_there(tmp_path: Path, store: Path) -> None:
    """In steps of so many bytes; the report is of all of them, and the progress was told."""
    orders = open_topic(tmp_path, store, "delta", bytes_max=3000)
    told: list[tuple[int, int]] = []
    report = orders.append_new(report=lambda done, total: told.append((done, total)))
    assert report.commits > 1 and (report.topic, report.table) == (ORDERS, "mqlake.Orders")
    assert report.rows == len(expected(store)) and report.files >= report.commits and report.bytes > 1000
    assert rows_in(orders.table) == expected(store)
    assert told and told[-1][0] == told[-1][1]
    again = orders.append_new()
    assert (again.rows, again.files, again.bytes, again.commits) == (0, 0, 0, 0)
    assert list(steps([orders], LocalEngine())) == []  # a step in which nothing happened is not told


def test_reports_add_up() -> None:
    total = TableReport("a", "b")
    for _ in range(2):
        add_report(total, TableReport("a", "b", 1, 2, 3, 4, 5, 6, 7))
    assert total == TableReport("a", "b", 2, 4, 6, 8, 10, 12, 14)


class Counting(LocalEngine):
    """Counts the bytes of its steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(
        self, pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress
    ) -> dict[str, Written]:
        self.steps.append(sum(piece.bytes for piece in pieces))
        return super().write(pieces, targets, report)


def test_latest_rows_are_written_here_and_in_small_steps(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are merged in memory."""
    engine = Counting()
    one_step([TopicTable.open(lake, topic_of(store))], engine)
    assert len(engine.steps) == 1
    given: list[int] = []
    run_step = module.run_step

    def noted(*args: Any, **named: Any) -> Any:
        given.append(named["bytes_max"])
        return run_step(*args, **named)

    monkeypatch.setattr(module, "run_step", noted)
    for bytes_max in (LATEST_STEP_BYTES + 1, LATEST_STEP_BYTES - 1):
        one_step([TopicTable.open(lake, topic_of(store, latest=True), RunOptions(bytes_max))], engine)
    one_step([TopicTable.open(lake, topic_of(store), RunOptions(LATEST_STEP_BYTES + 1))], engine)
    assert given == [LATEST_STEP_BYTES, LATEST_STEP_BYTES - 1, LATEST_STEP_BYTES + 1]
    assert len(engine.steps) == 1


def test_options_of_a_run_reach_its_step(lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    run_step = module.run_step

    def noted(*args: Any, **named: Any) -> Any:
        given.append(named)
        return run_step(*args, **named)

    monkeypatch.setattr(module, "run_step", noted)
    options = RunOptions(bytes_max=5000, target_bytes=777, fail_on_data_loss=False)
    one_step([TopicTable.open(lake, topic_of(store), options)], LocalEngine())
    [named] = given
    assert (named["bytes_max"], named["target_bytes"], named["fail_on_data_loss"]) == (5000, 777, False)


def test_only_tables_that_changed_are_tidied_and_their_rows_stay_when_that_fails(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables = TopicTable.open_all(lake, [topic_of(store), topic_of(store, "Other")])
    one_step(tables, LocalEngine())
    put(store, 5, 40, (ORDERS,))
    tidied: list[str] = []

    def fails(name: str) -> Any:
        def tidy() -> None:
            tidied.append(name)
            raise TableError("the catalog is away")

        return tidy

    for each in tables:
        monkeypatch.setattr(each.table, "tidy", fails(each.table.name))
    with caplog.at_level(logging.WARNING):
        step = one_step(tables, LocalEngine())
    assert tidied == ["mqlake.Orders"] and [each.rows for each in step.tables] == [5]
    assert "mqlake.Orders: its old versions stay for now: the catalog is away" in caplog.text
    assert rows_in(tables[0].table) == expected(store)


def test_the_table_alone_with_the_log_and_as_it_was(tmp_path: Path, store: Path) -> None:
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    before = expected(store)
    version, read_at = orders.table.head().version, datetime.now(UTC)
    assert version is not None
    put(store, 10, 40)
    orders.append_new()
    put(store, 10, 50)
    in_table = expected(store)[: len(before) + 5]

    def rows(found: Any) -> list[dict[str, Any]]:
        return as_rows(duckdb.from_arrow(found).to_arrow_table())

    assert rows(orders.read()) == in_table
    assert rows(orders.union()) == expected(store)
    assert rows(orders.at(version)) == before
    assert rows(orders.at(read_at)) == before


def test_status(tmp_path: Path, store: Path) -> None:
    orders = open_topic(tmp_path, store, "delta")
    empty = orders.status()
    assert (empty.positions, empty.rows, empty.committed_at, empty.topic) == ({}, 0, 0, ORDERS)
    orders.append_new()
    put(store, 10, 40)
    status = orders.status()
    assert (status.rows, status.lag.messages, status.table) == (20, 5, "mqlake.Orders")
    assert status.location == orders.table.location and status.version == orders.table.head().version
    assert status.files == 1 and 0 < status.bytes == orders.table.files(status.version).bytes


@pytest.mark.parametrize(
    ("behind", "kept", "positions", "risk"),
    [
        (51, 100, {STORE: 1}, True),
        (50, 100, {STORE: 1}, False),
        (51, 100, {}, False),  # nothing was read yet: there is nothing to be behind of
        (51, None, {STORE: 1}, False),
        (0, 0, {STORE: 1}, False),
    ],
)
def test_a_table_is_at_risk_that_lacks_more_than_half_of_the_log(
    behind: int, kept: int | None, positions: dict[str, int], risk: bool
) -> None:
    status = TableStatus(ORDERS, "t", "l", 1, positions, Lag(1, behind, 0.0, kept), 0, 0, 0, 0)
    assert status.is_at_risk is risk


@pytest.mark.parametrize("latest", [False, True])
def test_verify_compares_as_many_rows_as_asked(lake: Lake, store: Path, latest: bool) -> None:
    orders = TopicTable.open(lake, topic_of(store, latest=latest))
    orders.append_new()
    told: list[tuple[int, int]] = []
    report = orders.verify(sample=3, report=lambda done, total: told.append((done, total)))
    assert report.is_sound and told
    assert report.compared == (3 if not latest else 20), "of latest rows all that the log has"
    assert report.rows == (20 if not latest else len([row for row in expected(store) if row["body"]]))


def test_a_table_goes_back_to_an_earlier_version(tmp_path: Path, store: Path) -> None:
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    first, read_at = orders.table.head().version, datetime.now(UTC)
    assert first is not None
    put(store, 10, 40)
    until(lambda: datetime.now(UTC) > read_at + timedelta(milliseconds=2))
    orders.append_new()
    current = orders.table.head().version
    for moment in (first, read_at):
        plan = orders.rewind_plan(moment)
        assert (plan.current, plan.version, plan.rows, plan.left) == (current, first, 5, 20)
        assert (plan.topic, plan.table, plan.lost) == (ORDERS, "mqlake.Orders", "")
    assert current is not None
    orders.rewind(orders.rewind_plan(current))
    assert orders.table.head().version == current, "it is there already"
    orders.rewind(orders.rewind_plan(first))
    assert rows_in(orders.table) == expected(store)[:20]
    assert orders.append_new().rows == 5
    assert rows_in(orders.table) == expected(store)


def test_a_version_that_is_not_there(tmp_path: Path, store: Path) -> None:
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    with pytest.raises(TableError, match=r"mqlake.Orders has no version 77; the oldest is \d+, of 20"):
        orders.rewind_plan(77)
    with pytest.raises(TableError, match="has no version at that time; the oldest is"):
        orders.rewind_plan(datetime(2001, 1, 1, tzinfo=UTC))


def test_who_goes_back_is_told_what_the_log_cannot_give_again(tmp_path: Path, store: Path) -> None:
    orders = open_topic(tmp_path, store, "delta")
    orders.append_new()
    first = orders.table.head().version
    put(store, 300, 40)
    orders.append_new()
    assert first is not None and orders.rewind_plan(first).lost == ""
    for path in log_files(store)[:-1]:
        path.unlink()
    assert f"queue {STORE}:0 7 to " in orders.rewind_plan(first).lost


def test_a_topic_of_a_file(tmp_path: Path, store: Path) -> None:
    file = save(tmp_path, store, "delta", ORDERS)
    orders = topic_table(file, ORDERS, RunOptions(target_bytes=5))
    assert orders.options.target_bytes == 5 and topic_table(file.parent, ORDERS).topic.topic == ORDERS
    with pytest.raises(UnknownKeyError, match="topic of the lake"):
        topic_table(file, "Ordres")


def test_the_target_of_a_step(lake: Lake, store: Path) -> None:
    target = TopicTable.open(lake, topic_of(store, latest=True, columns=SOME)).target
    assert (target.topic, target.latest, tuple(target.rows.columns)) == (ORDERS, True, SOME)
