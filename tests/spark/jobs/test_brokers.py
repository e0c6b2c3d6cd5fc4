"""Jobs with a live broker: rows go in, a store's messages are sent again, topics are exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from mqlake.cli.main import cli
from mqlake.message import MessageExtBrokerInner
from mqlake.spark.jobs.replay import LEFT_OUT
from mqlake.store import open_store
from tests.interop.brokers import MqlakeBroker
from tests.spark.jobs.oracle import dumped
from tests.spark.stores import BORN, decoded, log_files, overwrite, seen
from tests.waiting import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def topic_messages(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic).load()


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
    until(lambda: topic_messages(spark, broker.namesrv, "Rows").count() == 30)
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
    until(lambda: topic_messages(spark, broker.namesrv, "Again").count() == len(wanted))
    found = topic_messages(spark, broker.namesrv, "Again").orderBy("queueOffset").collect()
    assert len({row.queueId for row in found}) == 1
    assert [bytes(row.body) for row in found] == [m.body for m in wanted]
    for row, message in zip(found, wanted, strict=True):
        kept = {name: value for name, value in message.properties.items() if name not in LEFT_OUT}
        assert kept.items() <= row.properties.items()
        assert row.uniqKey != message.uniq_key


@pytest.mark.spark
def test_a_queue_stays_in_order_and_nothing_is_added(
    spark: SparkSession, broker: MqlakeBroker, tmp_path: Path
) -> None:
    """Two queues and their sharding keys, from one time on and before another; to their own topic."""
    root = tmp_path / "store"
    with open_store(root, {"mappedFileSizeCommitLog": 1 << 20}) as store:
        for n in range(40):
            message = MessageExtBrokerInner(
                "Ordered", str(n).encode(), tags="t", keys=f"k{n}", queue_id=n % 2
            )
            message.properties |= {"n": str(n), "ORIGIN_MESSAGE_ID": "1", "UNIQ_KEY": f"{n:032X}"}
            if n % 3:
                message.properties["__SHARDINGKEY"] = f"s{n % 3}"
            assert store.put_message(message).is_ok
    for n, message in enumerate(decoded(root)):
        overwrite(log_files(root)[0], message.physical_offset + 56, (BORN + n).to_bytes(8, "big"))
    sent = [row for row in dumped(root) if BORN + 5 <= row["storeTimestamp"] < BORN + 35]
    command = ["replay", root, "--to-broker", broker.namesrv, "--ordered", "--json"]
    told = json.loads(run(*command, "--since", BORN + 5, "--until", BORN + 35).stdout)
    assert told["messages"] == len(sent) == 30
    until(lambda: topic_messages(spark, broker.namesrv, "Ordered").count() == 30)
    found = topic_messages(spark, broker.namesrv, "Ordered").orderBy("queueOffset").collect()
    queues = {row.queueId for row in found}
    assert len(queues) == 2
    assert {tuple(int(row.properties["n"]) for row in found if row.queueId == queue) for queue in queues} == {
        tuple(range(5, 35, 2)),
        tuple(range(6, 35, 2)),
    }
    given = {row["properties"]["n"]: row["properties"] for row in sent}
    for row in found:
        own = {name: row.properties[name] for name in row.properties.keys() - OF_THE_DELIVERY}
        before = given[row.properties["n"]]
        assert own == {name: before[name] for name in before.keys() - {"ORIGIN_MESSAGE_ID", "UNIQ_KEY"}}


OF_THE_DELIVERY = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER", "WAIT"}
"""What client and broker add."""
