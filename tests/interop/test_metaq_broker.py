"""mqlake's client against the original Java broker, and the two brokers on one data directory in turn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.metaq.client import ConsumerConfig, Message, MetaMessageSessionFactory, Partition
from mqlake.metaq.config import MetaConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.remoting.loop import run
from tests.interop.metaq_peer import MetaqPeer, chroot, write_ini
from tests.metaq.brokers import BrokerThread
from tests.metaq.client.test_client import xa_conversation
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.java

TOPICS = {name: {"numPartitions": "2"} for name in ("test", "tx", "xa")}


@pytest.fixture(scope="module")
def java_broker(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """ZooKeeper's address, below which a Java broker is."""
    root = tmp_path_factory.mktemp("java-broker")
    zk = chroot(metaq_zookeeper, "java")
    ini = write_ini(
        root / "server.ini", broker_id=5, port=free_port(), data=root / "data", zk=zk, topics=TOPICS
    )
    with metaq_peer.broker(ini):
        yield zk


def test_our_client_against_the_java_broker(java_broker: str) -> None:
    async def test() -> None:
        async with MetaMessageSessionFactory(zk_connect=java_broker) as session:
            producer = session.create_producer()
            await producer.publish("test")
            sent = [(b"%d" % i, f"a{i}" if i % 3 else None) for i in range(20)] + [(bytes(400_000), None)]
            for data, attribute in sent:
                result = await producer.send_message(Message("test", data, attribute))
                assert result.success and result.partition in (Partition(5, 0), Partition(5, 1))
            found: list[Message] = []
            consumer = session.create_consumer(ConsumerConfig(group="g", max_delay_fetch_s=0.1))
            consumer.subscribe("test", found.append)
            await consumer.complete_subscribe()
            await until_async(lambda: len(found) == 21)
            assert sorted((m.data, m.attribute or "") for m in found) == sorted((d, a or "") for d, a in sent)
            assert len(consumer.owned_partitions) == 2
            assert all(message.id < 0 for message in found), "the original counts from the machine's start"
            assert len([m async for m in session.create_topic_browser("test")]) == 21
            stats = next(iter((await session.stats()).values()))
            assert stats["total_messages"] == "21" and stats["broker_id"] == "5"

    run(test())


def test_transactions_on_the_java_broker(java_broker: str) -> None:
    async def test() -> None:
        async with MetaMessageSessionFactory(zk_connect=java_broker) as session:
            producer = session.create_producer()
            await producer.publish("tx")
            async with producer.begin_transaction(timeout_s=60) as transaction:
                for i in range(4):
                    result = await transaction.send_message(Message("tx", b"yes %d" % i))
                    assert result.success and result.offset == -1
            transaction = producer.begin_transaction()
            await transaction.send_message(Message("tx", b"no"))
            await transaction.rollback()
            found: list[Message] = []
            while len(found) < 4:
                found = [m async for m in session.create_topic_browser("tx")]
            assert sorted(m.data for m in found) == [b"yes %d" % i for i in range(4)]

    run(test())


def test_xa_transactions_on_the_java_broker(java_broker: str) -> None:
    async def test() -> None:
        async with MetaMessageSessionFactory(zk_connect=java_broker) as session:
            expected = await xa_conversation(session, "xa")
            found: list[bytes] = []
            while len(found) < len(expected):  # the original answers a commit before its messages can be read
                found = [m.data async for m in session.create_topic_browser("xa")]
            assert sorted(found) == expected

    run(test())


def test_our_consumer_and_a_java_consumer_share_a_group(java_broker: str, metaq_peer: MetaqPeer) -> None:
    async def test() -> None:
        async with MetaMessageSessionFactory(zk_connect=java_broker) as session:
            found: list[Message] = []
            consumer = session.create_consumer(
                ConsumerConfig(group="mixed", max_delay_fetch_s=0.1, consumer_id="~ours")
            )
            consumer.subscribe("test", found.append)
            await consumer.complete_subscribe()
            assert len(consumer.owned_partitions) == 2

            def theirs() -> None:
                with metaq_peer.subscribed(java_broker, "test", "mixed"):
                    while len(consumer.owned_partitions) != 1:
                        pass

            await asyncio.wait_for(asyncio.to_thread(theirs), PATIENCE_S)
            await until_async(lambda: len(consumer.owned_partitions) == 2)

    run(test())
    metaq_peer.disconnect(java_broker)


def snapshot(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*.meta"))
        if path.is_file()
    }


def test_both_brokers_on_one_directory_in_turn(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    everything: list[bytes] = []
    whole: dict[str, bytes] = {}

    def turn(name: str, is_java: bool) -> None:
        zk = chroot(metaq_zookeeper, name.replace(" ", "-"))
        ini = write_ini(
            tmp_path / f"{name}.ini", broker_id=0, port=free_port(), data=data, zk=zk, topics=TOPICS
        )
        broker = metaq_peer.broker(ini) if is_java else BrokerThread(MetaConfig.load(str(ini)))
        with broker:
            bodies = [f"{name} {i}".encode() for i in range(6)]
            sent = metaq_peer.send(zk, "test", [(body, "an attribute") for body in bodies])
            assert all(each["success"] for each in sent)
            transaction = [f"{name} tx {i}".encode() for i in range(2)]
            metaq_peer.send(zk, "test", transaction, transaction="commit")
            metaq_peer.send(zk, "test", [b"never"], transaction="rollback")
            everything.extend([*bodies, *transaction])
            # the Java broker opens some partitions only when something is put there, so this comes last
            found = sorted(message.data for message in metaq_peer.browse(zk, "test"))
            assert found == sorted(everything), f"{name} reads what is there"
            metaq_peer.disconnect(zk)
        after = snapshot(data)
        assert all(after[path].startswith(raw) for path, raw in whole.items()), "nothing is ever written anew"
        whole.update(after)
        # as a crash leaves it: the next one cuts it off
        last = max(data.glob("test-0/*.meta"))
        last.write_bytes(last.read_bytes() + b"half a record")

    turn("java first", True)
    turn("ours", False)
    turn("java again", True)
    turn("ours again", False)
    assert sorted(os.listdir(data)) == ["test-0", "test-1", "transactions"]


def test_a_prepared_transaction_of_the_java_broker_is_committed_by_ours(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    roots = [chroot(metaq_zookeeper, name) for name in ("xa-java", "xa-ours")]
    inis = [
        write_ini(
            tmp_path / f"{i}.ini",
            broker_id=0,
            port=free_port(),
            data=tmp_path / "data",
            zk=zk,
            topics={"test": {}},
        )
        for i, zk in enumerate(roots)
    ]
    with metaq_peer.broker(inis[0]):
        metaq_peer.xa(roots[0], "test", 1, "prepare", [b"prepared", b"and more"])
        metaq_peer.xa(roots[0], "test", 2, "commit", [b"committed"])
        metaq_peer.disconnect(roots[0])
    with BrokerThread(MetaConfig.load(str(inis[1]))):
        assert metaq_peer.xa_recover(roots[1], "test") == ["1"]
        metaq_peer.send(roots[1], "test", [b"between"])
        metaq_peer.xa(roots[1], "test", 1, "onlyCommit")
        found = [m.data for m in metaq_peer.browse(roots[1], "test")]
        assert found == [b"committed", b"between", b"prepared", b"and more"]
        metaq_peer.disconnect(roots[1])
