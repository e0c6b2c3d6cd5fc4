"""Two brokers with access control behind one name server: every RPC reaches the right one, through the endpoint in
another broker's process and through `mqlake proxy`.

    client ──▶ endpoint in broker-a ──▶ broker-b
    client ──▶ mqlake proxy ──▶ broker-a, broker-b

Topics that end in a are at broker-a alone, and so on; Both is at both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqlake.auth.config import AuthConfig, Credentials
from mqlake.auth.model import Action, Policy, PolicyType, UserType
from mqlake.auth.signed_client import SignedRemotingClient
from mqlake.base.clock import now_ms
from mqlake.broker.controller import BrokerController
from mqlake.client.api.access_api import AccessAPI
from mqlake.message import ReceiptHandle
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.proxy.access import AccessAuthenticator, ClusterAuthenticator
from mqlake.proxy.local import LocalBackend
from mqlake.proxy.remote import RemoteBackend
from mqlake.proxy.server import GrpcServer
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, MessageType
from mqlake.proxy.values import duration, timestamp
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.loop import run
from tests.auth.people import entry
from tests.broker.live import make_controller
from tests.proxy.live import Peer, consumer_settings, message, producer_settings, resource
from tests.waiting import trying, until_async

pytestmark = pytest.mark.usefixtures("each_server")

INNER = Credentials("inner", "inner-secret")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    "transactionCheckInterval": "200",
    "transactionTimeOut": "0",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
}
AUTH = AuthConfig(authentication_enabled=True, authorization_enabled=True)
KINDS = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}


class Cluster(NamedTuple):
    namesrv: str
    brokers: dict[str, BrokerController]

    def count(self, broker: str, topic: str) -> int:
        store = self.brokers[broker].broker.store
        return sum(store.max_offset_in_queue(topic, queue_id) for queue_id in range(4))


@contextlib.asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as running:
        config = NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(directory / "kv.json")
        )
        namesrv = NamesrvController(config)
        await namesrv.start()
        running.push_async_callback(namesrv.stop)
        address = f"127.0.0.1:{namesrv.port}"
        brokers = {}
        for letter in "ab":
            name = f"broker-{letter}"
            controller = make_controller(directory / name, brokerName=name, namesrvAddr=address, **SETTINGS)
            await controller.start()
            running.push_async_callback(controller.stop)
            brokers[name] = controller
            topics = {f"{kind}{letter}": text for kind, text in KINDS.items()} | {"Both": "NORMAL"}
            for topic, kind in topics.items():
                controller.broker.topic_config_manager.update_topic_config(
                    TopicConfig(
                        topic_name=topic,
                        read_queue_nums=4,
                        write_queue_nums=4,
                        attributes={"+message.type": kind},
                    )
                )
            await _users(controller.broker_addr)
            await controller.registration.register_broker_all()
        yield Cluster(address, brokers)


async def _users(address: str) -> None:
    async with SignedRemotingClient(INNER) as client:
        api = AccessAPI(client)
        await api.create_user(address, "all", "all-secret", UserType.NORMAL)
        await api.create_user(address, "only-a", "a-secret", UserType.NORMAL)
        everything = (entry("Topic:*", Action.PUB, Action.SUB), entry("Group:*", Action.SUB))
        await api.update_acl(address, "all", [Policy(PolicyType.CUSTOM, everything)])
        some = (entry("Topic:Na", Action.PUB, Action.SUB), entry("Group:G", Action.SUB))
        await api.update_acl(address, "only-a", [Policy(PolicyType.CUSTOM, some)])


@contextlib.asynccontextmanager
async def endpoint(cluster: Cluster, where: str) -> AsyncIterator[Peer]:
    controller = cluster.brokers["broker-a"]
    if where == "local":
        access = controller.broker.access
        assert access is not None
        server = GrpcServer(LocalBackend(controller), authenticator=AccessAuthenticator(access))
    else:
        backend = RemoteBackend([cluster.namesrv], lambda: SignedRemotingClient(INNER))
        server = GrpcServer(backend, authenticator=ClusterAuthenticator(AUTH, backend))
    try:
        await server.start("127.0.0.1", 0)
        peer = Peer(server, controller)
        try:
            yield peer
        finally:
            await peer.close()
    finally:
        await server.stop(0.1)


@pytest.mark.parametrize("where", ["local", "proxy"])
def test_every_rpc_reaches_the_right_broker(where: str, tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(120), cluster(tmp_path) as brokers, endpoint(brokers, where) as peer:
            peer.sign("all", "all-secret")
            await routes(peer)
            for letter in "ab":
                await receives(brokers, peer, f"broker-{letter}", f"N{letter}")
                await recalls(peer, f"D{letter}")
                await transactions(brokers, peer, f"broker-{letter}", f"X{letter}")
            await refusals(brokers, peer)

    run(main())


async def routes(peer: Peer) -> None:
    for topic, names in (("Na", "a"), ("Nb", "b"), ("Both", "ab")):
        answer = await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource(topic)))
        assert answer.status.code == Code.OK, answer.status
        brokers = [queue.broker.name for queue in answer.message_queues]
        assert brokers == [f"broker-{name}" for name in names for _ in range(4)]
        assignment = v2.QueryAssignmentRequest(topic=resource(topic), group=resource("G"))
        answer = await peer.call("QueryAssignment", assignment)
        assert [one.message_queue.broker.name for one in answer.assignments] == [f"broker-{n}" for n in names]


async def received(peer: Peer, topic: str, broker: str, count: int) -> list[definition.Message]:
    found: list[definition.Message] = []
    while len(found) < count:
        answers = await peer.receive(topic, "G", broker=broker)
        assert answers[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), answers[0].status
        found += [answer.message for answer in answers if answer.HasField("message")]
    return found


def _of(one: definition.Message, group: str = "G") -> dict[str, Any]:
    system = one.system_properties
    return {
        "topic": one.topic,
        "group": resource(group),
        "message_id": system.message_id,
        "receipt_handle": system.receipt_handle,
    }


async def receives(cluster: Cluster, peer: Peer, broker: str, topic: str) -> None:
    """Three messages: one is acknowledged, one becomes a dead letter, one is visible again and acknowledged then."""
    stream, answer = await peer.settle(consumer_settings("G", topic))
    assert answer.status.code == Code.OK
    for queue_id in range(4):  # a new group begins at the end
        queue = definition.MessageQueue(
            topic=resource(topic), id=queue_id, broker=definition.Broker(name=broker)
        )
        begin = v2.UpdateOffsetRequest(group=resource("G"), message_queue=queue, offset=0)
        assert (await peer.call("UpdateOffset", begin)).status.code == Code.OK
    for number in range(3):
        assert (await peer.send(message(topic, b"%d" % number, f"id-{number}"))).status.code == Code.OK
    await until_async(lambda: cluster.count(broker, topic) == 3)
    by_body = {one.body: one for one in await received(peer, topic, broker, 3)}
    assert sorted(by_body) == [b"0", b"1", b"2"]
    for one in by_body.values():
        assert ReceiptHandle.parse(one.system_properties.receipt_handle).broker_name == broker
    await _acknowledge(peer, by_body[b"0"])
    dead = v2.ForwardMessageToDeadLetterQueueRequest(**_of(by_body[b"1"]))
    assert (await peer.call("ForwardMessageToDeadLetterQueue", dead)).status.code == Code.OK
    await until_async(lambda: cluster.count(broker, "%DLQ%G") == 1)
    change = v2.ChangeInvisibleDurationRequest(**_of(by_body[b"2"]), invisible_duration=duration(0))
    assert (await peer.call("ChangeInvisibleDuration", change)).status.code == Code.OK
    (again,) = await received(peer, topic, broker, 1)
    assert (again.body, again.system_properties.delivery_attempt) == (b"2", 2)
    await _acknowledge(peer, again)
    stream.cancel()


async def _acknowledge(peer: Peer, one: definition.Message) -> None:
    system = one.system_properties
    entries = [v2.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)]
    request = v2.AckMessageRequest(group=resource("G"), topic=one.topic, entries=entries)
    assert (await peer.call("AckMessage", request)).status.code == Code.OK


async def recalls(peer: Peer, topic: str) -> None:
    due = timestamp(now_ms() + 3_600_000)
    sent = await peer.send(message(topic, message_type=MessageType.DELAY, delivery_timestamp=due))
    assert sent.status.code == Code.OK, sent.status
    (sent_entry,) = sent.entries
    request = v2.RecallMessageRequest(topic=resource(topic), recall_handle=sent_entry.recall_handle)
    answer = await peer.call("RecallMessage", request)
    assert (answer.status.code, answer.message_id) == (Code.OK, "id-1"), answer.status


async def transactions(cluster: Cluster, peer: Peer, broker: str, topic: str) -> None:
    """One that its producer commits, and one that the broker asks about."""
    stream, _ = await peer.settle(producer_settings(topic))
    sent = await peer.send(message(topic, b"1", message_type=MessageType.TRANSACTION))
    assert sent.status.code == Code.OK, sent.status
    commit = {"topic": resource(topic), "resolution": definition.TransactionResolution.COMMIT}
    end = v2.EndTransactionRequest(**commit, transaction_id=sent.entries[0].transaction_id)
    assert (await peer.call("EndTransaction", end)).status.code == Code.OK
    await until_async(lambda: cluster.count(broker, topic) == 1)
    await peer.send(message(topic, b"2", "orphan", message_type=MessageType.TRANSACTION))
    for _ in trying("the broker asks"):
        asked = (await stream.read()).recover_orphaned_transaction_command
        if asked.message.system_properties.message_id == "orphan":
            break
    end = v2.EndTransactionRequest(**commit, transaction_id=asked.transaction_id)
    assert (await peer.call("EndTransaction", end)).status.code == Code.OK
    await until_async(lambda: cluster.count(broker, topic) == 2)
    stream.cancel()


async def refusals(cluster: Cluster, peer: Peer) -> None:
    """By the rights of the one who signed, not by those of the endpoint."""
    stored = {name: cluster.count(f"broker-{name[-1]}", name) for name in ("Na", "Nb")}
    peer.sign("only-a", "a-secret")
    assert (await peer.send(message("Na"))).status.code == Code.OK
    answer = await peer.send(message("Nb"))
    assert answer.status.code == Code.UNAUTHORIZED
    assert "User:only-a has no permission to access Topic:Nb" in answer.status.message
    peer.sign("only-a", "another")
    assert (await peer.send(message("Na"))).status.code == Code.UNAUTHORIZED
    peer.metadata.pop("authorization")
    assert (await peer.send(message("Na"))).status.code == Code.UNAUTHORIZED
    await until_async(lambda: cluster.count("broker-a", "Na") == stored["Na"] + 1)
    assert cluster.count("broker-b", "Nb") == stored["Nb"]


def test_users_are_read_again(tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(120), cluster(tmp_path) as brokers, endpoint(brokers, "proxy") as peer:
            peer.sign("new", "new-secret")
            assert (await peer.send(message("Na"))).status.code == Code.UNAUTHORIZED
            async with SignedRemotingClient(INNER) as client:
                for controller in brokers.brokers.values():
                    api = AccessAPI(client)
                    await api.create_user(controller.broker_addr, "new", "new-secret", UserType.SUPER)
            await peer.server.service.housekeeping()
            assert (await peer.send(message("Na"))).status.code == Code.OK
            await brokers.brokers["broker-a"].stop()
            await peer.server.service.housekeeping()
            assert (await peer.send(message("Nb"))).status.code == Code.OK
            await brokers.brokers["broker-b"].stop()  # the users that were read last still count
            await peer.server.service.housekeeping()
            assert (await peer.send(message("Nb"))).status.code != Code.UNAUTHORIZED

    run(main())


def test_who_may_not_read_secrets_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        async with asyncio.timeout(120), cluster(tmp_path) as brokers:
            backend = RemoteBackend(
                [brokers.namesrv], lambda: SignedRemotingClient(Credentials("all", "all-secret"))
            )
            authenticator = ClusterAuthenticator(AUTH, backend)
            for _ in range(2):
                await authenticator.refresh()
            await backend.close()

    run(main())
    (line,) = [record.getMessage() for record in caplog.records if "users" in record.getMessage()]
    assert "cannot be read from the brokers" in line
