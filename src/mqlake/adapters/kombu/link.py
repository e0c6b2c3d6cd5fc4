"""Link: what one kombu connection has of a RocketMQ cluster, on the client's event loop.

    kombu's thread ── publish, ack ──▶ the loop's thread ── pops and pulls ──▶ inbox ──▶ a byte in `waker`

A channel's lasting queues are popped in turn as long as its window has room: fewer messages are in hand than its
prefetch count. What is in hand stays invisible to others (`held`).

A queue that does not last is read from the topics of the exchanges that it is bound to, from where they ended when it
was bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mqlake.adapters.held import Held, HeldMessages
from mqlake.adapters.kombu.names import bindings_namespace, exchange_topic, queue_topic
from mqlake.base.background import BackgroundWork
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.pop_api import POP_MAX
from mqlake.client.consume.pull_api import PullAPIWrapper, matching_messages
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.consume.subscription import build_subscription_data
from mqlake.client.loop_thread import LOOP_THREAD
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.produce.producer import Producer, ProducerConfig
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullStatus
from mqlake.errors import MqlakeError, ResponseError, TopicNotFoundError
from mqlake.message import Message
from mqlake.message.groups import messages_behind
from mqlake.remoting.bodies.client import ConsumeFromWhere, SubscriptionData
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

GROUP = "kombu"
"""Group of producers, and of pulls for queues that do not last."""
AWAIT_S = 15.0
RETRY_S = 1.0
UNLIMITED = 1000
"""Messages in hand of a channel without a prefetch limit."""
ABSENT_S = 5.0
"""A topic that was not there is not asked for again before."""
BINDINGS_S = 10.0
"""The bindings of an exchange are asked for again after that time."""
ROUTE_WAIT_S = 10.0
"""How long a topic that was just made may take to be known to the name servers."""
PULL_MAX = 64

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """`transport_options`."""

    visibility_timeout: float = 60.0
    """Seconds after which others get the messages of a worker that died."""
    priority_steps: tuple[int, ...] = (0,)
    """Priorities with a topic of their own, the lowest first; a message counts to the step at or below its own."""
    queue_nums: int = 8
    """Queues on each broker of a topic that is made here."""
    eta: bool = True
    """Tasks with an eta or countdown wait in the broker's timer instead of a worker's memory."""


class Window:
    """The number of messages that a channel may have in hand of its lasting queues. Only the loop's thread changes
    it."""

    def __init__(self) -> None:
        self.limit = 0
        """Messages; 0: UNLIMITED."""
        self.in_hand = 0
        self.queues: deque[str] = deque()
        self.changed = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None

    @property
    def room(self) -> int:
        return (self.limit or UNLIMITED) - self.in_hand

    def settled(self) -> None:
        """One message less is in hand."""
        self.in_hand -= 1
        self.changed.set()


@dataclass
class Transient:
    """A queue that does not last: where it reads, by exchange topic and tags."""

    matches: Callable[[str, str], bool]
    """(exchange, routing key) → whether the queue is bound so."""
    starts: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    """Exchange → where its topic ended when the queue was bound to it."""
    tags: dict[str, set[str] | None] = field(default_factory=dict)
    """Exchange → the tags that the broker lets through; None: all."""


class PriorityConsumer(SimpleConsumer):
    """Pops the topics in the order in which they were subscribed to, each broker of a topic in turn."""

    async def _targets(self) -> list[tuple[MessageQueue, SubscriptionData]]:
        order = {topic: number for number, topic in enumerate(self._subscriptions)}
        return sorted(await super()._targets(), key=lambda target: order[target[0].topic])

    async def notified(self, wait_s: float) -> bool:
        """Waits until there is something to receive; False if there is nothing in time."""
        return await self._any_notified(await self._targets(), wait_s)


class Link:
    def __init__(self, config: ClientConfig, options: Options) -> None:
        self.options = options
        self.inbox: deque[tuple[str, str, Held | None]] = deque()
        """(queue, body as text, what acknowledges it; None if nothing does), as they arrived."""
        self.waker, self._wake = socket.socketpair()
        self.waker.setblocking(False)
        self._wake.setblocking(False)
        self._config = config
        self._client: MQClientInstance
        self._admin: Admin
        self._producer: Producer
        self._pulls: PullAPIWrapper
        self._consumers: dict[str, PriorityConsumer] = {}
        self._windows: dict[object, Window] = {}
        """The window of each channel."""
        self._reading: dict[str, list[asyncio.Task[None]]] = {}
        self._held = HeldMessages(options.visibility_timeout)
        self._absent: dict[str, float] = {}
        self._bindings: dict[str, tuple[float, set[tuple[str, str]]]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._closing = False

    # --- life; from here to "on the loop" in kombu's thread

    def open(self) -> None:
        """MqlakeError when no name server or broker answers."""
        try:
            LOOP_THREAD.run(self._open())
        except BaseException:
            self._close_waker()
            raise

    def close(self) -> None:
        """Closes the connection; messages in hand go back to the others."""
        LOOP_THREAD.run(self._close())
        self._close_waker()

    def _close_waker(self) -> None:
        self.waker.close()
        self._wake.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return LOOP_THREAD.run(work)

    def later(self, function: Callable[..., object], *args: object) -> None:
        LOOP_THREAD.loop().call_soon_threadsafe(function, *args)

    def drained(self) -> None:
        """Takes the bytes out of `waker`; before the inbox is looked at."""
        try:
            while self.waker.recv(4096):
                pass
        except BlockingIOError:
            pass

    # --- on the loop

    async def _open(self) -> None:
        client = MQClientInstance(self._config)
        await client.start()
        try:
            self._admin = Admin(self._config)
            await self._admin.masters()
            self._client = client
            self._producer = Producer(
                GROUP, client, ProducerConfig(retry_another_broker_when_not_store_ok=True)
            )
            await self._producer.start()
        except BaseException:
            await self._admin.close()
            await client.close()
            raise
        self._pulls = PullAPIWrapper(client, GROUP)
        self._held.start()

    async def _close(self) -> None:
        self._closing = True
        for queue in list(self._reading):
            self.stop_reading(queue)
        for channel in list(self._windows):
            self.forget(channel)
        await asyncio.gather(*self._background, self._held.close(), return_exceptions=True)
        for consumer in self._consumers.values():
            await consumer.close()
        await self._producer.close()
        await self._admin.close()
        await self._client.close()

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- topics and bindings

    async def has_topic(self, topic: str) -> bool:
        """Returns True if the topic is there; an absent one is believed to be absent for ABSENT_S. NoMasterError
        when no broker is there that could have it."""
        if topic in self._client.topic_route_table:
            return True
        now = time.monotonic()
        if self._absent.get(topic, -ABSENT_S) > now - ABSENT_S:
            return False
        try:
            await self._client.topic_route(topic)
        except TopicNotFoundError:
            await self._admin.masters()
            self._absent[topic] = now
            return False
        return True

    async def make_topic(self, topic: str, queue_nums: int) -> None:
        """If it is not there. ResponseError when the cluster does not allow it."""
        self._absent.pop(topic, None)
        if await self.has_topic(topic):
            return
        await self._admin.create_topic(topic, queues=queue_nums)
        deadline = time.monotonic() + ROUTE_WAIT_S
        while True:
            self._absent.pop(topic, None)
            if await self.has_topic(topic):
                return
            if time.monotonic() > deadline:
                raise TopicNotFoundError(topic, "it was made, and no name server knows it yet")
            await asyncio.sleep(0.05)

    async def declare(self, queue: str) -> None:
        """A lasting queue."""
        for step in self.options.priority_steps:
            await self.make_topic(queue_topic(queue, step), self.options.queue_nums)

    async def bindings(self, exchange: str, *, fresh: bool = False) -> set[tuple[str, str]]:
        """(routing key, queue) of the lasting queues that any process has bound to `exchange`."""
        asked_at, known = self._bindings.get(exchange, (-BINDINGS_S, set()))
        now = time.monotonic()
        if not fresh and asked_at > now - BINDINGS_S:
            return known
        try:
            found = await self._admin.name_servers.get_kv_list_by_namespace(bindings_namespace(exchange))
        except ResponseError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            found = {}
        table = {_binding(value) for value in found.values()}
        self._bindings[exchange] = now, table
        return table

    async def bind(self, exchange: str, routing_key: str, queue: str) -> None:
        if (routing_key, queue) in await self.bindings(exchange, fresh=True):
            return
        await self._admin.name_servers.put_kv_config_value(
            bindings_namespace(exchange), _binding_key(routing_key, queue), f"{routing_key}\n{queue}"
        )
        self._bindings.pop(exchange, None)

    async def unbind(self, exchange: str, routing_key: str, queue: str) -> None:
        await self._admin.name_servers.delete_kv_config_value(
            bindings_namespace(exchange), _binding_key(routing_key, queue)
        )
        self._bindings.pop(exchange, None)

    async def delete(self, queue: str) -> None:
        """A lasting queue and all that is in it."""
        for step in self.options.priority_steps:
            topic = queue_topic(queue, step)
            if await self._admin.topic_exists(topic):
                await self._admin.delete_topic(topic)
            self._client.topic_route_table.pop(topic, None)

    async def size(self, queue: str) -> int:
        """Messages that nobody has got yet."""
        total = 0
        for step in self.options.priority_steps:
            topic = queue_topic(queue, step)
            if not await self.has_topic(topic):
                continue
            ends = (await self._admin.examine_topic_stats(topic)).offset_table
            try:
                stats = await self._admin.examine_consume_stats(queue_topic(queue), topic)
                given = {at: each.consumer_offset for at, each in stats.offset_table.items()}
            except MqlakeError:  # nobody has consumed it yet
                given = {}
            for at, end in ends.items():
                total += messages_behind(end.max_offset, max(given.get(at, 0), end.min_offset))
        return total

    # --- publishing

    async def publish(
        self, topic: str, body: bytes, *, tag: str, key: str, deliver_at_ms: int, properties: dict[str, str]
    ) -> None:
        """SendError, TopicNotFoundError, NoNameServerError."""
        message = Message(topic, body, tag, key, properties=properties)
        if deliver_at_ms:
            message.deliver_time_ms = deliver_at_ms
        await self._producer.send(message)

    # --- lasting queues

    def window(self, channel: object) -> Window:
        found = self._windows.get(channel)
        if found is None:
            found = self._windows[channel] = Window()
        return found

    def limit(self, channel: object, count: int) -> None:
        """How many messages the channel may have in hand; 0: no limit of its own."""
        window = self.window(channel)
        window.limit = count
        window.changed.set()

    def start_popping(self, channel: object, queue: str) -> None:
        window = self.window(channel)
        if queue not in window.queues:
            window.queues.append(queue)
            self._serve_again(window)

    def stop_popping(self, channel: object, queue: str) -> None:
        window = self.window(channel)
        if queue in window.queues:
            window.queues.remove(queue)
            self._serve_again(window)

    def forget(self, channel: object) -> None:
        """The channel is closed."""
        window = self._windows.pop(channel, None)
        if window is not None:
            window.queues.clear()
            self._serve_again(window)

    def _serve_again(self, window: Window) -> None:
        if window.serving is not None:
            window.serving.cancel()
            window.serving = None
        if window.queues and not self._closing:
            window.serving = asyncio.ensure_future(self._serve(window))

    async def _serve(self, window: Window) -> None:
        """Pops the window's queues in turn."""
        work = BackgroundWork("messages for a channel", logger, pause_s=RETRY_S)
        while True:
            while window.room <= 0:
                window.changed.clear()
                await window.changed.wait()
            async with work.round():
                if len(window.queues) == 1:
                    await self._pop(window, window.queues[0], AWAIT_S)
                    continue
                for queue in list(window.queues):
                    if await self._pop(window, queue, 0.0):
                        window.queues.rotate(-1)
                        break
                else:
                    await self._any_notified(list(window.queues))

    async def _any_notified(self, queues: list[str]) -> None:
        consumers = [await self.consumer(queue) for queue in queues]
        waits = [asyncio.ensure_future(consumer.notified(AWAIT_S)) for consumer in consumers]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _pop(self, window: Window, queue: str, await_s: float) -> bool:
        """True if there was something. What comes when nobody waits any more goes on to its window, or back."""

        def late(found: list[Held]) -> None:
            if queue in window.queues:
                self._arrived(queue, found)
            else:
                for popped in found:
                    self.back(popped)

        found = await self._held.kept(self.receive(queue, window.room, await_s, window), late)
        self._arrived(queue, found)
        return bool(found)

    async def consumer(self, queue: str) -> PriorityConsumer:
        found = self._consumers.get(queue)
        if found is None:
            config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            found = self._consumers[queue] = PriorityConsumer(queue_topic(queue), self._client, config)
            for step in reversed(self.options.priority_steps):
                found.subscribe(queue_topic(queue, step))
            await found.start()
        return found

    async def receive(self, queue: str, count: int, await_s: float, window: Window) -> list[Held]:
        consumer = await self.consumer(queue)
        messages = await consumer.receive(
            min(count, POP_MAX), invisible_s=self._held.invisible_s, await_s=await_s
        )
        window.in_hand += len(messages)
        return self._held.hold(consumer, messages, window.settled)

    def _arrived(self, queue: str, found: Iterable[Held]) -> None:
        for popped in found:
            self.inbox.append((queue, text_of(popped.message), popped))
            self._ring()

    def _ring(self) -> None:
        try:
            self._wake.send(b"\0")
        except (BlockingIOError, OSError):  # it is full, so it rings; or the link is closed
            pass

    def ack(self, popped: Held) -> None:
        self._in_background(self._held.ack(popped))

    def back(self, popped: Held) -> None:
        """Others may have it."""
        self._in_background(self._held.back(popped))

    def dead(self, popped: Held) -> None:
        """Kept among the dead letters of the queue's group."""
        self._in_background(self._held.dead(popped))

    # --- queues that do not last

    async def ends(self, exchange: str) -> dict[MessageQueue, int]:
        """Returns the ends of an exchange's topic now; it is made if it is not there."""
        topic = exchange_topic(exchange)
        await self.make_topic(topic, 1)
        table = (await self._admin.examine_topic_stats(topic)).offset_table
        return {queue: offsets.max_offset for queue, offsets in table.items()}

    def stop_reading(self, queue: str) -> None:
        for task in self._reading.pop(queue, ()):
            task.cancel()

    def start_pulling(self, name: str, transient: Transient) -> None:
        if name not in self._reading:
            self._reading[name] = [
                asyncio.ensure_future(self._pull(name, transient, exchange, queue, offset))
                for exchange, starts in transient.starts.items()
                for queue, offset in starts.items()
            ]

    async def _pull(
        self, name: str, transient: Transient, exchange: str, queue: MessageQueue, offset: int
    ) -> None:
        """Reads one queue of an exchange's topic for ever."""
        work = BackgroundWork(f"queue {name}: pull of {queue}", logger, pause_s=RETRY_S)
        while True:
            async with work.round():
                tags = transient.tags[exchange]
                subscription = build_subscription_data(
                    queue.topic, "*" if tags is None else " || ".join(sorted(tags))
                )
                try:
                    await self._client.topic_route(queue.topic)
                    result = await self._pulls.pull(
                        queue, subscription, offset, max_num=PULL_MAX, suspend_s=AWAIT_S, lite=True
                    )
                except MqlakeError:
                    self._client.refresh_soon(queue.topic)
                    raise
                found = []
                if result.pull_status is PullStatus.FOUND:
                    found = matching_messages(result, subscription, ConsumerConfig().max_body_size)
                offset = result.next_begin_offset
                transient.starts[exchange][queue] = offset  # a later consumer of the queue goes on there
                self.inbox.extend((name, text_of(message), None) for message in found)
                if found:
                    self._ring()


def text_of(message: MessageClientExt) -> str:
    return message.body.decode("utf-8", "surrogateescape")


def _binding(value: str) -> tuple[str, str]:
    routing_key, _, queue = value.partition("\n")
    return routing_key, queue


def _binding_key(routing_key: str, queue: str) -> str:
    return f"{queue_topic(queue)}/{queue_topic(routing_key)}"
