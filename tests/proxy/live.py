"""A broker with its gRPC endpoint in the test's own loop, and a client that is nothing but the contract.

async def scene(peer):
    answer = await peer.call("QueryRoute", v2.QueryRouteRequest(topic=resource("T")))

on_a_broker(tmp_path, scene)
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from mqlake.base.clock import now_ms
from mqlake.broker.controller import BrokerController
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.message import MessageExt
from mqlake.proxy import clients, publish
from mqlake.proxy.access import AccessAuthenticator
from mqlake.proxy.local import LocalBackend
from mqlake.proxy.server import GrpcServer
from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.values import duration, timestamp
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.loop import run
from tests.broker.live import SCENE_S, make_controller
from tests.waiting import PATIENCE_S, until_async

# RocketMQ's 3 s may be over before a busy machine has answered
clients.HEARTBEAT_TIMEOUT_S = publish.SEND_TIMEOUT_S = PATIENCE_S

TYPES = definition.MessageType


def resource(name: str) -> definition.Resource:
    return definition.Resource(name=name)


def message(topic: str, body: bytes = b"body", message_id: str = "id-1", **system: Any) -> definition.Message:
    properties = definition.SystemProperties(
        message_id=message_id, born_timestamp=timestamp(now_ms()), body_encoding=definition.Encoding.IDENTITY
    )
    properties.MergeFrom(definition.SystemProperties(**system))
    return definition.Message(topic=resource(topic), system_properties=properties, body=body)


def producer_settings(*topics: str) -> v2.TelemetryCommand:
    publishing = definition.Publishing(topics=[resource(topic) for topic in topics])
    return v2.TelemetryCommand(
        settings=definition.Settings(client_type=definition.ClientType.PRODUCER, publishing=publishing)
    )


def consumer_settings(
    group: str, *topics: str, kind: definition.ClientType = definition.ClientType.SIMPLE_CONSUMER
) -> v2.TelemetryCommand:
    subscription = definition.Subscription(
        group=resource(group),
        subscriptions=[definition.SubscriptionEntry(topic=resource(topic)) for topic in topics],
    )
    settings = definition.Settings(
        client_type=kind, subscription=subscription, request_timeout=duration(3000)
    )
    return v2.TelemetryCommand(settings=settings)


class Peer:
    """One client id on one channel."""

    def __init__(self, server: GrpcServer, controller: BrokerController, client_id: str = "client-1") -> None:
        self.server = server
        self.controller = controller
        self.client_id = client_id
        self.metadata: dict[str, str] = {"x-mq-client-version": "5.1.2", "x-mq-language": "PYTHON"}
        self.remoting = RemotingClient()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")

    async def close(self) -> None:
        await self.remoting.close()
        await self.channel.close()

    def another(self, client_id: str) -> Peer:
        return Peer(self.server, self.controller, client_id)

    @property
    def _metadata(self) -> list[tuple[str, str]]:
        return [*self.metadata.items(), ("x-mq-client-id", self.client_id)]

    def _coders(self, rpc: str) -> dict[str, Any]:
        method = SERVICE.methods_by_name[rpc]
        return {
            "request_serializer": GetMessageClass(method.input_type).SerializeToString,
            "response_deserializer": GetMessageClass(method.output_type).FromString,
        }

    async def call(self, rpc: str, request: Any, timeout_s: float = 60.0) -> Any:
        """The answer of a unary RPC."""
        stub = self.channel.unary_unary(f"/{SERVICE.full_name}/{rpc}", **self._coders(rpc))
        return await stub(request, metadata=self._metadata, timeout=timeout_s)

    async def stream(self, rpc: str, request: Any, timeout_s: float | None = 60.0) -> list[Any]:
        """All answers of a server stream."""
        stub = self.channel.unary_stream(f"/{SERVICE.full_name}/{rpc}", **self._coders(rpc))
        return [answer async for answer in stub(request, metadata=self._metadata, timeout=timeout_s)]

    def telemetry(self) -> Any:
        stub = self.channel.stream_stream(f"/{SERVICE.full_name}/Telemetry", **self._coders("Telemetry"))
        return stub(metadata=self._metadata)

    async def settle(self, command: v2.TelemetryCommand) -> tuple[Any, v2.TelemetryCommand]:
        """Opens a telemetry stream with these settings; the stream and the answer."""
        stream = self.telemetry()
        await stream.write(command)
        return stream, await stream.read()

    # --- what tests do most

    def sign(self, user: str, secret: str, hours_ago: float = 0) -> None:
        """Signs every request from now on, with the time of so many hours ago."""
        time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours_ago)
        date_time = time.strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex().upper()
        self.metadata |= {
            "x-mq-date-time": date_time,
            "authorization": f"MQv2-HMAC-SHA1 Credential={user}/region/service, "
            f"SignedHeaders=x-mq-date-time, Signature={signature}",
        }

    def create_topic(self, topic: str, kind: str = "NORMAL", queues: int = 4) -> None:
        self.controller.broker.topic_config_manager.update_topic_config(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                attributes={"+message.type": kind},
            )
        )

    async def send(self, *messages: definition.Message) -> v2.SendMessageResponse:
        answer: v2.SendMessageResponse = await self.call(
            "SendMessage", v2.SendMessageRequest(messages=messages)
        )
        return answer

    async def records(self, topic: str, count: int = 0) -> list[MessageExt]:
        """What is stored in the topic, once there are at least `count` messages."""
        await until_async(lambda: self.count(topic) >= count)
        api, address = BrokerAPI(self.remoting), self.controller.broker_addr
        found: list[MessageExt] = []
        for queue_id in range(self._queues(topic)):
            offset, end = 0, self.controller.broker.store.max_offset_in_queue(topic, queue_id)
            while offset < end:
                messages, place = await api.pull_message(address, topic, queue_id, offset, 32)
                found += messages
                offset = place.next_begin_offset
        return found

    def count(self, topic: str) -> int:
        store = self.controller.broker.store
        return sum(store.max_offset_in_queue(topic, queue_id) for queue_id in range(self._queues(topic)))

    def _queues(self, topic: str) -> int:
        config = self.controller.broker.topic_config_manager.select_topic_config(topic)
        return config.write_queue_nums if config is not None else 0

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        polling_ms: int = 5000,
        invisible_ms: int = 30_000,
        broker: str = "broker-a",
        **more: Any,
    ) -> list[v2.ReceiveMessageResponse]:
        request = v2.ReceiveMessageRequest(
            group=resource(group),
            message_queue=definition.MessageQueue(
                topic=resource(topic), id=-1, broker=definition.Broker(name=broker)
            ),
            batch_size=32,
            invisible_duration=duration(invisible_ms),
            long_polling_timeout=duration(polling_ms),
        )
        request.MergeFrom(v2.ReceiveMessageRequest(**more))
        return await self.stream("ReceiveMessage", request)


@contextlib.asynccontextmanager
async def endpoint(directory: Path, **settings: str) -> AsyncIterator[Peer]:
    controller = make_controller(directory, **settings)
    await controller.start()
    access = controller.broker.access
    authenticator = None if access is None else AccessAuthenticator(access)
    server = GrpcServer(LocalBackend(controller), authenticator=authenticator)
    try:
        await server.start("127.0.0.1", 0)
        peer = Peer(server, controller)
        try:
            yield peer
        finally:
            await peer.channel.close()
    finally:
        await server.stop(0.1)
        await controller.stop()


def on_a_broker(directory: Path, scene: Callable[[Peer], Awaitable[None]], **settings: str) -> None:
    """Runs `scene` on a new broker with a gRPC endpoint."""

    async def main() -> None:
        async with asyncio.timeout(SCENE_S), endpoint(directory, **settings) as peer:
            await scene(peer)

    run(main())
