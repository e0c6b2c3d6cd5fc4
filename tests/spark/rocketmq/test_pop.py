"""The stream reader that pops, against a live broker, called as Spark calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from mqlake.client import ConsumeFromWhere, ConsumerConfig, blocking
from mqlake.errors import ConfigError
from mqlake.spark.rocketmq.options import read_options
from tests.interop.brokers import Broker, MqlakeBroker
from tests.spark.rocketmq.test_source import fill, numbers, rows, stream
from tests.waiting import until

TOPIC = "Shared"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def options(broker: Broker, topic: str, **more: str) -> dict[str, str]:
    return {"namesrvAddr": broker.namesrv, "subscribe": topic, "popGroup": "spark", **more}


def test_batches_are_shared_and_acknowledged(broker: Broker) -> None:
    fill(broker, TOPIC, 100)
    given = options(broker, TOPIC)
    first, second = stream(given), stream(given)
    found: list[int] = []
    ends = {}
    for reader, limit in ((first, 40), (second, 30)):
        start = reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(limit))))
        ends[reader] = end
        batch = numbers(rows(reader, reader.partitions(start, end)))
        assert len(batch) == limit
        # the same batch again: the same rows
        again = stream(given)
        assert sorted(numbers(rows(again, again.partitions(start, end)))) == sorted(batch)
        found += batch
    first.commit(ends[first])
    at = ends[second]
    rest = second.latestOffset(at, ReadMaxRows(1000))
    found += numbers(rows(second, second.partitions(at, rest)))
    assert sorted(found) == list(range(100))
    second.commit(at)
    second.commit(rest)
    assert second.latestOffset(rest, ReadMaxRows(1000)) == rest  # nothing new: the same offset
    assert second.partitions(rest, rest) == []


def test_what_is_not_acknowledged_comes_again(broker: Broker) -> None:
    fill(broker, "Again", 10)
    reader = stream(options(broker, "Again", popInvisibleTime="2"))
    start = reader.initialOffset()
    lost = reader.latestOffset(start, ReadMaxRows(1000))  # the query dies here
    assert len(numbers(rows(reader, reader.partitions(start, lost)))) == 10
    with blocking.SimpleConsumer(
        "spark",
        broker.namesrv,
        ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
    ) as other:
        other.subscribe("Again")
        found = other.receive(await_s=60)
        assert found and all(message.reconsume_times == 1 for message in found)
        other.ack_all(found)
    # Spark reads the rest from the retry topic
    numbers_left = 10 - len(found)
    at = lost
    while numbers_left:
        end = until(lambda at=at: _next(reader, at), "more messages are revived")
        batch = rows(reader, reader.partitions(at, end))
        assert {row["topic"] for row in batch} == {"%RETRY%spark_Again"}
        numbers_left -= len(batch)
        reader.commit(end)
        at = end
    assert numbers_left == 0


def _next(reader: Any, start: dict[str, Any]) -> dict[str, Any] | None:
    end: dict[str, Any] = reader.latestOffset(start, ReadMaxRows(1000))
    return None if end == start else end


def test_wrong_options_are_refused() -> None:
    given = {"namesrvAddr": "127.0.0.1:1", "subscribe": "T"}
    with pytest.raises(ConfigError, match="popGroup"):
        read_options({**given, "popGroup": "g"}, stream=False)
    with pytest.raises(ConfigError, match="popInvisibleTime"):
        read_options({**given, "popInvisibleTime": "9"}, stream=True)
    assert read_options({**given, "popGroup": "g"}, stream=True).pop_invisible_s == 600
