"""gRPC clients: processor time of all server processes for a message sent, and for one received and acknowledged, and
how long a send and an acknowledgement take; beside RocketMQ's proxy with its broker, and beside a grpc.aio service that
does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tests.interop.brokers import Broker, MqlakeBroker, Server
from tests.interop.java_proxy import JavaProxy
from tests.waiting import until_async

from bench.context import MIB, Context
from bench.measure import Line
from mqlake.client.admin import Admin
from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.values import duration
from mqlake.remoting.loop import run

BODY = b"." * 1024
CONCURRENT = 32
TOPIC, GROUP = "BenchGrpc", "BenchGrpcGroup"
ROUNDS = 3
TIMEOUT_S = 60
KINDS = ("nghttp2", "grpcio")
"""The servers of mqlake: grpcServer."""
JAVA = "RocketMQ's proxy"
TARGETS = {"nghttp2": 3, "grpcio": 1}


class Load:
    """One client, with CONCURRENT requests in flight."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.aio.insecure_channel(endpoint)
        self.waited: list[float] = []
        """Seconds of each send and acknowledgement."""
        self._numbers = iter(range(1 << 60))
        self._metadata = [
            ("x-mq-client-id", "bench"),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-language", "JAVA"),
        ]

    def stub(self, rpc: str) -> Any:
        method = SERVICE.methods_by_name[rpc]
        make = self.channel.unary_stream if rpc == "ReceiveMessage" else self.channel.unary_unary
        call = make(
            f"/{SERVICE.full_name}/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return lambda request: call(request, metadata=self._metadata, timeout=TIMEOUT_S)

    async def settle(self) -> None:
        """A consumer has to send its settings to Java's proxy."""
        coders: dict[str, Any] = {
            "request_serializer": v2.TelemetryCommand.SerializeToString,
            "response_deserializer": v2.TelemetryCommand.FromString,
        }
        stream = self.channel.stream_stream(f"/{SERVICE.full_name}/Telemetry", **coders)(
            metadata=self._metadata
        )
        subscription = definition.Subscription(
            group=definition.Resource(name=GROUP),
            subscriptions=[
                definition.SubscriptionEntry(
                    topic=definition.Resource(name=TOPIC),
                    expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="*"),
                )
            ],
        )
        settings = definition.Settings(
            client_type=definition.ClientType.SIMPLE_CONSUMER, subscription=subscription
        )
        await stream.write(v2.TelemetryCommand(settings=settings))
        await stream.read()
        self.stream = stream

    async def send(self, count: int) -> None:
        call = self.stub("SendMessage")

        async def some(share: int) -> None:
            for _ in range(share):
                system = definition.SystemProperties(
                    message_id=f"01{next(self._numbers):032X}",
                    body_encoding=definition.Encoding.IDENTITY,
                    message_type=definition.MessageType.NORMAL,
                )
                message = definition.Message(
                    topic=definition.Resource(name=TOPIC), system_properties=system, body=BODY
                )
                began = time.perf_counter()
                answer = await call(v2.SendMessageRequest(messages=[message]))
                self.waited.append(time.perf_counter() - began)
                assert answer.status.code == definition.Code.OK, answer.status

        await asyncio.gather(*[some(count // CONCURRENT) for _ in range(CONCURRENT)])

    async def receive(self, count: int, broker: str) -> None:
        """Receives in batches of 32, and acknowledges each message by itself, as most clients do."""
        receive, ack = self.stub("ReceiveMessage"), self.stub("AckMessage")
        request = v2.ReceiveMessageRequest(
            group=definition.Resource(name=GROUP),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=TOPIC), id=-1, broker=definition.Broker(name=broker)
            ),
            filter_expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="*"),
            batch_size=32,
            invisible_duration=duration(600_000),
            long_polling_timeout=duration(5000),
        )
        left = count

        async def one(message: definition.Message) -> None:
            entry = v2.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            began = time.perf_counter()
            done = await ack(v2.AckMessageRequest(group=request.group, topic=message.topic, entries=[entry]))
            self.waited.append(time.perf_counter() - began)
            assert done.status.code == definition.Code.OK, done.status

        while left > 0:
            messages = [answer.message async for answer in receive(request) if answer.HasField("message")]
            await asyncio.gather(*map(one, messages))
            left -= len(messages)


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)


