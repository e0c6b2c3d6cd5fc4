"""mqlake's client, live, against RocketMQ's own broker and name server (5.3.3) and against `mqlake serve`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest

from mqlake.client import (
    ClientConfig,
    ConsumeContext,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    Message,
    MessageClientExt,
    MessageModel,
    MessageSelector,
    MQClientInstance,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    SendStatus,
    averagely_by_circle,
    create_reply_message,
    select_by_hash,
)
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import (
    ClientError,
    NoReplyError,
    ResponseError,
    SendError,
    TopicNotFoundError,
)
from mqlake.message import properties_to_string
from mqlake.remoting.bodies.client import CMResult
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.loop import run
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaClients
from tests.waiting import PATIENCE_S, trying, until_async

pytestmark = pytest.mark.java

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
CONFIG = {
    "brokerName": "broker-a",
    "enablePropertyFilter": "true",
    "messageDelayLevel": " ".join(["1s"] * 18),
}
KINDS = {"java": JavaBroker, "mqlake": MqlakeBroker}
_numbers = itertools.count()


@pytest.fixture(scope="module", params=list(KINDS))
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with KINDS[request.param](tmp_path_factory.mktemp(request.param), CONFIG) as started:
        yield started


@pytest.fixture(scope="module")
def java_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    with JavaClients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


def new_name(kind: str) -> str:
    return f"{kind}_{next(_numbers)}"


async def new_topic(broker: Broker, queues: int = 4) -> str:
    """A topic that the name server knows."""
    topic = new_name("topic")
    async with RemotingClient() as remoting:
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        await BrokerAPI(remoting).create_topic(broker.address, config)
    async with (
        MQClientInstance(ClientConfig(namesrv_addr=broker.namesrv)) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        while True:
            with contextlib.suppress(TopicNotFoundError):
                await client.update_topic_route(topic)
                return topic
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def producing(broker: Broker, **settings: object) -> AsyncIterator[Producer]:
    async with Producer(new_name("PID"), broker.namesrv, ProducerConfig(**settings)) as producer:  # type: ignore[arg-type]
        yield producer


class Collector:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[MessageClientExt] = []

    async def __call__(self, messages: list[MessageClientExt], context: ConsumeContext) -> None:
        assert all(message.queue_id == context.message_queue.queue_id for message in messages)
        self.messages += messages

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def everything(broker: Broker, topic: str, count: int) -> list[MessageClientExt]:
    """The topic from its beginning, `count` messages at least."""
    found: list[MessageClientExt] = []
    config = ConsumerConfig(consume_from_where=FIRST, auto_commit=False)
    async with PullConsumer(new_name("GID"), broker.namesrv, config) as consumer, asyncio.timeout(PATIENCE_S):
        await consumer.assign(await consumer.fetch_message_queues(topic))
        while len(found) < count:
            found += await consumer.poll(0.5)
    return found


# --- sending


def test_every_way_of_sending(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker)
        async with producing(broker) as producer:
            message = Message(topic, b"one", "a", ["k1", "k2"], properties={"x": "ü"}, flag=7)
            result = await producer.send(message)
            assert result.send_status is SendStatus.SEND_OK and result.msg_id == message.uniq_key
            queues = await producer.fetch_publish_message_queues(topic)
            assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
            chosen = await producer.send(Message(topic, b"chosen"), queue=queues[3])
            assert chosen.message_queue == queues[3]
            ordered = [
                await producer.send(Message(topic, b"%d" % i), selector=select_by_hash("shard"))
                for i in range(3)
            ]
            assert len({result.message_queue for result in ordered}) == 1
            await producer.send_oneway(Message(topic, b"oneway"))
            batch = await producer.send_batch([Message(topic, b"batch%d" % i, "b") for i in range(3)])
            assert len(batch.msg_id.split(",")) == 3
            many = await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(200)))
            assert max(Counter(result.message_queue for result in many).values()) <= 51
        for kind in ("ZLIB", "LZ4", "ZSTD"):
            async with producing(broker, compress_type=kind) as producer:
                await producer.send(Message(topic, kind.encode() * 2000))
        found = await everything(broker, topic, 1 + 1 + 3 + 1 + 3 + 200 + 3)
        by_body = {message.body: message for message in found}
        one = by_body[b"one"]
        assert (one.tags, one.keys, one.properties["x"], one.flag) == ("a", "k1 k2", "ü", 7)
        assert one.broker_name == result.message_queue.broker_name and one.uniq_key == result.msg_id
        assert one.msg_id == result.offset_msg_id and one.queue_offset == result.queue_offset
        assert by_body[b"oneway"] and all(by_body[k.encode() * 2000] for k in ("ZLIB", "LZ4", "ZSTD"))
        assert [m.body for m in found if m.tags == "b"] == [b"batch0", b"batch1", b"batch2"]

    run(main())


def test_messages_without_a_body(broker: Broker) -> None:
    """What docs/client.md says of each broker: RocketMQ's takes them within a batch alone."""

    async def main() -> None:
        topic = await new_topic(broker, 1)
        async with producing(broker, allow_empty_body=True) as producer:
            if isinstance(broker, JavaBroker):
                with pytest.raises(SendError, match="NullPointerException"):
                    await producer.send(Message(topic, b"", keys="alone"))
            else:
                await producer.send(Message(topic, b"", keys="alone"))
            await producer.send_batch([Message(topic, b"", keys="in"), Message(topic, b"x", keys="in")])
        found = await everything(broker, topic, 2 if isinstance(broker, JavaBroker) else 3)
        assert [each.body for each in found] == [b"", b"x"] if len(found) == 2 else [b"", b"", b"x"]

    run(main())


