"""kombu over real clusters, mqlake's and RocketMQ's: exchanges across connections, prefetch, acknowledgements, and what
does not last. Celery's own promises rest on these."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

import mqlake.adapters.kombu  # noqa: F401 - makes rocketmq:// known
from mqlake.client.blocking import Producer as MqlakeProducer
from mqlake.client.blocking import SimpleConsumer
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.errors import MqlakeError
from mqlake.message import Message
from mqlake.remoting.bodies.client import ConsumeFromWhere
from tests.adapters.late_cluster import LateCluster
from tests.interop.brokers import Broker
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, until

FIRST = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


def connect(broker: Broker | LateCluster, **options: Any) -> Connection:
    return Connection(f"rocketmq://{broker.namesrv}", transport_options=options)


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with connect(broker) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    return f"q.{uuid.uuid4().hex[:8]}"


class Reader:
    """Collects what comes; acknowledges unless told otherwise."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, **options: Any) -> None:
        self.connection, self.got, self.messages = connection, [], []
        self.channel = connection.channel()
        self.acknowledges = True
        self.consumer = Consumer(self.channel, list(queues), callbacks=[self.take], **options)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def take(self, body: Any, message: Any) -> None:
        self.got.append(body)
        self.messages.append(message)
        if self.acknowledges and not self.consumer.no_ack:
            message.ack()

    def until(self, count: int) -> list[Any]:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.got) < count:
            assert time.monotonic() < deadline, self.got
            try:
                self.connection.drain_events(timeout=1)
            except TimeoutError:
                pass
        return self.got

    def nothing_more(self, seconds: float = 0.5) -> None:
        with pytest.raises(socket.timeout):
            self.connection.drain_events(timeout=seconds)


