"""RocketMQ's admin tool and broker against our name server, and our client against RocketMQ's name server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.bodies.route import ClusterInfo, TopicRouteData
from mqlake.remoting.bodies.topic import DataVersion, RegisterBrokerBody, TopicConfig, TopicList
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import namesrv as headers
from mqlake.remoting.loop import run
from tests.interop.java_peer import JavaPeerError
from tests.interop.java_wire import JavaWire, Json
from tests.ports import free_port, free_ports
from tests.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaWire]:
    with JavaWire(tmp_path_factory.mktemp("wire")) as peer:
        yield peer


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[NamesrvController]:
    controller = NamesrvController(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kvConfig.json"),
            config_store_path=str(tmp_path / "namesrv.properties"),
            **settings,
        )
    )
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


def registration(*topics: str) -> RemotingCommand:
    body = RegisterBrokerBody()
    wrapper = body.topic_config_serialize_wrapper
    wrapper.topic_config_table = {topic: TopicConfig(topic_name=topic) for topic in topics}
    wrapper.data_version = DataVersion(counter=1)
    header = headers.RegisterBrokerRequestHeader(
        broker_name="broker-a",
        broker_addr="127.0.0.1:1",
        cluster_name="c",
        ha_server_addr="127.0.0.1:2",
        broker_id=0,
    )
    return RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body.to_json())


def test_the_java_admin_tool(java, tmp_path):
    async def main():
        async with serving(tmp_path) as controller, RemotingClient() as broker:
            address = f"127.0.0.1:{controller.port}"
            await broker.call(address, registration("T", "U"), PATIENCE_S)

            async def admin(what: str, **fields: Any) -> Json:
                return await asyncio.to_thread(java.request, f"admin.{what}", namesrv=address, **fields)

            route = TopicRouteData.from_json((await admin("route", topic="T"))["json"].encode())
            assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
            assert (route.queue_datas[0].broker_name, route.queue_datas[0].read_queue_nums) == (
                "broker-a",
                16,
            )
            with pytest.raises(JavaPeerError, match="CODE: 17"):
                await admin("route", topic="none")
            info = ClusterInfo.from_json((await admin("clusters"))["json"].encode())
            assert info.cluster_addr_table == {"c": {"broker-a"}}
            topics = TopicList.from_json((await admin("topics"))["json"].encode())
            assert topics.topic_list == {"T", "U"}
            topics = TopicList.from_json((await admin("topicsByCluster", cluster="c"))["json"].encode())
            assert topics.topic_list == {"T", "U"}

            assert await admin("wipeWritePerm", broker="broker-a") == {"count": 2}
            route = TopicRouteData.from_json((await admin("route", topic="T"))["json"].encode())
            assert route.queue_datas[0].perm == 4
            assert await admin("addWritePerm", broker="broker-a") == {"count": 2}
            await admin("deleteTopic", topic="U")
            assert set(controller.routes.topic_queue_table) == {"T"}

            await admin("putKV", namespace="n", key="k", value="v")
            assert await admin("getKV", namespace="n", key="k") == {"value": "v"}
            assert '"k":"v"' in (await admin("listKV", namespace="n"))["json"]
            await admin("deleteKV", namespace="n", key="k")
            with pytest.raises(JavaPeerError, match="CODE: 22"):
                await admin("getKV", namespace="n", key="k")

            await admin("updateConfig", key="orderMessageEnable", value="true")
            assert (await admin("getConfig"))["orderMessageEnable"] == "true"
            with pytest.raises(JavaPeerError, match="kvConfigPath"):
                await admin("updateConfig", key="kvConfigPath", value="/x")

    run(main())


def test_the_java_broker_registers_and_goes(java, tmp_path):
    async def main():
        async with serving(tmp_path) as controller:
            address = f"127.0.0.1:{controller.port}"
            port = free_ports(3) + 2  # the VIP port is two below
            await asyncio.to_thread(
                java.request,
                "broker.start",
                root=str(tmp_path / "store"),
                namesrv=address,
                name="java-broker",
                port=port,
                haPort=free_port(),
            )
            routes = controller.routes
            await until_async(lambda: "TBW102" in routes.topic_queue_table)
            route = routes.pickup_topic_route_data("TBW102")
            assert route is not None and route.queue_datas[0].perm == 7
            assert route.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{port}"}
            assert routes.cluster_addr_table == {"JavaCluster": {"java-broker"}}
            clusters = await asyncio.to_thread(java.request, "admin.clusters", namesrv=address)
            assert f"127.0.0.1:{port}" in clusters["json"]
            await asyncio.to_thread(java.request, "broker.stop")
            await until_async(lambda: not routes.broker_addr_table)
            assert routes.topic_queue_table == {}

    run(main())


@pytest.mark.parametrize("kind", SerializeType)
def test_our_client_asks_the_java_name_server(java, tmp_path, kind):
    port = free_port()
    java.request("namesrv.start", root=str(tmp_path), port=port)

    async def main():
        address = f"127.0.0.1:{port}"
        async with RemotingClient() as client:

            async def call(command: RemotingCommand) -> RemotingCommand:
                command.serialize_type = kind
                return await client.call(address, command, PATIENCE_S)

            await call(registration("T", "U"))
            header = headers.GetRouteInfoRequestHeader(topic="T")
            answer = await call(RemotingCommand.create_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
            ours = RemotingCommand.create_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            ours.version = 317
            plain = await call(ours)
            assert b'{0:"127.0.0.1:1"}' in plain.body_bytes()
            assert b'{"0":"127.0.0.1:1"}' in answer.body_bytes()
            route = TopicRouteData.from_json(answer.body_bytes())
            assert route == TopicRouteData.from_json(plain.body_bytes())

            # the same registration and question, to ours: the same answer
            async with serving(tmp_path) as controller, RemotingClient() as other:
                here = f"127.0.0.1:{controller.port}"
                await other.call(here, registration("T", "U"), PATIENCE_S)
                command = RemotingCommand.create_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
                same = TopicRouteData.from_json((await other.call(here, command, PATIENCE_S)).body_bytes())
                assert same == route
            unknown = RemotingCommand.create_request(999)
            unknown.serialize_type = kind
            assert (
                await client.invoke(address, unknown, PATIENCE_S)
            ).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    try:
        run(main())
    finally:
        java.request("namesrv.stop")
