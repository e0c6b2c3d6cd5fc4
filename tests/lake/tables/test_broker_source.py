"""Tables of topics of live brokers: each message once, step by step, and the same answers as the brokers give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqlake.lake
from mqlake.errors import TableError, TopicNotFoundError
from mqlake.lake.tables.broker_source import BrokerSource
from mqlake.lake.tables.config import DEFAULT_COLUMNS, Topic
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import RunOptions, TopicTable
from tests.lake.tables.lakes import FORMATS, as_rows, in_order, lake_of, rows_in
from tests.spark.rocketmq.test_source import SETTINGS, Broker, MqlakeBroker, fill


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
    with pytest.raises(TopicNotFoundError, match="did you mean"):
        source.check(["Other"])
