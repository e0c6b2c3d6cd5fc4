"""Replication with RocketMQ's own broker on the other side: files byte by byte, kills, SYNC_MASTER, reads.

MQLAKE_TEST_ROCKETMQ=5.5.1 in the environment takes that version's broker."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.client import Message
from mqlake.client.blocking import Producer
from mqlake.client.produce.producer import ProducerConfig
from mqlake.client.results import SendStatus
from mqlake.store.ha.ha_connection import OUTPUT_MAX as MAX_FRAME
from tests.interop.brokers import JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaClients
from tests.interop.java_peer import ROCKETMQ_VERSION
from tests.interop.replicas import QUICK, JavaSlave, MqlakeSlave, caught_up, log_bytes
from tests.interop.test_access_live import ACCESS_KEY, SECRET_KEY, SETTINGS
from tests.waiting import until

UNCOMPRESSED = ProducerConfig(send_msg_timeout_s=60.0, compress_msg_body_over_howmuch=1 << 22)
VERSION = os.environ.get("MQLAKE_TEST_ROCKETMQ", ROCKETMQ_VERSION)
SIZES = [10, 1000, 32_768 - 120, 32_768, 70_000, 300_000]
"""Around haTransferBatchSize and above, so that frames end anywhere in a record."""


def send(namesrv: str, topic: str, count: int, first: int = 0) -> list[SendStatus]:
    with Producer("PG", namesrv, UNCOMPRESSED) as producer:
        return [
            producer.send(
                Message(topic, b"%08d" % n + bytes(SIZES[n % len(SIZES)]), keys=f"k{n}")
            ).send_status
            for n in range(first, first + count)
        ]


def send_unawaited(namesrv: str, topic: str, count: int) -> None:
    """400 KB each; no producer waits for a slave to have them."""
    with Producer("PG", namesrv, UNCOMPRESSED) as producer:
        for number in range(count):
            body = b"%08d" % number + random.Random(number).randbytes(400_000)
            message = Message(topic, body)
            message.wait_store_msg_ok = False
            producer.send(message)


@pytest.fixture
def java_master(tmp_path: Path) -> Iterator[JavaBroker]:
    with JavaBroker(tmp_path / "java-master", QUICK, version=VERSION) as broker:
        yield broker


def test_a_slave_of_javas_master_through_kills_of_either(
    tmp_path: Path, java_master: JavaBroker, java_clients: JavaClients
) -> None:
    java_clients.topic(java_master, "FromJava", 1)
    send(java_master.namesrv, "FromJava", 60)
    with MqlakeSlave(tmp_path / "slave", java_master.namesrv, "java-broker") as slave:
        caught_up(java_master.address)
        slave.kill()
        send(java_master.namesrv, "FromJava", 60, 60)
        slave.start()
        send(java_master.namesrv, "FromJava", 30, 120)
        caught_up(java_master.address)
        java_master.kill()
        java_master.start()
        send(java_master.namesrv, "FromJava", 30, 150)
        caught_up(java_master.address)
        assert log_bytes(slave.store) == log_bytes(java_master.directory / "store")
        # a consumer of RocketMQ reads from the slave while the master is gone
        with java_clients.push(java_master, "GID_reader", "FromJava") as consumer:
            consumer.take(10)
            java_master.stop()
            found = consumer.take(180)
        counted = Counter(each["body"][:8] for each in found)
        assert counted.keys() == {b"%08d" % n for n in range(180)}
        slave.stop()


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
@pytest.mark.parametrize("version", [ROCKETMQ_VERSION, "5.5.1"])
def test_signed_metadata_page_by_page(tmp_path: Path, version: str) -> None:
    """From 5.4 on a master gives topics and groups page by page, and refuses a signed request that asks for no page.
    These masters check no signature: what 5.5.1 needs for that was not published with it."""
    paged = {**QUICK, "splitMetadataSize": 7}
    credentials = {"MQLAKE_ACCESS_KEY": ACCESS_KEY, "MQLAKE_SECRET_KEY": SECRET_KEY}
    secret = {key: SETTINGS[key] for key in ("innerClientAuthenticationCredentials",)}
    with JavaBroker(tmp_path / "master", paged, version=version) as master:

        def mqlake(*arguments: str) -> str:
            done = CliRunner().invoke(
                cli, ["admin", *arguments], env={"NAMESRV_ADDR": master.namesrv, **credentials}
            )
            assert done.exit_code == 0, done.output
            return done.stdout

        for number in range(16):
            mqlake("topic", "create", f"Paged{number}", "-q", "1")
            mqlake("group", "create", f"GID_{number}")
        with MqlakeSlave(tmp_path / "slave", master.namesrv, "java-broker", secret) as slave:
            config = slave.store / "config"

            def taken() -> bool:
                found = (config / "topics.json", config / "subscriptionGroup.json")
                texts = [path.read_text() if path.exists() else "" for path in found]
                return all(f'Paged{n}"' in texts[0] and f'GID_{n}"' in texts[1] for n in range(16))

            until(taken, "the slave has every topic and group")
            # the tools read the same pages
            assert mqlake("topic", "list").count("Paged") == 16
            slave.stop()


def test_javas_slave_of_a_master_here(tmp_path: Path) -> None:
    """Large frames too, which do not fit the 4 MiB that it receives in one after another."""
    files = {"mappedFileSizeCommitLog": 16 << 20}
    role = {
        **QUICK,
        **files,
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": 2,
        "slaveTimeout": 10_000,
        "haListenPort": 0,
    }
    with MqlakeBroker(tmp_path / "master", role) as master:
        store = tmp_path / "master" / "store" / "broker-0"
        send_unawaited(master.namesrv, "ToJava", 1)
        with JavaSlave(tmp_path / "slave", master.namesrv, "broker-0", files, VERSION) as slave:
            caught_up(master.address)
            assert set(send(master.namesrv, "ToJava", 60)) == {SendStatus.SEND_OK}
            assert log_bytes(slave.store) == log_bytes(store)
            slave._broker.process.send_signal(signal.SIGSTOP)
            assert send(master.namesrv, "ToJava", 1, 60) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
            slave._broker.process.send_signal(signal.SIGCONT)
            until(lambda: send(master.namesrv, "ToJava", 1, 62) == [SendStatus.SEND_OK])
            slave.kill()
            assert send(master.namesrv, "ToJava", 1, 63) == [SendStatus.FLUSH_SLAVE_TIMEOUT]
            send_unawaited(master.namesrv, "ToJava", 65)
            assert len(log_bytes(store)) - len(log_bytes(slave.store)) > 24 * MAX_FRAME
            slave.start()
            caught_up(master.address)
            assert log_bytes(slave.store) == log_bytes(store)
            master.kill()
            master.start()
            until(lambda: send(master.namesrv, "ToJava", 1, 64) == [SendStatus.SEND_OK])
            caught_up(master.address)
            assert log_bytes(slave.store) == log_bytes(store)
