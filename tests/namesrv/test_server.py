"""The name server over its port: each request code, as brokers, clients and operators use it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import zlib
from collections.abc import AsyncIterator

import pytest

from mqlake.errors import ResponseError
from mqlake.message import crc32
from mqlake.namesrv import processors, route_info_manager
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.route import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from mqlake.remoting.bodies.topic import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicList,
)
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import namesrv as headers
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.loop import run
from tests.waiting import PATIENCE_S

BROKER = {"broker_name": "a", "broker_addr": "127.0.0.1:10911", "cluster_name": "c", "broker_id": 0}


class Peer:
    """A client of one name server."""

    def __init__(self, controller: NamesrvController, client: RemotingClient) -> None:
        self.controller = controller
        self.client = client
        self.address = f"127.0.0.1:{controller.port}"

    async def call(
        self,
        code: int,
        header: CommandHeader | None = None,
        body: bytes | None = None,
        *,
        version: int | None = None,
        **fields: str,
    ) -> RemotingCommand:
        command = RemotingCommand.create_request(code, header, body)
        command.ext_fields.update(fields)
        if version is not None:
            command.version = version
        return await self.client.call(self.address, command, 60)

    async def fails(
        self, code: int, header: CommandHeader | None = None, body: bytes | None = None
    ) -> ResponseError:
        with pytest.raises(ResponseError) as caught:
            await self.call(code, header, body)
        return caught.value

    async def register(self, *topics: str, counter: int = 1, **more) -> RemotingCommand:
        body = RegisterBrokerBody()
        wrapper = body.topic_config_serialize_wrapper
        wrapper.topic_config_table = {topic: TopicConfig(topic_name=topic) for topic in topics}
        wrapper.data_version = DataVersion(counter=counter)
        raw = body.to_json()
        header = headers.RegisterBrokerRequestHeader(
            **{**BROKER, **more}, ha_server_addr="127.0.0.1:10912", body_crc32=crc32(raw)
        )
        return await self.call(RequestCode.REGISTER_BROKER, header, raw, __ZONE_NAME="z")


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings) -> AsyncIterator[Peer]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kvConfig.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
        **settings,
    )
    controller = NamesrvController(config)
    await controller.start()
    try:
        async with RemotingClient() as client:
            yield Peer(controller, client)
    finally:
        await controller.stop()


def test_register_and_route(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            answer = await peer.register("T", "U")
            assert answer.ext_fields == {} and answer.body is None
            header = headers.GetRouteInfoRequestHeader(topic="T")
            strict = await peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            old = await peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, version=317)
            asked = await peer.call(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                headers.GetRouteInfoRequestHeader(topic="T", accept_standard_json_only=True),
                version=317,
            )
            assert b'{"0":"127.0.0.1:10911"}' in strict.body_bytes() == asked.body_bytes()
            assert b'{0:"127.0.0.1:10911"}' in old.body_bytes()
            route = TopicRouteData.from_json(strict.body_bytes())
            assert route.broker_datas[0].zone_name == "z" and route.queue_datas[0].broker_name == "a"
            missing = await peer.fails(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="none")
            )
            assert missing.code == ResponseCode.TOPIC_NOT_EXIST and "No topic route info" in missing.remark

            replica = await peer.register(broker_id=1, broker_addr="127.0.0.1:10921")
            assert replica.ext_fields == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}
            info = ClusterInfo.from_json((await peer.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body_bytes())
            assert info.broker_addr_table["a"].broker_addrs == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
            group = await peer.call(
                RequestCode.GET_BROKER_MEMBER_GROUP,
                headers.GetBrokerMemberGroupRequestHeader(cluster_name="c", broker_name="a"),
            )
            member_group = GetBrokerMemberGroupResponseBody.from_json(group.body_bytes()).broker_member_group
            assert member_group is not None and len(member_group.broker_addrs) == 2

            await peer.call(RequestCode.UNREGISTER_BROKER, headers.UnRegisterBrokerRequestHeader(**BROKER))
            assert peer.controller.routes.broker_addr_table["a"].broker_addrs == {1: "127.0.0.1:10921"}

    run(main())


def test_registrations_that_are_refused(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            with pytest.raises(ResponseError, match="register broker failed"):
                await peer.register("T")
            header = headers.RegisterBrokerRequestHeader(**BROKER, ha_server_addr="h", body_crc32=7)
            assert (await peer.fails(RequestCode.REGISTER_BROKER, header, b"{}")).remark == "crc32 not match"
            header.body_crc32 = 0
            assert (
                "RegisterBrokerBody" in (await peer.fails(RequestCode.REGISTER_BROKER, header, b"[]")).remark
            )
            header.compressed = True
            assert "zlib" in (await peer.fails(RequestCode.REGISTER_BROKER, header, b"[]")).remark
            assert "<brokerName> is null" in (await peer.fails(RequestCode.REGISTER_BROKER)).remark
            assert (await peer.fails(12345)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run(main())


def test_a_compressed_registration(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            pieces = [b'{"counter":1}', b"T 8 8 6 SINGLE_TAG {}", b"U 8 8 6 SINGLE_TAG {}", b"[]"]
            sized = [len(one).to_bytes(4, "big") + one for one in pieces]
            raw = zlib.compress(sized[0] + b"\0\0\0\2" + sized[1] + sized[2] + sized[3] + b"\0\0\0\0")
            header = headers.RegisterBrokerRequestHeader(**BROKER, ha_server_addr="h", compressed=True)
            await peer.call(RequestCode.REGISTER_BROKER, header, raw)
            assert set(peer.controller.routes.topic_queue_table) == {"T", "U"}

    run(main())


def test_a_long_registration_holds_up_no_client_and_keeps_its_turn(tmp_path, monkeypatch):
    async def main():
        async with serving(tmp_path) as peer, RemotingClient() as broker:
            registering = Peer(peer.controller, broker)
            await registering.register("Old", "Older")
            answered = threading.Event()
            decode = processors._decode_registration

            def decode_when_clients_were_answered(raw, *more):
                if len(raw) > processors.DECODED_ON_LOOP_MAX:
                    assert answered.wait(PATIENCE_S)
                return decode(raw, *more)

            monkeypatch.setattr(processors, "_decode_registration", decode_when_clients_were_answered)
            many = asyncio.ensure_future(
                registering.register("Old", *(f"T{n}" for n in range(1000)), counter=2)
            )
            await asyncio.sleep(0)
            few = asyncio.ensure_future(registering.register("Old", "Last", counter=3))
            await peer.call(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="Old")
            )
            assert not many.done() and not few.done()
            answered.set()
            await asyncio.gather(many, few)
            known = peer.controller.routes.query_broker_topic_config("c", "127.0.0.1:10911")
            assert known is not None and known.counter == 3
            assert {"T999", "Last"} <= set(peer.controller.routes.topic_queue_table)

    run(main())


def test_clients_are_served_while_many_topics_are_taken(tmp_path, monkeypatch):
    """300,000 topics in one step are two thirds of a second in which no client gets a route."""
    monkeypatch.setattr(route_info_manager, "TOPICS_PER_STEP", 10)

    async def main():
        turns, seen = 0, []

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with serving(tmp_path) as peer:
            routes = peer.controller.routes
            take = routes.take_more_topics

            def counted() -> bool:
                seen.append((turns, len(routes.topic_queue_table)))
                return take()

            monkeypatch.setattr(routes, "take_more_topics", counted)
            counting = asyncio.ensure_future(others())
            await peer.register(*(f"T{n}" for n in range(35)))
            counting.cancel()
            assert len(routes.topic_queue_table) == 35
            assert [count for _, count in seen] == [0, 10, 20, 30]
            between = [turn for turn, _ in seen[1:]]
            assert len(set(between)) == len(between)

    run(main())


def test_more_registrations_than_can_be_held_are_refused(tmp_path, monkeypatch):
    """They wait for each other, unsigned ones too: the memory that they take is bounded."""
    monkeypatch.setattr(processors, "HELD_MAX", 4000)

    async def main():
        async with serving(tmp_path) as peer:
            for counter in (1, 2):
                await peer.register("T", "U", counter=counter)  # held no longer than it takes
                with pytest.raises(ResponseError, match="register again later") as refused:
                    await peer.register(*(f"T{n}" for n in range(100)))
                assert refused.value.code == ResponseCode.SYSTEM_BUSY
            assert set(peer.controller.routes.topic_queue_table) == {"T", "U"}

    run(main())


def test_a_broker_goes_with_its_connection(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            async with RemotingClient() as broker:
                await Peer(peer.controller, broker).register("T", "U")
                assert peer.controller.routes.broker_addr_table
            async with asyncio.timeout(60):
                while peer.controller.routes.broker_addr_table:
                    await asyncio.sleep(0.002)

    run(main())


def test_silent_brokers_are_taken_out(tmp_path):
    async def main():
        async with serving(tmp_path, scan_not_active_broker_interval=20) as peer:
            await peer.register("T", "U", heartbeat_timeout_millis=100)
            connection = await peer.client.connection(peer.address)
            async with asyncio.timeout(60):
                while peer.controller.routes.broker_addr_table or not connection.closed:
                    await asyncio.sleep(0.002)

    run(main())


def test_data_versions_and_heartbeats(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            header = headers.QueryDataVersionRequestHeader(**BROKER)
            unknown = await peer.call(RequestCode.QUERY_DATA_VERSION, header, DataVersion().to_json())
            assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, None)
            await peer.register("T", "U")
            same = await peer.call(RequestCode.QUERY_DATA_VERSION, header, DataVersion(counter=1).to_json())
            assert same.ext_fields == {"changed": "false"}
            assert DataVersion.from_json(same.body_bytes()) == DataVersion(counter=1)
            other = await peer.call(RequestCode.QUERY_DATA_VERSION, header, DataVersion(counter=2).to_json())
            assert other.ext_fields == {"changed": "true"}
            live = peer.controller.routes.broker_live_table["c", BROKER["broker_addr"]]
            live.last_update_ms = 0
            fields = {key: value for key, value in BROKER.items() if key != "broker_id"}
            await peer.call(RequestCode.BROKER_HEARTBEAT, headers.BrokerHeartbeatRequestHeader(**fields))
            assert live.last_update_ms > 0

    run(main())


def test_topics(tmp_path):
    async def main():
        async with serving(tmp_path) as peer:
            await peer.register("T", "U")

            async def topics(code: int, header: CommandHeader | None = None) -> set[str]:
                return TopicList.from_json((await peer.call(code, header)).body_bytes()).topic_list

            assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"T", "U"}
            assert await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {"c", "a"}
            for code in (
                RequestCode.GET_UNIT_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            ):
                assert await topics(code) == set()
            by_cluster = headers.GetTopicsByClusterRequestHeader(cluster="c")
            assert await topics(RequestCode.GET_TOPICS_BY_CLUSTER, by_cluster) == {"T", "U"}

            route = TopicRouteData(queue_datas=[QueueData(broker_name="a", perm=6)])
            new = headers.RegisterTopicRequestHeader(topic="new")
            await peer.call(RequestCode.REGISTER_TOPIC_IN_NAMESRV, new, route.to_json())
            gone = headers.DeleteTopicFromNamesrvRequestHeader(topic="T", cluster_name="c")
            await peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, gone)
            assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"new", "U"}

            name = {"broker_name": "a"}
            wiped = await peer.call(
                RequestCode.WIPE_WRITE_PERM_OF_BROKER, headers.WipeWritePermOfBrokerRequestHeader(**name)
            )
            added = await peer.call(
                RequestCode.ADD_WRITE_PERM_OF_BROKER, headers.AddWritePermOfBrokerRequestHeader(**name)
            )
            assert (wiped.ext_fields, added.ext_fields) == ({"wipeTopicCount": "2"}, {"addTopicCount": "2"})

    run(main())


def test_topic_lists_that_are_disabled(tmp_path):
    async def main():
        async with serving(tmp_path, enable_topic_list=False, enable_all_topic_list=False) as peer:
            for code in (
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            ):
                assert "disabled" in (await peer.fails(code)).remark

    run(main())


def test_key_value_configuration(tmp_path):
    async def main():
        async with serving(tmp_path, order_message_enable=True) as peer:
            space = "ORDER_TOPIC_CONFIG"
            get = headers.GetKVConfigRequestHeader(namespace=space, key="T")
            listed = headers.GetKVListByNamespaceRequestHeader(namespace=space)
            assert (await peer.fails(RequestCode.GET_KV_CONFIG, get)).code == ResponseCode.QUERY_NOT_FOUND
            assert (
                await peer.fails(RequestCode.GET_KVLIST_BY_NAMESPACE, listed)
            ).code == ResponseCode.QUERY_NOT_FOUND
            put = headers.PutKVConfigRequestHeader(namespace=space, key="T", value="a:4")
            await peer.call(RequestCode.PUT_KV_CONFIG, put)
            assert (await peer.call(RequestCode.GET_KV_CONFIG, get)).ext_fields == {"value": "a:4"}
            table = KVTable.from_json(
                (await peer.call(RequestCode.GET_KVLIST_BY_NAMESPACE, listed)).body_bytes()
            )
            assert table.table == {"T": "a:4"}

            answer = await peer.register("T", "U")
            assert KVTable.from_json(answer.body_bytes()).table == {"T": "a:4"}
            route = await peer.call(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="T")
            )
            assert TopicRouteData.from_json(route.body_bytes()).order_topic_conf == "a:4"

            delete = headers.DeleteKVConfigRequestHeader(namespace=space, key="T")
            await peer.call(RequestCode.DELETE_KV_CONFIG, delete)
            assert (await peer.fails(RequestCode.GET_KV_CONFIG, get)).code == ResponseCode.QUERY_NOT_FOUND

    run(main())


def test_configuration_from_outside(tmp_path, caplog):
    async def main():
        async with serving(tmp_path) as peer:
            await peer.call(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
            assert peer.controller.routes.support_acting_master
            for _ in range(2):  # said once
                await peer.call(
                    RequestCode.UPDATE_NAMESRV_CONFIG, body=b"deleteTopicWithBrokerRegistration=true"
                )
            assert caplog.text.count("enableSingleTopicRegister=true at every broker") == 1
            shown = (await peer.call(RequestCode.GET_NAMESRV_CONFIG)).body_bytes()
            assert b"supportActingMaster=true\n" in shown
            assert (tmp_path / "namesrv.properties").read_bytes() == shown
            for body in (b"kvConfigPath=/tmp/x", b"enableTopicList=maybe", b"\xff"):
                refused = await peer.fails(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
                assert refused.code == ResponseCode.NO_PERMISSION

    run(main())