def test_sends_that_travel_together(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker, 1)
        async with producing(broker, auto_batch=True) as producer:
            results = await asyncio.gather(
                *(
                    producer.send(Message(topic, b"%d" % i, "t", properties={"i": str(i)}))
                    for i in range(500)
                ),
                producer.send(Message(topic, b"z" * 20_000)),
            )
        found = {m.queue_offset: m for m in await everything(broker, topic, 501)}
        for i, result in enumerate(results[:-1]):
            message = found[result.queue_offset]
            assert (message.body, message.properties["i"]) == (b"%d" % i, str(i))
            assert (message.uniq_key, message.msg_id) == (result.msg_id, result.offset_msg_id)
        assert found[results[-1].queue_offset].body == b"z" * 20_000

    run(main())


def test_a_delay_and_a_topic_that_is_made_with_its_first_message(broker: Broker) -> None:
    async def main() -> None:
        topic = new_name("new")
        async with producing(broker) as producer, asyncio.timeout(2 * PATIENCE_S):
            message = Message(topic, b"later")
            message.delay_time_level = 1
            before = asyncio.get_running_loop().time()
            await producer.send(message)
            while True:
                with contextlib.suppress(TopicNotFoundError):
                    found = await everything(broker, topic, 1)
                    break
            assert [m.body for m in found] == [b"later"]
            assert asyncio.get_running_loop().time() - before > 0.9

    run(main())


async def unanswered(asker: Producer, topic: str) -> None:
    """Asks what nobody answers, with as little time as is enough to ask."""
    timeout_s = 0.3
    for _ in trying("nobody answers in time"):
        try:
            await asker.request(Message(topic, b"silence"), timeout_s=timeout_s)
        except SendError:
            timeout_s *= 2


def test_request_and_reply(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker)
        async with producing(broker) as asker, producing(broker) as replier:

            async def answer(messages: list[MessageClientExt], _: ConsumeContext) -> None:
                for message in messages:
                    if message.body != b"silence":
                        await replier.send(create_reply_message(message, b"re: " + message.body))

            config = ConsumerConfig(consume_from_where=FIRST)
            async with PushConsumer(new_name("GID"), broker.namesrv, answer, config) as consumer:
                consumer.subscribe(topic)
                replies = await asyncio.gather(
                    *(asker.request(Message(topic, b"%d" % i), timeout_s=PATIENCE_S) for i in range(5))
                )
                assert [reply.body for reply in replies] == [b"re: %d" % i for i in range(5)]
                with pytest.raises(NoReplyError):
                    await unanswered(asker, topic)

    run(main())


