"""A master and a slave in one loop, with a name server: the log, the metadata, reads from the slave, promotion."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from mqlake.auth.model import policies_from_info
from mqlake.auth.state import create_user, delete_user, update_acl
from mqlake.broker.controller import BrokerController
from mqlake.broker.services import registration as registration_module
from mqlake.broker.services import replication as replication_module
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ConfigError, ResponseError
from mqlake.message import properties_to_string
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.admin import HARuntimeInfo
from mqlake.remoting.bodies.topic import (
    LogicQueueMappingItem,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
)
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import (
    ExchangeHAInfoResponseHeader,
    NotifyMinBrokerIdChangeRequestHeader,
    ResetMasterFlushOffsetHeader,
)
from mqlake.remoting.loop import run
from mqlake.store.ha.ha_client_service import HAClientService
from tests.broker.live import SCENE_S, Peer, make_controller, now_ms
from tests.broker.metrics.test_exporter import scrape
from tests.waiting import until_async

Scene = Callable[["Cluster"], Awaitable[None]]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_module, "TICK_S", 0.2)
    monkeypatch.setattr(replication_module, "SYNC_S", 1.0)
    monkeypatch.setattr(registration_module, "REGISTER_RETRY_S", 0.2)
    monkeypatch.setattr(
        replication_module, "HAClientService", functools.partial(HAClientService, retry_s=0.2)
    )


class Cluster:
    def __init__(self, directory: Path, namesrv: NamesrvController, client: RemotingClient) -> None:
        self.directory, self.client = directory, client
        self.namesrv_addr = f"127.0.0.1:{namesrv.port}"
        self.namesrv = namesrv
        self.controllers: list[BrokerController] = []

    async def start(self, name: str, **settings: str) -> Peer:
        controller = make_controller(
            self.directory / name, namesrvAddr=self.namesrv_addr, slaveReadEnable="true", **settings
        )
        await controller.start()
        self.controllers.append(controller)
        return Peer(controller, self.client)

    async def pair(self, **of_master: str) -> tuple[Peer, Peer]:
        master = await self.start("master", **of_master)
        return master, await self.start("slave", brokerRole="SLAVE", brokerId="1")


@contextlib.asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    namesrv = NamesrvController(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(directory / "kv.json"),
            config_store_path=str(directory / "namesrv.properties"),
        )
    )
    await namesrv.start()
    async with RemotingClient() as client:
        made = Cluster(directory, namesrv, client)
        try:
            yield made
        finally:
            for controller in reversed(made.controllers):
                await controller.stop()
            await namesrv.stop()


def on_a_cluster(directory: Path, scene: Scene) -> None:
    async def main() -> None:
        async with asyncio.timeout(SCENE_S), cluster(directory) as made:
            await scene(made)

    run(main())


async def same_log(master: Peer, slave: Peer) -> None:
    await until_async(lambda: end(master) == end(slave) and not behind(slave))


def end(peer: Peer) -> int:
    return peer.controller.broker.store.max_phy_offset


def behind(peer: Peer) -> int:
    return peer.controller.broker.store.dispatch_behind_bytes


async def ha_status(peer: Peer) -> HARuntimeInfo:
    return HARuntimeInfo.from_json((await peer.ask(RequestCode.GET_BROKER_HA_STATUS)).body_bytes())


def test_a_slave_gets_log_topics_groups_and_offsets_and_serves_reads(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        for number in range(20):
            await master.send("T", f"body {number}".encode())
        await same_log(master, slave)
        state = slave.controller.broker
        await until_async(lambda: "T" in state.topic_config_manager.topic_config_table)
        status = await ha_status(master)
        assert status.master and status.in_sync_slave_nums == 1
        assert [connection.in_sync for connection in status.ha_connection_info] == [True]
        theirs = await ha_status(slave)
        assert not theirs.master
        assert theirs.ha_client_runtime_info.max_offset == end(master)
        assert theirs.ha_client_runtime_info.master_addr == master.controller.broker.ha_server_addr
        answer = await slave.pull("T", 0)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        # at the end of the queue: back to the master, at once
        at_end = int(answer.ext_fields["nextBeginOffset"])
        assert (await slave.pull("T", at_end)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (await slave.send("T", b"no")).code == ResponseCode.SYSTEM_BUSY
        follows = slave.controller.replication.ha_client_service
        assert follows is not None
        await until_async(lambda: not follows.is_awaited())

    on_a_cluster(tmp_path, scene)


def test_offsets_committed_at_the_slave_reach_the_master_and_resets_come_back(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        await master.send("T", b"x")
        await same_log(master, slave)
        ours, theirs = (peer.controller.broker.consumer_offset_manager for peer in (slave, master))
        sync = slave.controller.replication.slave_synchronize
        await until_async(lambda: sync.master_addr)
        master.controller.broker.subscription_group_manager.existing_group("G")
        theirs.commit_offset("", "G", "T", 0, 5)
        await sync.sync_consumer_offset()
        assert ours.query_offset("G", "T", 0) == 5
        theirs.commit_offset("", "G", "T", 0, 2)  # a reset at the master
        await sync.sync_consumer_offset()
        assert ours.query_offset("G", "T", 0) == 2
        ours.commit_offset("", "G", "T", 0, 7)  # a consumer that found no master
        await sync.sync_consumer_offset()
        assert ours.query_offset("G", "T", 0) == theirs.query_offset("G", "T", 0) == 7
        await sync.sync_consumer_offset()
        assert not ours.committed_here

    on_a_cluster(tmp_path, scene)


def test_a_topic_deleted_at_the_master_goes_with_its_queues(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        await master.send("Gone", b"x")
        await master.send("Stays", b"x")
        await same_log(master, slave)
        broker = slave.controller.broker
        await until_async(lambda: "Gone" in broker.topic_config_manager.topic_config_table)
        master.controller.broker.topic_config_manager.delete_topic_config("Gone")
        sync = slave.controller.replication.slave_synchronize
        assert await sync.sync_all()
        assert "Gone" not in broker.topic_config_manager.topic_config_table
        assert "Stays" in broker.topic_config_manager.topic_config_table
        assert not broker.store.consume_queues.queues("Gone")
        assert broker.store.consume_queues.queues("Stays")

    on_a_cluster(tmp_path, scene)


def test_promotion_is_refused_while_the_master_lives_and_loses_nothing(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        for number in range(10):
            await master.send("T", f"{number}".encode(), queue_id=0)
        await same_log(master, slave)
        body = b"brokerRole=ASYNC_MASTER\n"
        refused = await slave.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body)
        assert "still answers" in refused.remark
        broker = slave.controller.broker
        await until_async(lambda: "T" in broker.topic_config_manager.topic_config_table)
        await master.controller.stop()
        promoted = await slave.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body)
        assert (promoted.code, promoted.remark) == (0, None), promoted.remark
        answer = await slave.send("T", b"after", queue_id=0)
        assert answer.code == 0
        assert answer.ext_fields["queueOffset"] == "10"
        assert brokers.namesrv.routes.broker_addr_table["broker-a"].broker_addrs == {0: slave.address}
        assert (await ha_status(slave)).master

    on_a_cluster(tmp_path, scene)


def test_sync_master_needs_its_slave(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "200"}
        master = await brokers.start("master", **role)
        alone = await master.send("T", b"alone")
        assert alone.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1")
        await same_log(master, slave)

        async def sent() -> bool:
            return (await master.send("T", b"both")).code == 0

        await until_async(sent)
        assert end(slave) == end(master)
        replication = slave.controller.replication
        await until_async(lambda: replication.asked_at)
        assert replication.ha_client_service is not None and replication.ha_client_service.is_awaited()

    on_a_cluster(tmp_path, scene)


def test_who_is_master_is_told_and_asked(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        answer = await master.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
        header = answer.decode_header(ExchangeHAInfoResponseHeader)
        assert header.master_address == master.address
        assert header.master_ha_address == master.controller.broker.ha_server_addr
        assert header.master_flush_offset == 0
        assert not (await slave.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)).ext_fields
        replication = slave.controller.replication
        notice = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=0,
            broker_name="broker-a",
            min_broker_addr="127.0.0.1:1",
            ha_broker_addr="127.0.0.1:2",
        )
        await slave.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        assert replication.slave_synchronize.master_addr == "127.0.0.1:1"
        assert replication.ha_client_service.master_address == "127.0.0.1:2"
        await slave.ask(
            RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetHeader(master_flush_offset=77)
        )
        assert (await ha_status(slave)).ha_client_runtime_info.master_flush_offset == 77

    on_a_cluster(tmp_path, scene)


def test_a_port_for_slaves_that_is_taken(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        first = await brokers.start("first", brokerName="first")
        port = first.controller.broker.ha_port
        with pytest.raises(ConfigError, match="haListenPort"):
            await brokers.start("second", haListenPort=str(port))

    on_a_cluster(tmp_path, scene)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"haBindAddress": "0.0.0.0"}, True),
        ({"haBindAddress": "0.0.0.0", "haAllowedAddresses": "127.0.0.1"}, False),
        ({"haBindAddress": "127.0.0.1"}, False),
        ({"haBindAddress": "0.0.0.0", "authenticationEnabled": "false"}, False),
    ],
)
def test_an_open_port_for_slaves_is_worth_a_warning_under_access_control(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], warned: bool
) -> None:
    auth = {"authenticationEnabled": "true", "initAuthenticationUser": '{"username":"a","password":"b"}'}

    async def play() -> None:
        controller = make_controller(tmp_path, **auth | settings)
        await controller.start()
        await controller.stop()

    run(play())
    assert ("set haAllowedAddresses" in caplog.text) is warned


def test_a_promotion_to_slave_makes_no_sense(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        _, slave = await brokers.pair()
        replication = slave.controller.replication
        with pytest.raises(ResponseError, match="ASYNC_MASTER or SYNC_MASTER"):
            await replication.promote(slave.controller.broker.store_config.broker_role)

    on_a_cluster(tmp_path, scene)


def test_metrics_tell_the_lag_of_both_sides(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        exporter = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        master = await brokers.start("master", **exporter)
        slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1", **exporter)
        await master.send("T", b"x")
        await same_log(master, slave)
        await until_async(lambda: slave.controller.replication.ha_client.is_following)
        [(labels, behind)] = (await scrape(master.controller))["mqlake_slave_fall_behind_bytes"]
        assert (labels["in_sync"], behind) == ("true", 0)
        of_slave = await scrape(slave.controller)
        assert [value for _, value in of_slave["mqlake_behind_master_bytes"]] == [0]
        assert [value for _, value in of_slave["mqlake_follows_master"]] == [1]

    on_a_cluster(tmp_path, scene)


def test_a_master_of_another_name_or_file_size_is_not_followed(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master = await brokers.start("master")
        await master.send("T", b"x")
        for name, settings, words in (
            ("size", {"mappedFileSizeCommitLog": "1m"}, "mappedFileSizeCommitLog is 4194304 at the master"),
            ("name", {"brokerName": "other"}, "this one is a slave of DefaultCluster/other"),
        ):
            slave = await brokers.start(name, brokerRole="SLAVE", brokerId="1", **settings)
            replication = slave.controller.replication
            replication.set_master(master.address, master.controller.broker.ha_server_addr)
            await until_async(lambda it=replication, text=words: text in it.ha_client.trouble_text)
            assert end(slave) == 0
            assert replication.status()["haTrouble"] == "refused"

    on_a_cluster(tmp_path, scene)


def test_the_other_slave_follows_the_one_that_was_promoted(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, first = await brokers.pair()
        second = await brokers.start("second", brokerRole="SLAVE", brokerId="2")
        for number in range(10):
            await master.send("T", f"{number}".encode())
        await same_log(master, first)
        await same_log(master, second)
        await until_async(lambda: "T" in first.controller.broker.topic_config_manager.topic_config_table)
        await master.controller.stop()
        promoted = await first.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerRole=ASYNC_MASTER\n")
        assert promoted.code == 0, promoted.remark
        for number in range(10):
            assert (await first.send("T", f"after {number}".encode())).code == 0
        await same_log(first, second)
        assert second.controller.replication.slave_synchronize.master_addr == first.address
        logs = [
            peer.controller.broker.store.commit_log_files.select(0, end(first)) for peer in (first, second)
        ]
        assert logs[0] == logs[1]

    on_a_cluster(tmp_path, scene)


def test_a_topic_deleted_and_created_again_between_two_rounds_keeps_nothing_of_before(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        for number in range(8):
            await master.send("Again", f"old {number}".encode(), queue_id=number % 4)
            await master.send("Other", b"stays", queue_id=0)
        await same_log(master, slave)
        sync = slave.controller.replication.slave_synchronize
        await until_async(lambda: sync.master_addr)
        assert await sync.sync_all()
        ours, theirs = (peer.controller.broker.store.consume_queues for peer in (slave, master))
        assert set(ours.queues("Again")) == {0, 1, 2, 3}
        topics = master.controller.broker.topic_config_manager
        topics.delete_topic_config("Again")
        theirs.delete_topic("Again")
        await master.send("Again", b"new", queue_id=2)
        await same_log(master, slave)
        for _ in range(2):
            assert await sync.sync_all()
        assert {number: queue.max_offset_in_queue for number, queue in ours.queues("Again").items()} == {2: 1}
        assert ours.get("Other", 0).max_offset_in_queue == 8
        await master.send("Again", b"new", queue_id=1)
        await same_log(master, slave)
        assert ours.get("Again", 1).max_offset_in_queue == 1

    on_a_cluster(tmp_path, scene)


def test_a_slave_knows_how_far_its_masters_timers_are(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        theirs, ours = (peer.controller.timers for peer in (master, slave))
        due = str(now_ms() + 3_600_000)
        properties = properties_to_string({"TIMER_DELIVER_MS": due, "UNIQ_KEY": "K"})
        assert (await master.send("T", properties=properties)).code == 0
        await until_async(lambda: theirs.metrics.timing_counts() == {"T": 1})
        await until_async(lambda: ours.curr_read_time_ms >= theirs.curr_read_time_ms - 2000)
        assert await slave.controller.replication.slave_synchronize.sync_all()
        assert ours.metrics.value() == theirs.metrics.value()
        assert not ours.is_dequeuing

    on_a_cluster(tmp_path, scene)


INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'


def test_a_slave_has_the_users_and_acls_of_its_master(tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        signed = {"authenticationEnabled": "true", "innerClientAuthenticationCredentials": INNER}
        master = await brokers.start("master", **signed)
        slave = await brokers.start("slave", brokerRole="SLAVE", brokerId="1", **signed)
        theirs, ours = (peer.controller.broker.access for peer in (master, slave))
        await theirs.change(lambda state: create_user(state, "alice", "alice-secret"))
        policies = policies_from_info(
            [{"entries": [{"resource": "Topic:orders-*", "actions": ["Sub"], "decision": "Deny"}]}]
        )
        await theirs.change(lambda state: update_acl(state, "User:alice", policies))
        sync = slave.controller.replication.slave_synchronize
        await until_async(lambda: sync.master_addr)
        assert await sync.sync_all()
        assert ours.state == theirs.state
        await theirs.change(lambda state: delete_user(state, "alice"))
        assert await sync.sync_all()
        assert set(ours.state.users) == {"inner"} == set(ours.storage.load().users)

    on_a_cluster(tmp_path, scene)


def test_a_slave_has_the_mappings_of_static_topics(tmp_path: Path) -> None:
    """RocketMQ's has none, and takes the number of a logical queue for that of a physical one."""

    async def scene(brokers: Cluster) -> None:
        master, slave = await brokers.pair()
        name = master.controller.broker.config.broker_name
        item = LogicQueueMappingItem(bname=name, queue_id=1)
        detail = TopicQueueMappingDetail(
            topic="Static", bname=name, epoch=1, total_queues=1, hosted_queues={0: [item]}
        )
        config = TopicConfigAndQueueMapping(
            topic_name="Static", read_queue_nums=2, write_queue_nums=2, mapping_detail=detail
        )
        await BrokerAPI(master.client).create_static_topic(master.address, config)
        await master.send("Static", b"body", queue_id=0)
        mappings = slave.controller.broker.topic_queue_mapping_manager
        topics = slave.controller.broker.topic_config_manager
        # the master has the mapping first, and a round may come in between
        await until_async(lambda: {"Static"} <= mappings.table.keys() & topics.topic_config_table.keys())
        assert mappings.table["Static"] == detail
        await same_log(master, slave)
        found = await slave.pull("Static", 0, queue_id=0)
        assert found.code == ResponseCode.SUCCESS and found.ext_fields["offsetDelta"] == "0"
        await BrokerAPI(master.client).delete_topic_in_broker(master.address, "Static")
        await until_async(lambda: "Static" not in mappings.table, "it goes with the topic")

    on_a_cluster(tmp_path, scene)
