"""A cluster as a backend: its name servers are asked for routes, its brokers by the remoting protocol.

Each client of the proxy has connections of its own, so brokers see the clients and not the proxy. What is read often
(routes, settings of topics and groups) is kept for a short time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from mqlake.auth.state import State
from mqlake.base.single_flight import SingleFlight
from mqlake.client.api.access_api import AccessAPI
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.client.api.name_servers import NameServers
from mqlake.client.routes import queues_at_brokers
from mqlake.errors import (
    MqlakeError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    ResponseError,
)
from mqlake.proxy.backend import Backend, OnRequest
from mqlake.proxy.status import UnknownBrokerError
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

FRESH_S = 20.0
"""How long a route, a topic or a group that was read is good."""
STALE_S = 300.0
"""How long it is good while it cannot be read again."""
KNOWN_MAX = 10_000
BROKERS_FRESH_S = 5.0
ACCESS_TIMEOUT_S = 3.0
FROM_BROKERS = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class _Kept(Generic[Value]):
    """Values by name, read again when they are old; one read at a time for each name."""

    def __init__(self, read: Callable[[str], Coroutine[Any, Any, Value]]) -> None:
        self._read = SingleFlight(read)
        self._known: dict[str, tuple[float, Value]] = {}

    async def get(self, name: str) -> Value:
        known = self._known.get(name)
        now = time.monotonic()
        if known is not None and now - known[0] < FRESH_S:
            return known[1]
        try:
            value = await self._read(name)
        except (RemotingConnectError, RemotingTimeoutError):
            if known is not None and now - known[0] < STALE_S:
                return known[1]
            raise
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name] = now, value
        return value


class RemoteChannel:
    def __init__(self, backend: RemoteBackend, on_request: OnRequest) -> None:
        self._backend = backend
        self._client = backend.client_of_channel()

        async def handle(_: Connection, request: RemotingCommand) -> RemotingCommand | None:
            return await on_request(request)

        self._client.processors.register(FROM_BROKERS, handle)
        self._client.processors.register(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, lambda _connection, _request: None
        )

    async def invoke(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        address = await self._backend.address_of(broker_name)
        try:
            return await self._client.invoke(address, command, timeout_s)
        except RemotingConnectError:
            self._backend.forget_addresses()
            raise

    async def close(self) -> None:
        await self._client.close()


class RemoteBackend(Backend):
    def __init__(
        self,
        namesrv_addresses: Sequence[str],
        new_client: Callable[[], RemotingClient] = RemotingClient,
    ) -> None:
        """`new_client` makes a client for each gRPC client: with TLS for example, or one that signs its requests."""
        self.new_client = new_client
        self._client = self.new_client()
        self._name_servers = NameServers(self._client, namesrv_addresses)
        self._brokers = BrokerAPI(self._client)
        self._access = AccessAPI(self._client, timeout_s=ACCESS_TIMEOUT_S)
        self._routes = _Kept(self._name_servers.get_topic_route_info)
        self._topics = _Kept(self._read_topic)
        self._groups = _Kept(self._read_group)
        self._queues: dict[str, tuple[TopicRouteData, list[MessageQueue]]] = {}
        self._addresses: dict[str, str] = {}
        self._addresses_at = float("-inf")

    def client_of_channel(self) -> RemotingClient:
        """A client for one gRPC client; all read into the same memory, of which each would have 256 KiB."""
        client = self.new_client()
        client.scratch, client.spares = self._client.scratch, self._client.spares
        return client

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        await self._client.close()

    def open(self, remote_address: str, on_request: OnRequest) -> RemoteChannel:
        return RemoteChannel(self, on_request)

    # --- brokers

    async def address_of(self, broker_name: str) -> str:
        """The address of a master; of any for an empty name. UnknownBrokerError if there is none."""
        address = self._address(broker_name)
        if address is None or time.monotonic() - self._addresses_at > FRESH_S:
            await self._read_addresses()
            address = self._address(broker_name)
        if address is None:
            known = ", ".join(sorted(self._addresses)) or "none"
            text = f"broker {broker_name!r} is not registered with the name servers (known: {known})"
            raise UnknownBrokerError(text)
        return address

    def forget_addresses(self) -> None:
        """They are read again at the next request: a broker did not answer at its address."""
        self._addresses_at = min(self._addresses_at, time.monotonic() - FRESH_S)

    def _address(self, broker_name: str) -> str | None:
        return self._addresses.get(broker_name) if broker_name else next(iter(self._addresses.values()), None)

    async def _read_addresses(self) -> None:
        if time.monotonic() - self._addresses_at < BROKERS_FRESH_S:
            return
        try:
            cluster = await self._name_servers.get_broker_cluster_info()
        except (RemotingConnectError, RemotingTimeoutError):
            if not self._addresses:
                raise
            return
        self._addresses = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in cluster.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }
        self._addresses_at = time.monotonic()

    async def users_and_acls(self) -> State:
        """Returns users and acls of the first broker that answers: operators keep them the same everywhere.
        MqlakeError of the last."""
        await self.address_of("")
        failure: MqlakeError | None = None
        for address in self._addresses.values():
            try:
                users = await self._access.list_users(address)
                acls = await self._access.list_acls(address)
            except MqlakeError as error:
                failure = error
                continue
            return State({user.name: user for user in users}, {acl.username: acl for acl in acls})
        assert failure is not None
        raise failure

    # --- topics and groups

    async def route(self, topic: str) -> TopicRouteData:
        return await self._routes.get(topic)

    async def queues_to_send(self, topic: str) -> Sequence[MessageQueue]:
        route = await self.route(topic)
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            if len(self._queues) >= KNOWN_MAX:
                self._queues.clear()
            known = self._queues[topic] = route, queues_at_brokers(route, topic)
        return known[1]

    async def brokers_of(self, topics: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for topic in topics:
            try:
                route = await self.route(topic)
            except RemotingError as error:
                logger.info("no route of %s: %s", topic, error)
                continue
            found |= {data.broker_name for data in route.broker_datas if data.broker_name}
        return found

    async def topic_config(self, topic: str) -> TopicConfig | None:
        return await self._topics.get(topic)

    async def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        return await self._groups.get(group)

    async def _read_topic(self, topic: str) -> TopicConfig | None:
        try:
            route = await self.route(topic)
            for data in route.broker_datas:
                if MASTER_ID in data.broker_addrs:
                    return await self._brokers.get_topic_config(data.broker_addrs[MASTER_ID], topic)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        return None

    async def _read_group(self, group: str) -> SubscriptionGroupConfig | None:
        try:
            return await self._brokers.get_subscription_group_config(await self.address_of(""), group)
        except ResponseError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            raise
