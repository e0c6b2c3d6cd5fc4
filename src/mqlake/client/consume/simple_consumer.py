"""SimpleConsumer: pops messages when it is asked for them, and acknowledges them one by one.

    async with SimpleConsumer("group", "127.0.0.1:9876") as consumer:
        consumer.subscribe("T")
        for message in await consumer.receive(16, invisible_s=60):
            ...
            await consumer.ack(message)

All consumers of a group share all queues; none owns any. A message is invisible to the others for `invisible_s`; what
is not acknowledged by then is received again, by any of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from mqlake.base.arguments import checked
from mqlake.client.client_base import ClientBase, Where
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.pop_api import FROM_FIRST, FROM_LAST, POP_MAX, PopAPIWrapper
from mqlake.client.consume.send_back import SendBack
from mqlake.client.consume.subscription import SUB_ALL, MessageSelector, build_subscription_data
from mqlake.client.namespace import with_namespace
from mqlake.client.records import MessageClientExt
from mqlake.errors import ConfigError, MqlakeError, TopicNotFoundError
from mqlake.message import validate_topic
from mqlake.remoting.bodies.client import ConsumeFromWhere, SubscriptionData
from mqlake.remoting.bodies.route import readable_queues
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

ANY_QUEUE = -1
RETRY_S = 0.5


@checked
class SimpleConsumer(ClientBase):
    """Receives, acknowledges, changes invisible times. See Producer for `where`."""

    def __init__(self, group: str, where: Where, config: ConsumerConfig | None = None) -> None:
        """`config`: only consume_from_where, max_body_size and max_reconsume_times count."""
        super().__init__(group, where)
        self.config = config or ConsumerConfig()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._pops = PopAPIWrapper(self.client, self.group, self.config.max_body_size)
        self._send_back = SendBack(self.client, self.group, self.config)
        self._turn = 0

    async def _start(self) -> None:
        for topic in list(self._subscriptions):
            try:
                await self.client.update_topic_route(topic)
            except TopicNotFoundError as error:
                logger.warning("group %s: %s; it is looked for again", self.group, error)

    async def _stop(self) -> None:
        await self._send_back.close()

    def subscribe(self, topic: str, selector: MessageSelector | str = SUB_ALL) -> None:
        """Before the start or later; again to change the filter of a topic. Raises ConfigError, IllegalTopicError."""
        validate_topic(topic)
        full = with_namespace(self.namespace, topic)
        self._subscriptions[full] = build_subscription_data(full, selector)

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription. Messages that were received can still be acknowledged."""
        self._subscriptions.pop(with_namespace(self.namespace, topic), None)

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = 30.0, await_s: float = 15.0
    ) -> list[MessageClientExt]:
        """Up to `max_messages` (at most 32) of one broker, as soon as there are any; none when `await_s` is over.

        Messages that cannot be decoded are among them: see MessageClientExt.undecodable. Raises RemotingError and
        BrokerNotFoundError when no broker answers, ConfigError without a subscription. When the call is cancelled,
        what a broker has handed out meanwhile comes again after `invisible_s`.
        """
        self._check_running()
        if not self._subscriptions:
            raise ConfigError(
                f"group {self.group}: there is no subscription: call subscribe() before receive()"
            )
        if not 1 <= max_messages <= POP_MAX:
            raise ConfigError(f"max_messages is {max_messages}: 1 to {POP_MAX} are possible")
        deadline = time.monotonic() + await_s
        while True:
            targets = await self._targets()
            left = max(deadline - time.monotonic(), 0)
            if len(targets) == 1:
                return await self._pop(targets[0], max_messages, invisible_s, left)
            failure: MqlakeError | None = None
            answered = False
            for target in targets:
                try:
                    if messages := await self._pop(target, max_messages, invisible_s, 0):
                        return messages
                    answered = True
                except MqlakeError as error:
                    failure = error
            left = deadline - time.monotonic()
            if left <= 0:
                if failure is not None and not answered:
                    raise failure
                return []
            if not await self._any_notified(targets, left):
                await asyncio.sleep(min(RETRY_S, max(deadline - time.monotonic(), 0)))

    async def ack(self, message: MessageClientExt) -> None:
        """The message is done. Raises RemotingError, BrokerNotFoundError; it comes again then unless a second try
        works. MessageError for one that was not received here."""
        self._check_running()
        await self._pops.ack(message)

    async def ack_all(self, messages: Iterable[MessageClientExt]) -> None:
        """Several at a time; the first error is raised when all were tried."""
        results = await asyncio.gather(*map(self.ack, messages), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def change_invisible_duration(self, message: MessageClientExt, invisible_s: float) -> None:
        """It comes again after `invisible_s` from now (0: at once) unless it is acknowledged. Raises as ack()."""
        self._check_running()
        await self._pops.change_invisible_time(message, invisible_s)

    async def forward_to_dead_letters(self, message: MessageClientExt) -> None:
        """Keeps the message among the group's dead letters instead of receiving it again. Raises as ack()."""
        self._check_running()
        await self._send_back.send_dead_letter(message)
        await self._pops.ack(message)

    # --- brokers

    async def _targets(self) -> list[tuple[MessageQueue, SubscriptionData]]:
        """Every broker of every topic, another one first each time."""
        targets = []
        for topic, subscription in self._subscriptions.items():
            route = await self.client.topic_route(topic)
            for broker_name in sorted({queue.broker_name for queue in readable_queues(route, topic)}):
                queue = MessageQueue(topic=topic, broker_name=broker_name, queue_id=ANY_QUEUE)
                targets.append((queue, subscription))
        if not targets:
            raise TopicNotFoundError(", ".join(self._subscriptions), "no broker lets it be read")
        self._turn += 1
        first = self._turn % len(targets)
        return targets[first:] + targets[:first]

    async def _pop(
        self, target: tuple[MessageQueue, SubscriptionData], count: int, invisible_s: float, poll_s: float
    ) -> list[MessageClientExt]:
        queue, subscription = target
        try:
            return await self._pops.pop(
                queue,
                subscription,
                max_num=count,
                invisible_s=invisible_s,
                poll_s=poll_s,
                init_mode=init_mode(self.config.consume_from_where),
            )
        except MqlakeError:
            self.client.refresh_soon(queue.topic)
            raise

    async def _any_notified(
        self, targets: list[tuple[MessageQueue, SubscriptionData]], wait_s: float
    ) -> bool:
        """Waits until any broker has something."""
        waits = [asyncio.ensure_future(self._pops.notified(queue, wait_s)) for queue, _ in targets]
        try:
            for done in asyncio.as_completed(waits):
                try:
                    if await done:
                        return True
                except MqlakeError as error:
                    logger.info("group %s: %s", self.group, error)
            return False
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def init_mode(where: ConsumeFromWhere) -> int:
    """Returns the beginning of a new group, as a pop says it."""
    first = (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET)
    return FROM_FIRST if where in first else FROM_LAST
