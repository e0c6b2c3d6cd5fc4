"""Tables that follow a log, and their metrics."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from mqlake.errors import TableError
from mqlake.lake.tables import follow as module
from mqlake.lake.tables.append_run import LocalEngine, StepReport, TableReport
from mqlake.lake.tables.config import Lake
from mqlake.lake.tables.follow import follow
from mqlake.lake.tables.metrics import TableMetrics
from mqlake.lake.tables.source import Lag
from mqlake.lake.tables.topic import TopicTable
from tests.lake.tables.lakes import expected, open_topic, put, rows_in, topic_of


def test_commits_by_time_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, "delta")
    metrics = TableMetrics([orders])
    stop, now, reports = threading.Event(), [0.0], list[StepReport]()
    monkeypatch.setattr(module, "POLL_S", 0.0)

    class Rounds(threading.Event):
        """Each wait is a round: what happens in it, and how many steps there must have been before."""

        rounds = iter([(1, 4, 0.0), (1, 0, 100.0), (2, 200, 0.0), (3, 2, 0.0), (3, 0, 0.0), (3, 0, 0.0)])

        def wait(self, timeout: float | None = None) -> bool:
            steps, count, seconds = next(self.rounds, (3, 0, 0.0))
            assert len(reports) == steps
            put(store, count, 20 + sum(self.put_already))
            self.put_already.append(count)
            now[0] += seconds
            if len(self.put_already) == 6:
                self.set()
            return self.is_set()

        put_already: list[int] = []  # noqa: RUF012 - one instance

    del stop

    def done(step: StepReport) -> None:
        reports.append(step)
        metrics.add(step)

    follow([orders], LocalEngine(), Rounds(), done, commit_bytes=8000, interval_s=60, clock=lambda: now[0])
    assert [step.tables[0].rows for step in reports] == [10, 2, 100]
    assert rows_in(orders.table) == expected(store)[:112]
    text = prometheus_client.generate_latest(metrics.registry).decode()
    assert 'mqlake_lake_rows_total{table="mqlake.Orders"} 112.0' in text
    assert 'mqlake_lake_lag_messages{table="mqlake.Orders"} 1.0' in text
    assert "mqlake_lake_step_seconds_count 3.0" in text


def locked(table: Path) -> Callable[[], object]:
    """Its catalog answers nobody; what ends that."""
    holder = sqlite3.connect(table.parents[1] / "catalog.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    return holder.close


def moved(table: Path) -> Callable[[], object]:
    """Its files are away, as those of a file system that is not mounted; what ends that."""
    away = table.with_name("away")
    table.rename(away)
    return lambda: away.rename(table)


@pytest.mark.parametrize("fault", [locked, moved])
def test_a_lake_that_goes_away_is_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Path], Callable[[], object]],
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)
    store, warehouse = tmp_path / "store", tmp_path / "lake"
    warehouse.mkdir()
    put(store, 20)
    catalog = f"sqlite:///{warehouse}/catalog.db?timeout=0.01"
    orders = TopicTable.open(Lake(str(warehouse), "iceberg", catalog=catalog), topic_of(store))
    reports = list[StepReport]()

    def rounds() -> Iterator[None]:
        end_fault = fault(Path(orders.table.location.removeprefix("file://")))
        put(store, 20, 20)
        yield
        assert "mqlake.Orders" in caplog.text and "trying again" in caplog.text and len(reports) == 1
        yield
        assert caplog.text.count("trying again") == 1  # the next line is due in a minute
        end_fault()
        yield
        assert "following again (after 2 failures)" in caplog.text and len(reports) == 2

    class Rounds(threading.Event):
        left = rounds()

        def wait(self, timeout: float | None = None) -> bool:
            if next(self.left, self) is self:
                self.set()
            return self.is_set()

    with caplog.at_level(logging.WARNING):
        follow([orders], LocalEngine(), Rounds(), reports.append, interval_s=0)
    assert [step.tables[0].rows for step in reports] == [10, 10]
    assert rows_in(orders.table) == expected(store)


def test_a_table_that_cannot_be_asked_has_no_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have; and all that a run did is counted."""
    put(tmp_path / "store", 20)
    orders, other = (
        open_topic(tmp_path, tmp_path / "store", "delta", topic) for topic in ("Orders", "Other")
    )

    def away() -> None:
        raise TableError("its storage is away")

    monkeypatch.setattr(orders.table, "head", away)
    metrics = TableMetrics([orders, other])
    report = TableReport("Other", "mqlake.Other", 1, 2, 3, 4, 5, 6)
    for _ in range(2):
        metrics.add(StepReport([report], seconds=0.5))
    text = prometheus_client.generate_latest(metrics.registry).decode()
    assert "mqlake.Orders" not in text
    assert 'mqlake_lake_lag_messages{table="mqlake.Other"} 10.0' in text
    for name, value in zip(
        ("rows", "undecoded", "files", "bytes", "commits", "conflicts"), range(1, 7), strict=True
    ):
        assert f'mqlake_lake_{name}_total{{table="mqlake.Other"}} {2.0 * value}' in text
    assert "mqlake_lake_step_seconds_sum 1.0" in text