def test_java_clients_ask_us_and_answer_us(broker: Broker, java_clients: JavaClients) -> None:
    async def main() -> None:
        topic = await new_topic(broker)
        async with producing(broker) as replier:

            async def answer(messages: list[MessageClientExt], _: ConsumeContext) -> None:
                for message in messages:
                    await replier.send(create_reply_message(message, b"re: " + message.body))

            def ask() -> bytes:
                with java_clients.producer(broker) as producer:
                    body: bytes = producer.ask_for_reply(topic, b"java")["body"]
                    return body

            config = ConsumerConfig(consume_from_where=FIRST)
            async with PushConsumer(new_name("GID"), broker.namesrv, answer, config) as consumer:
                consumer.subscribe(topic)
                assert await asyncio.to_thread(ask) == b"re: java"

            other = await new_topic(broker)
            with contextlib.ExitStack() as stack:
                await asyncio.to_thread(
                    lambda: stack.enter_context(java_clients.push(broker, new_name("GID"), other, reply=True))
                )
                reply = await replier.request(Message(other, b"shout"), timeout_s=PATIENCE_S)
                assert reply.body == b"SHOUT"

    run(main())


# --- consuming


def test_concurrently_with_offsets_that_stay(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker), new_name("GID")
        config = ConsumerConfig(consume_from_where=FIRST, consume_message_batch_max_size=3)
        async with producing(broker) as producer:
            first, second = Collector(), []
            async with PushConsumer(group, broker.namesrv, first, config) as consumer:
                consumer.subscribe(topic)
                await asyncio.gather(*(producer.send(Message(topic, b"%d" % i)) for i in range(300)))
                await until_async(lambda: len(first.messages) >= 300)
            assert sorted(first.bodies) == sorted(b"%d" % i for i in range(300))
            for i in range(50):
                await producer.send(Message(topic, b"more%d" % i))

            def listener(messages: list[MessageClientExt], _: ConsumeContext) -> None:
                second.extend(message.body for message in messages)

            async with PushConsumer(group, broker.namesrv, listener, config) as consumer:
                consumer.subscribe(topic)
                await until_async(lambda: len(second) >= 50)
            assert sorted(second) == sorted(b"more%d" % i for i in range(50))

    run(main())


def test_orderly_also_when_the_listener_fails(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker, 3)
        consumed: dict[int, list[bytes]] = defaultdict(list)
        failed: set[bytes] = set()

        def listener(messages: list[MessageClientExt], context: ConsumeContext) -> ConsumeResult | None:
            (message,) = messages
            if message.body.endswith(b"5") and message.body not in failed:
                failed.add(message.body)
                context.suspend_current_queue_time_s = 0.02
                if len(failed) % 2:
                    raise ValueError("once")
                return ConsumeResult.LATER
            consumed[message.queue_id].append(message.body)
            return None

        sent: dict[int, list[bytes]] = defaultdict(list)
        async with producing(broker) as producer:
            for i in range(60):
                body = b"%02d" % i
                result = await producer.send(Message(topic, body), selector=select_by_hash(str(i % 7)))
                sent[result.message_queue.queue_id].append(body)
        config = ConsumerConfig(consume_from_where=FIRST)
        group = new_name("GID")
        async with PushConsumer(group, broker.namesrv, listener, config, orderly=True) as consumer:
            consumer.subscribe(topic)
            await until_async(lambda: sum(map(len, consumed.values())) >= 60)
        assert consumed == sent and len(failed) == 6

    run(main())


