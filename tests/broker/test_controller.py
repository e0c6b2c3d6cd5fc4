from __future__ import annotations

import asyncio
import socket
import time

import pytest
import trustme

from mqlake.errors import ConfigError, StoreLockedError
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.namesrv import RegisterBrokerResponseHeader
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.tls import client_context
from tests.broker.live import Peer, make_controller, on_a_broker, pull_header, running, send_header
from tests.broker.test_outer_api import NOBODY, name_server
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

    run(scene())


def test_a_name_server_that_comes_back_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.registration.REGISTER_RETRY_S", 0.05)

    async def scene() -> None:
        async with name_server(tmp_path) as names:
            port = names.port
        async with running(tmp_path, namesrvAddr=f"127.0.0.1:{port}"):
            for _ in range(2):
                async with name_server(tmp_path, port) as names:
                    await until_async(lambda names=names: "broker-a" in names.routes.broker_addr_table)

    run(scene())


def test_a_name_server_that_answers_and_goes_at_once_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.broker.registration.REGISTER_RETRY_S", 0.05)
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


def test_everything_is_there_after_a_restart(tmp_path):
    async def scene() -> None:
        async with (
            running(tmp_path, flushConsumerOffsetInterval="20") as controller,
            RemotingClient() as client,
        ):
            peer = Peer(controller, client)
            await peer.send("T", b"kept")
            await peer.dispatched()
            await peer.pull("T", 0, commit_offset=1, sys_flag=5)
            await until_async((tmp_path / "store/config/consumerOffset.json").exists)
        async with running(tmp_path) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
            assert controller.broker.consumer_offset_manager.query_offset("CG", "T", 0) == 1
            assert "CG" in controller.broker.subscription_group_manager.subscription_group_table
            assert (await peer.send("T")).ext_fields["queueOffset"] == "1"

    run(scene())


def test_the_vip_port_answers_all_but_pulls(tmp_path):
    async def scene(peer: Peer) -> None:
        vip = f"127.0.0.1:{peer.controller.fast_server.port}"
        if peer.controller.fast_server.port:  # two below a port that happened to be free
            send = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x")
            assert (await peer.client.invoke(vip, send, 60)).code == ResponseCode.SUCCESS
            pull = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, pull_header("T"))
            assert (await peer.client.invoke(vip, pull, 60)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    on_a_broker(tmp_path, scene)


def test_an_unknown_request(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(9999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "9999" in answer.remark

    on_a_broker(tmp_path, scene)


def test_a_start_that_fails_leaves_nothing_behind(tmp_path):
    async def scene() -> None:
        async with running(tmp_path) as first:
            with pytest.raises(StoreLockedError):
                await make_controller(tmp_path).start()
            taken = make_controller(tmp_path / "other", listenPort=str(first.port))
            with pytest.raises(ConfigError, match=str(first.port)):
                await taken.start()
            assert not (tmp_path / "other").exists()
            assert (
                taken.broker.store.put_message(MessageExtBrokerInner("T")).reason
                == "the store is not running"
            )
        async with running(tmp_path / "other"):
            pass

    run(scene())


def test_a_stop_is_a_stop(tmp_path):
    async def scene() -> None:
        async with running(tmp_path) as controller, RemotingClient() as client:
            await Peer(controller, client).send("T")
            before = asyncio.all_tasks()
            await controller.stop()
            await controller.stop()
            assert asyncio.all_tasks() <= before
        assert not (tmp_path / "store" / "abort").exists()

    run(scene())


def test_acknowledged_sends_survive_a_stop_under_load(tmp_path):
    async def scene() -> None:
        acknowledged = []
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as controller, RemotingClient() as client:
            peer = Peer(controller, client)

            async def load(number: int) -> None:
                for n in range(10_000):
                    try:
                        answer = await peer.send("T", b"%d-%d" % (number, n))
                    except Exception:
                        return
                    if answer.code != ResponseCode.SUCCESS:
                        return
                    acknowledged.append(answer.ext_fields["msgId"])

            sending = [asyncio.create_task(load(number)) for number in range(20)]
            await until_async(lambda: len(acknowledged) > 200)
            await controller.stop()
            await asyncio.wait(sending)
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as controller:
            for message_id in acknowledged:
                assert controller.broker.store.look_message_by_id(message_id).topic == "T"

    run(scene())


def test_tls_on_the_same_port(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )

    async def scene(peer: Peer) -> None:
        context = client_context(trust_cert_path=str(tmp_path / "ca.pem"))
        async with RemotingClient(tls=context) as client:
            secret = Peer(peer.controller, client)
            assert (await secret.send("T", b"x" * 100_000)).code == ResponseCode.SUCCESS
            await until_async(lambda: peer.controller.broker.store.max_offset_in_queue("T", 0) == 1)
            waiting = asyncio.ensure_future(secret.pull("T", 1, sys_flag=6))
            await until_async(lambda: peer.controller.pull_request_hold_service.held_count == 1)
            assert (await peer.send("T", b"plain")).code == ResponseCode.SUCCESS
            assert b"plain" in (await waiting).body_bytes()
            assert len((await secret.pull("T")).body_bytes()) > 100_000

    path = str(tmp_path / "server.pem")
    on_a_broker(tmp_path, scene, **{"tls.server.certPath": path, "tls.server.keyPath": path})


def test_a_name_server_that_does_not_answer_holds_up_nobody(tmp_path, monkeypatch):
    for limit in ("REGISTER_START_WAIT_S", "REGISTER_WAIT_S", "UNREGISTER_TIMEOUT_S"):
        monkeypatch.setattr(f"mqlake.broker.registration.{limit}", 0.1)

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
