"""A Java producer that knows nothing of failover sends on while masters are killed: nothing acknowledged is lost.

MQLAKE_CAMPAIGN=<kills> asks for as many kills, and prints how long each took from the kill to the next SEND_OK.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.failover.etcd_cluster import EtcdCluster
from tests.broker.failover.group import TOPIC, Group
from tests.interop.java_client import JavaClients, JavaProducer, message
from tests.waiting import trying

RETRIES = 2
"""RocketMQ's default."""
API_TIMEOUT_MS = 3000
"""The same: how long the producer waits for a route before it tries again. The other tests give it a minute."""


def test_a_java_producer_goes_on_at_the_new_master(java_clients: JavaClients, tmp_path: Path) -> None:
    asyncio.run(kills(java_clients, tmp_path, 1))


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<kills> asks for it")
def test_campaign(java_clients: JavaClients, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    took = sorted(asyncio.run(kills(java_clients, tmp_path, int(os.environ["MQLAKE_CAMPAIGN"]))))
    with capsys.disabled():
        print(f"\n{len(took)} kills: median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s: {took}")


async def kills(java_clients: JavaClients, directory: Path, count: int) -> list[float]:
    """Seconds from each kill to the next acknowledged send. Every acknowledged message is in the end's log."""
    bodies = (b"%d" % number for number in itertools.count())
    took = []
    with EtcdCluster(directory / "etcd") as etcd:
        (directory / "group").mkdir()
        async with Group(directory / "group", etcd.url, replicas=2, failoverLease=3000) as group:
            await group.in_sync(2)
            sent = await group.send(1)  # makes the topic
            with java_clients.producer(
                group, timeoutMillis=1000, retries=RETRIES, apiTimeoutMillis=API_TIMEOUT_MS
            ) as producer:
                for _ in range(count):
                    sent += until_acknowledged(producer, bodies, 20)
                    record = await group.in_sync(2)
                    killed = group.node(record.master)
                    began = time.monotonic()
                    await killed.end(signal.SIGKILL)
                    sent += until_acknowledged(producer, bodies, 1)
                    took.append(round(time.monotonic() - began, 2))
                    assert (await group.master(after=record.epoch)).master != record.master
                    killed.start(group.namesrv)
                sent += until_acknowledged(producer, bodies, 20)
            await group.in_sync(2)
            await group.stop()
            logs = [group.bodies(node) for node in group.nodes]
    assert logs[0] == logs[1]
    assert set(sent) - set(logs[0]) == set()
    return took


def until_acknowledged(producer: JavaProducer, bodies: Iterator[bytes], count: int) -> list[bytes]:
    """Sends one after the other until so many were acknowledged; those that were."""
    acknowledged: list[bytes] = []
    for _ in trying("messages are acknowledged"):
        body = b"java " + next(bodies)
        [result] = producer.send(TOPIC, "sync", [message(body)])
        if result.get("status") == "SEND_OK":
            acknowledged.append(body)
            if len(acknowledged) == count:
                break
    return acknowledged
