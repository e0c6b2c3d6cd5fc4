"""Tables of topics of live brokers: each message once, step by step, and the same answers as the brokers give."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pyarrow.compute as pc
import pytest

import mqlake.lake
from mqlake.errors import ConfigError, TableError, TopicNotFoundError
from mqlake.lake.tables.broker_source import BrokerSource
from mqlake.lake.tables.config import DEFAULT_COLUMNS, Topic
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import RunOptions, TopicTable
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.lake.tables.lakes import FORMATS, as_rows, in_order, lake_of, rows_in
from tests.spark.rocketmq.test_source import SETTINGS, Broker, MqlakeBroker, deleted, fill
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with MqlakeBroker(tmp_path_factory.mktemp("live"), SETTINGS) as running:
        yield running


@pytest.mark.parametrize("format", FORMATS)
def test_filled_from_brokers(tmp_path: Path, broker: Broker, format: str) -> None:
    topic = f"Orders-{format}"
    fill(broker, topic, 100)
    orders = TopicTable.open(
        lake_of(tmp_path, format), Topic(topic, namesrv=broker.namesrv), RunOptions(bytes_max=40 << 10)
    )
    report = orders.append_new()
    assert (report.rows, report.commits) == (100, 3)
    fill(broker, topic, 40, 100)
    scan = mqlake.lake.scan(namesrv=broker.namesrv, topics=[topic], columns=DEFAULT_COLUMNS)
    rows = in_order(scan.to_table().to_pylist(maps_as_pydicts="strict"))
    assert as_rows(orders.union().to_table()) == rows and len(rows) == 140
    assert orders.status().lag.messages == 40
    assert orders.append_new().rows == 40 and orders.append_new().rows == 0
    assert rows_in(orders.table) == rows
    assert sorted({json.loads(row["body"])[0] for row in rows}) == list(range(140))
    found = orders.verify(sample=10)
    assert found.is_sound and found.compared == 10


def test_what_a_broker_no_longer_has(broker: Broker) -> None:
    fill(broker, "Others", 8)
    source = BrokerSource(broker.namesrv)
    [name, *_] = sorted(source.bounds("Others"))
    with pytest.raises(TableError, match=r"messages up to 2, the table up to 9"):
        source.plan({"Others": TableState(queues={name: 9})}, 1 << 20)
    assert source.lag("Others", TableState(queues={name: 9})).messages == 6, "of the three other queues"
    with pytest.raises(TopicNotFoundError, match="did you mean"):
        source.check(["Other"])


def test_a_step_of_the_smallest_size_reads_one_message(broker: Broker) -> None:
    """And goes on with the next: none has so few bytes that nothing would ever be read."""
    fill(broker, "Little", 8)
    source = BrokerSource(broker.namesrv)
    bounds = source.bounds("Little")
    first, *others = sorted(bounds)
    state = TableState(queues={first: 0, **{name: bounds[name][1] for name in others}})
    for bytes_max, count, is_last in ((1, 1, False), (1 << 20, 2, True)):
        plan = source.plan({"Little": state}, bytes_max)
        read = [
            row
            for piece in plan.pieces
            for _, batch in piece.read(["queueOffset"])
            for row in batch.to_pylist()
        ]
        assert ([row["queueOffset"] for row in read], plan.is_last) == (list(range(count)), is_last)
    everything = source.plan({"Little": None}, 1)
    assert len(everything.pieces) == len(bounds), "one of each queue"


def emptied(broker: MqlakeBroker, _topic: str) -> None:
    broker.kill()
    shutil.rmtree(broker.log.parent / "store")
    broker.start()


@pytest.mark.parametrize("lose", [deleted, emptied])
def test_other_messages_at_the_same_offsets(
    tmp_path: Path, lose: Callable[[MqlakeBroker, str], None]
) -> None:
    """Offsets alone fit: the 40 first of the 100 new messages would never come into the table, without a word."""
    with MqlakeBroker(tmp_path / "broker", SETTINGS) as broker:
        fill(broker, "Orders", 40)
        table = TopicTable.open(lake_of(tmp_path, "delta"), Topic("Orders", namesrv=broker.namesrv))
        assert table.append_new().rows == 40
        lose(broker, "Orders")
        fill(broker, "Orders", 100)
        said = r"queue \d: the message stored at .* deleted and made again, or .* lost .*make a new table \(--table\)"
        for read in (table.append_new, table.union):
            with pytest.raises(TableError, match=said):
                read()
        assert not table.verify(sample=0).is_sound
        again = TopicTable.open(
            lake_of(tmp_path, "delta"), Topic("Orders", namesrv=broker.namesrv, table="orders_2")
        )
        assert again.append_new().rows == 100 and again.verify().is_sound


def test_a_static_topic_that_has_moved(tmp_path: Path) -> None:
    """The offsets between the parts of its queues are neither lag nor lost; a message that is lost is found. Steps of
    one message get across the gaps."""

    async def scene(cluster: StaticCluster) -> None:
        lake = lake_of(tmp_path, "delta")
        given = Topic("T", namesrv=cluster.namesrv_addr)

        def table(bytes_max: int = 1 << 20) -> TopicTable:
            return TopicTable.open(lake, given, RunOptions(bytes_max=bytes_max))

        def offsets(table: TopicTable) -> list[tuple[int, int]]:
            rows = table.table.scan(table.table.head().version, ("queueId", "queueOffset"), None)
            return sorted((row["queueId"], row["queueOffset"]) for each in rows for row in each.to_pylist())

        def first_step() -> None:
            assert table().append_new().rows == 2

        def others() -> None:
            filled = table(bytes_max=1)
            assert filled.status().lag.messages == 6
            assert filled.append_new().rows == 6
            assert filled.status().lag.messages == 0
            expected = [(0, 0), (0, 1), (0, 2), (0, 10_000), (0, 10_001), (0, 20_000), (1, 0), (1, 1)]
            assert offsets(filled) == expected
            found = filled.verify(sample=10)
            assert found.is_sound and found.compared == 8, found.findings
            assert sum(queue.missing for queue in found.queues) == 0

        def without(offset: int) -> None:
            filled = table()
            there = filled.table.scan(filled.table.head().version, None, None)
            kept = [batch.filter(pc.not_equal(batch["queueOffset"], offset)) for batch in there]
            with mock.patch.object(type(filled.table), "scan", lambda *_: iter(kept)):
                found = filled.verify(sample=0)
            assert found.findings == [f"queue __syslo__global__:0: offset {offset} is missing"]

        def latest() -> None:
            with pytest.raises(ConfigError, match="topic T is a static one"):
                TopicTable.open(lake, Topic("T", namesrv=cluster.namesrv_addr, latest=True))

        await cluster.map("T", 2, "broker-a")
        await cluster.send("broker-a", 1)
        await cluster.send("broker-a", 1, queue_id=1)
        await asyncio.to_thread(first_step)
        await cluster.send("broker-a", 2)
        await cluster.send("broker-a", 1, queue_id=1)
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 2)
        await cluster.move("T", "broker-a")
        await cluster.send("broker-a", 1)
        for broker in cluster.brokers.values():
            assert broker.broker.store.wait_until_dispatched(PATIENCE_S)
        await asyncio.to_thread(others)
        await asyncio.to_thread(without, 10_000)
        await asyncio.to_thread(latest)

    on_static_brokers(tmp_path, scene)
