"""Clients: those that have called, with their settings, their telemetry stream and their channel to the brokers.

A client begins with its first RPC and ends with NotifyClientTermination, or after EXPIRED_S without an RPC or an open
telemetry stream. Its settings say whether it is a producer or a consumer; brokers learn it by heartbeats.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable

from mqlake.base.clock import now_ms
from mqlake.errors import MqlakeError
from mqlake.message import ReceiptHandle, java_hash
from mqlake.proxy.backend import Backend, Channel
from mqlake.proxy.callbacks import CommandFailure, answer_to_broker
from mqlake.proxy.context import GrpcContext, RequestContext
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import ClientType, Code, Settings, SubscriptionEntry
from mqlake.proxy.v2.service_pb2 import TelemetryCommand
from mqlake.proxy.values import filter_of, tags_of
from mqlake.remoting.bodies.client import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import UnregisterClientRequestHeader

logger = logging.getLogger(__name__)

EXPIRED_S = 120.0
CLIENTS_MAX = 100_000
COMMAND_TIMEOUT_S = 5.0
"""How long a client has to answer a command of the server."""
HEARTBEAT_TIMEOUT_S = 3.0


class Renewal:
    """The receipt handle of a message, which the server renews for its client."""

    __slots__ = ("attempt", "count", "ended", "failures", "first", "group", "handle", "topic")

    def __init__(self, group: str, topic: str, handle: ReceiptHandle, attempt: int) -> None:
        self.group = group
        self.topic = topic
        self.first = handle
        """The one that the client has."""
        self.handle = handle
        """The one that is good now."""
        self.attempt = attempt
        self.count = 0
        self.failures = 0
        self.ended = False
        """The client has acknowledged the message, or asked for something else."""


class TelemetryStream:
    """One open stream; writes do not overlap."""

    def __init__(self, context: GrpcContext) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self.closed = False

    async def write(self, command: TelemetryCommand) -> None:
        async with self._lock:
            if not self.closed:
                await self._context.write(command)


class Client:
    def __init__(self, backend: Backend, context: RequestContext) -> None:
        self.client_id = context.client_id
        self.language = context.language
        self.settings: Settings | None = None
        """As they were answered; None before the client has sent some."""
        self.stream: TelemetryStream | None = None
        self.seen_at = time.monotonic()
        self.renewals: dict[tuple[str, str], Renewal] = {}
        """Receipt handles to renew, by group and message id."""
        self.turns: dict[str, int] = {}
        """By topic, how often it has received without naming a broker."""
        self.channel: Channel = backend.open(context.remote_address, self._on_request)
        self._backend = backend
        self._nonces = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[TelemetryCommand]] = {}
        self._registered: set[str] = set()

    @property
    def group(self) -> str:
        """The client's consumer group; empty for a producer."""
        return self.settings.subscription.group.name if self.settings is not None else ""

    @property
    def is_producer(self) -> bool:
        return self.settings is not None and self.settings.WhichOneof("pub_sub") == "publishing"

    # --- commands of the server

    async def command(self, command: TelemetryCommand) -> bool:
        """Sends a command; False if there is no stream."""
        stream = self.stream
        if stream is None or stream.closed:
            return False
        try:
            await stream.write(command)
        except Exception as error:  # gRPC has several for a stream that is gone
            logger.info("%s: its telemetry stream is gone: %s", self.client_id, error)
            return False
        return True

    async def ask(self, command: TelemetryCommand) -> TelemetryCommand:
        """Sends a command with a nonce; the client's answer. CommandFailure."""
        nonce = f"{next(self._nonces)}-{java_hash(self.client_id) & 0xFFFFFFFF:08x}"
        getattr(command, command.WhichOneof("command") or "").nonce = nonce
        answer: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = answer
        try:
            if not await self.command(command):
                raise CommandFailure(f"client {self.client_id} has no open telemetry stream")
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise CommandFailure(
                f"client {self.client_id} did not answer within {COMMAND_TIMEOUT_S:g} s; not every client answers it"
            ) from None
        finally:
            self._waiting.pop(nonce, None)

    def answered(self, command: TelemetryCommand) -> None:
        """Takes the client's answer to a command; nothing waits for one that comes late."""
        nonce = getattr(getattr(command, command.WhichOneof("command") or "", None), "nonce", "")
        waiting = self._waiting.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    async def _on_request(self, request: RemotingCommand) -> RemotingCommand | None:
        return await answer_to_broker(self, request)

    # --- presence at the brokers

    async def heartbeat(self) -> None:
        """Registers its groups with the brokers of its topics. One that does not answer is left to the next time."""
        heartbeat = self._heartbeat_data()
        if heartbeat is None:
            return
        body = heartbeat.to_json()
        self._registered |= set(await self._backend.brokers_of(self._topics()))
        await asyncio.gather(
            *[self._tell(broker, RequestCode.HEART_BEAT, body) for broker in self._registered]
        )

    async def _tell(self, broker: str, code: int, body: bytes) -> None:
        command = RemotingCommand.create_request(code, body=body)
        command.language = self.language
        try:
            await self.channel.invoke(broker, command, HEARTBEAT_TIMEOUT_S)
        except MqlakeError as error:
            logger.warning("%s: no heartbeat to %s: %s", self.client_id, broker, error)

    def _topics(self) -> list[str]:
        settings = self.settings
        if settings is None:
            return []
        if self.is_producer:
            return [topic.name for topic in settings.publishing.topics]
        return [entry.topic.name for entry in settings.subscription.subscriptions]

    def _heartbeat_data(self) -> HeartbeatData | None:
        settings = self.settings
        if settings is None:
            return None
        if self.is_producer:
            producers = [ProducerData(group_name=topic) for topic in self._topics()]
            return HeartbeatData(client_id=self.client_id, producer_data_set=producers) if producers else None
        simple = settings.client_type in (ClientType.SIMPLE_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
        consumer = ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY if simple else ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=subscriptions(settings.subscription.subscriptions),
        )
        return HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer])

    async def leave(self) -> None:
        """Unregisters at the brokers and closes the channel."""
        for broker in self._registered:
            for group in self._topics() if self.is_producer else [self.group]:
                header = UnregisterClientRequestHeader(
                    client_id=self.client_id,
                    producer_group=group if self.is_producer else None,
                    consumer_group=None if self.is_producer else group,
                )
                command = RemotingCommand.create_request(RequestCode.UNREGISTER_CLIENT, header)
                try:
                    await self.channel.invoke(broker, command, HEARTBEAT_TIMEOUT_S)
                except MqlakeError as error:
                    logger.info("%s: not unregistered at %s: %s", self.client_id, broker, error)
        await self.channel.close()


