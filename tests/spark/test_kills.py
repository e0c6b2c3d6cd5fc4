"""Streams of a live broker under load, killed at random points: every message is in every copy exactly once.

The driver is killed, with its JVM and its Python workers; on a local cluster an executor before it.
`MQLAKE_CAMPAIGN=<rounds> pytest tests/spark/test_kills.py -k campaign` runs as many rounds as asked for.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mqlake.lake.live.ranges import QueueRange
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.spark.kills import Load, StreamJob
from tests.spark.rocketmq.test_source import options, source
from tests.spark.stream_job import COPIES, Where, catch_up
from tests.waiting import until

CLUSTER = "local-cluster[2,1,1024]"
TOPIC = "Load"
MOMENT_S = 2.0


def rounds_of_kills(where: Where, rounds: int, chance: random.Random) -> None:
    """One of the copies has come further when something is killed; the others are where they are."""
    for number in range(rounds):
        with StreamJob(where, COPIES[number % len(COPIES)]) as job:
            job.await_batch()
            time.sleep(chance.random() * MOMENT_S)  # anywhere in a batch
            if where.master == CLUSTER:
                os.kill(chance.choice(job.executors()), signal.SIGKILL)
                job.await_batch()
                time.sleep(chance.random() * MOMENT_S)


def exactly_once(spark: SparkSession, broker: Broker, directory: Path, master: str, rounds: int) -> int:
    """Messages that were copied, each once, of a broker that has its store below the directory."""
    chance = random.Random(int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1")))
    with tempfile.TemporaryDirectory(prefix="mqlake-kills-") as scratch, Load(broker.namesrv, TOPIC) as load:
        until(lambda: load.count > 0)
        (log,) = directory.rglob("commitlog")
        where = Where(master, str(log.parent), broker.namesrv, TOPIC, str(directory / "out"), scratch)
        rounds_of_kills(where, rounds, chance)
    reader = source(options(broker, TOPIC))

    def ranges() -> list[QueueRange]:
        return [partition.task for partition in reader.partitions()]

    until(lambda: sum(each.end - each.start for each in ranges()) >= load.count)
    sent = Counter((each.queue.queue_id, offset) for each in ranges() for offset in range(each.end))
    catch_up(spark, where)
    for copy in COPIES:
        assert where.copied(spark, copy) == sent, copy
    assert sum(sent.values()) == load.count
    return load.count


@pytest.mark.spark
def test_exactly_once_over_kills(spark: SparkSession, tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path / "broker") as broker:
        exactly_once(spark, broker, tmp_path, "local[2]", 1)


@pytest.mark.spark
@pytest.mark.java
@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<rounds> asks for it")
@pytest.mark.parametrize("kind", [MqlakeBroker, JavaBroker])
@pytest.mark.parametrize("master", ["local[2]", CLUSTER])
def test_campaign(
    spark: SparkSession, tmp_path: Path, kind: type[Broker], master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = int(os.environ["MQLAKE_CAMPAIGN"])
    with kind(tmp_path / "broker") as broker:  # type: ignore[call-arg]
        count = exactly_once(spark, broker, tmp_path, master, rounds)
    with capsys.disabled():
        print(f"\n{kind.__name__}, {master}: {rounds} rounds of kills, {count} messages once in each copy")
