"""What a broker tells ZooKeeper, a real one, and what happens when the session or ZooKeeper itself is lost."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from mqlake.errors import ConfigError, RemotingConnectError, RemotingError
from mqlake.metaq.broker.broker_zookeeper import BrokerZooKeeper
from mqlake.metaq.config import MetaConfig, SystemConfig, ZKConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.metaq.zookeeper.session import ZkSession
from tests.ports import free_port
from tests.waiting import until

ADDRESS = "meta://127.0.0.1:8123"
TOPICS = {
    "t": {"numPartitions": "3"},
    "sub-only": {"acceptPublish": "false"},
    "pub-only": {"acceptSubscribe": "false"},
}


@pytest.fixture
def zk(zookeeper: EmbeddedZookeeper, tmp_path: Path) -> ZKConfig:
    return ZKConfig(
        zk_connect=zookeeper.connect_string, zk_root=f"/{tmp_path.name}", zk_session_timeout_ms=4000
    )


@pytest.fixture
def eye(zk: ZKConfig) -> Iterator[ZkSession]:
    """Another client, which looks at what is there."""
    session = ZkSession(zk)
    yield session
    session.close()


def broker_of(
    zk: ZKConfig, broker_id: int = 2, topics: dict[str, dict[str, str]] = TOPICS, slave_id: int = -1
) -> BrokerZooKeeper:
    config = MetaConfig(SystemConfig(broker_id=broker_id), zk, topics)
    return BrokerZooKeeper(config, ADDRESS, lambda: config.topics, slave_id=slave_id)


def dump(eye: ZkSession, path: str) -> dict[str, bytes]:
    """Path → value of all nodes below `path` that have one."""
    found: dict[str, bytes] = {}
    for name in eye.children(path):
        child = f"{path}/{name}"
        if value := eye.read(child):
            found[child] = value
        found.update(dump(eye, child))
    return found


def expire(session: ZkSession) -> None:
    """Ends a session as if its time were over: another client with its id closes it."""
    other = KazooClient(hosts=session.client.hosts and ",".join(f"{h}:{p}" for h, p in session.client.hosts))
    other._session_id, other._session_passwd = session.client.client_id
    other.start()
    other.stop()
    other.close()


def test_every_node(zk: ZKConfig, eye: ZkSession) -> None:
    broker = broker_of(zk)
    broker.start()
    root = zk.zk_root
    brokers = f"{root}/brokers"
    expected = {
        f"{brokers}/ids/2": ADDRESS.encode(),
        f"{brokers}/ids/2/master": ADDRESS.encode(),
        f"{brokers}/ids/2/master_config_checksum": b"0",
        f"{brokers}/topics/t/2-m": b"3",
        f"{brokers}/topics-pub/t/2-m": b'{"numParts":3,"broker":"2-m"}',
        f"{brokers}/topics-sub/t/2-m": b'{"numParts":3,"broker":"2-m"}',
        f"{brokers}/topics/sub-only/2-m": b"1",
        f"{brokers}/topics-sub/sub-only/2-m": b'{"numParts":1,"broker":"2-m"}',
        f"{brokers}/topics/pub-only/2-m": b"1",
        f"{brokers}/topics-pub/pub-only/2-m": b'{"numParts":1,"broker":"2-m"}',
    }
    assert dump(eye, root) == expected
    # ephemeral, but for the one that old clients look at
    assert broker.session is not None
    assert [broker.session.is_own(path) for path in expected] == [False, *[True] * 9]
    broker.config.add_topic("t", {"numPartitions": "4"})
    broker.config.add_topic("new", {})
    until(lambda: f"{brokers}/topics-sub/new/2-m" in dump(eye, root))
    assert dump(eye, root)[f"{brokers}/topics-pub/t/2-m"] == b'{"numParts":4,"broker":"2-m"}'
    broker.stop()
    assert dump(eye, root) == {}


def test_the_checksum_follows_the_file(zk: ZKConfig, eye: ZkSession, tmp_path: Path) -> None:
    ini = tmp_path / "server.ini"
    text = (
        "[system]\nbrokerId=2\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=1\nmaxSegmentSize=1\n"
        f"maxTransferSize=1\n[zookeeper]\nzk.zkConnect={zk.zk_connect}\nzk.zkRoot={zk.zk_root}\n[topic=t]\n"
    )
    ini.write_text(text)
    config = MetaConfig.load(str(ini))
    broker = BrokerZooKeeper(config, ADDRESS, lambda: config.topics)
    broker.start()
    path = broker.paths.master_config_checksum(2)
    assert eye.read(path) == str(zlib.crc32(ini.read_bytes())).encode()
    ini.write_text(text + "[topic=u]\n")
    os.utime(ini, (1, 1))
    assert config.reload()
    until(lambda: eye.read(path) == str(zlib.crc32(ini.read_bytes())).encode())
    until(lambda: eye.read(f"{broker.paths.topic_pub('u')}/2-m") is not None)
    broker.stop()


def test_a_slave_keeps_the_brokers_node(zk: ZKConfig, eye: ZkSession) -> None:
    broker = broker_of(zk)
    broker.start()
    eye.create_ephemeral(broker.paths.slave(2, 0), b"meta://127.0.0.1:8124")
    broker.stop()
    assert eye.read(broker.paths.broker_id(2)) == b""
    assert eye.read(broker.paths.master(2)) is None


def test_master_and_slave_come_and_go_without_each_other(zk: ZKConfig, eye: ZkSession) -> None:
    master, slave = broker_of(zk), broker_of(zk, slave_id=1)
    brokers = f"{zk.zk_root}/brokers"
    of_slave = {
        f"{brokers}/ids/2/slave1": ADDRESS.encode(),
        f"{brokers}/topics/t/2-s1": b"3",
        f"{brokers}/topics-pub/t/2-s1": b'{"numParts":3,"broker":"2-s1"}',
        f"{brokers}/topics-sub/t/2-s1": b'{"numParts":3,"broker":"2-s1"}',
        f"{brokers}/topics/sub-only/2-s1": b"1",
        f"{brokers}/topics-sub/sub-only/2-s1": b'{"numParts":1,"broker":"2-s1"}',
        f"{brokers}/topics/pub-only/2-s1": b"1",
        f"{brokers}/topics-pub/pub-only/2-s1": b'{"numParts":1,"broker":"2-s1"}',
    }
    slave.start()
    assert dump(eye, zk.zk_root) == of_slave
    master.start()
    both = dump(eye, zk.zk_root)
    assert both.items() >= of_slave.items() and len(both) == len(of_slave) + 10
    master.stop()
    assert dump(eye, zk.zk_root) == of_slave
    again = broker_of(zk)
    again.start()
    assert dump(eye, zk.zk_root) == both
    slave.stop()
    assert dump(eye, zk.zk_root) == {path: value for path, value in both.items() if path not in of_slave}
    again.stop()


def test_a_new_session_is_told_everything(zk: ZKConfig, eye: ZkSession) -> None:
    broker = broker_of(zk)
    broker.start()
    before = dump(eye, zk.zk_root)
    assert broker.session is not None
    old = broker.session.client.client_id
    expire(broker.session)
    until(lambda: dump(eye, zk.zk_root) == before and broker.session.client.client_id != old)  # type: ignore[union-attr]
    until(lambda: broker.session.is_own(broker.paths.master(2)))  # type: ignore[union-attr]
    broker.stop()
    assert dump(eye, zk.zk_root) == {}


def test_one_broker_an_id(zk: ZKConfig, eye: ZkSession) -> None:
    paths = broker_of(zk).paths
    eye.create_ephemeral(paths.master(2), b"meta://10.0.0.7:8123")
    quick = ZKConfig(zk_connect=zk.zk_connect, zk_root=zk.zk_root, zk_session_timeout_ms=300)
    with pytest.raises(
        ConfigError, match=r"belongs to meta://10\.0\.0\.7:8123: another broker has brokerId 2"
    ):
        broker_of(quick).start()
    assert eye.read(paths.master(2)) == b"meta://10.0.0.7:8123"
    late = broker_of(zk)
    eye.submit(lambda: (time.sleep(0.2), eye.delete(paths.master(2))))
    late.start()
    assert eye.read(paths.master(2)) == ADDRESS.encode()
    late.stop()


def test_without_zookeeper() -> None:
    nobody = ZKConfig(zk_connect="127.0.0.1:1", zk_connection_timeout_ms=200)
    with pytest.raises(RemotingConnectError, match=r"127\.0\.0\.1:1: no ZooKeeper answers within 0\.2 s"):
        broker_of(nobody).start()
    off = broker_of(ZKConfig(zk_connect="127.0.0.1:1", zk_enable=False))
    off.start()
    off.topic_created("t")
    off.stop()


def test_zookeeper_goes_and_comes_back(tmp_path: Path) -> None:
    server = EmbeddedZookeeper(str(tmp_path / "zookeeper"), free_port())
    server.start()
    zk = ZKConfig(zk_connect=server.connect_string, zk_session_timeout_ms=4000)
    broker = broker_of(zk)
    broker.start()
    server.kill()
    broker.topic_created("t")
    server.start()
    eye = ZkSession(zk)
    until(lambda: eye.read(broker.paths.master(2)) == ADDRESS.encode())
    broker.config.add_topic("meanwhile", {})
    until(lambda: eye.read(f"{broker.paths.topic_sub('meanwhile')}/2-m") is not None)
    broker.stop()
    assert dump(eye, "/meta") == {}
    eye.close()
    server.stop()


def test_a_broker_can_be_stopped_while_zookeeper_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedZookeeper(str(tmp_path / "zookeeper"), free_port())
    server.start()
    zk = ZKConfig(zk_connect=server.connect_string, zk_connection_timeout_ms=60_000)
    broker = broker_of(zk)
    broker.start()
    assert broker.session is not None
    broker.session._timeout_s = 2.0
    server.kill()
    broker.topic_created("t")
    until(lambda: not broker.session.connected)  # type: ignore[union-attr]
    with pytest.raises(RemotingError, match=r"^ZooKeeper, /meta: "):
        broker.session.read("/meta")
    began = time.monotonic()
    broker.stop()
    assert time.monotonic() - began < 30
    assert "the connection to ZooKeeper is lost" in caplog.text