def subscriptions(entries: Iterable[SubscriptionEntry]) -> list[SubscriptionData]:
    """As brokers take them."""
    found = []
    for entry in entries:
        kind, text = filter_of(entry.expression)
        tags = tags_of(entry.expression) or frozenset()
        found.append(
            SubscriptionData(
                topic=entry.topic.name,
                sub_string=text,
                tags_set=set(tags),
                code_set={java_hash(tag) for tag in tags},
                sub_version=now_ms(),
                expression_type=kind,
            )
        )
    return found


class Clients:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.table: dict[str, Client] = {}

    def of(self, context: RequestContext) -> Client:
        """The client of an RPC, a new one if it has not called before. StatusError."""
        client = self.table.get(context.client_id)
        if client is None:
            if not context.client_id:
                raise StatusError(
                    Code.CLIENT_ID_REQUIRED, "client id cannot be empty: the header x-mq-client-id is needed"
                )
            if len(self.table) >= CLIENTS_MAX:
                raise StatusError(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are known already")
            client = self.table[context.client_id] = Client(self._backend, context)
        client.seen_at = time.monotonic()
        return client

    def find(self, context: RequestContext) -> Client | None:
        """StatusError CLIENT_ID_REQUIRED."""
        if not context.client_id:
            return self.of(context)
        return self.table.get(context.client_id)

    async def remove(self, client: Client) -> None:
        if self.table.get(client.client_id) is client:
            del self.table[client.client_id]
        await client.leave()

    async def expire(self) -> None:
        """Forgets the clients that have been silent for too long."""
        oldest = time.monotonic() - EXPIRED_S
        for client in list(self.table.values()):
            if client.seen_at < oldest and (client.stream is None or client.stream.closed):
                logger.info("%s: no request for %g s, forgotten", client.client_id, EXPIRED_S)
                await self.remove(client)

    async def close(self) -> None:
        for client in list(self.table.values()):
            self.table.pop(client.client_id, None)
            await client.channel.close()
