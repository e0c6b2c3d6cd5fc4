from __future__ import annotations

import pytest

from mqlake.client import blocking
from mqlake.client.admin import Admin
from mqlake.client.api.name_servers import NameServers
from mqlake.client.config import ClientConfig
from mqlake.errors import (
    ConfigError,
    MessageError,
    MqlakeError,
    NotFoundError,
    RemotingConnectError,
    ResponseError,
    UnknownKeyError,
)
from mqlake.message import Message, create_uniq_id
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.loop import run
from tests.waiting import until_async


def test_an_unknown_topic_is_called_so_where_system_topics_are_not_told(mqlake_broker, monkeypatch):
    """Else the error is about a list that nobody has asked for."""

    async def refused(_: NameServers) -> set[str]:
        raise ResponseError(ResponseCode.NO_PERMISSION, "no")

    async def main() -> None:
        monkeypatch.setattr(NameServers, "get_system_topic_list_from_ns", refused)
        async with Admin(mqlake_broker.namesrv) as admin:
            with pytest.raises(NotFoundError, match="unknown topic 'Nowhere'"):
                await admin.examine_topic_route_info("Nowhere")

    run(main())


def test_a_cluster_is_looked_after(mqlake_broker):
    async def main() -> None:
        async with Admin(mqlake_broker.namesrv) as admin:
            (broker,) = await admin.list_brokers()
            assert (broker.broker_id, broker.address) == (0, mqlake_broker.address)
            assert await admin.broker_address(broker.name) == await admin.broker_address(broker.address)
            assert await admin.masters(broker.cluster) == [broker]

            assert await admin.create_topic("Looked", queues=2) == [broker]
            assert await admin.topic_exists("Looked") and not await admin.topic_exists("Lokked")
            with pytest.raises(UnknownKeyError, match="did you mean 'Looked'"):
                await admin.examine_topic_route_info("Lokked")
            assert await admin.get_topic_cluster_list("Looked") == {broker.cluster}

            queue = MessageQueue(topic="Looked", broker_name=broker.name, queue_id=1)
            for n in range(3):
                place, answer = await admin.send(Message("Looked", b"%d" % n, keys=f"a k{n}"), queue=queue)
                assert (place, answer.queue_offset) == (queue, n)

            async def found(key: str) -> list[bytes]:
                return [message.body for message in await admin.query_message("Looked", key)]

            async def all_are_found() -> bool:
                return len(await found("a")) == 3

            await until_async(all_are_found)
            assert await found("a") == [b"0", b"1", b"2"]
            (one,) = await admin.query_message("Looked", "k1")
            assert one.uniq_key is not None
            assert (await admin.view_message(None, one.msg_id)).body == b"1"
            assert (await admin.view_message("Looked", one.uniq_key)).body == b"1"
            assert (await admin.message_at(queue, 1)).body == b"1"
            assert await found("other") == []
            stats = await admin.examine_topic_stats("Looked")
            assert stats.offset_table[queue].max_offset == 3

            await admin.create_subscription_group(SubscriptionGroupConfig(group_name="GID_looked"))
            table = await admin.reset_offset_by_timestamp("Looked", "GID_looked", 0)
            assert table[queue] == 0
            assert await admin.reset_offset_by_queue(queue, "GID_looked", 2) == {queue: 2}
            progress = await admin.examine_consume_stats("GID_looked", "Looked")
            assert progress.offset_table[queue].consumer_offset == 2
            await admin.clone_group_offset("GID_looked", "GID_too", "Looked", is_offline=True)
            assert await admin.query_topic_consume_by_who("Looked") >= {"GID_looked", "GID_too"}
            with pytest.raises(ResponseError) as offline:
                await admin.examine_consumer_connection_info("GID_looked")
            assert offline.value.code == ResponseCode.CONSUMER_NOT_ONLINE
            with pytest.raises(UnknownKeyError, match="GID_looked"):
                await admin.check_group("GID_loked")

            await admin.delete_subscription_group("GID_looked", clean_offset=True)
            await admin.delete_topic("Looked")
            assert not await admin.topic_exists("Looked")

    run(main())


def test_what_is_not_there(mqlake_broker):
    async def main() -> None:
        async with Admin(mqlake_broker.namesrv) as admin:
            await admin.create_topic("There", queues=1)
            with pytest.raises(UnknownKeyError, match="unknown cluster"):
                await admin.masters("NoSuch")
            with pytest.raises(UnknownKeyError, match="unknown broker"):
                await admin.broker_address("NoSuch")
            with pytest.raises(MessageError, match="not a message id"):
                await admin.view_message("There", "nonsense")
            with pytest.raises(MessageError, match="name the topic"):
                await admin.view_message(None, create_uniq_id())
            with pytest.raises(MessageError, match="has the id"):
                await admin.view_message("There", create_uniq_id())
            (broker,) = await admin.masters()
            queue = MessageQueue(topic="There", broker_name=broker.name)
            with pytest.raises(MessageError, match="no message at offset 7: it holds 0 to 0"):
                await admin.message_at(queue, 7)
            await admin.create_topic("There", queues=1, perm=4)

            async def readable_only() -> bool:
                route = await admin.examine_topic_route_info("There")
                return route.queue_datas[0].perm == 4

            await until_async(readable_only)
            with pytest.raises(MqlakeError, match="write permission"):
                await admin.send(Message("There", b"x"))

    run(main())


def test_name_servers_without_brokers(tmp_path):
    async def main() -> None:
        server = NamesrvController(
            NamesrvConfig(
                listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kvConfig.json")
            )
        )
        await server.start()
        try:
            # the first does not answer; the second does
            async with Admin(f"127.0.0.1:1;127.0.0.1:{server.port}") as admin:
                assert await admin.list_brokers() == []
                with pytest.raises(MqlakeError, match="no master is registered"):
                    await admin.create_topic("T")
                with pytest.raises(RemotingConnectError):  # what changes something is for all of them
                    await admin.name_servers.put_kv_config_value("n", "k", "v")
        finally:
            await server.stop()

    run(main())


def test_addresses_are_needed():
    for text in ("", " ; "):
        with pytest.raises(ConfigError, match="host:port"):
            Admin(ClientConfig(namesrv_addr=text))


def test_the_blocking_facade(mqlake_broker):
    with blocking.Admin(mqlake_broker.namesrv) as admin:
        (broker,) = admin.create_topic("Blocked", queues=1)
        assert admin.topic_exists("Blocked") and "Blocked" in admin.fetch_all_topic_list()
        assert admin.examine_topic_route_info("Blocked").queue_datas[0].write_queue_nums == 1
        settings = admin.ask(lambda inner: inner.brokers.get_broker_config(broker.address))
        assert settings["brokerName"] == broker.name
        assert broker.name in admin.examine_broker_cluster_info().broker_addr_table
        assert len(admin.examine_topic_stats("Blocked").offset_table) == 1
        admin.create_subscription_group(SubscriptionGroupConfig(group_name="GID_blocked"))
        assert set(admin.reset_offset_by_timestamp("Blocked", "GID_blocked", -1).values()) == {0}
        assert admin.examine_consume_stats("GID_blocked", "Blocked").offset_table
        admin.delete_subscription_group("GID_blocked", clean_offset=True)
        admin.delete_topic("Blocked")
