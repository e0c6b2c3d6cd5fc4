"""Spark jobs with RocketMQ's own broker: rows go in, topics are sent again, its store is read while it writes."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.spark.jobs.replay import replay
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.spark import conftest
from tests.spark.jobs.test_brokers import run, topic_messages
from tests.spark.kills import Load
from tests.waiting import until

spark = conftest.spark
pytestmark = [pytest.mark.java, pytest.mark.spark]

CUSTOMERS = 5
COUNT = 60


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    with JavaBroker(tmp_path_factory.mktemp("broker") / "java") as running:
        yield running


def contents(spark: SparkSession, broker: Broker, topic: str, count: int) -> list[tuple[str, str, int]]:
    """Keys, body and queue of each message, in the order of its queue, once there are so many."""
    found = topic_messages(spark, broker.namesrv, topic)
    until(lambda: found.count() == count)
    rows = found.orderBy("queueId", "queueOffset").collect()
    return [(row["keys"], bytes(row.body).decode(), row.queueId) for row in rows]


def in_order(found: list[tuple[str, str, int]]) -> dict[str, list[int]]:
    """The numbers of each customer as they come; a customer's are in one queue."""
    numbers: dict[str, list[int]] = {}
    queues: dict[str, set[int]] = {}
    for keys, body, queue in found:
        row = json.loads(body)
        assert keys == f"id-{row['id']}"
        numbers.setdefault(row["customer"], []).append(row["id"])
        queues.setdefault(row["customer"], set()).add(queue)
    assert all(len(each) == 1 for each in queues.values())
    return numbers


def test_rows_go_in_and_are_sent_again(spark: SparkSession, java: JavaBroker, tmp_path: Path) -> None:
    rows = [{"id": n, "customer": f"c{n % CUSTOMERS}"} for n in range(COUNT)]
    (tmp_path / "rows.ndjson").write_text("\n".join(map(json.dumps, rows)))
    command = ["ingest", tmp_path / "rows.ndjson", "--to-broker", java.namesrv, "--topic", "Rows", "--json"]
    told = run(*command, "--keys-from", "concat('id-', id)", "--order-by", "customer")
    assert json.loads(told.stdout)["messages"] == COUNT
    expected = {f"c{c}": list(range(c, COUNT, CUSTOMERS)) for c in range(CUSTOMERS)}
    sent = contents(spark, java, "Rows", COUNT)
    assert in_order(sent) == expected

    # to another topic
    messages = topic_messages(spark, java.namesrv, "Rows")
    replay(messages.where("queueOffset >= 0"), java.namesrv, topic="Again", ordered=True)
    again = contents(spark, java, "Again", COUNT)
    assert in_order(again) == expected

    # to another cluster, from the broker and out of the directory that it has open
    with MqlakeBroker(tmp_path / "mqlake") as other:
        replay(messages, other.namesrv)
        there = contents(spark, other, "Rows", COUNT)
        assert Counter(map(text, there)) == Counter(map(text, sent))
        store = java.directory / "store"
        run(
            "replay",
            store,
            "--to-broker",
            other.namesrv,
            "--to-topic",
            "Store",
            "--topic",
            "Rows",
            "--ordered",
        )
        assert in_order(contents(spark, other, "Store", COUNT)) == expected


def text(message: tuple[str, str, int]) -> tuple[str, str]:
    return message[:2]


def test_its_store_is_read_while_it_writes(spark: SparkSession, java: JavaBroker, tmp_path: Path) -> None:
    store, out = java.directory / "store", tmp_path / "out"
    assert spark is not None  # the session that the commands take
    with Load(java.namesrv, "Busy") as load:
        until(lambda: load.count > 100)
        before = load.count
        (figures,) = json.loads(run("stats", store, "--topic", "Busy", "--json").stdout)["topics"]
        assert before <= figures["records"] <= load.count + 10
        lines = run("search", store, "--topic", "Busy", "--text", str(before - 1) * 20, "--json").stdout
        found = [base64.b64decode(json.loads(line)["body"]).decode() for line in lines.splitlines()]
        assert found == [str(before - 1) * 20]
        last = json.loads(run("export", store, out, "--topic", "Busy", "--json").stdout)["rows"]
        assert before <= last
    last += json.loads(run("export", store, out, "--topic", "Busy", "--json").stdout)["rows"]
    exported = spark.read.parquet(str(out))
    bodies = Counter(bytes(row.body).decode() for row in exported.collect())
    assert bodies == Counter(str(n) * 20 for n in range(load.count))
    assert last == load.count