def test_broadcasting(broker: Broker, tmp_path: Path) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker), new_name("GID")
        config = ConsumerConfig(
            consume_from_where=FIRST,
            message_model=MessageModel.BROADCASTING,
            local_offset_store_dir=str(tmp_path),
        )

        def client(name: str) -> ClientConfig:
            return ClientConfig(namesrv_addr=broker.namesrv, instance_name=name)

        a, b, again = Collector(), Collector(), Collector()
        async with producing(broker) as producer:
            async with (
                PushConsumer(group, client("a"), a, config) as one,
                PushConsumer(group, client("b"), b, config) as two,
            ):
                one.subscribe(topic)
                two.subscribe(topic)
                for i in range(20):
                    await producer.send(Message(topic, b"%d" % i))
                await until_async(lambda: len(a.messages) >= 20 and len(b.messages) >= 20)
            await producer.send(Message(topic, b"last"))
            async with PushConsumer(group, client("a"), again, config) as one:
                one.subscribe(topic)
                await until_async(lambda: again.messages)
        assert sorted(a.bodies) == sorted(b.bodies) == sorted(b"%d" % i for i in range(20))
        assert again.bodies == [b"last"]

    run(main())


def test_tags_and_sql92(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker, 2)
        async with producing(broker) as producer:
            for i in range(30):
                await producer.send(Message(topic, b"%d" % i, "abc"[i % 3], properties={"n": str(i)}))
        config = ConsumerConfig(consume_from_where=FIRST)
        tagged, chosen = Collector(), Collector()
        async with (
            PushConsumer(new_name("GID"), broker.namesrv, tagged, config) as one,
            PushConsumer(new_name("GID"), broker.namesrv, chosen, config) as two,
        ):
            one.subscribe(topic, "a || c")
            two.subscribe(topic, MessageSelector.by_sql("n BETWEEN 5 AND 9 AND TAGS <> 'b'"))
            await until_async(lambda: len(tagged.messages) >= 20 and len(chosen.messages) >= 3)
        assert sorted(map(int, tagged.bodies)) == [i for i in range(30) if i % 3 != 1]
        assert sorted(map(int, chosen.bodies)) == [5, 6, 8, 9]
        bad = PushConsumer(new_name("GID"), broker.namesrv, Collector())
        bad.subscribe(topic, MessageSelector.by_sql("n >"))
        with pytest.raises(ResponseError) as refused:
            await bad.start()
        assert refused.value.code == 23

    run(main())


def test_retries_until_a_message_is_a_dead_letter(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker), new_name("GID")
        tries: list[tuple[str, int]] = []

        async def listener(messages: list[MessageClientExt], context: ConsumeContext) -> None:
            (message,) = messages
            tries.append((message.topic, message.reconsume_times))
            context.delay_level_when_next_consume = 1
            raise RuntimeError("never")

        config = ConsumerConfig(consume_from_where=FIRST, max_reconsume_times=2)
        async with PushConsumer(group, broker.namesrv, listener, config) as consumer, producing(broker) as p:
            consumer.subscribe(topic)
            await p.send(Message(topic, b"poison", "t", "k"))
            await until_async(lambda: len(tries) >= 3)
        assert tries == [(topic, 0), (topic, 1), (topic, 2)]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(TopicNotFoundError):
                    (dead,) = await everything(broker, f"%DLQ%{group}", 1)
                    break
                await asyncio.sleep(0.05)
        assert (dead.body, dead.tags, dead.keys) == (b"poison", "t", "k")

    run(main())


def test_what_a_broker_does_not_take_back_is_sent_to_the_retry_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic = await new_topic(broker)
        times: list[int] = []

        async def listener(messages: list[MessageClientExt], _: ConsumeContext) -> ConsumeResult:
            times.append(messages[0].reconsume_times)
            return ConsumeResult.LATER if len(times) == 1 else ConsumeResult.SUCCESS

        async def refused(*_: object) -> None:
            raise ResponseError(1, "not today")

        config = ConsumerConfig(consume_from_where=FIRST)
        async with PushConsumer(new_name("GID"), broker.namesrv, listener, config) as consumer:
            monkeypatch.setattr(consumer.client.api, "consumer_send_message_back", refused)
            consumer.subscribe(topic)
            async with producing(broker) as producer:
                await producer.send(Message(topic, b"again"))
            await until_async(lambda: len(times) == 2)
        assert times == [0, 1]

    run(main())


