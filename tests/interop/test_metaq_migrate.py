"""From the original MetaQ broker to the original RocketMQ broker: messages, and where a group was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.metaq.migrate import migrate as command
from mqlake.metaq.store.inspect import open_data_directory, read_records
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.migrate.migration import migrate
from tests.interop.brokers import SMALL_STORE, JavaBroker
from tests.interop.java_client import JavaClients
from tests.interop.java_peer import SMALL_FILES, JavaStore
from tests.interop.metaq_peer import MetaqPeer, chroot, write_ini
from tests.metaq.records import fill
from tests.ports import free_port

pytestmark = pytest.mark.java


def test_the_java_store_reads_what_was_migrated(java_store: JavaStore, tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "store"
    data.mkdir()
    for partition in (0, 1):
        fill(data, "orders", partition, 200)
    assert migrate(str(data), str(store), settings=SMALL_FILES).ok
    found = java_store.read(store, SMALL_FILES)
    assert found.info["lastExitOk"]
    assert len(found.records) == 400
    for files in open_data_directory(str(data)).partitions:
        queue = found.queues["orders", files.partition]
        expected = [
            {
                "body": record.message.data,
                "flag": record.message.flag,
                "properties": {
                    "KEYS": str(record.message.id),
                    "METAQ_OFFSET": str(record.offset),
                    **({"TAGS": record.message.attribute} if record.message.attribute else {}),
                },
            }
            for record in read_records(files)
        ]
        assert [{name: each[name] for name in expected[0]} for each in queue.messages] == expected


def test_a_group_goes_on_where_it_was(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, java_clients: JavaClients, tmp_path: Path
) -> None:
    zk = chroot(metaq_zookeeper, "migrate")
    data = tmp_path / "data"
    ini = write_ini(
        tmp_path / "server.ini",
        broker_id=7,
        port=free_port(),
        data=data,
        zk=zk,
        topics={"orders": {"numPartitions": "2"}},
    )
    with metaq_peer.broker(ini):
        metaq_peer.send(zk, "orders", [(b"old-%d" % n, f"tag-{n}") for n in range(20)])
        with metaq_peer.subscribed(zk, "orders", "billing") as consumer:
            assert len(consumer.take(20)) == 20
        new = [(b"new-%d" % n, f"tag-{n}") for n in range(10)]
        sent = metaq_peer.send(zk, "orders", new)
        assert all(each["success"] for each in sent)
        metaq_peer.disconnect(zk)

    broker = JavaBroker(tmp_path / "rocketmq")
    sizes = [f"--set={key}={value}" for key, value in SMALL_STORE.items() if key != "enablePropertyFilter"]
    store = tmp_path / "rocketmq" / "store"
    arguments = [str(data), str(store), "--zookeeper", zk, "--broker-id", "7", "--json", *sizes]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert sum(each["stored"] for each in report["partitions"]) == 30
    assert sum(each["queueOffset"] for each in report["positions"]) == 20

    with broker, java_clients.push(broker, "billing", "orders") as consumer:
        found = consumer.take(10)
        assert sorted(each["body"] for each in found) == sorted(body for body, _ in new)
