"""TestRocketBroker: a RocketBroker in memory, for tests of handlers: no cluster, and every handler is called at once.

It chooses subscribers as brokers do: by topic, by tags or SQL92, one of each group.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from mqlake.adapters.faststream.broker import RocketBroker
from mqlake.adapters.faststream.command import RocketPublishCommand, message_of, messages_of
from mqlake.adapters.faststream.config import Connection
from mqlake.adapters.faststream.message import PARSER, Delivery
from mqlake.adapters.faststream.producer import RocketProducer
from mqlake.adapters.faststream.publisher import RocketPublisher
from mqlake.adapters.faststream.subscriber import RocketSubscriber
from mqlake.base.clock import now_ms
from mqlake.client.produce.transaction_producer import LocalTransactionState
from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult, SendStatus
from mqlake.errors import MissingPartError
from mqlake.message import Message, create_uniq_id
from mqlake.remoting.bodies.topic import MessageQueue

BROKER_NAME = "in-memory"
_OFFSETS = itertools.count()


class TestRocketBroker(TestBroker, broker=RocketBroker):  # type: ignore[call-arg]
    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: RocketPublisher
    ) -> tuple[RocketSubscriber, bool]:
        for subscriber in (each for broker in self.brokers for each in broker.subscribers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        made = broker.subscriber(publisher.topic, batch=publisher._config.batch, persistent=False)
        return made, False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, InMemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketBroker, *_: Any, **__: Any) -> Connection:
        return broker._connected(Connection(None, None), None)


class InMemoryProducer(RocketProducer):
    """Calls the handlers."""

    def __init__(self, broker: RocketBroker, brokers: Sequence[RocketBroker]) -> None:
        super().__init__(None, None)
        self._parser = ParserComposition(broker._parser, PARSER.parse_message)
        self._decoder = ParserComposition(broker._decoder, PARSER.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        self._halves: dict[str, Message] = {}
        """Half messages of open transactions, by id."""

    def connect(self, producer: Any, serializer: Any, codec: Any) -> None:
        self.serializer = serializer

    @property
    def producer(self) -> Any:
        """The producer that a transaction sends by."""
        return self

    async def publish(self, cmd: RocketPublishCommand) -> SendResult:
        message = await message_of(cmd, self.codec, self.serializer)
        transaction = self.transaction.get()
        if transaction is not None:
            return await transaction.send(message)
        return await self.send(message)

    async def publish_batch(self, cmd: RocketPublishCommand) -> SendResult | None:
        messages = await messages_of(cmd, self.codec, self.serializer)
        if not messages:
            return None
        made = [self._stored(message) for message in messages]
        for subscriber in self._subscribers_of(made[0]):
            if subscriber.config.batch:
                await subscriber.process_message(tuple(map(Delivery, made)))
            else:
                for message in made:
                    await subscriber.process_message(Delivery(message))
        return _result(made[0])

    async def request(self, cmd: RocketPublishCommand) -> Delivery:
        message = self._stored(await message_of(cmd, self.codec, self.serializer))
        for subscriber in self._subscribers_of(message):
            with anyio.fail_after(cmd.timeout):
                answer = await self._process(subscriber, message)
            reply = RocketPublishCommand.from_cmd(answer.as_publish_command())
            return Delivery(self._stored(await message_of(reply, self.codec, self.serializer)))
        raise SubscriberNotFound

    async def send(self, message: Message) -> SendResult:
        made = self._stored(message)
        for subscriber in self._subscribers_of(made):
            await self._process(subscriber, made)
        return _result(made)

    @staticmethod
    async def _process(subscriber: RocketSubscriber, message: MessageClientExt) -> Any:
        delivery = Delivery(message)
        return await subscriber.process_message((delivery,) if subscriber.config.batch else delivery)

    # --- what a transaction asks of a producer

    async def send_half_message(self, message: Message) -> SendResult:
        self._halves[message.uniq_key or ""] = message
        return _result(self._stored(message))

    async def end_transaction(self, sent: SendResult, state: LocalTransactionState) -> None:
        message = self._halves.pop(sent.msg_id)
        if state is LocalTransactionState.COMMIT_MESSAGE:
            await self.send(message)

    # --- who gets it

    def _stored(self, message: Message) -> MessageClientExt:
        now = now_ms()
        stored = MessageClientExt(
            message.topic,
            message.body,
            properties=message.properties,
            queue_offset=next(_OFFSETS),
            born_timestamp=now,
            store_timestamp=now,
        )
        stored.broker_name = BROKER_NAME
        stored.uniq_key = stored.uniq_key or create_uniq_id()
        return stored

    def _subscribers_of(self, message: MessageClientExt) -> Iterator[RocketSubscriber]:
        served: set[str] = set()
        for subscriber in [each for broker in self._brokers for each in broker.subscribers]:
            if subscriber.topic != message.topic or subscriber.group in served:
                continue
            if _matches(subscriber, message):
                served.add(subscriber.group)
                yield subscriber


def _matches(subscriber: RocketSubscriber, message: MessageClientExt) -> bool:
    selector = subscriber.config.selector
    if selector.type == "TAG":
        tags = {tag.strip() for tag in selector.expression.split("||")}
        return selector.expression == "*" or message.tags in tags
    try:  # the broker's own evaluation: a part of mqlake that the client does without
        sql92 = importlib.import_module("mqlake.broker.filter.sql92")
    except ImportError:
        raise MissingPartError(
            "mqlake's broker", "pip install mqlake", why="for SQL92 in TestRocketBroker"
        ) from None
    return bool(sql92.compile_sql92(selector.expression).matches(message.properties))


def _result(message: MessageClientExt) -> SendResult:
    return SendResult(
        send_status=SendStatus.SEND_OK,
        msg_id=message.uniq_key or "",
        offset_msg_id="",
        message_queue=MessageQueue(topic=message.topic, broker_name=BROKER_NAME, queue_id=0),
        queue_offset=message.queue_offset,
    )