def test_a_namespace_is_not_seen_inside(broker: Broker) -> None:
    async def main() -> None:
        topic, group = new_name("topic"), new_name("GID")
        where = ClientConfig(namesrv_addr=broker.namesrv, namespace="ns")
        got: list[tuple[str, int]] = []

        async def listener(messages: list[MessageClientExt], context: ConsumeContext) -> ConsumeResult:
            got.append((messages[0].topic, messages[0].reconsume_times))
            context.delay_level_when_next_consume = 1
            return ConsumeResult.LATER if len(got) == 1 else ConsumeResult.SUCCESS

        config = ConsumerConfig(consume_from_where=FIRST)
        async with Producer(new_name("PID"), where) as producer:
            result = await producer.send(Message(topic, b"x"))
            assert result.message_queue.topic == topic
            async with PushConsumer(group, where, listener, config) as consumer:
                consumer.subscribe(topic)
                await until_async(lambda: len(got) == 2)
        assert got == [(topic, 0), (topic, 1)]
        (found,) = await everything(broker, f"ns%{topic}", 1)
        assert found.topic == f"ns%{topic}"

    run(main())


@pytest.mark.parametrize("strategy", [None, averagely_by_circle])
def test_consumers_come_and_go(broker: Broker, strategy: object) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker, 6), new_name("GID")
        settings = {} if strategy is None else {"allocate_message_queue_strategy": strategy}
        config = ConsumerConfig(consume_from_where=FIRST, **settings)  # type: ignore[arg-type]
        a, b = Collector(), Collector()

        def own(consumer: PushConsumer) -> set[int]:
            return {queue.queue_id for queue in consumer.process_queue_table if queue.topic == topic}

        async with producing(broker) as producer, contextlib.AsyncExitStack() as late:
            sending = True

            async def load() -> int:
                sent = 0
                while sending:
                    await producer.send(Message(topic, b"%d" % sent))
                    sent += 1
                return sent

            one = PushConsumer(group, broker.namesrv, a, config)
            one.subscribe(topic)
            await late.enter_async_context(one)
            loading = asyncio.ensure_future(load())
            await until_async(lambda: len(own(one)) == 6)
            two = PushConsumer(group, broker.namesrv, b, config)
            two.subscribe(topic)
            async with two:
                await until_async(lambda: len(own(one)) == len(own(two)) == 3)
                assert not own(one) & own(two)
                if strategy is not None:
                    assert {frozenset(own(one)), frozenset(own(two))} == {
                        frozenset({0, 2, 4}),
                        frozenset({1, 3, 5}),
                    }
                await until_async(lambda: len(b.messages) > 20)
            await until_async(lambda: len(own(one)) == 6)
            sending = False
            sent = await loading
            await until_async(lambda: len(set(a.bodies) | set(b.bodies)) >= sent)

    run(main())


def test_a_java_consumer_shares_the_queues(broker: Broker, java_clients: JavaClients) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker, 4), new_name("GID")
        ours = Collector()
        consumer = PushConsumer(group, broker.namesrv, ours, ConsumerConfig(consume_from_where=FIRST))
        consumer.subscribe(topic)
        async with consumer:

            def own() -> set[int]:
                return {queue.queue_id for queue in consumer.process_queue_table if queue.topic == topic}

            await until_async(lambda: len(own()) == 4)
            theirs = await asyncio.to_thread(java_clients.push, broker, group, topic)
            try:
                await until_async(lambda: len(own()) == 2)
                async with asyncio.timeout(PATIENCE_S):
                    while len(javas := await asyncio.to_thread(theirs.queues, topic)) != 2:
                        await asyncio.sleep(0.05)
                assert own() | javas == {0, 1, 2, 3}
            finally:
                await asyncio.to_thread(theirs.stop)
            await until_async(lambda: len(own()) == 4)

    run(main())


