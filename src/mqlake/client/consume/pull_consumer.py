"""PullConsumer: returns messages when polled, as RocketMQ's DefaultLitePullConsumer does.

    async with PullConsumer("group", "127.0.0.1:9876") as consumer:
        consumer.subscribe("T")                            queues as the group shares them out
        for message in await consumer.poll(): ...
        async for message in consumer: ...             one after the other, until the consumer is closed

    await consumer.assign(await consumer.fetch_message_queues("T"))     queues of one's own choice
    await consumer.seek_to_begin(queue)

Each queue that is not paused has a pull in flight, which fills a bounded cache. A position is the offset of the
next message that poll() will give; positions are committed every 5 s and at the end, so what poll() has given counts
as consumed. With `auto_commit` off, commit() alone does it.

A loop over the consumer is more exact: a message counts as consumed when the loop asks for the next one, or calls
commit(). One whose handling ends the loop with an exception, or with `break`, comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Self

from mqlake.base.arguments import checked
from mqlake.base.background import BackgroundWork
from mqlake.base.clock import now_ms
from mqlake.client.client_base import ClientBase, Where
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.offset_store import LocalFileOffsetStore, OffsetStore, RemoteBrokerOffsetStore
from mqlake.client.consume.pull_api import PullAPIWrapper, matching_messages
from mqlake.client.consume.pull_log import PullLog
from mqlake.client.consume.rebalance import allocate_queues, check_subscription, compute_pull_from_where
from mqlake.client.consume.subscription import SUB_ALL, MessageSelector, build_subscription_data
from mqlake.client.consume.undecodable import Delivery, apply_policy, delivered_message
from mqlake.client.namespace import with_namespace, without_namespace
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullResult, PullStatus
from mqlake.client.routes import readable_queues
from mqlake.errors import (
    ClientError,
    ConfigError,
    MqlakeError,
    RemotingError,
    ResponseError,
    TopicNotFoundError,
    UndecodableMessageError,
)
from mqlake.message import validate_topic
from mqlake.remoting.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    ProcessQueueInfo,
    SubscriptionData,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

POLL_MAX = 1024
"""Messages of one poll."""
LOOP_POLL_S = 60.0
_REFUSALS = {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.INVALID_PARAMETER,
}
"""Errors that waiting does not cure."""


class _AssignedQueue:
    """One queue: where it is read, and what is cached of it."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.cached: deque[Delivery] = deque()
        self.size = 0
        self.position = 0
        """Queue offset of the next message that poll() gives."""
        self.pull_offset = 0
        """Queue offset of the next message that is pulled."""
        self.max_offset = -1
        """End of the queue when it was last pulled, -1 before."""
        self.in_hand: int | None = None
        """The next `position`, once the current message of a loop over the consumer is done."""
        self.paused = False
        self.changed = asyncio.Event()
        """Set when there may be a reason to pull again."""
        self.pulling: asyncio.Task[None] | None = None


