"""RocketBroker over real brokers: what FastStream's own cases (test_shared_cases) do not know of RocketMQ."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, FastStream
from faststream.exceptions import NackMessage, RejectMessage, StopConsume
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqlake.adapters.faststream import RocketBroker, RocketResponse, RocketRouter
from mqlake.adapters.faststream.opentelemetry import RocketTelemetryMiddleware
from mqlake.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionMQProducer,
    create_reply_message,
)
from mqlake.errors import ConfigError, MessageError, NoNameServerError, RemotingError
from tests.adapters.late_cluster import LateCluster
from tests.interop.brokers import Broker
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until_async

FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)

Received = Annotated[Any, Context("message")]


def topic() -> str:
    return f"T-{uuid.uuid4().hex[:12]}"


def made(broker: Broker, **options: Any) -> RocketBroker:
    return RocketBroker(broker.namesrv, logger=None, **options)


@asynccontextmanager
async def running(broker: RocketBroker) -> AsyncIterator[RocketBroker]:
    async with broker:
        await broker.start()
        yield broker


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))


async def bodies_of(broker: Broker, of_topic: str, count: int) -> list[bytes]:
    """The first `count` messages that a topic has."""
    async with PullConsumer("reader", broker.namesrv, FIRST) as consumer:
        await until_async(lambda: _has_route(consumer, of_topic), f"topic {of_topic}")
        queues = await consumer.fetch_message_queues(of_topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
        found: list[bytes] = []
        while len(found) < count:
            found += [message.body for message in await consumer.poll(1)]
        return found


async def _has_route(consumer: PullConsumer, of_topic: str) -> bool:
    try:
        return bool(await consumer.fetch_message_queues(of_topic))
    except Exception:
        return False


def test_tags_keys_headers_and_sql_choose(broker: Broker) -> None:
    """Without it a subscriber could lose what it wants, or a message what it had."""
    books, costly, name = [], [], topic()

    async def scene() -> None:
        stream = made(broker)

        @stream.subscriber(name, tags="book || record", group=f"{name}-tags")
        async def by_tags(body: Any, message: Received) -> None:
            raw = message.raw_message.message
            books.append((body, raw.tags, raw.keys, message.headers["price"], message.correlation_id))

        @stream.subscriber(name, sql="price > 10 AND shop IS NULL", group=f"{name}-sql")
        async def by_sql(body: Any) -> None:
            costly.append(body)

        async with running(stream):
            await stream.publish(
                {"n": 1}, name, tag="book", keys=["k1", "k2"], headers={"price": 12}, correlation_id="c1"
            )
            await stream.publish({"n": 2}, name, tag="pen", headers={"price": 30})
            await stream.publish({"n": 3}, name, tag="record", headers={"price": 5}, correlation_id="c3")
            await stream.publish({"n": 4}, name, tag="pen", headers={"price": 99, "shop": "Rome"})
            await until_async(lambda: len(books) >= 2 and len(costly) >= 2)

    run(scene)
    assert sorted(books, key=str) == [
        ({"n": 1}, "book", "k1 k2", "12", "c1"),
        ({"n": 3}, "record", None, "5", "c3"),
    ]
    assert sorted(each["n"] for each in costly) == [1, 2]


def test_batches_in_and_out(broker: Broker) -> None:
    name, out = topic(), topic()
    got: list[list[int]] = []
    copied: list[Any] = []

    async def scene() -> None:
        stream = made(broker)

        @stream.publisher(out, batch=True, tag="copy")
        @stream.subscriber(name, batch=True, max_records=10)
        async def copy(numbers: list[int]) -> list[Any]:
            got.append(numbers)
            return [*numbers[1:], RocketResponse(numbers[0], tag="first", keys=f"k{numbers[0]}")]

        @stream.subscriber(out)
        async def see(number: int, message: Received) -> None:
            copied.append((number, message.raw_message.message.tags))

        async with running(stream):
            await stream.publish_batch(*range(25), topic=name)
            await until_async(lambda: len(copied) >= 25)
            assert await stream.publish_batch(topic=name) is None

    run(scene)
    assert sorted(number for batch in got for number in batch) == list(range(25))
    assert max(map(len, got)) <= 10
    assert {number for number, tag in copied if tag == "first"} == {batch[0] for batch in got}
    assert sorted(number for number, _ in copied) == list(range(25))


def test_ordered_queues_keep_their_order_through_failures(broker: Broker) -> None:
    name = topic()
    seen: dict[str, list[int]] = {"a": [], "b": []}
    failed: list[tuple[str, int]] = []

    async def scene() -> None:
        stream = made(broker)

        @stream.subscriber(name, orderly=True, max_workers=4)
        async def in_order(body: dict[str, Any]) -> None:
            key, number = body["key"], body["n"]
            if number == 2 and (key, number) not in failed:
                failed.append((key, number))
                raise NackMessage(delay_s=0.1)
            if number == 4:
                raise RejectMessage
            seen[key].append(number)

        async with running(stream):
            for number in range(6):
                for key in seen:
                    await stream.publish({"key": key, "n": number}, name, sharding_key=key)
            await until_async(lambda: all(found[-1:] == [5] for found in seen.values()))
        dead = await bodies_of(broker, f"%DLQ%faststream-{name}", 2)
        assert len(dead) == 2

    run(scene)
    assert seen == {"a": [0, 1, 2, 3, 5], "b": [0, 1, 2, 3, 5]} and len(failed) == 2


def test_what_becomes_of_a_failed_message(broker: Broker) -> None:
    """NACK_ON_ERROR: again, with its count; REJECT_ON_ERROR: a dead letter; MANUAL: as the handler says."""
    name = topic()
    tries: list[int] = []
    manual: list[str] = []

    async def scene() -> None:
        stream = made(broker)

        @stream.subscriber(name, group=f"{name}-again", retry_delays_s=(0.2,))
        async def again(_: Any, message: Received) -> None:
            tries.append(message.raw_message.message.reconsume_times)
            if len(tries) < 3:
                raise ValueError("as it should")

        @stream.subscriber(name, group=f"{name}-dead", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def dead(_: Any) -> None:
            raise ValueError("as it should")

        @stream.subscriber(name, group=f"{name}-manual", ack_policy=AckPolicy.MANUAL)
        async def by_hand(_: Any, message: Received) -> None:
            manual.append("nack" if not manual else "ack")
            await (message.nack(delay_s=0.1) if manual == ["nack"] else message.ack())

        async with running(stream):
            await stream.publish("x", name)
            await until_async(lambda: len(tries) >= 3 and len(manual) >= 2)
            assert await bodies_of(broker, f"%DLQ%{name}-dead", 1) == [b"x"]

    run(scene)
    assert tries == [0, 1, 2] and manual == ["nack", "ack"]


class Gone:
    """The listener of a process that never says anything."""

    async def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    async def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def test_transactions(broker: Broker) -> None:
    """What was published is seen if the block ends well and never if it raises, also when the word got lost."""
    name = topic()
    got: list[str] = []

    async def scene() -> None:
        asked: list[bytes] = []

        async def check(message: Any) -> bool:
            asked.append(message.body)
            return True

        stream = made(broker, group=f"shop-{name}", check_transaction=check)
        payments = stream.publisher(name, tag="paid")

        @stream.subscriber(name)
        async def see(body: str) -> None:
            got.append(body)

        async with running(stream):
            await stream.publish("plain", name)
            await until_async(lambda: got == ["plain"])
            with pytest.raises(ZeroDivisionError):
                async with stream.transaction():
                    await payments.publish("never")
                    raise ZeroDivisionError
            async with stream.transaction() as transaction:
                await payments.publish("one")
                await stream.publish("two", name, tag="paid", sharding_key="k")
                with pytest.raises(MessageError, match="batch"):
                    await stream.publish_batch("three", topic=name)
                assert got == ["plain"]
            await until_async(lambda: len(got) >= 3)
            with pytest.raises(MessageError, match="has ended"):
                await transaction.send(Message(name, b"late"))
            # a process that is gone has left a half message: whoever is of its group is asked
            async with TransactionMQProducer(f"shop-{name}", broker.namesrv, Gone()) as gone:
                await gone.send_half_message(Message(name, b"left"))
            await until_async(lambda: "left" in got)
            assert asked == [b"left"]

    run(scene)
    assert sorted(got) == ["left", "one", "plain", "two"]


def test_requests_of_java_and_to_java(broker: Broker) -> None:
    """FastStream's request and RocketMQ's own are the same: either side may be another client."""
    name, other = topic(), topic()

    async def scene() -> None:
        stream = made(broker)

        @stream.subscriber(name)
        async def answer(body: str) -> RocketResponse:
            return RocketResponse(body.upper(), headers={"mood": "good"})

        async with running(stream), Producer("asker", broker.namesrv) as asker:
            reply = await asker.request(Message(name, b"why?"), timeout_s=PATIENCE_S)
            assert (reply.body, reply.properties["mood"]) == (b"WHY?", "good")

            async def listener(messages: list[Any], _: Any) -> None:
                for message in messages:
                    await asker.send(create_reply_message(message, message.body[::-1]))

            await stream.connection.make_topic(other, 1)
            consumer = PushConsumer(f"g-{other}", broker.namesrv, listener, FIRST)
            consumer.subscribe(other)
            async with consumer:
                found = await stream.request("abc", other, timeout=PATIENCE_S)
                assert found.body == b"cba"
            with pytest.raises(TimeoutError):
                await stream.request("anyone?", topic(), timeout=0.2)

    run(scene)


def test_a_delay_and_a_handler_that_stops_its_subscriber(mqlake_broker: Broker) -> None:
    name = topic()
    got: list[str] = []

    async def scene() -> None:
        stream, second = made(mqlake_broker), made(mqlake_broker)

        @stream.subscriber(name, prefetch=1)
        async def once(body: str) -> None:
            got.append(body)
            raise StopConsume

        ordered_name = topic()
        ordered: list[str] = []

        @stream.subscriber(ordered_name, orderly=True)
        async def once_in_order(body: str) -> None:
            ordered.append(body)
            raise StopConsume

        rest: list[str] = []

        @second.subscriber(name)
        async def others(body: str) -> None:
            rest.append(body)

        loop = asyncio.get_running_loop()
        async with running(stream):
            begun = loop.time()
            await stream.publish("later", name, delay_s=2)
            await stream.publish("x", ordered_name)
            await until_async(lambda: got and ordered)
            assert loop.time() >= begun + 1
            await stream.publish("for others", name)
            async with running(second):
                await until_async(lambda: "for others" in rest)

    run(scene)
    assert got == ["later"]


def test_messages_one_by_one(mqlake_broker: Broker) -> None:
    name = topic()

    async def scene() -> None:
        stream = made(mqlake_broker)
        subscriber = stream.subscriber(name)
        async with running(stream):
            assert await subscriber.get_one(timeout=0.1) is None
            await stream.publish("a", name)
            one = await subscriber.get_one(timeout=PATIENCE_S)
            assert await one.decode() == "a"
            await one.nack(delay_s=0)
            async for again in subscriber:
                assert await again.decode() == "a" and again.raw_message.message.reconsume_times == 1
                await again.ack()
                break

    run(scene)


def test_spans_of_publisher_and_subscriber_are_linked(mqlake_broker: Broker) -> None:
    """OpenTelemetry through a real broker: the context travels in the headers."""
    name = topic()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def scene() -> None:
        stream = made(mqlake_broker, middlewares=[RocketTelemetryMiddleware(tracer_provider=provider)])
        done = asyncio.Event()

        @stream.subscriber(name)
        async def see(_: str) -> None:
            done.set()

        async with running(stream):
            await stream.publish("x", name, tag="t", keys="k")
            await done.wait()
            await until_async(
                lambda: any(span.name == f"{name} process" for span in exporter.get_finished_spans())
            )

    run(scene)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    process, create = spans[f"{name} process"], spans[f"{name} create"]
    assert process.parent is not None and process.parent.span_id == create.context.span_id
    assert process.attributes is not None
    assert process.attributes["messaging.system"] == "rocketmq"
    assert process.attributes["messaging.rocketmq.message.tag"] == "t"


def test_bad_input_is_said() -> None:
    stream = RocketBroker(logger=None)
    for options in (
        {"tags": "a", "sql": "b > 1"},
        {"tags": " || "},
        {"max_records": 33},
        {"max_workers": 0},
        {"prefetch": 0},
        {"start": "middle"},
        {"retry_delays_s": ()},
    ):
        with pytest.raises(ConfigError):
            stream.subscriber("T", **options)
    with pytest.raises(TypeError, match="RocketRouter"):
        stream.include_router(object())  # type: ignore[arg-type]

    async def alone() -> None:
        away = RocketBroker(f"127.0.0.1:{free_ports(1)}", logger=None, startup_timeout_s=0)
        with pytest.raises((NoNameServerError, RemotingError)):
            await away.start()
        assert not await away.ping(1)
        unlike = RocketBroker(logger=None)
        for tags in ("a", "b"):
            unlike.subscriber("T", tags=tags)(lambda body: None)
        with pytest.raises(ConfigError, match="group of its own"):
            await unlike.start()
        twice = RocketBroker(logger=None)
        for name in ("T", "U"):
            twice.subscriber(name, orderly=True, group="g")(lambda body: None)
        with pytest.raises(ConfigError, match="two orderly"):
            await twice.start()

    asyncio.run(alone())


def test_what_cannot_be_published(mqlake_broker: Broker) -> None:
    async def scene() -> None:
        stream = made(mqlake_broker)
        async with running(stream):
            with pytest.raises(MessageError, match="the header KEYS"):
                await stream.publish("x", topic(), headers={"KEYS": "k"})
            with pytest.raises(MessageError, match="delay_s"):
                await stream.publish("x", topic(), delay_s=-1)
            with pytest.raises(ConfigError, match="group of this service"):
                async with stream.transaction():
                    pass
            assert await stream.ping(PATIENCE_S)

    run(scene)


def test_the_asyncapi_page() -> None:
    stream = RocketBroker("a:9876;b:9876", group="shop", description="Orders of the shop")
    router = RocketRouter(prefix="eu-")

    @router.publisher("Packed", tag="new")
    @router.subscriber("Orders", tags="book", description="Packs books")
    async def pack(order: dict[str, int]) -> str:
        return str(order)

    stream.include_router(router)
    page = FastStream(stream).schema.to_specification().to_jsonable()
    assert [server["protocol"] for server in page["servers"].values()] == ["rocketmq", "rocketmq"]
    channels = {channel["address"]: channel for channel in page["channels"].values()}
    assert channels.keys() == {"eu-Orders", "eu-Packed"}
    assert channels["eu-Orders"]["description"] == (
        "Packs books\n\nRocketMQ: group `shop-eu-Orders`, tag `book`."
    )


def test_a_broker_that_comes_after_the_name_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(cluster: LateCluster) -> None:
        logger = logging.getLogger("late")
        stream = RocketBroker(cluster.namesrv, group="late", logger=logger, startup_timeout_s=None)
        got: list[str] = []

        async def take(body: str) -> None:
            got.append(body)

        stream.subscriber("Shared", start="first")(take)
        stream.subscriber("Ordered", start="first", orderly=True)(take)
        starting = asyncio.ensure_future(stream.start())
        await until_async(lambda: "no master is registered" in caplog.text or starting.done())
        await asyncio.to_thread(cluster.start_broker)
        await starting
        for name in ("Shared", "Ordered"):
            await stream.publish(name, name)
        await until_async(lambda: sorted(got) == ["Ordered", "Shared"])
        await stream.stop()

    with LateCluster(tmp_path) as cluster:
        cluster.start_name_server()
        run(lambda: scene(cluster))