def test_pulling_by_hand(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker, 2), new_name("GID")
        async with producing(broker) as producer:
            queue, other = await producer.fetch_publish_message_queues(topic)
            for i in range(40):
                await producer.send(Message(topic, b"%d" % i, "even" if i % 2 == 0 else "odd"), queue=queue)
            await producer.send(Message(topic, b"other"), queue=other)
        config = ConsumerConfig(consume_from_where=FIRST, auto_commit=False)

        async with PullConsumer(group, broker.namesrv, config) as consumer:

            async def poll(count: int) -> list[bytes]:
                found: list[bytes] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(found) < count:
                        found += [m.body for m in await consumer.poll(0.2, count - len(found))]
                return found

            async def all_there() -> bool:
                return await consumer.max_offset(queue) == 40

            await until_async(all_there, "the broker's queues have come after its log")
            await consumer.assign([queue])
            assert consumer.assignment() == {queue} and await consumer.committed(queue) is None
            assert await poll(10) == [b"%d" % i for i in range(10)]
            assert consumer.position(queue) == 10
            await consumer.commit()
            assert await consumer.committed(queue) == 10
            await consumer.seek(queue, 35)
            assert await poll(5) == [b"%d" % i for i in range(35, 40)]
            await consumer.seek_to_begin(queue)
            assert await poll(2) == [b"0", b"1"]
            consumer.pause([queue])
            assert await consumer.poll(0.1) == []
            consumer.resume([queue])
            assert await poll(1) == [b"2"]
            await consumer.seek_to_end(queue)
            assert await consumer.poll(0.1) == []
            assert (await consumer.begin_offset(queue), await consumer.max_offset(queue)) == (0, 40)
            assert await consumer.offset_for_timestamp(queue, 0) == 0
            with pytest.raises(ClientError, match="from 0 to 40, not 41"):
                await consumer.seek(queue, 41)
            await consumer.assign([other])
            assert await poll(1) == [b"other"]
            result = await consumer.pull(queue, 38)
            assert [m.body for m in result.messages()] == [b"38", b"39"] and result.next_begin_offset == 40

        async with PullConsumer(group, broker.namesrv, config) as consumer:
            await consumer.assign([queue], "odd")
            found = await consumer.poll(PATIENCE_S)
            assert [m.body for m in found][:3] == [b"11", b"13", b"15"]

    run(main())


def test_pulling_as_a_group(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker), new_name("GID")
        async with producing(broker) as producer:
            for i in range(20):
                await producer.send(Message(topic, b"%d" % i))
        config = ConsumerConfig(consume_from_where=FIRST)

        async def take(count: int) -> list[int]:
            consumer = PullConsumer(group, broker.namesrv, config)
            consumer.subscribe(topic)
            found: list[int] = []
            async with consumer, asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    found += [int(m.body) for m in await consumer.poll(0.2, count - len(found))]
            return found

        assert sorted(await take(12) + await take(8)) == list(range(20))

    run(main())


def test_what_operators_ask_of_a_consumer(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker), new_name("GID")
        got = Collector()
        consumer = PushConsumer(group, broker.namesrv, got, ConsumerConfig(consume_from_where=FIRST))
        consumer.subscribe(topic)
        async with consumer, producing(broker) as producer, RemotingClient() as remoting:
            api, client_id = BrokerAPI(remoting, timeout_s=PATIENCE_S), consumer.client.client_id
            result = await producer.send(Message(topic, b"x"))
            await until_async(lambda: got.messages)
            connection = await api.get_consumer_connection_list(broker.address, group)
            assert [c.client_id for c in connection.connection_set] == [client_id]
            assert connection.connection_set[0].language == "PYTHON"
            info = await api.get_consumer_running_info(broker.address, group, client_id)
            assert {queue.queue_id for queue in info.mq_table if queue.topic == topic} == {0, 1, 2, 3}
            status = await api.invoke_broker_to_get_consumer_status(broker.address, topic, group)
            assert status[client_id][result.message_queue] == result.queue_offset + 1
            direct = await api.consume_message_directly(
                broker.address, group, client_id, topic, result.offset_msg_id
            )
            assert direct.consume_result is CMResult.CR_SUCCESS and len(got.messages) == 2
            await api.invoke_broker_to_reset_offset(broker.address, topic, group, 0)
            # the broker tells of it when the pull that it holds comes to an end
            await producer.send(Message(topic, b"y"), queue=result.message_queue)
            await until_async(lambda: sorted(got.bodies) == [b"x", b"x", b"x", b"y"])

    run(main())


