"""Jobs with a live broker: rows go in, a store's messages are sent again, topics are exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from mqlake.cli.main import cli
from mqlake.spark.jobs.replay import LEFT_OUT
from mqlake.spark.jobs.streams import broker_messages
from tests.interop.brokers import MqlakeBroker
from tests.spark.stores import seen
from tests.spark.test_commitlog_stream import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["spark", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.spark
def test_rows_to_a_broker_and_its_topic_to_parquet(
    spark: SparkSession, broker: MqlakeBroker, tmp_path: Path
) -> None:
    rows = [{"id": n, "customer": f"c{n % 3}"} for n in range(30)]
    (tmp_path / "rows.ndjson").write_text("\n".join(map(json.dumps, rows)))
    told = run("ingest", tmp_path / "rows.ndjson", "--to-broker", broker.namesrv, "--topic", "Rows", "--keys-from",
               "concat('id-', id)", "--order-by", "customer", "--json")  # fmt: skip
    assert json.loads(told.stdout)["messages"] == 30
    until(lambda: broker_messages(spark, broker.namesrv, ["Rows"]).count() == 30)
    out = tmp_path / "out"
    run(
        "export",
        broker.namesrv,
        out,
        "--from-broker",
        "--topic",
        "Rows",
        "--json-schema",
        "id long, customer string",
    )
    found = spark.read.parquet(str(out)).collect()
    assert sorted(row.value.id for row in found) == list(range(30))
    assert {row["keys"] for row in found} == {f"id-{n}" for n in range(30)}
    for customer in ("c0", "c1", "c2"):
        of_customer = sorted(
            (row for row in found if row.value.customer == customer), key=lambda row: row.queueOffset
        )
        assert len({row.queueId for row in of_customer}) == 1
        assert [row.value.id for row in of_customer] == sorted(row.value.id for row in of_customer)


@pytest.mark.spark
def test_a_store_is_sent_again(spark: SparkSession, broker: MqlakeBroker, every_kind: Path) -> None:
    chosen = [m for m in seen(every_kind) if m.topic == "Topic-1" and m.queue_id == 1]
    wanted = [m for m in chosen if m.body]
    command = [
        "replay",
        every_kind,
        "--to-broker",
        broker.namesrv,
        "--to-topic",
        "Again",
        "--topic",
        "Topic-1",
    ]
    command += ["--sql", "queueId = 1", "--ordered", "--json"]
    assert json.loads(run(*command, "--dry-run").stdout) == {
        "namesrv": broker.namesrv,
        "messages": len(wanted),
        "withoutBody": len(chosen) - len(wanted),
        "dryRun": True,
    }
    run(*command)
    until(lambda: broker_messages(spark, broker.namesrv, ["Again"]).count() == len(wanted))
    found = broker_messages(spark, broker.namesrv, ["Again"]).orderBy("queueOffset").collect()
    assert len({row.queueId for row in found}) == 1
    assert [bytes(row.body) for row in found] == [m.body for m in wanted]
    for row, message in zip(found, wanted, strict=True):
        kept = {name: value for name, value in message.properties.items() if name not in LEFT_OUT}
        assert kept.items() <= row.properties.items()
        assert row.uniqKey != message.uniq_key
