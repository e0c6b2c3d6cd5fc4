"""Producers, consumers and browsers against the broker, over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mqlake.errors import (
    ConfigError,
    FormatError,
    IllegalTopicError,
    MessageError,
    RemotingConnectError,
    TransactionError,
    XAError,
)
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.client import (
    ConsumerConfig,
    Message,
    MessageConsumer,
    MetaMessageSessionFactory,
    Partition,
    ProducerXATransaction,
    XATransactionId,
)
from mqlake.metaq.client.consumer import MAX_OFFSET
from mqlake.metaq.client.producer import by_key, random_partition
from mqlake.metaq.client.recover import RecoverManager
from mqlake.metaq.config import MetaConfig, SystemConfig, ZKConfig
from mqlake.metaq.formats.record import encode_record
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.remoting.loop import run
from tests.metaq.broker.test_broker_zookeeper import expire
from tests.metaq.brokers import HOST
from tests.waiting import PATIENCE_S, trying, until_async

TOPICS = {"t": {"numPartitions": "3"}, "u": {}, "no-pub": {"acceptPublish": "false"}}
QUICK: dict[str, Any] = {"max_delay_fetch_s": 0.1, "commit_offset_period_s": 0.1}


class Cluster:
    """Brokers under one root of ZooKeeper, and sessions."""

    def __init__(self, zookeeper: EmbeddedZookeeper, path: Path) -> None:
        self.path = path
        self.zk = ZKConfig(
            zk_connect=zookeeper.connect_string,
            zk_root=f"/{path.name}",
            zk_session_timeout_ms=20_000,
            zk_sync_time_ms=50,
        )
        self._stack = contextlib.AsyncExitStack()

    async def broker(self, broker_id: int = 0) -> MetaMorphosisBroker:
        system = SystemConfig(
            broker_id=broker_id,
            data_path=str(self.path / str(broker_id)),
            server_port=0,
            host_name=HOST,
            unflush_threshold=0,
        )
        broker = MetaMorphosisBroker(MetaConfig(system, self.zk, TOPICS), host=HOST)
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        return broker

    async def session(self) -> MetaMessageSessionFactory:
        return await self._stack.enter_async_context(MetaMessageSessionFactory(zk_config=self.zk))

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@pytest.fixture
def live(
    zookeeper: EmbeddedZookeeper, tmp_path: Path
) -> Callable[[Callable[[Cluster], Coroutine[Any, Any, None]]], None]:
    def with_cluster(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(2 * PATIENCE_S), Cluster(zookeeper, tmp_path) as cluster:
                await test(cluster)

        run(whole())

    return with_cluster


Live = Callable[[Callable[[Cluster], Coroutine[Any, Any, None]]], None]


@contextlib.asynccontextmanager
async def collecting(
    session: MetaMessageSessionFactory, group: str = "g", topic: str = "t", **config: Any
) -> AsyncIterator[tuple[MessageConsumer, list[Message]]]:
    found: list[Message] = []
    consumer = session.create_consumer(ConsumerConfig(group=group, **{**QUICK, **config}))
    consumer.subscribe(topic, found.append)
    await consumer.complete_subscribe()
    yield consumer, found
    await consumer.shutdown()


def test_from_a_producer_to_a_consumer(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        broker = await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("t")
        sent = [Message("t", b"%d" % i, f"a{i}" if i % 2 else None) for i in range(30)]
        results = [await producer.send_message(message) for message in sent]
        assert all(result.success for result in results)
        assert [result.partition for result in results[:4]] == [Partition(0, p) for p in (1, 2, 0, 1)]
        assert sent[0].id == results[0].message_id and sent[0].partition == Partition(0, 1)
        async with collecting(session) as (consumer, found):
            await until_async(lambda: len(found) == 30)
            assert sorted((m.data, m.attribute or "") for m in found) == sorted(
                (m.data, m.attribute or "") for m in sent
            )
            assert found[0].read_only
            with pytest.raises(MessageError):
                found[0].data = b"x"
            assert consumer.owned_partitions == [("t", Partition(0, p)) for p in range(3)]
        async with (
            collecting(session) as (_, again),
            collecting(session, "other", offset=MAX_OFFSET) as (_, late),
        ):
            await producer.send_message(Message("t", b"new"))
            await until_async(lambda: len(again) == 1 and len(late) == 1)
            assert again[0].data == late[0].data == b"new"
        browsed = [message async for message in session.create_topic_browser("t")]
        assert len(browsed) == 31 and len({message.id for message in browsed}) == 31
        stats = await session.stats()
        assert stats[broker.broker_string]["total_messages"] == "31"

    live(test)


def test_local_transactions(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        for broker_id in range(2):
            await cluster.broker(broker_id)
        session = await cluster.session()
        producer = session.create_producer(random_partition)
        await producer.publish("t")
        await producer.publish("u")
        async with producer.begin_transaction() as transaction:
            for i in range(10):
                result = await transaction.send_message(Message("tu"[i % 2], b"yes"))
                assert result.success and result.offset == -1
        with pytest.raises(RuntimeError):
            async with producer.begin_transaction(timeout_s=60) as transaction:
                await transaction.send_message(Message("t", b"no"))
                raise RuntimeError
        empty = producer.begin_transaction()
        await empty.commit()
        with pytest.raises(TransactionError, match="has ended"):
            await empty.rollback()
        found = [m async for m in session.create_topic_browser("t")]
        found += [m async for m in session.create_topic_browser("u")]
        assert [m.data for m in found] == [b"yes"] * 10
        assert len({m.partition.broker_id for m in found if m.partition}) == 1

    live(test)


def xid_of(number: int) -> XATransactionId:
    return XATransactionId(7, b"global %d" % number, b"branch", "resource")


async def xa_conversation(session: MetaMessageSessionFactory, topic: str) -> list[bytes]:
    """Transactions that end in every way; what must be in the topic then. On any broker."""
    producer = session.create_producer()
    await producer.publish(topic)

    async def begun(number: int) -> ProducerXATransaction:
        transaction = producer.begin_xa_transaction(xid_of(number), timeout_s=60)
        assert (await transaction.send_message(Message(topic, b"%d" % number))).success
        return transaction

    one = await begun(1)
    assert await one.prepare()
    with pytest.raises(TransactionError, match="takes no more"):
        await one.send_message(Message(topic, b""))
    await one.commit()
    await (await begun(2)).commit()
    three = await begun(3)
    assert await three.prepare()
    await three.rollback()
    assert not await producer.begin_xa_transaction(xid_of(4)).prepare()
    assert await (await begun(5)).prepare()
    (five,) = await producer.recover_xa("resource")
    assert five.xid == xid_of(5) and await producer.recover_xa("other") == []
    await five.commit()
    assert await producer.recover_xa("resource") == []
    with pytest.raises(XAError) as caught:
        await ProducerXATransaction(producer, xid_of(9), prepared_at=five._address).commit()
    assert caught.value.code == -4
    return [b"1", b"2", b"5"]


def test_xa_transactions(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        expected = await xa_conversation(session, "u")
        assert [m.data async for m in session.create_topic_browser("u")] == expected

    live(test)


def test_consumers_come_and_go_and_nothing_is_lost(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        for broker_id in range(2):
            await cluster.broker(broker_id)
        sessions = [await cluster.session() for _ in range(3)]
        producer = sessions[0].create_producer()
        await producer.publish("t")
        taken: list[bytes] = []

        async def take(message: Message) -> None:
            await asyncio.sleep(0)
            taken.append(message.data)

        consumers = [session.create_consumer(ConsumerConfig(group="g", **QUICK)) for session in sessions]
        sending = True
        sent: list[bytes] = []

        async def send() -> None:
            while sending:
                sent.append(b"%d" % len(sent))
                assert (await producer.send_message(Message("t", sent[-1]))).success
                await asyncio.sleep(0.002)

        sender = asyncio.ensure_future(send())
        for number, consumer in enumerate(consumers):
            consumer.subscribe("t", take)
            await consumer.complete_subscribe()
            shares = 6 // (number + 1)
            await until_async(
                lambda shares=shares, n=number: all(
                    len(c.owned_partitions) == shares for c in consumers[: n + 1]
                )
            )
        owned = [each for consumer in consumers for each in consumer.owned_partitions]
        assert len(set(owned)) == len(owned) == 6
        await consumers[0].shutdown()
        await until_async(lambda: sum(len(c.owned_partitions) for c in consumers[1:]) == 6)
        sending = False
        await sender
        await until_async(lambda: set(taken) == set(sent))
        assert len(taken) == len(sent)

    live(test)


def test_a_message_that_is_refused_comes_again_and_goes_to_the_handler_at_last(
    live: Live, tmp_path: Path
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("u")
        for body in (b"good", b"bad", b"shy", b"end"):
            await producer.send_message(Message("u", body))
        offered: list[bytes] = []
        patience = 2

        def listener(message: Message) -> None:
            nonlocal patience
            offered.append(message.data)
            if message.data == b"bad":
                raise ValueError("I do not like it")
            if message.data == b"shy" and patience:
                patience -= 1
                message.rollback_only = True

        recover = RecoverManager(str(tmp_path / "recover"), first_retry_s=1000)
        consumer = session.create_consumer(
            ConsumerConfig(group="g", max_delay_fetch_s=0.02, max_fetch_retries=3), recover
        )
        consumer.subscribe("u", listener)
        await consumer.complete_subscribe()
        await until_async(lambda: b"end" in offered)
        assert offered == [b"good", *[b"bad"] * 4, *[b"shy"] * 3, b"end"]
        assert [m.data for m in recover.kept("u", "g")] == [b"bad"]
        await recover.retry("g", {"u": listener})
        assert len(recover.kept("u", "g")) == 1
        await recover.retry("g", {"u": lambda message: offered.append(message.data)})
        assert recover.kept("u", "g") == [] and offered[-1] == b"bad"

    live(test)


async def put_all(session: MetaMessageSessionFactory, topic: str, *data: bytes) -> None:
    """One after the other."""
    producer = session.create_producer()
    await producer.publish(topic)
    for body in data:
        assert (await producer.send_message(Message(topic, body))).success


def test_a_handler_that_cannot_take_a_message_is_asked_again(
    live: Callable[[Callable[[Cluster], Coroutine[Any, Any, None]]], None],
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        await put_all(session, "u", b"bad", b"good")
        offered: list[bytes] = []
        asked: list[bytes] = []

        def listener(message: Message) -> None:
            offered.append(message.data)
            message.rollback_only = message.data == b"bad"

        def reject(_: str, message: Message) -> None:
            asked.append(message.data)
            if len(asked) < 3:
                raise OSError("no space left")

        config = ConsumerConfig(group="g", max_delay_fetch_s=0.02, max_fetch_retries=1)
        consumer = session.create_consumer(config, reject)
        consumer.subscribe("u", listener)
        await consumer.complete_subscribe()
        await until_async(lambda: b"good" in offered)
        assert asked == [b"bad"] * 3

    live(test)


def test_a_browser_tells_of_closed_partitions_and_of_damage(
    live: Callable[[Callable[[Cluster], Coroutine[Any, Any, None]]], None],
) -> None:
    async def test(cluster: Cluster) -> None:
        broker = await cluster.broker()
        session = await cluster.session()
        await put_all(session, "t", *(b"%d" % i for i in range(6)))
        broker.config.close_partitions("t", 1, 1)
        browser = session.create_topic_browser("t")
        assert len([message async for message in browser]) == 4 and browser.closed == [Partition(0, 1)]
        path = cluster.path / "0" / "t-2" / f"{0:020d}.meta"
        raw = bytearray(path.read_bytes())
        raw[21 + 20] ^= 1
        path.write_bytes(raw)
        with pytest.raises(FormatError, match=r"byte 21: t 0-2: .* checksum"):
            [message async for message in session.create_topic_browser("t")]
        with path.open("r+b") as file:
            file.seek(21)
            file.write(b"\x7f")
        with pytest.raises(FormatError, match=r"byte 21: t 0-2: 21 bytes at the end are not a message"):
            [message async for message in session.create_topic_browser("t")]

    live(test)


def test_broadcast_consumers_get_everything_and_go_on_where_their_file_says(
    live: Live, tmp_path: Path
) -> None:
    path = str(tmp_path / "offsets")

    async def take(session: MetaMessageSessionFactory, count: int) -> list[bytes]:
        found: list[Message] = []
        consumer = session.create_broadcast_consumer(ConsumerConfig(group="b", **QUICK), offsets_path=path)
        assert consumer.config.group.startswith("b-") and "." not in consumer.config.group
        consumer.subscribe("t", found.append)
        await consumer.complete_subscribe()
        await until_async(lambda: len(found) == count)
        await consumer.shutdown()
        return sorted(message.data for message in found)

    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("t")
        for n in range(6):
            await producer.send_message(Message("t", b"%d" % n))
        async with collecting(session, "b") as (_, others):
            assert await take(session, 6) == [b"%d" % n for n in range(6)]
            await until_async(lambda: len(others) == 6)
        await producer.send_message(Message("t", b"new"))
        assert await take(session, 1) == [b"new"]
        (group,) = json.loads(Path(path).read_bytes())
        assert session.zookeeper.children(f"{session.paths.consumers}/{group}/offsets") == []
        Path(path).write_bytes(b"{x")
        with pytest.raises(FormatError, match="is not a file of offsets"):
            await take(session, 1)

    live(test)


def test_messages_larger_than_a_fetch(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("u")
        for size in (10, 50_000, 20):
            await producer.send_message(Message("u", bytes(size)))
        found: list[int] = []
        consumer = session.create_consumer(
            ConsumerConfig(group="g", max_delay_fetch_s=0.02, max_increase_fetch_data_retries=0)
        )
        consumer.subscribe("u", lambda message: found.append(len(message.data)), max_size=100)
        await consumer.complete_subscribe()
        await until_async(lambda: found == [10, 50_000, 20])

    live(test)


@pytest.mark.parametrize(
    "inside", [b"\x7f", b"\xff", b"\x00\x00\x00\x01\x02"], ids=["long", "below 0", "crc"]
)
def test_a_consumer_whose_offset_leads_into_a_message_finds_its_way(live: Live, inside: bytes) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("u")
        bodies = [inside * 20, b"second", b"third"]
        for body in bodies:
            await producer.send_message(Message("u", body))
        path = session.paths.consumer_offset("g", "u", Partition(0, 0))
        await session.ask(lambda zookeeper: zookeeper.put_persistent(path, b"-1-20"))
        config: dict[str, Any] = {"max_delay_fetch_s": 0.02, "max_increase_fetch_data_retries": 1}
        async with collecting(session, topic="u", **config) as (_, found):
            await until_async(lambda: len(found) == 3)
            assert [message.data for message in found] == bodies

    live(test)


@pytest.mark.parametrize("hit", [(1,), (1, 2), (3,), (0, 3)])
def test_a_damaged_payload_is_passed_over_alone(
    live: Live, caplog: pytest.LogCaptureFixture, hit: tuple[int, ...]
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("u")
        bodies = [b"body %d" % number for number in range(4)]
        for body in bodies:
            await producer.send_message(Message("u", body))
        path = cluster.path / "0" / "u-0" / f"{0:020d}.meta"
        with path.open("r+b") as file:
            for number in hit:
                file.seek(number * 26 + 20)
                file.write(b"B")
        async with collecting(session, topic="u", max_delay_fetch_s=0.02) as (_, found):
            await until_async(lambda: "skips the damaged" in caplog.text)
            await producer.send_message(Message("u", b"later"))
            await until_async(lambda: bool(found) and found[-1].data == b"later")
            expected = [body for number, body in enumerate(bodies) if number not in hit]
            assert [message.data for message in found] == [*expected, b"later"]

    live(test)
    for number in hit[:1]:
        assert f"u 0-0: skips the damaged bytes {number * 26} to " in caplog.text


def test_a_message_that_is_long_in_coming_is_offered_like_any_other(live: Live) -> None:
    """A broker may give the part of a record that is there already."""

    async def test(cluster: Cluster) -> None:
        broker = await cluster.broker()
        store = broker.manager.get_or_create("u", 0)
        first, late = (encode_record(body, n, 0) for n, body in enumerate((b"first", b"late"), 1))
        store.append(first + late[:-1])
        store.flush()
        session = await cluster.session()
        rejected: list[Message] = []
        offered: list[bytes] = []
        consumer = session.create_consumer(
            ConsumerConfig(group="g", max_delay_fetch_s=0.02, max_fetch_retries=0),
            lambda group, message: rejected.append(message),
        )
        consumer.subscribe("u", lambda message: offered.append(message.data))
        await consumer.complete_subscribe()
        asked = broker.stats.cmd_get
        await until_async(lambda: broker.stats.cmd_get > asked + 10)
        assert offered == [b"first"]
        store.append(late[-1:])
        store.flush()
        await until_async(lambda: len(offered) + len(rejected) == 2)
        assert offered == [b"first", b"late"]

    live(test)


def test_who_finds_nothing_asks_less_and_less_often(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        await producer.publish("u")
        async with collecting(session, topic="u", max_delay_fetch_s=0.1) as (consumer, found):
            (owned,) = consumer._owned.values()
            await until_async(lambda: owned.delay_s == 0.1)

            async def asks_sooner() -> bool:
                await producer.send_message(Message("u", b"x"))
                return owned.delay_s < 0.1

            await until_async(asks_sooner)
            assert found

    live(test)


def test_a_broker_that_restarts_under_load(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        broker = await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer(by_key(lambda message: message.data))
        await producer.publish("t")
        async with collecting(session) as (_, found):
            acknowledged = set()
            for i in range(60):
                if i == 30:
                    await broker.stop()
                    await cluster.broker()
                for _ in trying("the message is acknowledged"):
                    try:
                        if (await producer.send_message(Message("t", b"%d" % i))).success:
                            break
                    except (RemotingConnectError, ConnectionError):
                        await asyncio.sleep(0.01)
                acknowledged.add(b"%d" % i)
            await until_async(lambda: {m.data for m in found} >= acknowledged)

    live(test)


def test_a_lost_session_of_the_consumer(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.broker()
        session, other = await cluster.session(), await cluster.session()
        producer = other.create_producer()
        await producer.publish("t")
        async with collecting(session) as (consumer, found):
            await producer.send_message(Message("t", b"before"))
            await until_async(lambda: len(found) == 1)
            old = session.zookeeper.client.client_id
            await asyncio.to_thread(expire, session.zookeeper)
            ids = other.paths.consumer_ids("g")
            owners = f"{other.paths.consumers}/g/owners/t"

            async def is_back() -> bool:
                names = await other.ask(lambda zookeeper: zookeeper.children(ids))
                owned = await other.ask(lambda zookeeper: zookeeper.children(owners))
                return (
                    session.zookeeper.client.client_id != old
                    and names == [consumer.consumer_id]
                    and len(owned) == 3
                )

            await until_async(is_back)
            for i in range(6):
                await producer.send_message(Message("t", b"%d" % i))
            await until_async(lambda: {m.data for m in found} == {b"before", *(b"%d" % i for i in range(6))})
        assert await other.ask(lambda zookeeper: zookeeper.children(owners)) == []

    live(test)


def test_what_cannot_be_done_is_said(live: Live) -> None:
    async def test(cluster: Cluster) -> None:
        broker = await cluster.broker()
        session = await cluster.session()
        producer = session.create_producer()
        with pytest.raises(ConfigError, match="not published"):
            await producer.send_message(Message("t", b""))
        with pytest.raises(IllegalTopicError):
            await producer.publish("a b")
        await producer.publish("no-pub")
        with pytest.raises(RemotingConnectError, match="no broker takes"):
            await producer.send_message(Message("no-pub", b""))
        await producer.publish("t")
        broker.config.close_partitions("t", 0, 2)
        assert (await producer.send_message(Message("t", b""))).error_message == "403"
        consumer = session.create_consumer(ConsumerConfig(group="g"))
        with pytest.raises(ConfigError, match="no subscription"):
            await consumer.complete_subscribe()
        consumer.subscribe("t", print)
        with pytest.raises(ConfigError, match="already"):
            consumer.subscribe("t", print)
        for group in ("", "a/b", "a b", "a.b", "a:b", "a\r\n"):
            with pytest.raises(ConfigError, match="cannot be a group"):
                ConsumerConfig(group=group)
        with pytest.raises(ConfigError):
            MetaMessageSessionFactory()
        direct = MetaMessageSessionFactory(server_url=broker.broker_string)
        async with direct:
            producer = direct.create_producer()
            await producer.publish("u")
            assert (await producer.send_message(Message("u", b"direct"))).partition == Partition(0, 0)
            await producer.publish("nosuch")
            refused = await producer.send_message(Message("nosuch", b""))
            assert (refused.success, refused.offset, refused.message_id) == (False, -1, 0)
            assert refused.error_message.endswith("Detail:The server do not accept topic nosuch")
            with pytest.raises(TransactionError, match="ZooKeeper"):
                await producer.begin_transaction().send_message(Message("u", b""))
            with pytest.raises(ConfigError, match="has no ZooKeeper"):
                [message async for message in direct.create_topic_browser("u")]
        nobody = ZKConfig(zk_connect="127.0.0.1:1", zk_connection_timeout_ms=200)
        with pytest.raises(RemotingConnectError, match="no ZooKeeper answers"):
            await MetaMessageSessionFactory(zk_config=nobody).start()

    live(test)
