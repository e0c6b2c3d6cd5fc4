"""Topics of live brokers as an Arrow dataset."""

from __future__ import annotations

import asyncio
import json
import operator
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqlake.lake
from mqlake.errors import ConfigError, OffsetOutOfRangeError, TopicNotFoundError
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.arrow.schema import COLUMNS
from mqlake.lake.live.cluster import Cluster, Live, Queue
from mqlake.lake.live.ranges import QueueRange
from mqlake.lake.live.rows import narrowed
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.spark.rocketmq.test_source import SETTINGS, Broker, MqlakeBroker, fill
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with MqlakeBroker(tmp_path_factory.mktemp("live"), SETTINGS) as running:
        for topic in ("Orders", "Others"):
            fill(running, topic, 100)
        yield running


def test_what_the_brokers_have(broker: Broker) -> None:
    log = mqlake.lake.scan(namesrv=broker.namesrv, topics=["Orders", "Others"])
    table = log.to_table()
    assert log.schema.names == list(COLUMNS) and table.num_rows == log.count_rows() == 200
    assert "Orders" in repr(log) and pickle.loads(pickle.dumps(log)).head(3).num_rows == 3
    orders = [row for row in table.to_pylist() if row["topic"] == "Orders"]
    assert sorted(json.loads(row["body"])[0] for row in orders) == list(range(100))
    counts = duckdb.sql(
        "select queueId, count(*) from log where topic = 'Orders' group by 1 order by 1"
    ).fetchall()
    assert counts == [(queue, 25) for queue in range(4)]


def test_only_the_queues_and_offsets_that_are_needed_are_pulled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, pulled = mqlake.lake.scan(namesrv=broker.namesrv, topics=["Orders", "Others"]), []
    pull = Live.pull

    def listening(self: Live, queue: Queue, start: int, end: int) -> Iterator[tuple[bytes, int]]:
        pulled.append((queue.topic, queue.queue_id, start, end))
        return pull(self, queue, start, end)

    monkeypatch.setattr(Live, "pull", listening)
    wanted = (pc.field("topic") == "Others") & (pc.field("queueId") < 2) & (pc.field("queueOffset") >= 20)
    assert log.to_table(filter=wanted).num_rows == 10
    assert pulled == [("Others", 0, 20, 25), ("Others", 1, 20, 25)]


def test_starts_ends_and_bodies(broker: Broker) -> None:
    def scan(**given: object) -> int:
        return mqlake.lake.scan(namesrv=broker.namesrv, topics="Orders", **given).count_rows()  # type: ignore[arg-type]

    assert scan(start={"Orders": {"0": 20}}) == 80
    assert scan(end={"Orders": {"0": 3}}) == 78
    assert scan(start=datetime.now(UTC) + timedelta(days=1)) == 0
    log = mqlake.lake.scan(namesrv=broker.namesrv, topics="Orders", bodies={"text": True})
    assert all(json.loads(text) for text in log.to_table(columns=["value"])["value"].to_pylist())


def test_what_is_wrong_is_said(broker: Broker) -> None:
    for each, said in (
        ({}, "needs the names of topics"),
        ({"topics": "Orders", "path": "/data/store"}, "for store directories"),
        ({"topics": "Orders", "start": 4096}, "^start is 4096; it can be a datetime, earliest"),
        ({"topics": "Orders", "start": "latest"}, "^start is 'latest'; a batch cannot begin there"),
        ({"topics": "Orders", "mode": "permissive"}, "^mode is 'permissive'; it can be failFast or drop"),
        ({"topics": "Orders", "start": {"Orders": {"broker-a:9": 3}}}, "^start names queue broker-a:9 of"),
    ):
        with pytest.raises(ConfigError, match=said):
            mqlake.lake.scan(namesrv=broker.namesrv, **each).count_rows()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^path is missing"):
        mqlake.lake.scan()
    with pytest.raises(TopicNotFoundError, match="did you mean 'Orders'"):
        mqlake.lake.scan(namesrv=broker.namesrv, topics="Order").to_table()
    with pytest.raises(OffsetOutOfRangeError, match="the broker has 0 to 25"):
        mqlake.lake.scan(namesrv=broker.namesrv, topics="Orders", start={"Orders": {"0": 99}}).to_table()


compares = st.sampled_from([operator.eq, operator.lt, operator.le, operator.gt, operator.ge, None])
conditions = st.builds(
    lambda column, compare, values: Condition(
        column, compare, tuple(values if compare is None else values[:1])
    ),
    st.sampled_from(["queueOffset", "queueId", "size"]),
    compares,
    st.lists(st.one_of(st.integers(-2, 12), st.floats(-2, 12)), min_size=1, max_size=3),
)


def allows(condition: Condition, value: int) -> bool:
    if condition.compare is None:
        return value in condition.values
    return bool(condition.compare(value, condition.values[0]))


@given(st.lists(conditions, max_size=3), st.integers(0, 5), st.integers(0, 10))
def test_a_range_keeps_all_that_may_match(found: list[Condition], start: int, size: int) -> None:
    whole = QueueRange(Queue("T", "b", 3), start, start + size)
    part = narrowed(whole, found)
    for offset in range(start, start + size):
        row = {"queueOffset": offset, "queueId": 3}
        matches = all(each.column == "size" or allows(each, row[each.column]) for each in found)
        assert not matches or (part is not None and part.start <= offset < part.end)
    assert part is None or (start <= part.start < part.end <= start + size)


def test_a_static_topic_that_has_moved(tmp_path: Path) -> None:
    """The offsets between two parts of a queue are no losses."""

    async def scene(cluster: StaticCluster) -> None:
        def read() -> list[tuple[int, int]]:
            log = mqlake.lake.scan(
                namesrv=cluster.namesrv_addr, topics="T", columns=["brokerName", "queueId", "queueOffset"]
            )
            rows = log.to_table().to_pylist()
            assert {row["brokerName"] for row in rows} == {"__syslo__global__"}
            return sorted((row["queueId"], row["queueOffset"]) for row in rows)

        def look() -> None:
            where = Cluster(cluster.namesrv_addr, "G")
            with Live(where) as live:
                queue, _ = live.queues(["T"])
                assert live.bounds([queue]) == {queue: (0, 10_002)}
                assert live.with_messages(queue, 0, 10_002) == [(0, 3), (10_000, 10_002)]
                assert live.with_messages(queue, 2, 10_001) == [(2, 3), (10_000, 10_001)]
                assert live.with_messages(queue, 3, 10_000) == live.with_messages(queue, 5, 9) == []

        await cluster.map("T", 2, "broker-a")
        await cluster.send("broker-a", 3)
        await cluster.send("broker-a", 1, queue_id=1)
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 2)
        for broker in cluster.brokers.values():
            assert broker.broker.store.wait_until_dispatched(PATIENCE_S)
        expected = [(0, 0), (0, 1), (0, 2), (0, 10_000), (0, 10_001), (1, 0)]
        assert await asyncio.to_thread(read) == expected
        await asyncio.to_thread(look)

    on_static_brokers(tmp_path, scene)