@checked
class PullConsumer(ClientBase):
    """Gives messages when it is asked for them, of queues of one's choice or of its group's share. See Producer for
    `where`."""

    def __init__(self, group: str, where: Where, config: ConsumerConfig | None = None) -> None:
        self.config = config or ConsumerConfig()
        broadcasting = self.config.message_model is MessageModel.BROADCASTING
        super().__init__(group, where, instance_name="DEFAULT" if broadcasting else "")
        self.offset_store: OffsetStore = (
            LocalFileOffsetStore(self.client.client_id, self.group, self.config.local_offset_store_dir)
            if broadcasting
            else RemoteBrokerOffsetStore(self.client, self.group)
        )
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assigned_by_hand = False
        self._filter: MessageSelector | str = SUB_ALL
        self._filters: dict[str, SubscriptionData] = {}
        """Filters of topics that are assigned by hand."""
        self._assigned: dict[MessageQueue, _AssignedQueue] = {}
        self._ready: deque[_AssignedQueue] = deque()
        """Queues with cached messages, those polled last at the end."""
        self._arrived = asyncio.Event()
        self._refusal: ResponseError | UndecodableMessageError | None = None
        """The error that the next poll() raises."""
        self.balanced = False
        """True if the assignment is all that the group leaves to this consumer."""
        self._pulls = PullAPIWrapper(self.client, self.group)
        self._pull_log = PullLog(self.group)
        self._in_hand: _AssignedQueue | None = None
        """The queue of the message that a loop over the consumer has now."""
        self._started_at = 0
        self._rebalancing = asyncio.Lock()

    # --- start and stop

    async def _start(self) -> None:
        self.client.register_consumer(self)
        for topic, subscription in self._subscriptions.items():
            try:
                await self.client.update_topic_route(topic)
                await check_subscription(self.client, self.group, subscription)
            except TopicNotFoundError as error:
                logger.warning("group %s: %s; it is looked for again", self.group, error)
        if self._subscriptions:
            await self._tell_brokers()
        self._started_at = now_ms()

    async def _stop(self) -> None:
        if self.config.auto_commit:
            await self._commit(self._positions())
        for queue in list(self._assigned):
            self._unassign(queue)
        self._arrived.set()  # a loop that waits ends
        if self.client.consumer_table.get(self.group) is self:
            await self.client.unregister(consumer_group=self.group)

    async def _tell_brokers(self) -> None:
        await self.client.send_heartbeat_to_all_brokers()
        self.client.rebalance_immediately()

    # --- which queues

    def subscribe(self, topic: str, selector: MessageSelector | str = SUB_ALL) -> None:
        """The group's consumers share the topic's queues. Not together with assign()."""
        if self._assigned_by_hand:
            raise ConfigError("subscribe() and assign() exclude each other")
        validate_topic(topic)
        full = with_namespace(self.namespace, topic)
        self._subscriptions[full] = build_subscription_data(full, selector)
        if self._running:
            self.client.in_background(self._tell_brokers())

    def unsubscribe(self, topic: str) -> None:
        """Gives the topic's queues up."""
        full = with_namespace(self.namespace, topic)
        self._subscriptions.pop(full, None)
        for queue in [queue for queue in self._assigned if queue.topic == full]:
            self._unassign(queue)
        if self._running:
            self.client.in_background(self._tell_brokers())

    async def assign(
        self,
        queues: Iterable[MessageQueue],
        selector: MessageSelector | str | None = None,
        *,
        offsets: Mapping[MessageQueue, int] | None = None,
    ) -> None:
        """Reads these queues and no others. Not together with subscribe().

        Queues that are new here begin where `offsets` says, else at the group's offset. `selector` filters them all.
        RemotingError when an offset cannot be asked for, ResponseError when the broker does not filter so.
        """
        self._check_running()
        if self._subscriptions:
            raise ConfigError("subscribe() and assign() exclude each other")
        self._assigned_by_hand = True
        if selector is not None:
            self._filter = selector
            self._filters.clear()
        wanted = {self._full(queue) for queue in queues}
        for topic in {queue.topic for queue in wanted}:
            await check_subscription(self.client, self.group, self._subscription(topic))
            await self.client.topic_route(topic)  # its brokers' addresses
        await self._update_assigned(wanted, {self._full(q): at for q, at in (offsets or {}).items()})
        self.balanced = True

    def assignment(self) -> set[MessageQueue]:
        """The queues that it has now."""
        return {self._shown(queue) for queue in self._assigned}

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues that may be read, sorted. TopicNotFoundError."""
        self._check_running()
        full = with_namespace(self.namespace, topic)
        queues = readable_queues(await self.client.topic_route(full), full)
        if not queues:
            raise TopicNotFoundError(topic, "none of its queues may be read")
        return [self._shown(queue) for queue in queues]

    def _full(self, queue: MessageQueue) -> MessageQueue:
        topic = with_namespace(self.namespace, queue.topic)
        return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    def _shown(self, queue: MessageQueue) -> MessageQueue:
        topic = without_namespace(self.namespace, queue.topic)
        return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    async def _update_assigned(
        self, wanted: set[MessageQueue], offsets: Mapping[MessageQueue, int] | None = None
    ) -> None:
        async with self._rebalancing:
            for queue in [queue for queue in self._assigned if queue not in wanted]:
                self._unassign(queue)
            for queue in sorted(wanted - self._assigned.keys()):
                offset = (offsets or {}).get(queue)
                if offset is None:
                    offset = await compute_pull_from_where(self.client, self.offset_store, queue, self.config)
                assigned = self._assigned[queue] = _AssignedQueue(queue)
                self._begin(assigned, offset)

    def _unassign(self, queue: MessageQueue) -> None:
        assigned = self._assigned.pop(queue)
        self._forget_cached(assigned)
        self._update_ready(assigned)
        if assigned.pulling is not None:
            assigned.pulling.cancel()

    def _forget_cached(self, assigned: _AssignedQueue) -> None:
        if any(each is self._refusal for each in assigned.cached):
            self._refusal = None
        assigned.cached.clear()

    # --- messages

    async def poll(self, timeout_s: float = 5.0, max_messages: int = POLL_MAX) -> list[MessageClientExt]:
        """Cached messages from one queue after another; waits up to `timeout_s` for the first message.

        In order within a queue; empty if nothing came. Raises ResponseError if a broker refuses (pulling goes on).
        UndecodableMessageError when a queue has come to a message that cannot be decoded, with
        `on_undecodable="raise"`: what precedes it has been given, other queues go on, and this one does after
        `seek(queue, error.next_offset)`. Until then it is raised again every `pull_time_delay_when_exception_s`.
        """
        self._check_running()
        self._done_with_message()
        if not self._ready and self._refusal is None:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        messages: list[MessageClientExt] = []
        while self._ready and len(messages) < max_messages:
            assigned = self._ready.popleft()
            undecodable: UndecodableMessageError | None = None
            while assigned.cached and len(messages) < max_messages:
                message = assigned.cached[0]
                if isinstance(message, UndecodableMessageError):
                    undecodable = message  # stays where it is: seek() goes past it
                    break
                assigned.cached.popleft()
                assigned.size -= len(message.body)
                messages.append(message)
                assigned.position = message.next_offset
            if undecodable is not None:
                # other queues get their turns: repeated polls must not return errors alone
                delay_s = self.config.pull_time_delay_when_exception_s
                asyncio.get_running_loop().call_later(delay_s, self._update_ready, assigned)
            elif assigned.cached:
                self._ready.append(assigned)
            elif assigned.position < assigned.pull_offset:
                assigned.position = assigned.pull_offset  # the filter left the rest out
            assigned.changed.set()
            if undecodable is not None:
                if not messages:
                    raise undecodable
                self._refusal = undecodable
                break
        return messages

    def __aiter__(self) -> Self:
        """One message after the other, as poll() gives them; ends when the consumer is closed. One loop at a time.

        A message is consumed when the next one is asked for, or at commit().
        """
        return self

    async def __anext__(self) -> MessageClientExt:
        message = await self.next_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next_message(self) -> MessageClientExt | None:
        """The next message for `async for`; None if the consumer is closed. Raises as poll()."""
        while not self._ended:
            messages = await self.poll(LOOP_POLL_S, 1)
            if messages:
                assigned = self._assigned.get(self._full(messages[0].message_queue))
                if assigned is not None:
                    assigned.in_hand = assigned.position
                    assigned.position = messages[0].queue_offset
                    self._in_hand = assigned
                return messages[0]
        return None

    def _done_with_message(self) -> None:
        assigned, self._in_hand = self._in_hand, None
        if assigned is not None and assigned.in_hand is not None:
            assigned.position, assigned.in_hand = assigned.in_hand, None

    async def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = 32, *, suspend_s: float = 0.0
    ) -> PullResult:
        """One pull by hand, beside all that is assigned; its records are raw until `messages()` decodes them."""
        self._check_running()
        full = self._full(queue)
        await self.client.topic_route(full.topic)
        return await self._pulls.pull(
            full, self._subscription(full.topic), offset, max_num=max_messages, suspend_s=suspend_s, lite=True
        )

    def _subscription(self, topic: str) -> SubscriptionData:
        known = self._subscriptions.get(topic) or self._filters.get(topic)
        if known is None:
            known = self._filters[topic] = build_subscription_data(topic, self._filter)
        return known

    async def _pull_loop(self, assigned: _AssignedQueue) -> None:
        queue, config = assigned.queue, self.config
        work = BackgroundWork(f"group {self.group}: pull of {queue}", logger)
        while True:
            async with work.round():
                while (
                    assigned.paused
                    or len(assigned.cached) > config.pull_threshold_for_queue
                    or assigned.size > config.pull_threshold_size_for_queue << 20
                ):
                    assigned.changed.clear()
                    await assigned.changed.wait()
                subscription = self._subscription(queue.topic)
                try:
                    result = await self._pulls.pull(
                        queue,
                        subscription,
                        assigned.pull_offset,
                        max_num=config.pull_batch_size,
                        suspend_s=config.broker_suspend_max_time_s,
                        lite=True,
                    )
                    messages = matching_messages(result, subscription, config.max_body_size)
                except MqlakeError as error:
                    if isinstance(error, ResponseError) and error.code in _REFUSALS:
                        self._refusal = error
                        self._arrived.set()
                    else:
                        self._pull_log.failed(queue, error)
                    if isinstance(error, RemotingError):
                        self.client.refresh_soon(queue.topic)
                    await asyncio.sleep(config.pull_time_delay_when_exception_s)
                    continue
                self._pull_log.worked(queue)
                if result.pull_status is PullStatus.OFFSET_ILLEGAL:
                    logger.info("group %s: %s continues at %d", self.group, queue, result.next_begin_offset)
                for message in messages:
                    message.show_topic(without_namespace(self.namespace, message.topic))
                given = apply_policy(messages, config.on_undecodable, self.group)
                assigned.pull_offset = result.next_begin_offset  # what fails before is pulled again
                assigned.max_offset = result.max_offset
                if given:
                    assigned.cached.extend(given)
                    assigned.size += sum(len(delivered_message(each).body) for each in given)
                    self._update_ready(assigned)
                elif not assigned.cached:
                    if assigned.in_hand is None:
                        assigned.position = assigned.pull_offset
                    else:
                        assigned.in_hand = assigned.pull_offset

    def _begin(self, assigned: _AssignedQueue, offset: int) -> None:
        """Reads the queue from `offset` on, whatever was read before."""
        if assigned.pulling is not None:
            assigned.pulling.cancel()
        self._forget_cached(assigned)
        assigned.size = 0
        assigned.position = assigned.pull_offset = offset
        assigned.in_hand = None
        self._update_ready(assigned)
        assigned.pulling = self.client.in_background(self._pull_loop(assigned))

    def _update_ready(self, assigned: _AssignedQueue) -> None:
        ready = bool(assigned.cached) and not assigned.paused
        if ready and assigned not in self._ready:
            self._ready.append(assigned)
            self._arrived.set()
        elif not ready and assigned in self._ready:
            self._ready.remove(assigned)

    # --- positions

    def _of(self, queue: MessageQueue) -> _AssignedQueue:
        assigned = self._assigned.get(self._full(queue))
        if assigned is None:
            raise ClientError(f"group {self.group}: {queue} is not assigned to this consumer")
        return assigned

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message that poll() gives of an assigned queue."""
        return self._of(queue).position

    def end_offset(self, queue: MessageQueue) -> int | None:
        """Returns the end of the queue when it was last pulled; None before."""
        found = self._of(queue).max_offset
        return None if found < 0 else found

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Makes the next poll start at `offset`. Raises ClientError if the queue lacks it or is not assigned."""
        self._check_running()
        assigned = self._of(queue)
        first, end = await self.begin_offset(queue), await self.max_offset(queue)
        if not first <= offset <= end:
            raise ClientError(f"{queue} has offsets from {first} to {end}, not {offset}")
        self._begin(assigned, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """The next poll() begins at the first message that the broker has."""
        assigned = self._of(queue)
        self._begin(assigned, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """The next poll() gives what comes from now on."""
        assigned = self._of(queue)
        self._begin(assigned, await self.max_offset(queue))

    async def _address(self, queue: MessageQueue) -> str:
        self._check_running()
        await self.client.topic_route(queue.topic)
        return self.client.find_broker_address_in_subscribe(self.client.broker_name_of(queue))

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The queue's first offset, as the broker knows it now."""
        full = self._full(queue)
        return await self.client.api.get_min_offset(await self._address(full), full)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will have."""
        full = self._full(queue)
        return await self.client.api.get_max_offset(await self._address(full), full)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message stored at `timestamp` (ms since 1970) or later."""
        full = self._full(queue)
        return await self.client.api.search_offset(await self._address(full), full, timestamp)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pulls nor gives messages of these queues until resume()."""
        for queue in queues:
            assigned = self._of(queue)
            assigned.paused = True
            self._update_ready(assigned)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Takes pause() back."""
        for queue in queues:
            assigned = self._of(queue)
            assigned.paused = False
            assigned.changed.set()
            self._update_ready(assigned)

    # --- committing

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's persisted offset; None if there is none."""
        full = self._full(queue)
        await self._address(full)
        return await self.offset_store.committed(full)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Persists these offsets, or the positions of all assigned queues, and waits until that is done.

        Without `offsets` the message that a loop over the consumer has now counts as consumed.
        """
        self._check_running()
        if offsets is None:
            self._done_with_message()
        given = self._positions() if offsets is None else {self._full(q): at for q, at in offsets.items()}
        await self._commit(given)

    def _positions(self) -> dict[MessageQueue, int]:
        return {queue: assigned.position for queue, assigned in self._assigned.items()}

    async def _commit(self, offsets: Mapping[MessageQueue, int], *, surely: bool = True) -> None:
        for queue, offset in offsets.items():
            self.offset_store.update_offset(queue, offset)
        await self.offset_store.persist(offsets, surely=surely)

    # --- what the client asks

    def topics(self) -> set[str]:
        return set(self._subscriptions) | {queue.topic for queue in self._assigned}

    def consumer_data(self) -> ConsumerData | None:
        if not self._subscriptions:
            return None  # who assigns by hand takes no part in the group
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=self.config.message_model,
            consume_from_where=self.config.consume_from_where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    async def do_rebalance(self) -> bool:
        if not self._subscriptions or not self._running:
            return True
        wanted: set[MessageQueue] = set()
        complete = True
        for topic in list(self._subscriptions):
            queues = await allocate_queues(
                self.client,
                self.group,
                topic,
                self.config.message_model,
                self.config.allocate_message_queue_strategy,
                self._pull_log,
            )
            if queues is None:
                complete = False
                queues = {queue for queue in self._assigned if queue.topic == topic}
            wanted |= queues
        given_up = {q: at for q, at in self._positions().items() if q not in wanted}
        if self.config.auto_commit and given_up:
            await self._commit(given_up)
        if self._running:
            await self._update_assigned(wanted)
        self.balanced = complete
        return complete

    async def persist_consumer_offset(self) -> None:
        if self.config.auto_commit:
            await self._commit(self._positions(), surely=False)

    async def reset_offset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue.topic == topic and (assigned := self._assigned.get(queue)) is not None:
                self._begin(assigned, offset)
                await self._commit({queue: offset})

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: at for queue, at in self._positions().items() if queue.topic == topic}

    def consumer_running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": self.client.config.namesrv_addr,
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_ACTIVELY.name,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at),
            },
            subscription_set=list(self._subscriptions.values()),
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=assigned.position,
                    cached_msg_count=len(assigned.cached),
                    cached_msg_size_in_mib=assigned.size >> 20,
                )
                for queue, assigned in self._assigned.items()
            },
        )

    async def consume_message_directly(
        self, message: MessageClientExt
    ) -> ConsumeMessageDirectlyResult | None:
        return None
