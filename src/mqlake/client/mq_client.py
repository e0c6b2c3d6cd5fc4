"""MQClientInstance: one client of a cluster: routes, heartbeats, connections, and requests from brokers.

    async with MQClientInstance(ClientConfig(namesrv_addr="10.0.0.1:9876")) as client:
        async with Producer("group", client) as producer: ...

A producer or consumer that is given an address makes one of its own, as RocketMQ's do. Sharing one saves
connections and heartbeats.

    every 30 s   routes of all topics in use are asked for again, also soon after something failed
    every 30 s   a heartbeat to every broker that has one of these topics: who is here, with which subscriptions
    every 20 s   the consumers rebalance, at once when a broker says that a group has changed
    every  5 s   the consumers persist their offsets
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol

from mqlake.auth.signed_client import remoting_client
from mqlake.base.arguments import checked
from mqlake.base.background import BackgroundWork, repeat
from mqlake.base.single_flight import SingleFlight
from mqlake.client.api.client_api import MQClientAPI
from mqlake.client.api.name_servers import NameServers, parse_addresses
from mqlake.client.config import ClientConfig, build_client_id
from mqlake.client.records import MessageClientExt, decode_message
from mqlake.errors import (
    BrokerNotFoundError,
    ClientClosedError,
    MqlakeError,
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
    ResponseError,
    TopicNotFoundError,
)
from mqlake.message import PROPERTY_PRODUCER_GROUP
from mqlake.remoting.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    HeartbeatData,
    ProducerData,
    ResetOffsetBody,
)
from mqlake.remoting.bodies.route import MASTER_ID, TopicRouteData
from mqlake.remoting.bodies.topic import PERM_INHERIT, MessageQueue
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from mqlake.remoting.headers.consume import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from mqlake.remoting.headers.produce import CheckTransactionStateRequestHeader, ReplyMessageRequestHeader
from mqlake.remoting.processors import answers, register
from mqlake.remoting.service import Service
from mqlake.remoting.static_topic import endpoints

logger = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
REBALANCE_AGAIN_S = 1.0
"""After a rebalance that could not give out everything."""
ROUTE_AGE_MIN_S = 1.0
"""A route that failed is not asked for again before."""


class MQConsumerInner(Protocol):
    """The interface of consumers that a client uses."""

    group: str

    def consumer_data(self) -> ConsumerData | None:
        """The consumer's part of heartbeats."""
        ...

    def topics(self) -> set[str]: ...
    async def do_rebalance(self) -> bool:
        """True if every queue is assigned as it should be."""
        ...

    async def persist_consumer_offset(self) -> None: ...
    async def reset_offset(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...
    def consumer_status(self, topic: str) -> dict[MessageQueue, int]: ...
    def consumer_running_info(self) -> ConsumerRunningInfo: ...
    async def consume_message_directly(
        self, message: MessageClientExt
    ) -> ConsumeMessageDirectlyResult | None: ...


class MQProducerInner(Protocol):
    group: str

    def topics(self) -> set[str]: ...
    def reply_arrived(self, header: ReplyMessageRequestHeader, body: bytes) -> bool:
        """True if a request waits for it here."""
        ...

    async def check_transaction_state(
        self, address: str, header: CheckTransactionStateRequestHeader, message: MessageClientExt
    ) -> None:
        """A broker asks what is to become of a half message of the group."""
        ...


@checked
class MQClientInstance(Service):
    """One client of a cluster, to be shared by producers and consumers: give it to them as `where`."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.client_id = build_client_id(config)
        self.remoting = remoting_client(config.credentials, config.tls)
        self.api = MQClientAPI(self.remoting, timeout_s=config.timeout_s)
        self.topic_route_table: dict[str, TopicRouteData] = {}
        self.broker_addr_table: dict[str, dict[int, str]] = {}
        """Broker name → broker id → host:port."""
        self._leaders: dict[str, dict[MessageQueue, str]] = {}
        """Static topic → its logical queues → the broker that leads each."""
        self.producer_table: dict[str, MQProducerInner] = {}
        self.consumer_table: dict[str, MQConsumerInner] = {}
        self._name_servers = [
            NameServers(self.remoting, [address], timeout_s=config.timeout_s)
            for address in parse_addresses(config.namesrv_addr)
        ]
        random.shuffle(self._name_servers)
        self._asked_at: dict[str, float] = {}
        self._asking = SingleFlight(self._ask_route)
        self._greeted: set[str] = set()
        """Brokers that know this client; a new connection to one gets a new heartbeat."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._works: weakref.WeakKeyDictionary[MQConsumerInner, dict[str, BackgroundWork]] = (
            weakref.WeakKeyDictionary()
        )
        self._rebalance_wanted = asyncio.Event()
        self._started = self._closed = False
        self.remoting.on_open.append(self._connection_opened)
        register(self.remoting.processors, self)

    # --- life

    async def start(self) -> None:
        """Starts the background work. A second start does nothing."""
        if self._closed:
            raise ClientClosedError("the client is closed")
        if self._started:
            return
        self._started = True
        config = self.config
        for name, interval_s, job in (
            ("questions for routes", config.poll_name_server_interval_s, self._refresh_routes),
            ("heartbeats", config.heartbeat_broker_interval_s, self.send_heartbeat_to_all_brokers),
            ("commits of offsets", config.persist_consumer_offset_interval_s, self._persist_offsets),
        ):
            self.in_background(repeat(name, logger, interval_s, job))
        self.in_background(self._rebalance_loop())

    async def close(self) -> None:
        """Stops everything; producers and consumers should be closed before."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await self.remoting.close()
        await asyncio.gather(*self._tasks, *self._asking.in_flight, return_exceptions=True)

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work` until its end or the client's; a failure is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the client's work failed", exc_info=error)

    # --- routes

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The topic's route, asked for when it is not known. TopicNotFoundError, NoNameServerError."""
        return self.topic_route_table.get(topic) or await self.update_topic_route(topic)

    async def update_topic_route(self, topic: str) -> TopicRouteData:
        """Asks for the topic's route; those who ask at the same time share the answer."""
        return await self._asking(topic)

    async def _ask_route(self, topic: str) -> TopicRouteData:
        self._asked_at[topic] = time.monotonic()
        route = await self._route_from_name_server(topic)
        self._learn(topic, route)
        return route

    async def default_topic_route(
        self, topic: str, default_topic: str, queue_nums: int
    ) -> TopicRouteData | None:
        """The route that a topic not yet made will have: the default topic's. None when that has none."""
        try:
            route = await self._route_from_name_server(default_topic)
        except TopicNotFoundError:
            return None
        route.queue_datas = [data for data in route.queue_datas if data.perm & PERM_INHERIT]
        for data in route.queue_datas:
            data.read_queue_nums = data.write_queue_nums = min(queue_nums, data.read_queue_nums)
        if route.queue_datas:
            self._learn(topic, route)
        return route if route.queue_datas else None

    async def _route_from_name_server(self, topic: str) -> TopicRouteData:
        if self._closed:
            raise ClientClosedError("the client is closed")
        tried, last = [], None
        for server in list(self._name_servers):
            try:
                return await server.get_topic_route_info(topic)
            except ResponseError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    raise TopicNotFoundError(topic, f"no broker has it (code {error.code})") from None
                raise
            except (RemotingConnectError, RemotingTimeoutError) as error:
                tried.append((server.addresses[0], str(error)))
                last = error
                # the others are asked first from now on
                self._name_servers.remove(server)
                self._name_servers.append(server)
        raise NoNameServerError(tried) from last

    def _learn(self, topic: str, route: TopicRouteData) -> None:
        if self.topic_route_table.get(topic) == route:
            return
        logger.info("the route of topic %s has changed: %s", topic, route.to_json().decode())
        self.topic_route_table[topic] = route
        self._leaders[topic] = endpoints(topic, route)
        self.broker_addr_table = {
            data.broker_name: data.broker_addrs
            for known in self.topic_route_table.values()
            for data in known.broker_datas
            if data.broker_name is not None
        }
        self.rebalance_immediately()

    def refresh_soon(self, topic: str) -> None:
        """Something about the topic has failed: asks for its route in the background, once a second at most."""
        if time.monotonic() - self._asked_at.get(topic, 0.0) < ROUTE_AGE_MIN_S or self._closed:
            return
        self._asked_at[topic] = time.monotonic()
        self.in_background(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self.update_topic_route(topic)
        except MqlakeError as error:
            logger.debug("%s", error)

    def _topics(self) -> set[str]:
        parts: list[MQProducerInner | MQConsumerInner] = [
            *self.producer_table.values(),
            *self.consumer_table.values(),
        ]
        return {topic for part in parts for topic in part.topics()}

    async def _refresh_routes(self) -> None:
        for topic in self._topics():
            try:
                await self.update_topic_route(topic)
            except TopicNotFoundError as error:
                logger.debug("%s", error)

    # --- brokers

    def broker_name_of(self, queue: MessageQueue) -> str:
        """The broker that answers for the queue, as the topic's last route says; of a static topic its leader."""
        return self._leaders.get(queue.topic, {}).get(queue, queue.broker_name)

    def find_broker_address_in_publish(self, broker_name: str) -> str:
        """The master's address. BrokerNotFoundError."""
        address = self.broker_addr_table.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise BrokerNotFoundError(broker_name)
        return address

    def find_broker_address_in_subscribe(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """The address of this replica, or of another when that is not there. BrokerNotFoundError."""
        addresses = self.broker_addr_table.get(broker_name)
        if not addresses:
            raise BrokerNotFoundError(broker_name)
        return addresses.get(broker_id) or addresses[min(addresses)]

    async def find_consumer_id_list(self, topic: str, group: str) -> list[str]:
        """The client ids of the group's consumers, as a broker of the topic knows them."""
        route = await self.topic_route(topic)
        brokers = [data for data in route.broker_datas if data.broker_addrs]
        if not brokers:
            raise TopicNotFoundError(topic, "its brokers have no address")
        addresses = random.choice(brokers).broker_addrs
        address = addresses.get(MASTER_ID) or addresses[min(addresses)]
        return await self.api.get_consumer_id_list_by_group(address, group)

    # --- heartbeats

    def heartbeat_data(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self.producer_table],
            consumer_data_set=[
                data
                for consumer in self.consumer_table.values()
                if (data := consumer.consumer_data()) is not None
            ],
        )

    async def send_heartbeat_to_all_brokers(self) -> None:
        """Only masters when there are no consumers. A broker that does not answer is logged."""
        heartbeat = self.heartbeat_data()
        if not heartbeat.producer_data_set and not heartbeat.consumer_data_set:
            return
        addresses = [
            address
            for broker in self.broker_addr_table.values()
            for broker_id, address in broker.items()
            if broker_id == MASTER_ID or heartbeat.consumer_data_set
        ]
        await asyncio.gather(*(self._send_heartbeat(address, heartbeat) for address in set(addresses)))

    async def _send_heartbeat(self, address: str, heartbeat: HeartbeatData) -> None:
        try:
            await self.api.send_heartbeat(address, heartbeat)
            self._greeted.add(address)
        except MqlakeError as error:
            logger.info("heartbeat: %s", error)

    async def send_heartbeat_to_new_brokers(self, topic: str) -> None:
        """A heartbeat when a master of the topic does not know this client yet."""
        masters = {
            broker.broker_addrs.get(MASTER_ID) for broker in (await self.topic_route(topic)).broker_datas
        }
        if masters - self._greeted - {None}:
            await self.send_heartbeat_to_all_brokers()

    async def greet(self, address: str) -> None:
        """Sends a heartbeat to one broker, which seems not to know this client."""
        await self._send_heartbeat(address, self.heartbeat_data())

    def _connection_opened(self, connection: Connection) -> None:
        if connection.remote_address in self._greeted and not self._closed:
            self.in_background(self.greet(connection.remote_address))

    # --- producers and consumers

    def register_producer(self, producer: MQProducerInner) -> None:
        """ClientClosedError when the group has a producer in this client already."""
        if self.producer_table.setdefault(producer.group, producer) is not producer:
            raise ClientClosedError(f"the client has a producer of group {producer.group} already")

    def register_consumer(self, consumer: MQConsumerInner) -> None:
        if self.consumer_table.setdefault(consumer.group, consumer) is not consumer:
            raise ClientClosedError(f"the client has a consumer of group {consumer.group} already")

    async def unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Forgets the group, and unregisters it from the brokers that know this client."""
        if producer_group is not None:
            self.producer_table.pop(producer_group, None)
        if consumer_group is not None:
            self.consumer_table.pop(consumer_group, None)
        await asyncio.gather(
            *(self._unregister(address, producer_group, consumer_group) for address in self._greeted)
        )

    async def _unregister(self, address: str, producer_group: str | None, consumer_group: str | None) -> None:
        with contextlib.suppress(MqlakeError):  # a broker that is gone has forgotten
            await self.api.unregister_client(address, self.client_id, producer_group, consumer_group)

    # --- rebalancing and offsets

    def rebalance_immediately(self) -> None:
        self._rebalance_wanted.set()

    async def _rebalance_loop(self) -> None:
        work = BackgroundWork("rebalancing", logger)
        balanced = True
        while True:
            interval_s = REBALANCE_INTERVAL_S if balanced else REBALANCE_AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._rebalance_wanted.wait()
            self._rebalance_wanted.clear()
            balanced = False
            async with work.round():
                balanced = await self._rebalance_all()

    async def _rebalance_all(self) -> bool:
        """True if all consumers have what is theirs."""
        balanced = True
        for consumer in list(self.consumer_table.values()):
            done = False
            with self._work_of(consumer, "rebalancing").round():
                done = await consumer.do_rebalance()
            balanced &= done
        return balanced

    async def _persist_offsets(self) -> None:
        for consumer in list(self.consumer_table.values()):
            with self._work_of(consumer, "commits of offsets").round():
                await consumer.persist_consumer_offset()

    def _work_of(self, consumer: MQConsumerInner, name: str) -> BackgroundWork:
        """Returns the work that is done for one consumer; its failure stops no other's."""
        works = self._works.setdefault(consumer, {})
        if name not in works:
            works[name] = BackgroundWork(f"group {consumer.group}: {name}", logger)
        return works[name]

    # --- what brokers say

    @answers(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    def _consumer_ids_changed(self) -> None:
        self.rebalance_immediately()

    @answers(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    async def _reset_offset(self, request: RemotingCommand, header: ResetOffsetRequestHeader) -> None:
        consumer = self.consumer_table.get(header.group)
        if consumer is not None:
            offsets = ResetOffsetBody.from_json(request.body_bytes()).offset_table
            logger.info("group %s: offsets of topic %s are reset by the broker", header.group, header.topic)
            await consumer.reset_offset(header.topic, offsets)

    def _consumer(self, group: str) -> MQConsumerInner:
        consumer = self.consumer_table.get(group)
        if consumer is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{group}> not exist in this consumer",
            )
        return consumer

    @answers(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    def _consumer_status(self, header: GetConsumerStatusRequestHeader) -> RemotingCommand:
        consumer = self.consumer_table.get(header.group)
        offsets = {} if consumer is None else consumer.consumer_status(header.topic)
        body = GetConsumerStatusBody(message_queue_table=offsets)
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def _running_info(self, header: GetConsumerRunningInfoRequestHeader) -> RemotingCommand:
        info = self._consumer(header.consumer_group).consumer_running_info()
        return RemotingCommand.create_response(body=info.to_json())

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def _consume_directly(
        self, request: RemotingCommand, header: ConsumeMessageDirectlyResultRequestHeader
    ) -> RemotingCommand:
        message = decode_message(request.body_bytes(), header.broker_name or "")
        result = await self._consumer(header.consumer_group).consume_message_directly(message)
        if result is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer Group <{header.consumer_group}> has no listener: it pulls",
            )
        return RemotingCommand.create_response(body=result.to_json())

    @answers(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    def _reply_arrived(self, request: RemotingCommand, header: ReplyMessageRequestHeader) -> RemotingCommand:
        body = request.body_bytes()
        if not any(producer.reply_arrived(header, body) for producer in self.producer_table.values()):
            logger.warning("a reply came, but no request waits for it (any longer): %s", header.properties)
        return RemotingCommand.create_response()

    @answers(RequestCode.CHECK_TRANSACTION_STATE)
    async def _check_transaction_state(
        self, connection: Connection, request: RemotingCommand, header: CheckTransactionStateRequestHeader
    ) -> None:
        message = decode_message(request.body_bytes(), header.bname or "")
        group = message.properties.get(PROPERTY_PRODUCER_GROUP, "")
        producer = self.producer_table.get(group)
        if producer is None:
            logger.warning(
                "%s asks for a transaction of group %s, which is not here", connection.remote_address, group
            )
            return
        await producer.check_transaction_state(connection.remote_address, header, message)
