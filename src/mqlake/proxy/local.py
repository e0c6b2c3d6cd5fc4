"""The broker in this process as a backend: its processors are called directly, there is no socket.

    invoke ─▶ processor ─▶ send(answer) ─▶ the caller's future
    on_request ◀─────────── send(request) ◀─ the broker: check a transaction, report your state

Brokers with other names are reached through the cluster's name servers, if the broker has some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from mqlake.auth.signed_client import remoting_client
from mqlake.broker.controller import BrokerController
from mqlake.errors import RemotingConnectError, RemotingTimeoutError, ResponseError
from mqlake.message import AUTO_CREATE_TOPIC_KEY_TOPIC, NOT_ALLOWED_SEND_TOPICS, is_system_topic
from mqlake.proxy.backend import Backend, Channel, OnRequest
from mqlake.proxy.remote import KNOWN_MAX, RemoteBackend
from mqlake.proxy.status import UnknownBrokerError
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE, MessageQueue, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Buffer, RemotingCommand
from mqlake.remoting.connection import Connection, Endpoint
from mqlake.remoting.static_topic import mapping_info
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.remoting.tls import caller_context

logger = logging.getLogger(__name__)

AUTO_CREATED_QUEUES_MAX = 4
"""Queues of a topic that is created by a send."""


class LocalConnection(Connection):
    """A client of this broker without a socket."""

    __slots__ = ("_asked", "_on_request", "_running")

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, remote_address: str, on_request: OnRequest
    ) -> None:
        super().__init__(endpoint, loop)
        self.remote_address = remote_address
        self._on_request = on_request
        self._asked: dict[int, asyncio.Future[RemotingCommand] | RemotingCommand | None] = {}
        """By opaque, what waits for an answer, or the answer that came before anything had to wait."""
        self._running: set[asyncio.Task[None]] = set()
        endpoint.connections.add(self)

    async def ask(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The broker's answer. RemotingTimeoutError, RemotingConnectError."""
        if self.closed:
            raise RemotingConnectError(self.remote_address, "the client has gone")
        opaque = command.opaque
        self._asked[opaque] = None
        try:
            if not self._takes_fast_path(command):
                self._on_command(command)
            at_once = self._asked[opaque]
            if isinstance(at_once, RemotingCommand):
                return at_once
            later: asyncio.Future[RemotingCommand] = self._loop.create_future()
            self._asked[opaque] = later
            async with asyncio.timeout(timeout_s):
                return await later
        except TimeoutError:
            raise RemotingTimeoutError("the broker in this process", timeout_s) from None
        finally:
            self._asked.pop(opaque, None)

    def _takes_fast_path(self, command: RemotingCommand) -> bool:
        """True if the broker's fast path has taken a send, which comes to it as a frame, as from a socket."""
        if command.code != RequestCode.SEND_MESSAGE_V2 or self._endpoint.going_away:
            return False
        frame = memoryview(encode_frame(command))
        return any(fast_path(self, frame, 0) for fast_path in self._endpoint.fast_paths)

    # --- what the broker calls

    def send(self, command: RemotingCommand) -> None:
        if self.closed:
            return
        if command.flag & RESPONSE_FLAG:
            if command.opaque not in self._asked:
                return
            if command.body is not None:
                command.body = (
                    command.body_bytes()
                )  # the caller runs later, when the buffers may have changed
            asked = self._asked[command.opaque]
            if not isinstance(asked, asyncio.Future):
                self._asked[command.opaque] = command
            elif not asked.done():
                asked.set_result(command)
            return
        task = self._loop.create_task(self._handle(command))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, request: RemotingCommand) -> None:
        try:
            answer = await self._on_request(request)
        except Exception:
            logger.exception("%s: request %d of the broker failed", self.remote_address, request.code)
            return
        if answer is not None and not request.flag & ONEWAY_FLAG:
            self._answered(request.opaque, answer)

    def send_encoded(self, frames: bytes) -> None:
        view, start = memoryview(frames), 0
        while stop := frame_end(view, start, len(view)):
            self.send(decode_frame(view, start, stop))
            start = stop

    def send_buffers(self, frame: Iterable[Buffer], size: int) -> None:
        self.send_encoded(b"".join(frame))

    @property
    def is_writable(self) -> bool:
        return not self.closed

    def active_at(self, now: float) -> float:
        return now

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.connection_lost(None)
            for asked in self._asked.values():
                if isinstance(asked, asyncio.Future) and not asked.done():
                    asked.set_exception(RemotingConnectError(self.remote_address, "the client has gone"))

    def _flush(self) -> None:
        self._flush_scheduled = False


