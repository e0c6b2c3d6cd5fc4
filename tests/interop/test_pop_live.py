"""Pop with RocketMQ: its push consumer in pop mode, and its broker on a directory with pending checkpoints."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mqlake.message import PROPERTY_FIRST_POP_TIME, pop_retry_topic
from mqlake.remoting.bodies.client import MessageRequestMode, SetMessageRequestModeRequestBody
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.loop import run
from tests.broker.live import now_ms, send_header
from tests.broker.pop.popping import Popped, Popper
from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker, any_broker
from tests.interop.java_client import JavaClients, JavaProducer, message
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.java

_names = itertools.count()
NAME = "broker-a"
SETTINGS = {"brokerName": NAME, "timerWheelEnable": "true", "flushConsumerOffsetInterval": 500}


class Remote:
    """A client of a broker in another process."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.address = broker.address
        self.client = client

    async def ask(
        self, code: int, header: CommandHeader | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        return await self.client.invoke(
            self.address, RemotingCommand.create_request(code, header, body), PATIENCE_S
        )

    async def send(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            answer = await self.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic), body)
            assert answer.code == ResponseCode.SUCCESS, answer


def on(broker: Broker, scene: Callable[[Remote], Awaitable[None]]) -> None:
    async def play() -> None:
        async with RemotingClient() as client, asyncio.timeout(PATIENCE_S):
            await scene(Remote(broker, client))

    run(play())


def in_pop_mode(broker: Broker, topic: str, group: str, share: int = 0) -> None:
    async def scene(remote: Remote) -> None:
        mode = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=MessageRequestMode.POP, pop_share_queue_num=share
        )
        answer = await remote.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode.to_json())
        assert answer.code == ResponseCode.SUCCESS, answer

    on(broker, scene)


# --- RocketMQ's consumer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with any_broker(tmp_path_factory.mktemp("broker"), {"timerWheelEnable": "true"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def producer(broker: Broker, java_clients: JavaClients) -> Iterator[JavaProducer]:
    with java_clients.producer(broker) as producer:
        yield producer


def test_push_consumers_in_pop_mode_share_every_queue(
    java_clients: JavaClients, broker: Broker, producer: JavaProducer
):
    topic, group = f"Pop{next(_names)}", "GID_pop"
    java_clients.topic(broker, topic, 2)
    in_pop_mode(broker, topic, group)
    sent = [b"%d" % n for n in range(60)]
    with (
        java_clients.push(broker, group, topic, pop=True) as first,
        java_clients.push(broker, group, topic, pop=True) as second,
        java_clients.push(broker, group, topic, pop=True) as third,
    ):
        # more members than queues: each is idle or gets some, none is left out by design
        producer.send(topic, "sync", [message(body) for body in sent])

        def found() -> list[bytes]:
            consumers = (first, second, third)
            return [each["body"] for consumer in consumers for each in consumer.take(0, timeout_s=0)]

        until(lambda: len(found()) >= len(sent), "all messages are consumed")
        assert Counter(found()) == Counter(sent)


def test_what_fails_comes_again(java_clients: JavaClients, broker: Broker, producer: JavaProducer):
    topic, group = f"Pop{next(_names)}", "GID_fails"
    java_clients.topic(broker, topic, 2)
    in_pop_mode(broker, topic, group)
    with java_clients.push(broker, group, topic, pop=True, failures=1, tags="red") as consumer:
        producer.send(topic, "sync", [message(b"a", tags="red"), message(b"b", tags="blue")])
        first, again = consumer.take(2, timeout_s=60)
        assert (first["body"], again["body"]) == (b"a", b"a")
        assert (first["reconsumeTimes"], again["reconsumeTimes"]) == (0, 1)
        assert PROPERTY_FIRST_POP_TIME in again["properties"]
        assert again["topic"] == topic


# --- RocketMQ's broker on the same directory


def popped_and_left(broker: Broker, topic: str, invisible_time: int) -> list[Popped]:
    """Pops four messages and acknowledges two, one of them in a batch with one whose time is changed."""
    left: list[Popped] = []

    async def scene(remote: Remote) -> None:
        await remote.send(topic, b"a", b"b", b"c", b"d")
        popper = Popper(remote, topic, broker_name=NAME)
        found: list[Popped] = []
        while len(found) < 4:
            answer = await popper.pop(invisible_time=invisible_time, poll_time=1000)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer
            found += answer.messages
        by_body = {one.body: one for one in found}
        assert (await popper.ack(by_body[b"a"])).code == ResponseCode.SUCCESS
        assert (await popper.batch_ack([by_body[b"b"]])).code == ResponseCode.SUCCESS
        changed = await popper.changed(by_body[b"c"], invisible_time + 2000)
        left.extend([changed, by_body[b"d"]])

    on(broker, scene)
    return left


def comes_again(broker: Broker, topic: str, left: list[Popped]) -> None:
    """What was left comes again, not before its time, and nothing else."""

    async def scene(remote: Remote) -> None:
        popper = Popper(remote, topic, broker_name=NAME)
        visible_at = {one.body: one.handle.visible_at for one in left}
        waiting = dict(visible_at)
        while waiting:
            answer = await popper.pop(poll_time=5000)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer
            for one in answer.messages:
                assert one.handle.pop_time >= waiting.pop(one.body)
                assert one.topic == pop_retry_topic(topic, "G")
                assert one.message.reconsume_times == 1
                assert (await popper.ack(one)).code == ResponseCode.SUCCESS
        # one more, to see that nothing acknowledged comes with it
        await remote.send(topic, b"last")
        last = await popper.pop(poll_time=5000)
        assert last.bodies == [b"last"]
        assert now_ms() > max(visible_at.values())

    on(broker, scene)


@pytest.mark.parametrize("order", ["mqlake, java", "java, mqlake"])
def test_the_other_broker_goes_on(tmp_path: Path, order: str):
    ours = MqlakeBroker(tmp_path, SETTINGS)
    store = tmp_path / "store" / "broker-0"  # of `mqlake serve`
    theirs = JavaBroker(
        tmp_path,
        {**SETTINGS, "storePathRootDir": store, "storePathCommitLog": store / "commitlog"},
    )
    first, second = (ours, theirs) if order.startswith("mqlake") else (theirs, ours)
    with first:
        left = popped_and_left(first, "T", 12_000)
        first.stop()
    with second:
        comes_again(second, "T", left)