@pytest.mark.parametrize("failures", [0, 2])
def test_no_rebalance_undoes_a_reset(broker: Broker, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """One that came before the broker knew the new offset took the queue at the old one."""

    async def main() -> None:
        topic, group = await new_topic(broker, 1), new_name("GID")
        got = Collector()
        config = ConsumerConfig(consume_from_where=FIRST, pull_time_delay_when_exception_s=0.01)
        consumer = PushConsumer(group, broker.namesrv, got, config)
        consumer.subscribe(topic)
        async with consumer, producing(broker) as producer:
            result = await producer.send(Message(topic, b"x"))
            queue, store = result.message_queue, consumer.offset_store
            await until_async(lambda: store.offset_table.get(queue) == 1)
            persist = store.persist
            assert await persist([queue], surely=True)
            tries = 0

            async def beside_a_rebalance(queues: Iterable[MessageQueue], *, surely: bool = False) -> bool:
                nonlocal tries
                tries += surely
                await consumer.do_rebalance()
                return tries > failures and await persist(queues, surely=surely)

            monkeypatch.setattr(store, "persist", beside_a_rebalance)
            await consumer.reset_offset(topic, {queue: 0})
            assert tries == failures + 1
            monkeypatch.undo()
            await until_async(lambda: got.bodies == [b"x", b"x"])

    run(main())


# --- trouble


def test_a_listener_that_takes_too_long(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker, 1)
        tries: list[int] = []
        end = asyncio.Event()

        async def listener(messages: list[MessageClientExt], _: ConsumeContext) -> None:
            tries.append(messages[0].reconsume_times)
            if len(tries) == 1:
                await end.wait()

        config = ConsumerConfig(consume_from_where=FIRST, consume_timeout_s=0.2)
        async with PushConsumer(new_name("GID"), broker.namesrv, listener, config) as consumer:
            consumer.subscribe(topic)
            async with producing(broker) as producer:
                await producer.send(Message(topic, b"x"))
            await until_async(lambda: len(tries) == 2)
            end.set()
        assert tries == [0, 1]

    run(main())


def test_an_offset_that_the_queue_does_not_have(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker, 1), new_name("GID")
        got = Collector()
        async with producing(broker) as producer, RemotingClient() as remoting:
            await producer.send(Message(topic, b"old"))
            async with PushConsumer(group, broker.namesrv, Collector()) as once:
                once.subscribe(topic)  # the group exists from now on
                await until_async(lambda: any(queue.topic == topic for queue in once.process_queue_table))
            await BrokerAPI(remoting).update_consumer_offset(broker.address, group, topic, 0, 10**6)
            async with PushConsumer(group, broker.namesrv, got) as consumer:
                consumer.subscribe(topic)
                await until_async(lambda: 1 in consumer.consumer_status(topic).values())
                await producer.send(Message(topic, b"new"))
                await until_async(lambda: got.messages)
        assert got.bodies == [b"new"]

    run(main())


def test_flow_control_and_a_pause(broker: Broker) -> None:
    async def main() -> None:
        topic, other = await new_topic(broker, 1), await new_topic(broker, 1)
        end = asyncio.Event()
        got: list[bytes] = []

        async def listener(messages: list[MessageClientExt], _: ConsumeContext) -> None:
            await end.wait()
            got.extend(message.body for message in messages)

        config = ConsumerConfig(consume_from_where=FIRST, pull_threshold_for_queue=50, pull_batch_size=10)
        async with (
            producing(broker) as producer,
            PushConsumer(new_name("GID"), broker.namesrv, listener, config) as consumer,
        ):
            consumer.subscribe(topic)
            await producer.send_batch([Message(topic, b"%d" % i) for i in range(300)])

            def cached() -> int:
                return sum(
                    len(pq) for queue, pq in consumer.process_queue_table.items() if queue.topic == topic
                )

            await until_async(lambda: cached() > 50)
            await asyncio.sleep(0.1)
            assert 50 < cached() <= 60
            end.set()
            await until_async(lambda: len(got) == 300)
            # a topic that comes later, and one that goes
            await producer.send(Message(other, b"other"))
            consumer.subscribe(other)
            consumer.unsubscribe(topic)
            await until_async(lambda: got[300:] == [b"other"])
            await until_async(lambda: all(queue.topic != topic for queue in consumer.process_queue_table))
            await producer.send(Message(topic, b"unheard"))
            consumer.suspend()
            await producer.send(Message(other, b"one more"))
            consumer.resume()
            await until_async(lambda: b"one more" in got)
            assert b"unheard" not in got

    run(main())


def test_a_topic_that_nobody_has(broker: Broker) -> None:
    async def main() -> None:
        async with producing(broker, create_topic_key="none") as producer:
            with pytest.raises(TopicNotFoundError, match="autoCreateTopicEnable"):
                await producer.send(Message("no_such_topic", b"x"))
        async with PullConsumer(new_name("GID"), broker.namesrv) as consumer:
            with pytest.raises(TopicNotFoundError, match="code 17"):
                await consumer.fetch_message_queues("no_such_topic")

    run(main())


def test_properties_travel_as_they_are(broker: Broker) -> None:
    async def main() -> None:
        topic = await new_topic(broker, 1)
        properties = {"empty": "", "sign": "=;\n\t\"'", "wide": "漢字🚀"}
        async with producing(broker) as producer:
            await producer.send(Message(topic, b"x", properties=dict(properties)))
        (found,) = await everything(broker, topic, 1)
        assert {name: found.properties.get(name, "") for name in properties} == properties
        assert properties_to_string(found.properties)

    run(main())


def test_a_broker_killed_under_load_loses_and_disorders_nothing(broker: Broker) -> None:
    async def main() -> None:
        topic, group = await new_topic(broker, 2), new_name("GID")
        consumed: dict[int, list[MessageClientExt]] = defaultdict(list)
        acknowledged: set[bytes] = set()
        stop = asyncio.Event()

        async def listener(messages: list[MessageClientExt], context: ConsumeContext) -> None:
            consumed[context.message_queue.queue_id] += messages

        async def load(producer: Producer, shard: int) -> None:
            queues = await producer.fetch_publish_message_queues(topic)
            for i in itertools.count():
                if stop.is_set():
                    return
                body = b"%d-%d" % (shard, i)
                while not stop.is_set():
                    # the same message until it is acknowledged: the next comes only then
                    with contextlib.suppress(SendError):
                        await producer.send(
                            Message(topic, body), queue=queues[shard % 2], timeout_s=PATIENCE_S
                        )
                        acknowledged.add(body)
                        break
                    await asyncio.sleep(0.05)

        consumer = PushConsumer(
            group, broker.namesrv, listener, ConsumerConfig(consume_from_where=FIRST), orderly=True
        )
        consumer.subscribe(topic)
        async with consumer, producing(broker) as producer:
            loads = [asyncio.ensure_future(load(producer, shard)) for shard in range(4)]
            await until_async(lambda: len(acknowledged) > 200)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            back = len(acknowledged)
            await until_async(lambda: len(acknowledged) > back + 200)
            stop.set()
            await asyncio.gather(*loads)

            def seen() -> set[bytes]:
                return {message.body for found in consumed.values() for message in found}

            await until_async(lambda: seen() >= acknowledged)
        for found in consumed.values():
            firsts: dict[int, MessageClientExt] = {}
            for message in found:
                firsts.setdefault(message.queue_offset, message)
            assert list(firsts) == sorted(firsts)
            for shard in range(4):
                numbers = [
                    int(body[1])
                    for message in firsts.values()
                    if int((body := message.body.split(b"-"))[0]) == shard
                ]
                assert numbers == sorted(numbers)

    run(main())