class LocalChannel:
    """A client's connection to the broker in this process, and to others when it asks for them."""

    def __init__(self, backend: LocalBackend, remote_address: str, on_request: OnRequest) -> None:
        self._backend = backend
        self._remote_address = remote_address
        self._on_request = on_request
        self._connection: LocalConnection | None = None
        self._others: Channel | None = None

    async def invoke(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        if broker_name and broker_name != self._backend.own_broker:
            if self._others is None:
                self._others = self._backend.others_of(broker_name).open(
                    self._remote_address, self._on_request
                )
            return await self._others.invoke(broker_name, command, timeout_s)
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = self._backend.connect(self._remote_address, self._on_request)
        return await connection.ask(command, DEFAULT_TIMEOUTS.of(timeout_s))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._others is not None:
            await self._others.close()


class LocalBackend(Backend):
    def __init__(self, controller: BrokerController) -> None:
        self._broker = controller.broker
        self._endpoint = Endpoint(controller.broker.config.limits)
        self._endpoint.processors = controller.server.processors
        self._endpoint.fast_paths = controller.server.fast_paths[:1]  # that for sends
        self._endpoint.on_close.append(controller.client_housekeeping_service.on_close)
        known = controller.broker.config.namesrv_addresses
        self.others = RemoteBackend(known, self._new_client) if known else None
        """The other brokers of the cluster."""
        self._queues: dict[str, list[MessageQueue]] = {}

    def _new_client(self) -> RemotingClient:
        """A client that name servers and other brokers take for this broker."""
        config = self._broker.config
        return remoting_client(config.auth.inner_credentials, caller_context(config.tls))

    @property
    def own_broker(self) -> str:
        return self._broker.config.broker_name

    async def start(self) -> None:
        if self.others is not None:
            await self.others.start()

    async def close(self) -> None:
        for connection in list(self._endpoint.connections):
            connection.abort()
        if self.others is not None:
            await self.others.close()

    def open(self, remote_address: str, on_request: OnRequest) -> LocalChannel:
        return LocalChannel(self, remote_address, on_request)

    def others_of(self, broker_name: str) -> RemoteBackend:
        """The way to another broker. UnknownBrokerError if there is none."""
        if self.others is None:
            raise UnknownBrokerError(
                f"broker {broker_name!r} is not known here: this is {self.own_broker!r}, which has no name servers "
                "(namesrvAddr) to ask for others"
            )
        return self.others

    def connect(self, remote_address: str, on_request: OnRequest) -> LocalConnection:
        return LocalConnection(self._endpoint, asyncio.get_running_loop(), remote_address, on_request)

    async def route(self, topic: str) -> TopicRouteData:
        """This broker's queues as they are now, and those of other brokers as the name servers know them.

        A topic that a send would create has the queues that it would get.
        """
        route = await self._route_of_others(topic)
        config = self._own_topic(topic)
        if config is None and not route.queue_datas:
            config = self._pattern(topic)
        if config is None and not route.queue_datas:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if config is not None:
            own = self._broker.config
            route.queue_datas.append(
                QueueData(
                    broker_name=own.broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm & own.broker_permission,
                )
            )
            addresses = {own.broker_id: self._broker.broker_addr}
            route.broker_datas.append(
                BrokerData(
                    cluster=own.broker_cluster_name, broker_name=own.broker_name, broker_addrs=addresses
                )
            )
        return route

    async def queues_to_send(self, topic: str) -> Sequence[MessageQueue]:
        """This broker's queues; those of others only if it has none: of a static topic those that it leads."""
        config = self._own_topic(topic)
        mapping = self._broker.topic_queue_mapping_manager.table.get(topic)
        if mapping is not None and (led := sorted(mapping_info(mapping).curr_id_map)):
            name = self._broker.config.broker_name
            return [MessageQueue(topic=topic, broker_name=name, queue_id=number) for number in led]
        if (config is None or mapping is not None) and self.others is not None:
            try:
                return await self.others.queues_to_send(topic)
            except (RemotingConnectError, RemotingTimeoutError):
                pass
            except ResponseError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
        config = config or self._pattern(topic)
        if config is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        own = self._broker.config
        if not config.perm & own.broker_permission & PERM_WRITE:
            return ()
        count = config.write_queue_nums
        queues = self._queues.get(topic)
        if queues is None or len(queues) != count:
            if len(self._queues) >= KNOWN_MAX:
                self._queues.clear()
            queues = self._queues[topic] = [
                MessageQueue(topic=topic, broker_name=own.broker_name, queue_id=number)
                for number in range(count)
            ]
        return queues

    async def brokers_of(self, topics: Iterable[str]) -> set[str]:
        """Also those of topics that only other brokers have: a half message there is asked about through here."""
        elsewhere = [topic for topic in topics if self._own_topic(topic) is None]
        if self.others is None or not elsewhere:
            return {self.own_broker}
        return {self.own_broker} | await self.others.brokers_of(elsewhere)

    def _own_topic(self, topic: str) -> TopicConfig | None:
        """The topic, if this broker is the one that may be written: MASTER_ID."""
        if self._broker.config.broker_id != MASTER_ID:
            return None
        return self._broker.topic_config_manager.select_topic_config(topic)

    def _pattern(self, topic: str) -> TopicConfig | None:
        """The topic as a send would create it; None if none would."""
        pattern = self._own_topic(AUTO_CREATE_TOPIC_KEY_TOPIC)
        allowed = self._broker.config.auto_create_topic_enable and not is_system_topic(topic)
        if pattern is None or not allowed or topic in NOT_ALLOWED_SEND_TOPICS:
            return None
        queues = min(AUTO_CREATED_QUEUES_MAX, pattern.write_queue_nums)
        perm = pattern.perm & (PERM_READ | PERM_WRITE)
        return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    async def _route_of_others(self, topic: str) -> TopicRouteData:
        if self.others is None:
            return TopicRouteData()
        try:
            known = await self.others.route(topic)
        except Exception as error:  # this broker goes on without its name servers
            logger.debug("no route of %s from the name servers: %s", topic, error)
            return TopicRouteData()
        own = self._broker.config
        if own.broker_id != MASTER_ID:
            return known
        return TopicRouteData(
            queue_datas=[data for data in known.queue_datas if data.broker_name != own.broker_name],
            broker_datas=[data for data in known.broker_datas if data.broker_name != own.broker_name],
        )

    async def topic_config(self, topic: str) -> TopicConfig | None:
        own = self._broker.topic_config_manager.select_topic_config(topic)
        if own is None and self.others is not None:
            return await self.others.topic_config(topic)
        return own

    async def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        return self._broker.subscription_group_manager.find_subscription_group_config(group)
