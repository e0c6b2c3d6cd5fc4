from __future__ import annotations

import asyncio
import socket
import time

import pytest

from mqlake.remoting.bodies.topic import CreateTopicListRequestBody, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.namesrv import RegisterBrokerResponseHeader
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer
from tests.broker.live import Peer, running
from tests.broker.services.test_outer_api import NOBODY, name_server
from tests.waiting import until_async


def test_a_topic_that_made_itself_is_known_when_the_send_is_answered(tmp_path):
    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(tmp_path, namesrvAddr=f"127.0.0.1:{names.port};{NOBODY}") as controller,
            RemotingClient() as client,
        ):
            peer = Peer(controller, client)
            assert names.routes.broker_addr_table["broker-a"].broker_addrs == {0: controller.broker_addr}
            for n in range(5):
                assert (await peer.send(f"T{n}")).code == ResponseCode.SUCCESS
                assert names.routes.pickup_topic_route_data(f"T{n}") is not None
        assert "broker-a" not in names.routes.broker_addr_table

    run(scene())


@pytest.mark.parametrize(
    "settings",
    [{"forceRegister": "false"}, {"enableSplitRegistration": "true", "splitRegistrationSize": "3"}],
)
def test_ways_of_registering(tmp_path, settings):
    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(tmp_path, namesrvAddr=f"127.0.0.1:{names.port}", **settings) as controller,
        ):
            assert names.routes.get_all_topic_list().topic_list >= set(
                controller.broker.topic_config_manager.topic_config_table
            ) - {"rmq_sys_SYNC_BROKER_MEMBER_broker-a"}
            assert await controller.registration.register_broker_all(force=False)

    run(scene())


def test_a_topic_alone_and_a_broker_that_may_only_be_read(tmp_path):
    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(
                tmp_path,
                namesrvAddr=f"127.0.0.1:{names.port}",
                enableSingleTopicRegister="true",
                brokerPermission="4",
            ) as controller,
            RemotingClient() as client,
        ):
            route = names.routes.pickup_topic_route_data("TBW102")
            assert route is not None and route.queue_datas[0].perm == 4
            await Peer(controller, client).send("T")
            route = names.routes.pickup_topic_route_data("T")
            assert route is not None and route.queue_datas[0].write_queue_nums == 4
            assert route.queue_datas[0].perm == 4

    run(scene())


@pytest.mark.parametrize(
    "settings",
    [
        {"enableSingleTopicRegister": "true"},
        {"enableSingleTopicRegister": "false"},
        {"enableSplitRegistration": "true", "splitRegistrationSize": "3"},
    ],
)
def test_new_topics_do_not_take_the_place_of_all_others(tmp_path, settings):
    """At a name server with deleteTopicWithBrokerRegistration=true a part would count as all that the broker has."""

    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(tmp_path, namesrvAddr=f"127.0.0.1:{names.port}", **settings) as controller,
            RemotingClient() as client,
        ):
            names.routes.delete_topic_with_broker_registration = True
            before = names.routes.get_all_topic_list().topic_list
            topics = [TopicConfig(topic_name=f"T{n}") for n in range(3)]
            body = CreateTopicListRequestBody(topic_config_list=topics).to_json()
            answer = await Peer(controller, client).ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert answer.code == ResponseCode.SUCCESS
            assert names.routes.get_all_topic_list().topic_list == before | {"T0", "T1", "T2"}
            assert await controller.registration.register_broker_all()
            assert names.routes.get_all_topic_list().topic_list >= before | {"T0", "T1", "T2"}

    run(scene())


def test_a_list_of_topics_is_registered_and_written_once(tmp_path, monkeypatch):
    asked: list[int] = []

    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(tmp_path, namesrvAddr=f"127.0.0.1:{names.port}") as controller,
            RemotingClient() as client,
        ):
            invoke = RemotingClient.invoke

            async def counted(self, address, request, *rest):
                asked.append(request.code)
                return await invoke(self, address, request, *rest)

            written: list[int] = []
            manager = controller.broker.topic_config_manager
            write = manager._write
            monkeypatch.setattr(manager, "_write", lambda *content: (written.append(1), write(*content)))
            monkeypatch.setattr(RemotingClient, "invoke", counted)
            topics = [TopicConfig(topic_name=f"T{n}") for n in range(500)]
            body = CreateTopicListRequestBody(topic_config_list=topics).to_json()
            answer = await Peer(controller, client).ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert answer.code == ResponseCode.SUCCESS
            assert asked.count(RequestCode.REGISTER_BROKER) == len(written) == 1
            assert RequestCode.REGISTER_TOPIC_IN_NAMESRV not in asked
            assert names.routes.get_all_topic_list().topic_list >= {f"T{n}" for n in range(500)}

    run(scene())


def test_a_topic_is_known_although_the_whole_table_goes_first(tmp_path):
    """The period ends in the moment in which a topic is created: it goes with the table, and that is waited for."""

    async def scene() -> None:
        async with (
            name_server(tmp_path) as names,
            running(tmp_path, namesrvAddr=f"127.0.0.1:{names.port}") as controller,
        ):
            topic = TopicConfig(topic_name="T")
            controller.broker.topic_config_manager.topic_config_table["T"] = topic
            whole = asyncio.create_task(controller.registration.register_broker_all())
            known = controller.registration.register_topics([topic])
            assert known is not None
            await known
            assert names.routes.pickup_topic_route_data("T") is not None
            assert await whole

    run(scene())


def test_a_name_server_that_comes_back_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.services.registration.REGISTER_RETRY_S", 0.05)

    async def scene() -> None:
        async with name_server(tmp_path) as names:
            port = names.port
        async with running(tmp_path, namesrvAddr=f"127.0.0.1:{port}"):
            for _ in range(2):
                async with name_server(tmp_path, port) as names:
                    await until_async(lambda names=names: "broker-a" in names.routes.broker_addr_table)

    run(scene())


def test_a_name_server_that_answers_and_goes_at_once_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.services.registration.REGISTER_RETRY_S", 0.05)
    told = 0

    def register(connection, _):
        nonlocal told
        told += 1
        asyncio.get_running_loop().call_soon(connection.close)  # behind the answer
        return RemotingCommand.create_response(ResponseCode.SUCCESS, header=RegisterBrokerResponseHeader())

    async def scene() -> None:
        names = RemotingServer()
        names.processors.register(RequestCode.REGISTER_BROKER, register)
        await names.start("127.0.0.1")
        address = f"127.0.0.1:{names.port}"
        async with running(tmp_path, namesrvAddr=address, registerNameServerPeriod="60000"):
            await until_async(lambda: told > 2, timeout_s=50)  # less than the period: it is for the loss
        await names.stop()

    run(scene())


def test_a_name_server_that_does_not_answer_holds_up_nobody(tmp_path, monkeypatch):
    for limit in ("REGISTER_START_WAIT_S", "REGISTER_WAIT_S", "UNREGISTER_TIMEOUT_S"):
        monkeypatch.setattr(f"mqlake.broker.services.registration.{limit}", 0.1)

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            began = time.monotonic()
            async with (
                running(tmp_path, namesrvAddr=f"127.0.0.1:{silent.getsockname()[1]}") as controller,
                RemotingClient() as client,
            ):
                assert (await Peer(controller, client).send("T")).code == ResponseCode.SUCCESS
            assert time.monotonic() - began < 20  # a registration may take 24

    run(scene())
