"""Subscribers: PoppingSubscriber shares its topic message by message, OrderlySubscriber has queues for itself.

popping   receive ─▶ in hand, invisible to others, renewed while it is ─▶ a worker ─▶ handler ─▶ ack, back, dead
          at most `prefetch` messages in hand; what is left at the end goes back

orderly   RocketMQ's orderly push consumer: one call at a time in each queue, a failed message is tried again in
          place, and the offset goes on when it is acknowledged or a dead letter
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import FeatureNotSupportedException

from mqlake.adapters.faststream.config import Connection, RocketSubscriberConfig
from mqlake.adapters.faststream.message import (
    PARSER,
    REPLY_TO,
    Delivery,
    Raw,
    RocketMessage,
    deliveries_of,
    destination_of,
)
from mqlake.adapters.faststream.publisher import RocketReplier
from mqlake.adapters.faststream.specification import RocketSubscriberSpecification
from mqlake.adapters.held import Held, HeldMessages
from mqlake.adapters.patience import until_there
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult
from mqlake.client.consume.pop_api import POP_MAX
from mqlake.client.consume.push_consumer import PushConsumer
from mqlake.client.consume.send_back import SendBack
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.client import ConsumeFromWhere

AWAIT_S = 5.0
"""How long a broker holds a request when it has no message."""
RETRY_S = 1.0


class RocketSubscriber(TasksMixin, SubscriberUsecase):
    """Base of both kinds of subscribers."""

    def __init__(
        self,
        config: RocketSubscriberConfig,
        specification: RocketSubscriberSpecification,
        calls: CallsCollection,
    ) -> None:
        config.parser = PARSER.parse_batch if config.batch else PARSER.parse_message
        config.decoder = PARSER.decode_batch if config.batch else PARSER.decode_message
        super().__init__(config, specification, calls)
        self.config = config

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def group(self) -> str:
        """The subscriber's own, or one for the topic: the members of a group have to subscribe alike."""
        return self.config.group or f"{self._outer_config.group}-{self.topic}"

    def about(self) -> str:
        """How it subscribes, for the AsyncAPI page."""
        selector = self.config.selector
        chosen = "" if selector.expression == "*" else f", {selector.type.lower()} `{selector.expression}`"
        return f"RocketMQ: group `{self.group}`{chosen}{', in order' if self.orderly else ''}."

    orderly = False

    @property
    def connection(self) -> Connection:
        found: Connection | None = self._outer_config.connection
        assert found is not None, "the broker is not connected"
        return found

    async def start(self) -> None:
        """MqlakeError when the topic is not there and may not be made."""
        await super().start()
        if self.connection.client is not None:
            await until_there(self._begin, self._outer_config.startup_timeout_s, self._warn)
        self._post_start()
        if self.calls and self.connection.client is not None:
            self._consume()

    async def _begin(self) -> None:
        await self.connection.make_topic(self.topic, self._outer_config.queues)
        await self._start()

    def _warn(self, text: str) -> None:
        self._log(logging.WARNING, text, self.get_log_context(None))

    async def _start(self) -> None:
        """Again when the cluster was away."""
        raise NotImplementedError

    def _consume(self) -> None:
        raise NotImplementedError

    def consumer_config(self, **more: Any) -> ConsumerConfig:
        first, last = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumerConfig(consume_from_where=first if self.config.from_first else last, **more)

    def retry_delay_s(self, message: MessageClientExt) -> float:
        delays = self.config.retry_delays_s
        return delays[min(message.reconsume_times, len(delays) - 1)]

    def _make_response_publisher(self, message: Any) -> Sequence[RocketReplier]:
        named = REPLY_TO in message.headers
        request = None if named else deliveries_of(message.raw_message)[0].message
        return (RocketReplier(self._outer_config.producer, message.reply_to if named else "", request),)

    def get_log_context(self, message: Any) -> dict[str, str]:
        topic = self.topic if message is None else destination_of(message.raw_message)
        return {"topic": topic, "group": self.group, "message_id": getattr(message, "message_id", "")}

    async def _parsed(self, raw: Raw | None) -> RocketMessage | None:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message: RocketMessage | None = await process_msg(
            msg=raw,
            middlewares=(each(raw, context=context) for each in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return message


class _Popped:
    """Settles a popped message."""

    def __init__(self, subscriber: PoppingSubscriber, held: Held) -> None:
        self._subscriber, self._held = subscriber, held

    async def ack(self) -> None:
        await self._subscriber.held.ack(self._held)

    async def back(self, delay_s: float | None) -> None:
        if delay_s is None:
            delay_s = self._subscriber.retry_delay_s(self._held.message)
        await self._subscriber.held.back(self._held, delay_s)

    async def dead(self) -> None:
        await self._subscriber.held.dead(self._held)


class PoppingSubscriber(RocketSubscriber):
    def __init__(
        self, config: RocketSubscriberConfig, specification: RocketSubscriberSpecification, calls: Any
    ) -> None:
        super().__init__(config, specification, calls)
        self.held = HeldMessages(config.visibility_timeout_s)
        self._consumer: SimpleConsumer | None = None
        self._receiving: set[asyncio.Task[Any] | None] = set()
        self._in_hand = 0
        self._room = asyncio.Event()
        self._ready: asyncio.Queue[Raw] = asyncio.Queue()
        if config.batch:
            self._least, self._most = config.max_records, config.max_records * config.max_workers
        else:
            self._least, self._most = 1, max(config.prefetch, config.max_workers)

    async def _start(self) -> None:
        self.held, self._in_hand = HeldMessages(self.config.visibility_timeout_s), 0
        client = self.connection.client
        assert client is not None
        self._consumer = SimpleConsumer(self.group, client, self.consumer_config())
        self._consumer.subscribe(self.topic, self.config.selector)
        await self._consumer.start()
        self.held.start()

    def _consume(self) -> None:
        self._ready = asyncio.Queue()
        self.add_task(self._fetch)
        for _ in range(self.config.max_workers):
            self.add_task(self._work)

    async def stop(self) -> None:
        await SubscriberUsecase.stop(self)  # what a handler has begun ends
        consumer, self._consumer = self._consumer, None
        current = asyncio.current_task()  # a handler may have stopped its subscriber
        for task in self.tasks:
            if task is not current:
                task.cancel()
        self.tasks.clear()
        if consumer is not None:
            await self.held.close()
            consumer.client.in_background(self._close(consumer, self.held, list(self._receiving)))

    @staticmethod
    async def _close(consumer: SimpleConsumer, held: HeldMessages, receiving: list[Any]) -> None:
        """When what was asked for has come, which goes back; the end of the client is the end of this, too."""
        await asyncio.gather(*receiving, return_exceptions=True)
        await held.close()
        await consumer.close()

    async def _fetch(self) -> None:
        while self.running:
            while self._most - self._in_hand < self._least:
                self._room.clear()
                await self._room.wait()
            count = self.config.max_records if self.config.batch else self._most - self._in_hand
            try:
                found = await self._receive(count, AWAIT_S)
            except MqlakeError as error:
                self._warn(f"{error}")
                await asyncio.sleep(RETRY_S)
                continue
            if found and self.config.batch:
                self._ready.put_nowait(tuple(found))
            elif found:
                for each in found:
                    self._ready.put_nowait(each)

    async def _work(self) -> None:
        while self.running:
            await self.consume(await self._ready.get())

    async def _receive(self, count: int, await_s: float) -> list[Delivery]:
        consumer = self._consumer
        assert consumer is not None, "start the subscriber first"

        async def receive() -> list[Held]:
            task = asyncio.current_task()
            self._receiving.add(task)
            try:
                messages = await consumer.receive(
                    min(count, POP_MAX), invisible_s=self.held.invisible_s, await_s=await_s
                )
            finally:
                self._receiving.discard(task)
            self._in_hand += len(messages)
            return self.held.hold(consumer, messages, self._settled)

        return [Delivery(held.message, _Popped(self, held)) for held in await self.held.kept(receive())]

    def _settled(self) -> None:
        self._in_hand -= 1
        self._room.set()

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        """The next message, in hand until `ack`, `nack` or `reject`; None if there is none in time."""
        assert not self.calls, "a subscriber with handlers has no get_one"
        count = self.config.max_records if self.config.batch else 1
        found = await self._receive(count, timeout)
        if not found:
            return await self._parsed(None)
        return await self._parsed(tuple(found) if self.config.batch else found[0])

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        assert not self.calls, "a subscriber with handlers cannot be iterated"
        while True:
            message = await self.get_one(timeout=AWAIT_S)
            if message is not None:
                yield message


class _Ordered:
    """Notes what the orderly consumer has to do with a message when the handler has ended."""

    def __init__(self, subscriber: OrderlySubscriber, message: MessageClientExt) -> None:
        self._subscriber, self._message = subscriber, message
        self.done = False
        self.delay_s: float | None = None

    async def ack(self) -> None:
        self.done = True

    async def back(self, delay_s: float | None) -> None:
        self.delay_s = delay_s

    async def dead(self) -> None:
        await self._subscriber.send_back.send_dead_letter(self._message)
        self.done = True


class OrderlySubscriber(RocketSubscriber):
    orderly = True
    send_back: SendBack

    def __init__(
        self, config: RocketSubscriberConfig, specification: RocketSubscriberSpecification, calls: Any
    ) -> None:
        super().__init__(config, specification, calls)
        self._consumer: PushConsumer | None = None
        self._calling: set[asyncio.Task[Any] | None] = set()

    async def _start(self) -> None:
        self._consumer = self._made()

    def _made(self) -> PushConsumer:
        config = self.consumer_config(
            consume_thread_max=self.config.max_workers,
            consume_message_batch_max_size=self.config.max_records if self.config.batch else 1,
        )
        client = self.connection.client
        assert client is not None
        self.send_back = SendBack(client, self.group, config)
        consumer = PushConsumer(self.group, client, self._listen, config, orderly=True)
        consumer.subscribe(self.topic, self.config.selector)
        return consumer

    def _consume(self) -> None:
        self.add_task(self._run, restart_on_failure=False)

    async def _run(self) -> None:
        await until_there(self._start_consumer, None, self._warn)

    async def _start_consumer(self) -> None:
        assert self._consumer is not None
        try:
            await self._consumer.start()
        except MqlakeError:
            self._consumer = self._made()  # what did not start cannot be started again
            raise

    async def stop(self) -> None:
        await super().stop()
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if (
            asyncio.current_task() in self._calling
        ):  # a handler stops its subscriber: closing waits for its end
            consumer.client.in_background(consumer.close())
        else:
            await consumer.close()

    async def _listen(self, messages: list[MessageClientExt], context: ConsumeContext) -> ConsumeResult:
        settles = [_Ordered(self, message) for message in messages]
        raw = tuple(map(Delivery, messages, settles))
        task = asyncio.current_task()
        self._calling.add(task)
        try:
            await self.consume(raw if self.config.batch else raw[0])
        finally:
            self._calling.discard(task)
        if all(each.done for each in settles):
            return ConsumeResult.SUCCESS
        delay_s = next((each.delay_s for each in settles if each.delay_s is not None), None)
        context.suspend_current_queue_time_s = self.retry_delay_s(messages[0]) if delay_s is None else delay_s
        return ConsumeResult.LATER

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        raise FeatureNotSupportedException("an orderly subscriber has to have a handler")

    def __aiter__(self) -> AsyncIterator[RocketMessage]:
        raise FeatureNotSupportedException("an orderly subscriber has to have a handler")
