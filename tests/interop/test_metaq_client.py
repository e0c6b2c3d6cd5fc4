"""The original Java client against mqlake's broker, over a real ZooKeeper."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.config import MetaConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from tests.interop.metaq_peer import MetaqPeer, MetaqPeerError, chroot, write_ini
from tests.metaq.brokers import BrokerThread
from tests.ports import free_port
from tests.waiting import trying

pytestmark = pytest.mark.java

TOPICS = {name: {"numPartitions": "3"} for name in ("plain", "tx", "xa", "groups", "restart")}


@pytest.fixture(scope="module")
def ini(tmp_path_factory: pytest.TempPathFactory, metaq_zookeeper: EmbeddedZookeeper) -> Path:
    root = tmp_path_factory.mktemp("metaq-client")
    return write_ini(
        root / "server.ini",
        broker_id=1,
        port=0,
        data=root / "data",
        zk=metaq_zookeeper.connect_string,
        topics=TOPICS,
    )


@pytest.fixture(scope="module")
def broker(ini: Path) -> Iterator[MetaMorphosisBroker]:
    with BrokerThread(MetaConfig.load(str(ini))) as broker:
        yield broker


@pytest.fixture(scope="module")
def zk(broker: MetaMorphosisBroker, metaq_peer: MetaqPeer) -> Iterator[str]:
    yield broker.config.zookeeper.zk_connect
    metaq_peer.disconnect(broker.config.zookeeper.zk_connect)


def test_messages_and_attributes_over_partitions(metaq_peer: MetaqPeer, zk: str) -> None:
    messages = [(b"%d" % i, f"attribute {i}" if i % 2 else None) for i in range(30)]
    sent = metaq_peer.send(zk, "plain", [*messages, (b"", ""), (bytes(700_000), None)])
    assert all(each["success"] for each in sent)
    assert {each["partition"] for each in sent} == {"1-0", "1-1", "1-2"}
    with metaq_peer.subscribed(zk, "plain", "g1") as consumer:
        found = consumer.take(32)
        assert sorted((m.data, m.attribute or "") for m in found) == sorted(
            (data, attribute or "") for data, attribute in [*messages, (b"", ""), (bytes(700_000), None)]
        )
        assert len({m.id for m in found}) == 32 and all(m.id > 0 for m in found)
        assert {m.flag for m in found} == {0, 1}
        metaq_peer.send(zk, "plain", [b"more"])
        assert [m.data for m in consumer.take(1)] == [b"more"]
    with metaq_peer.subscribed(zk, "plain", "g1") as consumer:
        assert consumer.take(1, 500) == [], "the group's offsets are kept"
    assert len(metaq_peer.browse(zk, "plain")) == 33


def test_statistics(metaq_peer: MetaqPeer, zk: str, broker: MetaMorphosisBroker) -> None:
    text = metaq_peer.stats(zk)
    assert f"port={broker.server.port}" in text.replace(" ", "") or str(broker.server.port) in text


def test_local_transactions(metaq_peer: MetaqPeer, zk: str) -> None:
    metaq_peer.send(zk, "tx", [b"no %d" % i for i in range(5)], transaction="rollback")
    sent = metaq_peer.send(zk, "tx", [b"yes %d" % i for i in range(5)], transaction="commit")
    assert {each["offset"] for each in sent} == {-1}
    metaq_peer.send(zk, "tx", [b"plain"])
    with metaq_peer.subscribed(zk, "tx", "g1") as consumer:
        found = sorted(m.data for m in consumer.take(6))
        assert found == [b"plain", *(b"yes %d" % i for i in range(5))]
        assert consumer.take(1, 300) == []


def test_xa_transactions(metaq_peer: MetaqPeer, zk: str) -> None:
    assert metaq_peer.xa(zk, "xa", 1, "commit", [b"two phases", b"again"]) == 0
    metaq_peer.xa(zk, "xa", 2, "onePhase", [b"one phase"])
    metaq_peer.xa(zk, "xa", 3, "rollback", [b"never"])
    metaq_peer.xa(zk, "xa", 4, "prepare", [b"later"])
    assert metaq_peer.xa_recover(zk, "xa") == ["4"]
    metaq_peer.xa(zk, "xa", 4, "onlyCommit")
    assert metaq_peer.xa_recover(zk, "xa") == []
    with pytest.raises(MetaqPeerError) as caught:
        metaq_peer.xa(zk, "xa", 9, "onlyCommit")
    assert caught.value.xa == -4
    found = sorted(m.data for m in metaq_peer.browse(zk, "xa"))
    assert found == [b"again", b"later", b"one phase", b"two phases"]


def test_consumers_of_a_group_share_the_partitions(metaq_peer: MetaqPeer, zk: str) -> None:
    with metaq_peer.subscribed(zk, "groups", "g") as one:
        metaq_peer.send(zk, "groups", [b"%d" % i for i in range(9)])
        assert len(one.take(9)) == 9
        with metaq_peer.subscribed(zk, "groups", "g") as two:
            # until both have their share: each partition's owner gets what comes
            seen: set[str] = set()
            for _ in range(1000):
                metaq_peer.send(zk, "groups", [b"x", b"y", b"z"])
                mine, others = one.take(3, 150), two.take(3, 150)
                seen = {m.partition or "" for m in others}
                if others and not seen & {m.partition or "" for m in mine}:
                    break
            assert seen and len(seen) < 3


def test_prepared_transactions_outlive_a_restart(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    zk = chroot(metaq_zookeeper, "restart")
    ini = write_ini(
        tmp_path / "server.ini", broker_id=2, port=0, data=tmp_path / "data", zk=zk, topics={"restart": {}}
    )
    with BrokerThread(MetaConfig.load(str(ini))):
        metaq_peer.send(zk, "restart", [b"before"])
        metaq_peer.xa(zk, "restart", 7, "prepare", [b"prepared"])
        metaq_peer.disconnect(zk)
    with BrokerThread(MetaConfig.load(str(ini))):
        metaq_peer.send(zk, "restart", [b"between"])
        assert metaq_peer.xa_recover(zk, "restart") == ["7"]
        metaq_peer.xa(zk, "restart", 7, "onlyCommit")
        assert [m.data for m in metaq_peer.browse(zk, "restart")] == [b"before", b"between", b"prepared"]
        metaq_peer.disconnect(zk)


def test_a_restart_of_the_broker_under_load(
    metaq_peer: MetaqPeer, metaq_zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> None:
    zk = chroot(metaq_zookeeper, "load")
    ini = write_ini(
        tmp_path / "server.ini",
        broker_id=3,
        port=free_port(),
        data=tmp_path / "data",
        zk=zk,
        topics={"load": {"numPartitions": "2"}},
    )
    acknowledged: list[bytes] = []

    def send(count: int) -> None:
        """Each message is sent until it is acknowledged."""
        for _ in range(count):
            body = b"%d" % len(acknowledged)
            for _ in trying("the message is acknowledged"):
                try:
                    (sent,) = metaq_peer.send(zk, "load", [body])
                except MetaqPeerError:
                    continue  # the client has not connected again yet
                if sent["success"]:
                    break
            acknowledged.append(body)

    with contextlib.ExitStack() as brokers:
        brokers.enter_context(BrokerThread(MetaConfig.load(str(ini))))
        send(20)
        with metaq_peer.subscribed(zk, "load", "g") as consumer:
            found = {message.data for message in consumer.take(10)}
            brokers.close()
            brokers.enter_context(BrokerThread(MetaConfig.load(str(ini))))
            send(20)
            while not found >= set(acknowledged):
                more = consumer.take(1)
                assert more, "the rest does not come"
                found |= {message.data for message in more}
        metaq_peer.disconnect(zk)
