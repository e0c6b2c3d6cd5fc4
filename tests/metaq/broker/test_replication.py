"""Two brokers, one log: synchronous (samsa and gregor) and asynchronous slaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from mqlake.errors import ConfigError
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.broker.replication import SamsaConfig, SlaveConfig
from mqlake.metaq.client import Message, MetaMessageSessionFactory
from mqlake.metaq.config import MetaConfig, SystemConfig, ZKConfig
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.message import Partition
from mqlake.metaq.store.message_store import MessageStore
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.metaq.zookeeper.paths import MetaZookeeper
from mqlake.metaq.zookeeper.session import ZkSession
from mqlake.remoting.loop import run
from tests.metaq.brokers import HOST, Peer
from tests.ports import free_port
from tests.waiting import until_async

TOPICS = {"t": {"numPartitions": "2"}}


def broker_of(path: Path, *, zk: ZKConfig | None = None, port: int = 0, **roles: Any) -> MetaMorphosisBroker:
    system = SystemConfig(data_path=str(path), unflush_threshold=0, server_port=port, host_name=HOST)
    config = MetaConfig(system, zk, TOPICS)
    return MetaMorphosisBroker(config, host=HOST, use_zookeeper=zk is not None, **roles)


@contextlib.asynccontextmanager
async def running(broker: MetaMorphosisBroker) -> Any:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def files(path: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(path)): f.read_bytes()
        for f in sorted(path.rglob("*.meta"))
        if "status" not in str(f)
    }


@pytest.fixture
def zk(zookeeper: EmbeddedZookeeper, tmp_path: Path) -> ZKConfig:
    return ZKConfig(
        zk_connect=zookeeper.connect_string, zk_root=f"/{tmp_path.name}", zk_session_timeout_ms=20_000
    )


def test_both_have_a_message_before_it_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(broker_of(tmp_path / "gregor", gregor=True)) as gregor:
            samsa_config = SamsaConfig(slave=f"{HOST}:{gregor.server.port}", check_slave_interval_in_mills=10)
            async with running(broker_of(tmp_path / "samsa", samsa=samsa_config)) as samsa:
                await until_async(lambda: samsa.processor._link.connected)
                peers = [await Peer.connect(samsa.server.port) for _ in range(4)]
                for i in range(25):
                    answers = await asyncio.gather(
                        *(
                            peer.said(b"put t %d 20 1 -1 1\r\n\0\0\0\x06attr-1%010d" % (i % 2, i * 10 + n))
                            for n, peer in enumerate(peers)
                        )
                    )
                    assert all(code == 200 for code, _ in answers), answers
                assert files(tmp_path / "samsa") == files(tmp_path / "gregor")
                assert sum(map(len, files(tmp_path / "samsa").values())) == 100 * 40
                assert await peers[0].said(b"transaction TX:s:1 s BEGIN 1\r\n") == (
                    500,
                    "Unsupported beginTransaction",
                )
                assert await peers[0].said(b"transaction TX:s:1 s COMMIT_ONE_PHASE 1\r\n") == (
                    500,
                    "Unsupported commitTransaction",
                )
                assert (await peers[0].said(b"put t 0 1 0 -1 TX:s:1 1\r\nx"))[0] == 200
                there = await Peer.connect(gregor.server.port)
                assert await there.said(b"put t 0 1 0 -1 1\r\nx") == (403, "a slave takes no messages")

    run(test())


def test_without_the_slave_nothing_is_taken(tmp_path: Path) -> None:
    async def test() -> None:
        samsa_config = SamsaConfig(slave=f"{HOST}:{free_port()}", check_slave_interval_in_mills=10)
        async with running(broker_of(tmp_path / "samsa", samsa=samsa_config)) as samsa:
            peer = await Peer.connect(samsa.server.port)
            code, text = await peer.said(b"put t 0 1 0 -1 1\r\nx")
            assert code == 500 and text.endswith("Detail:Slave is disconnected ")
            assert samsa.manager.stores()[0].append_offset == 0

    run(test())


def test_what_the_master_alone_could_not_store_is_not_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(broker_of(tmp_path / "gregor", gregor=True)) as gregor:
            samsa_config = SamsaConfig(slave=f"{HOST}:{gregor.server.port}", check_slave_interval_in_mills=10)
            async with running(broker_of(tmp_path / "samsa", samsa=samsa_config)) as samsa:
                await until_async(lambda: samsa.processor._link.connected)
                samsa.manager.get_or_create("t", 0).close()
                peer = await Peer.connect(samsa.server.port)
                assert await peer.said(b"put t 0 1 0 -1 1\r\nx") == (
                    500,
                    f"Put message to [master '{samsa.broker_string}'] [partition 't-0'] failed",
                )
                assert samsa.stats.put_failed == 1 and samsa.processor._failures == 0
                assert (await peer.said(b"put t 1 1 0 -1 1\r\nx"))[0] == 200

    run(test())


def test_what_a_gregor_answers_to_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def test() -> None:
        async with running(broker_of(tmp_path, gregor=True)) as gregor:
            peer = await Peer.connect(gregor.server.port)
            assert await peer.said(b"sync t 1 3 0 99 891568578 40\r\nabc") == (200, "99 1 0")
            assert await peer.said(b"sync t 1 3 1 -7 40\r\nabc") == (200, "-7 1 23")
            assert await peer.said(b"sync _metaq_slave_status_test 0 4 0 5 -1 40\r\ntest") == (200, "5 0 0")
            assert files(tmp_path) == {
                "t-1/00000000000000000000.meta": encode_record(b"abc", 99, 0) + encode_record(b"abc", -7, 1)
            }
            for request, detail in {
                b"sync t 1 3 0 99 7 40\r\nabc": "Checksum failure",
                b"sync t 2 3 0 99 -1 40\r\nabc": "wrong partition 2",
                b"sync nosuch 0 3 0 99 -1 40\r\nabc": "The server do not accept topic nosuch",
            }.items():
                code, text = await peer.said(request)
                assert code == 500 and f"] failed.Detail:{detail}" in text
            monkeypatch.setattr(os, "fdatasync", fails)
            code, text = await peer.said(b"sync t 0 3 0 99 -1 40\r\nabc")
            assert code == 500 and "Input/output error" in text
            monkeypatch.undo()
            assert gregor.stats.put_failed == 4

    run(test())


def test_a_slave_that_fails_again_and_again(tmp_path: Path, zk: ZKConfig) -> None:
    async def test() -> None:
        async with running(broker_of(tmp_path / "gregor", gregor=True)) as gregor:
            samsa_config = SamsaConfig(
                slave=f"{HOST}:{gregor.server.port}",
                check_slave_interval_in_mills=10,
                slave_continuous_failure_threshold=3,
            )
            async with running(broker_of(tmp_path / "samsa", zk=zk, samsa=samsa_config)) as samsa:
                await until_async(lambda: samsa.processor._link.connected)
                master = samsa.zookeeper.paths.master(0)
                sick = gregor.processor.append
                gregor.processor.append = lambda connection, command, *_: connection.respond(
                    500, "sick", command.opaque
                )
                peer = await Peer.connect(samsa.server.port)
                for _ in range(3):
                    code, text = await peer.said(b"put t 0 1 0 -1 1\r\nx")
                    assert code == 500
                    assert (
                        text
                        == f"Put message to [slave 'meta://{samsa_config.slave}'] [partition 't-0'] failed"
                    )
                await until_async(lambda: samsa.zookeeper.session.read(master) is None)
                gregor.processor.append = sick
                await until_async(lambda: samsa.zookeeper.session.read(master) is not None)
                assert (await peer.said(b"put t 1 1 0 -1 1\r\nx"))[0] == 200

    run(test())


def test_an_asynchronous_slave_follows_and_stands_in(tmp_path: Path, zk: ZKConfig) -> None:
    async def test() -> None:
        master = broker_of(tmp_path / "master", zk=zk)
        await master.start()
        first = master.manager.get_or_create("t", 1, 5000)
        peer = await Peer.connect(master.server.port)
        for i in range(50):
            await peer.said(b"put t %d 5 0 -1 1\r\n%05d" % (i % 2, i))
        await peer.said(b"put t 0 2000000 0 -1 1\r\n" + bytes(2_000_000))
        slave_config = SlaveConfig(slave_id=3, slave_max_delay_in_mills=20)
        async with running(broker_of(tmp_path / "slave", zk=zk, slave=slave_config)) as slave:
            await until_async(lambda: files(tmp_path / "slave") == files(tmp_path / "master"))
            assert slave.manager.get("t", 1).min_offset == 5000 == first.min_offset
            await peer.said(b"put t 0 3 0 -1 1\r\nnew")
            await until_async(lambda: files(tmp_path / "slave") == files(tmp_path / "master"))
            zookeeper, paths = slave.zookeeper.session, slave.zookeeper.paths
            assert zookeeper.read(paths.slave(0, 3)) == slave.broker_string.encode()
            assert zookeeper.children(paths.topic_sub("t")) == ["0-m", "0-s3"]
            assert "slave true" in slave.stats.get_stats_info("")
            there = await Peer.connect(slave.server.port)
            assert (await there.said(b"put t 0 1 0 -1 1\r\nx"))[0] == 403
            await peer.close()
            await master.stop()
            assert zookeeper.read(paths.broker_id(0)) == b""
            async with MetaMessageSessionFactory(zk_config=zk) as session:
                found = [message async for message in session.create_topic_browser("t")]
            assert len(found) == 52
            async with running(broker_of(tmp_path / "master", zk=zk)) as again:
                peer = await Peer.connect(again.server.port)
                await peer.said(b"put t 1 5 0 -1 1\r\nagain")
                await until_async(lambda: files(tmp_path / "slave") == files(tmp_path / "master"))

    run(test())


def test_a_slave_takes_the_topics_of_its_master_over(tmp_path: Path, zk: ZKConfig) -> None:
    def ini(side: str, topics: str, host: str = HOST) -> Path:
        path = tmp_path / f"{side}.ini"
        path.write_text(
            "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=1000\n"
            "maxSegmentSize=1048576\nmaxTransferSize=1048576\nserverPort=0\n"
            f"hostName={host}\ndataPath={tmp_path / side}\n"
            f"[zookeeper]\nzk.zkConnect={zk.zk_connect}\nzk.zkRoot={zk.zk_root}\n{topics}"
        )
        return path

    def of(path: Path, **roles: Any) -> MetaMorphosisBroker:
        return MetaMorphosisBroker(MetaConfig.load(str(path)), host=HOST, **roles)

    async def test() -> None:
        theirs = ini("master", "[topic=t]\nnumPartitions=2\n")
        own = ini("slave", "; of the slave\n[topic=old]\n", host="localhost")
        config = SlaveConfig(slave_id=0, slave_max_delay_in_mills=20, auto_sync_master_config=True)
        async with running(of(theirs)) as master, running(of(own, slave=config)) as slave:
            await until_async(lambda: slave.config.topics == ["t"])
            theirs.write_text(theirs.read_text() + "[topic=new]\nnumPartitions=3\n")
            assert master.config.reload()
            await until_async(lambda: slave.config.topics == ["new", "t"])
            peer = await Peer.connect(master.server.port)
            assert (await peer.said(b"put new 2 1 0 -1 1\r\nx"))[0] == 200
            await until_async(lambda: "new-2" in str(files(tmp_path / "slave")))
            await until_async(lambda: files(tmp_path / "slave") == files(tmp_path / "master"))
        again = MetaConfig.load(str(own))
        assert (again.topics, again.system.host_name) == (["new", "t"], "localhost")
        assert "; of the slave" in own.read_text()

    run(test())


def test_a_samsa_sets_the_groups_offsets_right_before_it_shows_itself(tmp_path: Path, zk: ZKConfig) -> None:
    records = [encode_record(b"%d" % n * n, 10 * n, 0) for n in range(1, 20)]
    ends = [sum(map(len, records[:n])) for n in range(20)]
    store = MessageStore(str(tmp_path / "master"), "t", 0, max_segment_size=200)
    for each in records:
        store.append(each)
    store.close()
    nodes = {
        "right": (f"50-{ends[5]}", f"50-{ends[5]}"),
        "elsewhere": ("50-7777", f"50-{ends[5]}"),
        "between": ("155-3", f"150-{ends[15]}"),
        "before": ("5-3", "-1-0"),
        "negative": ("-50-3", "-50-3"),
        "old": ("3", "3"),
    }
    session = ZkSession(zk)
    paths = MetaZookeeper(zk.zk_root)
    for group, (before, _) in nodes.items():
        session.put_persistent(paths.consumer_offset(group, "t", Partition(0, 0)), before.encode())
    session.put_persistent(paths.consumer_offset("empty", "t", Partition(0, 1)), b"50-7777")
    session.put_persistent(paths.consumer_offset("other", "t", Partition(9, 0)), b"50-7777")

    async def test() -> None:
        samsa = SamsaConfig(slave=f"{HOST}:{free_port()}", recover_offset=True)
        async with running(broker_of(tmp_path / "master", zk=zk, samsa=samsa)):
            for group, (_, after) in nodes.items():
                path = paths.consumer_offset(group, "t", Partition(0, 0))
                assert session.read(path) == after.encode(), group
            assert session.read(paths.consumer_offset("empty", "t", Partition(0, 1))) == b"-1-0"
            assert session.read(paths.consumer_offset("other", "t", Partition(9, 0))) == b"50-7777"

    run(test())
    session.close()


def test_settings_as_in_the_original_files() -> None:
    assert SamsaConfig.from_mapping(
        {"slave": "meta://h:1", "recoverOffset": "true", "callbackThreadCount": "3"}
    ) == (SamsaConfig(slave="h:1", recover_offset=True))
    assert SlaveConfig.from_mapping({"slaveId": "2"}).group == "meta-slave-group_2"
    assert SlaveConfig.from_mapping({"slaveId": "2", "autoSyncMasterConfig": "true"}).auto_sync_master_config
    for bad in ({}, {"slave": "h:1", "slaves": "x"}, {"slave": "h:1", "recoverOffset": "yes"}):
        with pytest.raises(ConfigError):
            SamsaConfig.from_mapping(bad)
    for bad in ({}, {"slaveId": "-1"}, {"slaveID": "1"}):
        with pytest.raises(ConfigError):
            SlaveConfig.from_mapping(bad)
    with pytest.raises(ConfigError, match="one of"):
        broker_of(Path("x"), gregor=True, slave=SlaveConfig(slave_id=1))


def test_a_message_is_read_from_nobody_else(tmp_path: Path, zk: ZKConfig) -> None:
    """A producer never sends to a slave."""

    async def test() -> None:
        slave = broker_of(tmp_path / "slave", zk=zk, slave=SlaveConfig(slave_id=0))
        async with running(slave), MetaMessageSessionFactory(zk_config=zk) as session:
            producer = session.create_producer()
            await producer.publish("t")
            assert producer.partitions("t") == []
            with pytest.raises(Exception, match="no broker takes"):
                await producer.send_message(Message("t", b"x"))

    run(test())
