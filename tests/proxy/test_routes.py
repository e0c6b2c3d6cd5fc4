"""QueryRoute and QueryAssignment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mqlake.proxy.routes import Routes, queues_of
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import AddressScheme, Code, Endpoints, MessageType, Permission
from mqlake.proxy.values import endpoints
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import QueueData
from tests.proxy.live import Peer, on_a_broker, resource
from tests.proxy.scripted import ScriptedBackend, context

pytestmark = pytest.mark.usefixtures("each_server")

READ, WRITE, BOTH, NONE = Permission.READ, Permission.WRITE, Permission.READ_WRITE, Permission.NONE
CALLED = endpoints("proxy.example.com", 443)


@pytest.mark.parametrize(
    ("readable", "writable", "perm", "permissions"),
    [
        (2, 2, 6, [BOTH, BOTH]),
        (3, 1, 6, [BOTH, READ, READ]),
        (1, 2, 6, [BOTH, WRITE]),
        (2, 2, 4, [READ, READ]),
        (2, 1, 2, [WRITE]),
        (0, 0, 0, [NONE]),
        (1, 2, 0, [NONE, NONE]),
    ],
)
def test_queues_have_the_ids_of_their_broker(
    readable: int, writable: int, perm: int, permissions: list[Permission]
):
    data = QueueData(broker_name="b", read_queue_nums=readable, write_queue_nums=writable, perm=perm)
    assert queues_of(data) == list(enumerate(permissions))


def address_of(
    backend: ScriptedBackend, called: Endpoints, advertised: tuple[str, int] | None
) -> tuple[str, int]:
    routes = Routes(backend, advertised)
    routes.port = 8081
    request = v2.QueryRouteRequest(topic=resource("T"), endpoints=called)
    answer = asyncio.run(routes.query_route(context(), request))
    address = answer.message_queues[0].broker.endpoints.addresses[0]
    return address.host, address.port


def test_a_proxy_is_reached_where_it_was_called_or_where_it_says():
    backend = ScriptedBackend()
    assert address_of(backend, CALLED, None) == ("proxy.example.com", 443)
    assert address_of(backend, CALLED, ("nat.example.com", 0)) == ("nat.example.com", 8081)
    assert address_of(backend, Endpoints(), None) == ("10.0.0.1", 8081)


class BesideBroker(ScriptedBackend):
    own = "b"

    @property
    def own_broker(self) -> str:
        return self.own


def test_a_broker_of_several_is_reached_at_its_own_address():
    alone, other = BesideBroker(), BesideBroker()
    other.own = "another"
    assert address_of(alone, CALLED, None) == ("proxy.example.com", 443)
    assert address_of(alone, CALLED, ("nat.example.com", 30081)) == ("nat.example.com", 30081)
    assert address_of(other, CALLED, ("nat.example.com", 30081)) == ("10.0.0.1", 8081)


def test_routes_of_a_broker(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("F", "FIFO", 3)
        answer = await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource("F")))
        assert answer.status.code == Code.OK
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
        for queue in answer.message_queues:
            assert (queue.permission, queue.broker.name, queue.broker.id) == (BOTH, "broker-a", 0)
            assert list(queue.accept_message_types) == [MessageType.FIFO]
            assert queue.broker.endpoints.scheme == AddressScheme.IPv4
            (address,) = queue.broker.endpoints.addresses
            assert (address.host, address.port) == ("127.0.0.1", peer.server.port)
        for bad, code in (("a b", Code.ILLEGAL_TOPIC), ("Unknown", Code.TOPIC_NOT_FOUND)):
            answer = await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource(bad)))
            assert answer.status.code == code

    on_a_broker(tmp_path, scene, autoCreateTopicEnable="false")


def test_the_advertised_address_is_that_of_routes_and_of_store_hosts(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        broker = peer.controller.broker
        assert broker.broker_addr == "127.0.0.9:30911"
        assert broker.store_host == ("127.0.0.9", 30911)

    on_a_broker(tmp_path, scene, advertise="127.0.0.9:30911:30081")


def test_assignments(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        peer.create_topic("T", queues=3)
        peer.controller.broker.subscription_group_manager.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="Orderly", consume_message_orderly=True)
        )
        for group, ids in (("G", [-1]), ("Orderly", [0, 1, 2])):
            request = v2.QueryAssignmentRequest(topic=resource("T"), group=resource(group))
            answer = await peer.call("QueryAssignment", request)
            assert [one.message_queue.id for one in answer.assignments] == ids
            assert {one.message_queue.permission for one in answer.assignments} == {READ}
        config = peer.controller.broker.topic_config_manager.topic_config_table["T"]
        config.perm = 2
        answer = await peer.call(
            "QueryAssignment", v2.QueryAssignmentRequest(topic=resource("T"), group=resource("G"))
        )
        assert answer.status.code == Code.FORBIDDEN

    on_a_broker(tmp_path, scene)
