"""A cluster as a backend: the proxy in front of a name server and a broker that are reached by sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from mqlake.base.clock import now_ms
from mqlake.errors import ResponseError
from mqlake.message import MessageExtBrokerInner, ReceiptHandle
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.proxy.local import LocalBackend
from mqlake.proxy.remote import RemoteBackend
from mqlake.proxy.server import GrpcServer
from mqlake.proxy.status import UnknownBrokerError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, MessageQueue, MessageType
from mqlake.remoting.bodies.topic import MessageQueue as BrokerQueue
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from tests.broker.live import make_controller
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.proxy.live import Peer, consumer_settings, message, producer_settings, resource

pytestmark = pytest.mark.usefixtures("each_server")


def test_a_proxy_in_front_of_a_cluster(tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(120):
            namesrv = NamesrvController(
                NamesrvConfig(
                    listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
                )
            )
            await namesrv.start()
            address = f"127.0.0.1:{namesrv.port}"
            controller = make_controller(
                tmp_path, namesrvAddr=address, transactionCheckInterval="200", transactionTimeOut="0"
            )
            await controller.start()
            backend = RemoteBackend([address])
            server = GrpcServer(backend)
            await server.start("127.0.0.1", 0)
            peer = Peer(server, controller)
            try:
                await scene(peer, backend)
            finally:
                await peer.close()
                await server.stop(0.1)
                await controller.stop()
                await namesrv.stop()

    run(main())


def test_who_names_no_broker_gets_the_messages_of_all_of_them(tmp_path: Path):
    """From a proxy in front of two brokers, and from the endpoint in one of them."""

    async def main() -> None:
        async with asyncio.timeout(120), contextlib.AsyncExitStack() as stack:
            namesrv = NamesrvController(
                NamesrvConfig(
                    listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
                )
            )
            await namesrv.start()
            stack.push_async_callback(namesrv.stop)
            address = f"127.0.0.1:{namesrv.port}"
            controllers = [
                make_controller(tmp_path / name, namesrvAddr=address, brokerName=name)
                for name in ("broker-a", "broker-b")
            ]
            for controller in controllers:
                await controller.start()
                stack.push_async_callback(controller.stop)
            for backend in (RemoteBackend([address]), LocalBackend(controllers[0])):
                server = GrpcServer(backend)
                await server.start("127.0.0.1", 0)
                stack.push_async_callback(server.stop, 0.1)
                peers = [Peer(server, controller) for controller in controllers]
                for peer in peers:
                    stack.push_async_callback(peer.close)
                await of_both_brokers(peers, f"T-{type(backend).__name__}")

    run(main())


async def of_both_brokers(peers: list[Peer], topic: str) -> None:
    for number, peer in enumerate(peers):
        peer.create_topic(topic)
        await peer.controller.registration.register_broker_all()
        for queue_id in range(3):
            stored = MessageExtBrokerInner(topic, b"%d-%d" % (number, queue_id), queue_id=queue_id)
            assert (await peer.controller.broker.store.async_put_message(stored)).is_ok
    consumer = peers[0]
    stream, _ = await consumer.settle(consumer_settings("G", topic))
    queue = MessageQueue(topic=resource(topic), id=0)
    answer = await consumer.call("QueryOffset", v2.QueryOffsetRequest(message_queue=queue))
    assert answer.status.code == Code.BAD_REQUEST, "an offset of which broker?"
    assert f"several brokers have topic {topic} (broker-a, broker-b)" in answer.status.message
    bodies, entries = set(), []
    while len(bodies) < 6:
        for answer in await consumer.receive(topic, "G", broker=""):
            if answer.WhichOneof("content") == "message":
                system = answer.message.system_properties
                bodies.add(answer.message.body)
                entries.append(
                    v2.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
                )
    request = v2.AckMessageRequest(group=resource("G"), topic=resource(topic), entries=entries)
    answer = await consumer.call("AckMessage", request)
    assert {entry.status.code for entry in answer.entries} == {Code.OK}
    stream.cancel()


async def scene(peer: Peer, backend: RemoteBackend) -> None:
    peer.create_topic("X", "TRANSACTION")
    await peer.controller.registration.register_broker_all()
    answer = await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource("X")))
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    assert list(answer.message_queues[0].accept_message_types) == [MessageType.TRANSACTION]
    assert (await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource("Y")))).status.code == 40402

    # the broker knows the proxy's clients as its own
    consumer = peer.another("client-2")
    stream, _ = await consumer.settle(consumer_settings("G", "X"))
    info = peer.controller.broker.consumer_manager.get_consumer_group_info("G")
    assert info is not None and info.all_client_ids() == ["client-2"]
    await consumer.call("NotifyClientTermination", v2.NotifyClientTerminationRequest())
    assert peer.controller.broker.consumer_manager.get_consumer_group_info("G") is None
    stream.cancel()
    await consumer.close()

    # and asks them
    stream, _ = await peer.settle(producer_settings("X"))
    await peer.send(message("X", message_type=MessageType.TRANSACTION))
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.system_properties.message_id == "id-1"
    end = v2.EndTransactionRequest(topic=resource("X"), transaction_id=command.transaction_id, resolution=1)
    assert (await peer.call("EndTransaction", end)).status.code == Code.OK
    assert len(await peer.records("X", 1)) == 1
    stream.cancel()

    with pytest.raises(UnknownBrokerError, match=r"broker 'nobody' is not registered .*broker-a"):
        await backend.address_of("nobody")
    forged = ReceiptHandle(0, now_ms(), 60_000, 0, 0, "nobody", 0, 0, 0).text
    entries = [v2.AckMessageEntry(message_id="id-1", receipt_handle=forged)]
    request = v2.AckMessageRequest(group=resource("G"), topic=resource("X"), entries=entries)
    status = (await peer.call("AckMessage", request)).entries[0].status
    assert (status.code, "broker 'nobody'" in status.message) == (Code.INVALID_RECEIPT_HANDLE, True)
    assert await backend.topic_config("Unknown") is None
    assert await backend.group_config("a b") is None
    with pytest.raises(ResponseError):
        await backend.queues_to_send("Unknown")


def test_without_name_servers_there_is_an_answer(tmp_path: Path):
    async def main() -> None:
        with socket.socket() as taken:  # a port at which nobody else can listen meanwhile
            taken.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{taken.getsockname()[1]}"
            server = GrpcServer(RemoteBackend([nobody]))
            await server.start("127.0.0.1", 0)
            peer = Peer(server, make_controller(tmp_path))
            answer = await peer.send(message("T"))
            assert answer.status.code == Code.INTERNAL_SERVER_ERROR, (answer, server.port)
            assert nobody in answer.status.message
            await peer.close()
            await server.stop(0.1)

    run(main())


def test_every_client_has_connections_of_its_own():
    made: list[RemotingClient] = []

    async def main() -> None:
        def new_client() -> RemotingClient:
            client = RemotingClient()
            made.append(client)
            return client

        async def silent(_: RemotingCommand) -> None:
            return None

        backend = RemoteBackend(["127.0.0.1:1"], new_client)
        channels = [backend.open("127.0.0.1:1", silent) for _ in range(2)]
        assert len(set(map(id, made))) == 3
        assert len({id(client.scratch) for client in made}) == 1
        assert len({id(client.spares) for client in made}) == 1
        for channel in channels:
            await channel.close()
        await backend.close()

    asyncio.run(main())


def test_messages_for_a_static_topic_go_to_the_brokers_that_lead_its_queues(tmp_path):
    """By logical numbers; a physical one would be taken for the logical queue of that number."""

    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 2, "broker-a")
        await cluster.move("T", "broker-a", "broker-b")
        leaders = {
            queue: name
            for name in ("broker-a", "broker-b")
            for queue, items in cluster.detail(name).hosted_queues.items()
            if items[-1].bname == name
        }
        at_leaders = [
            BrokerQueue(topic="T", broker_name=leaders[queue], queue_id=queue) for queue in sorted(leaders)
        ]
        remote, local = RemoteBackend([cluster.namesrv_addr]), LocalBackend(cluster.brokers["broker-b"])
        try:
            assert list(await remote.queues_to_send("T")) == at_leaders
            own = [queue for queue in at_leaders if queue.broker_name == "broker-b"]
            assert list(await local.queues_to_send("T")) == own
        finally:
            await remote.close()
            await local.close()

    on_static_brokers(tmp_path, scene)