async def _topic(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await until_async(admin.list_brokers, "the broker is registered")  # RocketMQ's takes its time
        await admin.create_topic(TOPIC, queues=8, attributes={"+message.type": "NORMAL"})


@dataclass
class Figures:
    """Of the best of some rounds, each by itself."""

    cpu_us: float = float("inf")
    """Of a message."""
    latency_us: tuple[float, ...] = ()
    """p50, p99, p999 of the round with the best p99."""

    def add(self, cpu_us: float, waited: list[float]) -> None:
        waited.sort()
        latency_us = tuple(waited[int(len(waited) * part)] * 1e6 for part in (0.5, 0.99, 0.999))
        self.cpu_us = min(self.cpu_us, cpu_us)
        if not self.latency_us or latency_us[1] < self.latency_us[1]:
            self.latency_us = latency_us


async def _measure(endpoint: str, pid: int, count: int, broker: str) -> dict[str, Figures]:
    """Sends, and receives if `broker` is named; the first round warms up."""
    load = Load(endpoint)
    found: dict[str, Figures] = {}

    async def timed(what: str, work: Awaitable[None], warm: bool) -> None:
        load.waited.clear()
        before = cpu_seconds(pid)
        await work
        if warm:
            used = cpu_seconds(pid) - before
            found.setdefault(what, Figures()).add(used / count * 1e6, load.waited)

    if broker:
        await load.settle()
    for number in range(ROUNDS + 1):
        await timed("send", load.send(count), number > 0)
        if broker:
            await timed("receive", load.receive(count, broker), number > 0)
    await load.channel.close()
    return found


@contextlib.contextmanager
def _bare(context: Context) -> Iterator[tuple[str, int]]:
    server = Server([sys.executable, "bench/grpc_bare.py"], r"grpc (\d+)", context.directory / "bare.log", {})
    try:
        yield f"127.0.0.1:{server.match[1]}", server.process.pid
    finally:
        server.process.kill()
        server.process.wait()


def grpc_clients(context: Context) -> Iterator[Line]:
    """Send, and receive with ack, by processor time."""
    count = context.scale.grpc
    root = context.directory / "grpc"
    sides: dict[str, Broker] = {
        **{
            kind: MqlakeBroker(
                root / kind, {"brokerName": "broker-0", "grpcServer": kind}, small=False, grpc=True
            )
            for kind in KINDS
        },
        JAVA: JavaProxy(root / "java", jvm=context.scale.jvm),
    }
    found = {}
    for name, broker in sides.items():
        with broker:
            if name == KINDS[0]:
                idle = broker.resident()
                yield Line(
                    "gRPC, memory when idle", idle / MIB, "MiB", target="< 80 MB", met=idle < 80_000_000
                )
            run(_topic(broker.namesrv))
            own = "java-broker" if name == JAVA else "broker-0"
            endpoint: str = broker.grpc  # type: ignore[attr-defined]
            found[name] = run(_measure(endpoint, broker.pid, count, own))
    with _bare(context) as (endpoint, pid):
        limit = run(_measure(endpoint, pid, count, ""))
    for kind in KINDS:
        for what in ("send", "receive"):
            mine, java = found[kind][what], found[JAVA][what]
            least = TARGETS[kind]
            yield Line(
                f"gRPC on {kind}, {what}",
                1e6 / mine.cpu_us,
                "messages/s of CPU",
                peer=1e6 / java.cpu_us,
                peer_name=JAVA,
                cpu_us=mine.cpu_us,
                peer_cpu_us=java.cpu_us,
                cpu_ratio=java.cpu_us / mine.cpu_us,
                limit_cpu_us=limit[what].cpu_us if what in limit else None,
                latency_us=mine.latency_us,
                peer_latency_us=java.latency_us,
                target=f">= {least}x by CPU, p99 <= Java's",
                met=java.cpu_us >= least * mine.cpu_us and mine.latency_us[1] <= java.latency_us[1],
            )
