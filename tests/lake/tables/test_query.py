"""SQL over topics: only the tables that are named are read, as of one moment, and what is wrong is said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqlake.errors import ConfigError, MissingPartError, NotThereError, TableError
from mqlake.lake.tables.query import query
from mqlake.lake.tables.topic import TopicTable
from tests.lake.tables.lakes import expected, lake_of, put, topic_of
from tests.waiting import until


@pytest.fixture
def tables(tmp_path: Path) -> list[TopicTable]:
    put(tmp_path / "store", 20)
    wanted = [topic_of(tmp_path / "store", topic) for topic in ("Orders", "Other")]
    return TopicTable.open_all(lake_of(tmp_path, "delta"), wanted)


def test_columns_and_rows(tables: list[TopicTable], tmp_path: Path) -> None:
    tables[0].append_new()
    names, rows = query('select count(*) as n, max(queueOffset) as last from "Orders"', tables)
    offsets = [row["queueOffset"] for row in expected(tmp_path / "store")]
    assert (names, rows) == (["n", "last"], [(10, max(offsets))])
    joined = "select count(*) from orders join OTHER using (queueId, queueOffset)"
    pairs = {(row["queueId"], row["queueOffset"]) for row in expected(tmp_path / "store", "Other")}
    both = sum((row["queueId"], row["queueOffset"]) in pairs for row in expected(tmp_path / "store"))
    assert query(joined, tables)[1] == [(both,)]
    assert query("select 1 as one", [])[1] == [(1,)]
    zone = query("select current_setting('timezone') as zone", [])[1]
    assert zone == [("UTC",)]


def test_only_tables_that_are_named_are_asked(
    tables: list[TopicTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("union", "at"):
        real = getattr(TopicTable, name)

        def noted(self: TopicTable, *given: Any, name: str = name, real: Any = real) -> Any:
            asked.append(f"{name} {self.topic.topic}")
            return real(self, *given)

        monkeypatch.setattr(TopicTable, name, noted)
    query("select count(*) from other", tables)
    assert asked == ["union Other"]
    query("select count(*) from Orders", tables, datetime.now(UTC))
    assert asked == ["union Other", "at Orders"]


def test_as_of_a_moment(tables: list[TopicTable], tmp_path: Path) -> None:
    last = expected(tmp_path / "store")[-1]["storeTimestamp"]
    until(lambda: datetime.now(UTC) > last + timedelta(milliseconds=1))
    put(tmp_path / "store", 10, 20)
    moment = last + timedelta(milliseconds=1)
    assert query("select count(*) from Orders", tables, moment)[1] == [(10,)]
    assert query("select count(*) from Orders", tables)[1] == [(15,)]


def test_what_is_wrong_is_said(tables: list[TopicTable], tmp_path: Path) -> None:
    with pytest.raises(NotThereError, match=r"^there is no table Nobody; there are Orders, Other, log$"):
        query("select 1 from Nobody", tables, views={"log": list})
    with pytest.raises(NotThereError, match="there is no table Ordrs; did you mean 'Orders'"):
        query("select 1 from Ordrs", tables)
    with pytest.raises(ConfigError, match=r'syntax error at or near "selec"$'):
        query("selec 1", tables)
    with pytest.raises(ConfigError, match="nothing") as refused:
        query("select nothing from Orders", tables)
    assert not isinstance(refused.value, NotThereError) and str(refused.value).strip() == str(refused.value)
    for sql, said in (
        ("select cast('a table that does not exist' as int)", "does not exist"),
        ("create table x (a int); create table x (a int)", "already exists"),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            query(sql, [])
        assert not isinstance(refused.value, NotThereError), sql
    with pytest.raises(ConfigError, match="there is no statement"):
        query("", tables)
    tables[0].append_new()
    [data] = (tmp_path / "lake").rglob("*.parquet")
    data.unlink()
    with pytest.raises(TableError, match="a data file of the table is gone") as told:
        query("select count(*) from Orders where queueId = 0", tables)
    assert "Invalid Input" not in str(told.value) and "Traceback" not in str(told.value)


def test_without_duckdb_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPartError, match=r"pip install 'mqlake\[lake\]'"):
        query("select 1", [])


def test_views_beside_the_tables(tables: list[TopicTable]) -> None:
    made: list[str] = []

    def view(name: str) -> Callable[[], object]:
        def make() -> object:
            made.append(name)
            return pa.table({"one": [1]})

        return make

    views = {name: view(name) for name in ("log", "heads", "Orders")}
    assert query("select log(10), 'heads' as heads from Orders limit 1", tables, views=views)[0][1] == "heads"
    assert made == []
    assert query("select * from heads join log using (one)", tables, views=views)[1] == [(1,)]
    assert made == ["log", "heads"]
    assert query('select * from Other, "heads" limit 1', tables, views=views)[0][-1] == "one"
    made.clear()
    for asked in ("describe log", "summarize log", "table log", "desc log"):
        assert "one" in query(asked, tables, views=views)[1][0] + tuple(query(asked, tables, views=views)[0])
    assert set(made) == {"log"}
    with pytest.raises(NotThereError, match="heads"):
        query("select * from heads", tables)