def test_a_queue_gets_what_was_published_before_anybody_read(broker: Broker, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    body = {"text": "größer ✓", "number": 1.5, "many": list(range(100))}
    with connect(broker) as sending:
        producer = Producer(sending)
        producer.publish(body, exchange=queue.exchange, routing_key=name, declare=[queue], headers={"h": "1"})
        producer.publish(
            b"\x00\xff raw",
            exchange="",
            routing_key=name,
            content_type="application/data",
            content_encoding="binary",
        )
    with connect(broker) as receiving:
        reader = Reader(receiving, queue)
        got = reader.until(2)
        assert body in got and b"\x00\xff raw" in got
        assert {message.headers.get("h") for message in reader.messages} == {"1", None}


def test_bindings_of_one_process_count_for_all(broker: Broker, name: str):
    exchange = Exchange(name, "topic")
    orders = Queue(f"{name}.orders", exchange, routing_key="order.#")
    paid = Queue(f"{name}.paid", exchange, routing_key="*.paid")
    with connect(broker) as one, connect(broker) as other:
        readers = [Reader(one, orders), Reader(one, paid)]
        producer = Producer(other, exchange=exchange)  # knows the exchange, and neither queue
        producer.maybe_declare(exchange)
        for key in ("order.new", "order.paid", "refund.paid", "refund.new"):
            producer.publish(key, routing_key=key)
        assert sorted(readers[0].until(2)) == ["order.new", "order.paid"]
        assert sorted(readers[1].until(2)) == ["order.paid", "refund.paid"]
        readers[0].nothing_more()


def test_a_fanout_reaches_every_reader_from_now_on(broker: Broker, name: str):
    exchange = Exchange(name, "fanout")
    lasting = Queue(f"{name}.all", exchange)
    brief = [Queue(f"{name}.{i}", exchange, auto_delete=True, durable=False) for i in range(2)]
    with connect(broker) as one, connect(broker) as other, connect(broker) as sending:
        producer = Producer(sending, exchange=exchange, auto_declare=True)
        readers = [Reader(one, brief[0], no_ack=True), Reader(other, brief[1]), Reader(other, lasting)]
        producer.publish("hello")
        assert [reader.until(1) for reader in readers[:1]] == [["hello"]]
        deadline = time.monotonic() + PATIENCE_S
        while not (readers[1].got and readers[2].got):
            assert time.monotonic() < deadline
            try:
                other.drain_events(timeout=1)
            except TimeoutError:
                pass
        late = Reader(one, Queue(f"{name}.late", exchange, auto_delete=True), no_ack=True)
        late.nothing_more()


def test_replies_come_to_who_declared_the_queue_before_asking(broker: Broker, name: str):
    with connect(broker) as asking, connect(broker) as answering:
        replies = Queue(name, exchange=Exchange(""), routing_key=name, auto_delete=True, durable=False)
        replies(asking.channel()).declare()
        Producer(answering).publish("42", exchange="", routing_key=name)
        assert Reader(asking, replies, no_ack=True).until(1) == ["42"]


def test_no_more_than_the_prefetch_count_is_in_hand(connection: Connection, broker: Broker, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    producer = Producer(connection)
    for i in range(10):
        producer.publish(i, exchange=queue.exchange, routing_key=name, declare=[queue])
    reader = Reader(connection, queue, prefetch=3)
    reader.acknowledges = False
    reader.until(3)
    reader.nothing_more(1.0)
    with connect(broker) as other:  # who gets the rest: nothing is hoarded
        another = Reader(other, queue)
        another.until(7)
    reader.messages[0].ack()
    producer.publish("next", exchange=queue.exchange, routing_key=name)
    reader.until(4)
    assert sorted(map(str, reader.got[:3] + another.got)) == [str(i) for i in range(10)]


def test_a_requeued_message_comes_again_and_says_so(connection: Connection, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    Producer(connection).publish("again", exchange=queue.exchange, routing_key=name, declare=[queue])
    reader = Reader(connection, queue)
    reader.acknowledges = False
    reader.until(1)
    reader.messages[0].requeue()
    reader.until(2)
    assert reader.got == ["again", "again"]
    assert not reader.messages[0].properties.get("redelivered")
    assert reader.messages[1].properties["redelivered"]
    reader.messages[1].ack()


def test_a_rejected_message_and_what_is_no_message_become_dead_letters(
    connection: Connection, broker: Broker, name: str
):
    name = name.replace(".", "-")
    queue = Queue(name, Exchange(name), routing_key=name)
    Producer(connection).publish("bad", exchange=queue.exchange, routing_key=name, declare=[queue])
    with MqlakeProducer("strangers", broker.namesrv) as stranger:
        stranger.send(Message(name, b"not kombu's"))
    reader = Reader(connection, queue)
    reader.acknowledges = False
    reader.until(1)
    reader.messages[0].reject()
    dead: list[bytes] = []
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=1)
    with SimpleConsumer("undertaker", broker.namesrv, FIRST) as consumer:
        consumer.subscribe(f"%DLQ%{name}")

        def both() -> bool:
            try:
                dead.extend(message.body for message in consumer.receive(await_s=1))
            except MqlakeError:  # the topic is made with the first of them
                pass
            return len(dead) >= 2

        until(both)
    assert b"not kombu's" in dead and any(b"bad" in each for each in dead)


def test_what_a_lost_worker_had_comes_to_another_and_what_it_still_has_does_not(broker: Broker, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    # renewed after a third of it: a process that gets no turn for half as long keeps what it has
    with connect(broker, visibility_timeout=12) as lost, connect(broker, visibility_timeout=12) as other:
        producer = Producer(lost)
        for text in ("held", "lost"):
            producer.publish(text, exchange=queue.exchange, routing_key=name, declare=[queue])
        holder = Reader(lost, queue, prefetch=2)
        holder.acknowledges = False
        holder.until(2)
        another = Reader(other, queue)
        another.nothing_more(14.0)  # longer than the time for which a message is invisible: it is renewed
        link = lost.transport.link
        link.run(stop_renewing(link))
        assert sorted(another.until(2)) == ["held", "lost"]


async def stop_renewing(link: Any) -> None:
    """As if its process were gone."""
    link._held._renewing.cancel()


def test_a_closed_connection_leaves_its_messages_to_others(broker: Broker, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    with connect(broker) as first:
        Producer(first).publish("left", exchange=queue.exchange, routing_key=name, declare=[queue])
        reader = Reader(first, queue)
        reader.acknowledges = False
        reader.until(1)
    with connect(broker) as second:
        assert Reader(second, queue).until(1) == ["left"]


def test_higher_priorities_come_first(broker: Broker, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    with connect(broker, priority_steps=[0, 5, 9]) as connection:
        producer = Producer(connection)
        for priority in (0, 4, 5, 8, 9):
            producer.publish(
                priority, exchange=queue.exchange, routing_key=name, declare=[queue], priority=priority
            )
        got = Reader(connection, queue, prefetch=1).until(5)
    steps = [0 if each < 5 else 5 if each < 9 else 9 for each in got]
    assert steps == sorted(steps, reverse=True)


def test_get_size_purge_and_delete(connection: Connection, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    for i in range(5):
        Producer(connection).publish(i, exchange=queue.exchange, routing_key=name)
    until(lambda: queue.queue_declare(passive=True).message_count == 5)
    message = until(queue.get)
    message.ack()
    assert queue.purge() == 4
    assert queue.get() is None
    queue.delete()
    with pytest.raises(connection.channel_errors):
        queue.queue_declare(passive=True)


def test_a_cluster_that_is_away_is_a_connection_error():
    port = free_ports(1)
    with Connection(f"rocketmq://127.0.0.1:{port}") as connection:
        with pytest.raises(connection.connection_errors):
            connection.connect()
        with pytest.raises(OperationalError):  # after its tries, kombu's own
            connection.ensure_connection(max_retries=2, interval_start=0, interval_step=0)


def test_a_broker_that_is_not_registered_yet_is_a_connection_error(tmp_path: Path, name: str):
    queue = Queue(name, Exchange(name), routing_key=name)
    with LateCluster(tmp_path) as cluster:
        cluster.start_name_server()
        with connect(cluster) as connection, pytest.raises(connection.recoverable_connection_errors):
            connection.connect()
        cluster.start_broker()
        with connect(cluster) as making:
            queue(making.channel()).declare()
        with connect(cluster) as sending:
            producer = Producer(sending.channel())
            cluster.kill()
            cluster.start_name_server()
            with pytest.raises(sending.recoverable_connection_errors):
                producer.publish("too early", exchange="", routing_key=name)
            cluster.start_broker()
            producer.publish("in time", exchange="", routing_key=name)  # the queue was never away
        with connect(cluster) as receiving:
            assert Reader(receiving, queue).until(1) == ["in time"]