def test_tables_of_two_places_are_due_apart(tmp_path: Path) -> None:
    """The first step of each is made at once; what waits for its interval holds up no other."""
    tables = []
    for name in ("one", "two"):
        put(tmp_path / name / "store", 10)
        tables.append(open_topic(tmp_path / name, tmp_path / name / "store", "delta"))
    now, reports = [1000.0], list[StepReport]()

    class Rounds(threading.Event):
        left = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout == module.POLL_S
            self.left += 1
            if self.left == 1:
                put(tmp_path / "one" / "store", 10, 10)
                now[0] += 59.9  # not due yet
            elif self.left == 2:
                assert len(reports) == 2
                now[0] += 0.1
            elif self.left == 3:
                assert len(reports) == 3
                put(tmp_path / "two" / "store", 10, 10)
            else:
                self.set()
            return self.is_set()

    follow(tables, LocalEngine(), Rounds(), reports.append, interval_s=60, clock=lambda: now[0])
    assert [step.tables[0].rows for step in reports] == [5, 5, 5, 5]
    assert rows_in(tables[1].table) == expected(tmp_path / "two" / "store")


class Asked:
    """What a table's catalog and its source are asked for, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: TopicTable) -> None:
        self._calls: Counter[str] = Counter()
        for owner, name in ((table.table, "head"), (table.source, "lag"), (table.source, "ends")):
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self._calls[name] += 1
            return call(*given)

        return counted

    def since(self) -> dict[str, int]:
        calls = dict(self._calls)
        self._calls.clear()
        return calls


class Seconds(threading.Event):
    """A second passes with each wait, and then what an iterator does; its end is that of the follower."""

    def __init__(self, now: list[float], left: Iterator[None]) -> None:
        super().__init__()
        self._now, self._left = now, left

    def wait(self, timeout: float | None = None) -> bool:
        self._now[0] += 1
        if next(self._left, self) is self:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_a_catalog_and_queues_are_asked_when_something_can_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """While nothing comes, once an interval; while a commit is not due, not at all, however the log grows."""
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, format)
    asked, now, reports = Asked(monkeypatch, orders), [1000.0], list[StepReport]()

    def rounds() -> Iterator[None]:
        assert len(reports) == 1
        asked.since()
        yield
        assert asked.since() == {"head": 1, "ends": 1}  # what the commit has left
        for n in range(50):
            if n < 10:
                put(store, 2, 20 + 2 * n)
            yield
            assert asked.since() == {"ends": 1}
        now[0] += 100
        yield
        assert len(reports) == 2  # due
        asked.since()
        yield
        asked.since()
        now[0] += 100
        for _ in range(12):
            yield
        asked.since()  # the queues, until what is in the log must be there
        for _ in range(40):
            yield
        assert asked.since() == {"ends": 40}
        put(store, 2, 40)
        yield
        assert len(reports) == 3 and asked.since()["lag"] == 1
        put(store, 2, 42)
        for _ in range(250):
            yield
        assert len(reports) == 4
        assert asked.since()["head"] <= 12  # a commit has some, and each interval one

    follow(
        [orders], LocalEngine(), Seconds(now, rounds()), reports.append, interval_s=100, clock=lambda: now[0]
    )
    assert [step.tables[0].rows for step in reports] == [10, 10, 1, 1]
    assert rows_in(orders.table) == expected(store)


def test_a_message_that_comes_late_to_its_queue_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has ended there for a while; and so with a table that somebody took back."""
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, "delta")
    now, reports = [1000.0], list[StepReport]()
    lag = orders.source.lag

    def rounds() -> Iterator[None]:
        monkeypatch.setattr(orders.source, "lag", lambda *given: Lag(0, 0, 0.0))
        put(store, 2, 20)
        now[0] += 100
        for _ in range(9):
            yield
        monkeypatch.setattr(orders.source, "lag", lag)
        yield
        assert len(reports) == 2
        put(store, 2, 22)
        for _ in range(150):
            yield
        assert len(reports) == 3
        version = orders.table.versions()[1].version
        orders.table.rewind(version)
        for _ in range(150):
            yield
        assert len(reports) == 4

    follow(
        [orders], LocalEngine(), Seconds(now, rounds()), reports.append, interval_s=100, clock=lambda: now[0]
    )
    assert rows_in(orders.table) == expected(store)


def test_brokers_are_asked_for_their_messages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no end of a log; the catalog waits all the same."""
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, "delta")
    monkeypatch.setattr(orders.source, "ends", lambda: None)
    asked, now, reports = Asked(monkeypatch, orders), [1000.0], list[StepReport]()

    def rounds() -> Iterator[None]:
        yield
        asked.since()
        for _ in range(50):
            yield
        assert asked.since() == {"ends": 50, "lag": 50}
        put(store, 2, 20)
        for _ in range(60):
            yield
        assert len(reports) == 2

    follow(
        [orders], LocalEngine(), Seconds(now, rounds()), reports.append, interval_s=100, clock=lambda: now[0]
    )
    assert rows_in(orders.table) == expected(store)
