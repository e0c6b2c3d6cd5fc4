"""A broker is killed while gRPC clients send, and stream what they receive: what was answered outlives it, what was
under way comes again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from mqlake.base.clock import now_ms
from mqlake.message import ReceiptHandle
from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.values import duration
from tests.crash.pop_history import History
from tests.interop.brokers import MqlakeBroker
from tests.proxy.live import message, resource
from tests.waiting import PATIENCE_S, until_async

pytestmark = pytest.mark.crash

PRODUCERS, CONSUMERS, KILLS = 4, 3, 4
INVISIBLE_MS = 10_000
POLL_MS = 5000
AGAIN_S = 0.05
"""Between two tries while the broker is away."""
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]


class Life:
    """Clients of one broker, and what they saw."""

    def __init__(self, address: str) -> None:
        self.history = History()
        self.sending = True
        self.broken = 0
        """Streams that ended before their last answer."""
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL)
        self._names = (f"{number}".encode() for number in range(1_000_000))

    def _stub(self, rpc: str, who: str) -> Any:
        method = SERVICE.methods_by_name[rpc]
        make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        stub = make(
            f"/{SERVICE.full_name}/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        metadata = [("x-mq-client-id", who), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2")]
        return lambda request: stub(request, metadata=metadata, timeout=30)

    async def close(self) -> None:
        await self._channel.close()

    async def produce(self, who: str) -> None:
        send = self._stub("SendMessage", who)
        while self.sending:
            body = next(self._names)
            self.history.maybe_sent[body] = 0
            request = v2.SendMessageRequest(messages=[message("T", body, message_id=f"id-{body.decode()}")])
            with away():
                answer = await send(request)
                if answer.status.code == definition.Code.OK:
                    self.history.sent[body] = 0
                    continue
            await asyncio.sleep(AGAIN_S)

    async def consume(self, who: str) -> None:
        receive, ack = self._stub("ReceiveMessage", who), self._stub("AckMessage", who)
        request = v2.ReceiveMessageRequest(
            group=resource("G"),
            message_queue=definition.MessageQueue(topic=resource("T"), id=-1),
            batch_size=16,
            invisible_duration=duration(INVISIBLE_MS),
            long_polling_timeout=duration(POLL_MS),
        )
        while self.sending or not self.history.is_done:
            ended = False
            with away():
                async for answer in receive(request):
                    ended = answer.HasField("delivery_timestamp")
                    if answer.HasField("message"):
                        await self._acknowledge(ack, answer.message)
            if not ended:
                self.broken += 1
                await asyncio.sleep(AGAIN_S)

    async def _acknowledge(self, ack: Any, received: definition.Message) -> None:
        handle = received.system_properties.receipt_handle
        popped = ReceiptHandle.parse(handle)
        delivery = self.history.delivered(
            received.body, popped.pop_time, popped.pop_time + popped.invisible_time
        )
        delivery.acknowledging = True
        entry = v2.AckMessageEntry(message_id=received.system_properties.message_id, receipt_handle=handle)
        answer = await ack(v2.AckMessageRequest(group=resource("G"), topic=resource("T"), entries=[entry]))
        if answer.status.code == definition.Code.OK:
            delivery.acknowledged_at = now_ms()


@contextlib.contextmanager
def away() -> Iterator[None]:
    """What a client meets while the broker is killed and started."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN), error


@pytest.mark.parametrize("server", ["nghttp2", "grpcio"])
def test_nothing_is_lost_when_a_broker_is_killed_in_the_middle_of_streams(tmp_path: Path, server: str):
    dice = random.Random(7)

    async def main(broker: MqlakeBroker) -> None:
        life = Life(broker.grpc)
        clients = [asyncio.create_task(life.produce(f"producer-{n}")) for n in range(PRODUCERS)]
        clients += [asyncio.create_task(life.consume(f"consumer-{n}")) for n in range(CONSUMERS)]
        try:
            for _ in range(KILLS):
                more = len(life.history.sent) + dice.randrange(50, 200)
                await until_async(
                    lambda enough=more: (
                        len(life.history.sent) >= enough or any(client.done() for client in clients)
                    )
                )
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            life.sending = False
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*clients)
        finally:
            for client in clients:
                client.cancel()
            await life.close()
        assert life.history.violations() == []
        assert life.broken >= KILLS, "no stream was cut"

    settings = {"grpcServer": server, "reviveInterval": 30}
    with MqlakeBroker(tmp_path, settings, grpc=True) as broker:
        asyncio.run(main(broker))
