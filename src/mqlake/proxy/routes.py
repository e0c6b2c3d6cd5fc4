"""QueryRoute and QueryAssignment: the queues of a topic, and where clients reach their brokers.

The address of a broker in an answer, the first that is known:

    1. the address that is advertised for gRPC (--advertise)
    2. the address that the client called, when every broker is reached through this server
    3. the broker's own address (brokerIP1) with this server's port
"""

from __future__ import annotations

from collections.abc import Iterable

from mqlake.base.net import parse_address
from mqlake.errors import ResponseError
from mqlake.proxy.backend import Backend
from mqlake.proxy.context import RequestContext
from mqlake.proxy.settings import existing_group
from mqlake.proxy.status import OK, StatusError
from mqlake.proxy.v2.definition_pb2 import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    Permission,
)
from mqlake.proxy.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from mqlake.proxy.values import accepted_types, endpoints, group_name, topic_name
from mqlake.remoting.bodies.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE
from mqlake.remoting.codes import ResponseCode


class Routes:
    def __init__(self, backend: Backend, advertised: tuple[str, int] | None = None) -> None:
        self._backend = backend
        self._advertised = advertised
        self.port = 0
        """The port this server listens on."""

    async def query_route(self, context: RequestContext, request: QueryRouteRequest) -> QueryRouteResponse:
        topic = topic_name(request.topic, system=True)
        route = await self._route(topic)
        kinds = accepted_types(await self._backend.topic_config(topic))
        brokers = self._brokers(route, request.endpoints)
        found = [
            MessageQueue(
                topic=request.topic,
                id=number,
                permission=permission,
                broker=broker,
                accept_message_types=kinds,
            )
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            for broker in brokers.get(data.broker_name, ())
            for number, permission in queues_of(data)
        ]
        return QueryRouteResponse(status=OK, message_queues=found)

    async def query_assignment(
        self, context: RequestContext, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        topic, group = topic_name(request.topic, system=True), group_name(request.group)
        route = await self._route(topic)
        config = await existing_group(self._backend, group)
        brokers = self._brokers(route, request.endpoints)
        found = []
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
            masters = [broker for broker in brokers.get(data.broker_name, ()) if broker.id == MASTER_ID]
            if not masters or not data.perm & PERM_READ or not data.read_queue_nums:
                continue
            numbers: Iterable[int] = range(data.read_queue_nums) if config.consume_message_orderly else (-1,)
            found += [
                Assignment(
                    message_queue=MessageQueue(
                        topic=request.topic, id=number, permission=Permission.READ, broker=masters[0]
                    )
                )
                for number in numbers
            ]
        if not found:
            raise StatusError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        return QueryAssignmentResponse(status=OK, assignments=found)

    async def _route(self, topic: str) -> TopicRouteData:
        try:
            return await self._backend.route(topic)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise StatusError(
                Code.TOPIC_NOT_FOUND,
                f"No topic route info in name server for the topic: {topic}; create it "
                f"(mqlake admin topic create)",
            ) from None

    def _brokers(self, route: TopicRouteData, called: Endpoints) -> dict[str, list[Broker]]:
        """Broker name → its master and replicas."""
        own = self._backend.own_broker
        alone = all(data.broker_name == own for data in route.broker_datas)
        return {
            data.broker_name: [
                Broker(
                    name=data.broker_name, id=number, endpoints=self._endpoints(data, address, called, alone)
                )
                for number, address in sorted(data.broker_addrs.items())
            ]
            for data in route.broker_datas
            if data.broker_name
        }

    def _endpoints(self, data: BrokerData, address: str, called: Endpoints, alone: bool) -> Endpoints:
        own = self._backend.own_broker
        through_here = not own or alone
        if self._advertised is not None and (not own or data.broker_name == own):
            host, port = self._advertised
            return endpoints(host, port or self.port)
        if through_here and _is_one_address(called):
            return called
        if not own and called.addresses:
            return called
        return endpoints(parse_address(address)[0], self.port)


def _is_one_address(called: Endpoints) -> bool:
    return (
        len(called.addresses) == 1 and bool(called.addresses[0].host) and 0 < called.addresses[0].port < 65536
    )


def queues_of(data: QueueData) -> list[tuple[int, Permission]]:
    """(queue id, permission) of a topic on one broker. Ids are the broker's own."""
    readable = data.read_queue_nums if data.perm & PERM_READ else 0
    writable = data.write_queue_nums if data.perm & PERM_WRITE else 0
    if not readable and not writable:
        count = max(1, data.read_queue_nums, data.write_queue_nums)
        return [(number, Permission.NONE) for number in range(count)]
    return [
        (
            number,
            Permission.READ_WRITE
            if number < readable and number < writable
            else Permission.READ
            if number < readable
            else Permission.WRITE,
        )
        for number in range(max(readable, writable))
    ]
