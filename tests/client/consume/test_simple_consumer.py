"""SimpleConsumer, and the push consumer in pop mode, with `mqlake serve` in another process."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from mqlake.client import (
    Admin,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageClientExt,
    Producer,
    PushConsumer,
    SimpleConsumer,
    blocking,
)
from mqlake.client.hooks import ConsumeMessageContext
from mqlake.errors import ConfigError, MessageError
from mqlake.message import ReceiptHandle
from mqlake.remoting.bodies.client import MessageRequestMode
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S, until_async

FIRST = ConsumerConfig(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    client_rebalance=False,
    max_reconsume_times=1,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    settings = {"timerPrecisionMs": 100, "reviveInterval": 50}
    with MqlakeBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker


async def sent(broker: MqlakeBroker, topic: str, *bodies: bytes, queues: int = 2, tags: str = "") -> None:
    async with Admin(broker.namesrv) as admin:
        if not await admin.topic_exists(topic):
            await admin.create_topic(topic, queues=queues)
    async with Producer("P", broker.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags or None))


def test_receive_ack_and_change(broker: MqlakeBroker) -> None:
    async def main() -> None:
        await sent(broker, "Simple", b"a", b"b", b"c")
        async with SimpleConsumer("simple", broker.namesrv, FIRST) as consumer:
            with pytest.raises(ConfigError, match="subscribe"):
                await consumer.receive()
            consumer.subscribe("Simple")
            with pytest.raises(ConfigError, match="max_messages"):
                await consumer.receive(33)
            found: list[MessageClientExt] = []
            while len(found) < 3:
                found += await consumer.receive(2, invisible_s=60)
            by_body = {message.body: message for message in found}
            assert set(by_body) == {b"a", b"b", b"c"}
            await consumer.ack(by_body[b"a"])
            old = by_body[b"b"].receipt_handle
            await consumer.change_invisible_duration(by_body[b"b"], 0)
            assert by_body[b"b"].receipt_handle != old
            (again,) = await consumer.receive(await_s=PATIENCE_S)
            assert (again.body, again.topic, again.reconsume_times) == (b"b", "Simple", 1)
            assert ReceiptHandle.parse(again.receipt_handle).flag == 1
            await consumer.ack_all([again, by_body[b"c"]])
            assert await consumer.receive(await_s=0) == []
            with pytest.raises(MessageError):
                await consumer.ack(MessageClientExt("Simple", b"not received"))

    run(main())


def test_waits_for_any_of_several_topics(broker: MqlakeBroker) -> None:
    async def main() -> None:
        for topic in ("Any1", "Any2"):
            await sent(broker, topic)
        async with SimpleConsumer("any", broker.namesrv, FIRST) as consumer:
            consumer.subscribe("Any1")
            consumer.subscribe("Any2", "red || blue")
            waiting = asyncio.ensure_future(consumer.receive(await_s=PATIENCE_S))
            await sent(broker, "Any2", b"green", tags="green")
            await sent(broker, "Any2", b"red", tags="red")
            (message,) = await waiting
            assert (message.body, message.tags) == (b"red", "red")
            await consumer.ack(message)

    run(main())


def test_dead_letters(broker: MqlakeBroker) -> None:
    async def main() -> None:
        await sent(broker, "Dead", b"a")
        async with SimpleConsumer("dead", broker.namesrv, FIRST) as consumer:
            consumer.subscribe("Dead")
            (message,) = await consumer.receive()
            await consumer.forward_to_dead_letters(message)
        async with SimpleConsumer("reader", broker.namesrv, FIRST) as reader:
            reader.subscribe("%DLQ%dead")
            (dead,) = await reader.receive(await_s=PATIENCE_S)
            assert dead.body == b"a"
            await reader.ack(dead)

    run(main())


def test_blocking(broker: MqlakeBroker) -> None:
    run(sent(broker, "Blocking", b"a", b"b"))
    with blocking.SimpleConsumer("blocking", broker.namesrv, FIRST) as consumer:
        consumer.subscribe("Blocking")
        found: list[MessageClientExt] = []
        while len(found) < 2:
            found += consumer.receive(invisible_s=60)
        consumer.change_invisible_duration(found[0], 90)
        consumer.ack(found[0])
        consumer.ack_all(message for message in found[1:])
        assert consumer.receive(await_s=0) == []


async def pops(broker: MqlakeBroker, topic: str, group: str) -> None:
    async with Admin(broker.namesrv) as admin:
        await admin.set_message_request_mode(topic, group, MessageRequestMode.POP)


def test_push_consumers_pop(broker: MqlakeBroker) -> None:
    """Three consumers share two queues; what fails comes again."""
    bodies = [b"%d" % n for n in range(40)]
    found: list[tuple[str, bytes, int]] = []
    lock = threading.Lock()
    traced: list[tuple[str, bytes, bool]] = []

    class Trace:
        """A consume hook, as message traces are made with."""

        hook_name = "trace"

        def consume_message_before(self, context: ConsumeMessageContext) -> None:
            context.mq_trace_context = [message.body for message in context.messages]

        def consume_message_after(self, context: ConsumeMessageContext) -> None:
            traced.extend(
                (context.consumer_group, body, context.success) for body in context.mq_trace_context
            )

    def listener(name: str):
        def consume(messages: list[MessageClientExt], context: ConsumeContext) -> ConsumeResult:
            with lock:
                found.extend((name, message.body, message.reconsume_times) for message in messages)
            if messages[0].body == b"7":
                context.delay_level_when_next_consume = -1  # a dead letter
                return ConsumeResult.LATER
            return ConsumeResult.SUCCESS

        return consume

    async def main() -> None:
        await sent(broker, "Push", *bodies)
        await pops(broker, "Push", "push")
        config = dataclasses.replace(FIRST, consume_message_hooks=[Trace()])
        consumers = [PushConsumer("push", broker.namesrv, listener(name), config) for name in "abc"]
        for consumer in consumers:
            consumer.subscribe("Push")
            await consumer.start()
        await until_async(lambda: len(found) >= len(bodies))
        assert Counter(body for _, body, _ in found) == Counter(bodies)
        info = consumers[0].consumer_running_info()
        assert [queue.queue_id for queue in info.mq_pop_table] == [-1]
        async with Admin(broker.namesrv) as admin:
            await until_async(lambda: admin.topic_exists("%DLQ%push"))
        async with SimpleConsumer("reader", broker.namesrv, FIRST) as reader:
            reader.subscribe("%DLQ%push")
            (dead,) = await reader.receive(await_s=PATIENCE_S)
            assert dead.body == b"7"
        for consumer in consumers:
            await consumer.close()
        assert sorted(traced) == sorted(("push", body, body != b"7") for body in bodies)
        # everything is acknowledged: nothing comes again after its time
        async with SimpleConsumer("push", broker.namesrv, FIRST) as rest:
            rest.subscribe("Push")
            assert await rest.receive(await_s=0) == []

    run(main())
