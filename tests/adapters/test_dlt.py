"""dlt's runs over real brokers into DuckDB: each message once, nothing skipped in silence."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlt
import pytest
from dlt.pipeline.exceptions import PipelineStepFailed

from mqlake.adapters.dlt import rocketmq, seconds_of
from mqlake.client.blocking import Admin, Producer
from mqlake.errors import ConfigError
from mqlake.message import Message
from tests.interop.brokers import Broker
from tests.waiting import until

Run = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def _tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")


@pytest.fixture
def topic() -> str:
    return f"orders_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(tmp_path: Path, topic: str, broker: Broker) -> Run:
    """Runs the pipeline; all rows that it has loaded so far."""
    pipeline = dlt.pipeline(
        "mq",
        pipelines_dir=str(tmp_path / "pipelines"),
        destination=dlt.destinations.duckdb(str(tmp_path / "mq.duckdb")),
        dataset_name="loaded",
    )

    def loaded(columns: str = "body", **options: Any) -> list[tuple[Any, ...]]:
        pipeline.run(rocketmq(topic, broker.namesrv, **options))
        with pipeline.sql_client() as client:
            return client.execute_sql(f"SELECT {columns} FROM {topic} ORDER BY queue_id, queue_offset") or []

    return loaded


def send(broker: Broker, topic: str, *bodies: bytes) -> None:
    with Producer("dlt-tests", broker.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tags="t", keys="k", properties={"color": "red"}))


def test_each_run_loads_what_has_come_since(broker: Broker, topic: str, run: Run):
    send(broker, topic, *(b"%d" % i for i in range(20)))
    assert sorted(int(body) for (body,) in run()) == list(range(20))
    assert len(run()) == 20
    send(broker, topic, *(b"%d" % i for i in range(20, 25)))
    rows = run("body, tags, keys, properties__color, store_time >= born_time, msg_id")
    assert sorted(int(row[0]) for row in rows) == list(range(25))
    assert {row[1:5] for row in rows} == {("t", "k", "red", True)}
    assert len({row[5] for row in rows}) == 25


def test_a_topic_that_was_made_again_is_an_error_and_no_gap(
    mqlake_broker: Broker, topic: str, tmp_path: Path
):
    pipeline = dlt.pipeline(
        "mq",
        pipelines_dir=str(tmp_path),
        destination=dlt.destinations.duckdb(str(tmp_path / "d")),
        dataset_name="loaded",
    )
    with Admin(mqlake_broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
        send(mqlake_broker, topic, b"old 1", b"old 2")
        pipeline.run(rocketmq(topic, mqlake_broker.namesrv))
        admin.delete_topic(topic)
        until(lambda: not admin.topic_exists(topic))
        admin.create_topic(topic, queues=1)
    send(mqlake_broker, topic, b"new 1", b"new 2", b"new 3")
    with pytest.raises(PipelineStepFailed, match="another queue"):
        pipeline.run(rocketmq(topic, mqlake_broker.namesrv))
    pipeline.abort_packages()
    pipeline.run(rocketmq(topic, mqlake_broker.namesrv, on_lost="warn"))
    with pipeline.sql_client() as client:
        assert len(client.execute_sql(f"SELECT * FROM {topic}") or []) == 5


def test_documents_become_columns_and_what_is_none_names_its_place(
    mqlake_broker: Broker, topic: str, tmp_path: Path
):
    send(mqlake_broker, topic, json.dumps({"id": 7, "lines": [{"sku": "a"}, {"sku": "b"}]}).encode())
    pipeline = dlt.pipeline(
        "mq",
        pipelines_dir=str(tmp_path),
        destination=dlt.destinations.duckdb(str(tmp_path / "d")),
        dataset_name="loaded",
    )
    pipeline.run(rocketmq([topic], mqlake_broker.namesrv, body="json"))
    with pipeline.sql_client() as client:
        assert client.execute_sql(f"SELECT body__id FROM {topic}") == [(7,)]
        assert client.execute_sql(f"SELECT sku FROM {topic}__body__lines ORDER BY 1") == [("a",), ("b",)]
    send(mqlake_broker, topic, b"{not json")
    with pytest.raises(PipelineStepFailed, match=rf"topic {topic}, queue .*offset \d+: the body is not json"):
        pipeline.run(rocketmq([topic], mqlake_broker.namesrv, body="json"))


def test_settings_that_are_none():
    for options in ({"body": "xml"}, {"start": "middle"}, {"on_lost": "ignore"}):
        with pytest.raises(ConfigError, match="it can be"):
            rocketmq("T", **options)


@pytest.mark.parametrize("born", [1_700_000_000_000_000, -62_135_596_800_001, 253_402_300_800_000, -(2**63)])
def test_a_time_that_no_timestamp_holds_is_null(born: int) -> None:
    """dlt makes a date of it: one message whose client counts in µs would end every later load."""
    assert seconds_of(born) is None
    assert seconds_of(-62_135_596_800_000) is not None and seconds_of(253_402_300_799_999) is not None
