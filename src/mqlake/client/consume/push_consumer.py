"""PushConsumer: calls a listener with the messages of a group's topics, as RocketMQ's DefaultMQPushConsumer does.

    async def listener(messages, context):
        for message in messages: ...

    async with PushConsumer("group", "127.0.0.1:9876", listener) as consumer:
        consumer.subscribe("T", "TagA || TagB")
        ...

The queues of a topic are shared out among the group's consumers, and again whenever one comes or goes. For each of
its queues a consumer keeps one pull in flight, which the broker holds until messages arrive, and caches a
bounded number of messages. A message is delivered at least once: again after a failure, a lost connection or a
rebalance, and then perhaps to another consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from mqlake.base.arguments import checked
from mqlake.base.background import BackgroundWork, failing
from mqlake.base.clock import now_ms
from mqlake.client.client_base import ClientBase, Where
from mqlake.client.consume.consume_concurrently import ConsumeMessageConcurrentlyService
from mqlake.client.consume.consume_orderly import ConsumeMessageOrderlyService
from mqlake.client.consume.consume_pop import ConsumeMessagePopService
from mqlake.client.consume.consume_service import ConsumeMessageService
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult, Listener, ListenerRunner
from mqlake.client.consume.offset_store import LocalFileOffsetStore, OffsetStore, RemoteBrokerOffsetStore
from mqlake.client.consume.process_queue import ProcessQueue
from mqlake.client.consume.pull_api import PullAPIWrapper, matching_messages
from mqlake.client.consume.pull_log import PullLog
from mqlake.client.consume.queue_locks import QueueLocks
from mqlake.client.consume.rebalance import (
    allocate_queues,
    check_subscription,
    compute_pull_from_where,
    query_assignment,
)
from mqlake.client.consume.send_back import SendBack
from mqlake.client.consume.subscription import SUB_ALL, MessageSelector, build_subscription_data
from mqlake.client.consume.undecodable import apply_policy
from mqlake.client.namespace import with_namespace, without_namespace
from mqlake.client.records import MessageClientExt
from mqlake.client.results import PullResult, PullStatus
from mqlake.errors import MqlakeError, RemotingError, ResponseError, TopicNotFoundError
from mqlake.message import (
    PROPERTY_RETRY_TOPIC,
    RETRY_GROUP_TOPIC_PREFIX,
    validate_topic,
)
from mqlake.remoting.bodies.client import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    PopProcessQueueInfo,
    SubscriptionData,
)
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

MOVE_TRIES = 5
"""How often a broker is told where a group goes on, if it does not answer."""
_NOT_KNOWN_TO_BROKER = {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}


@checked
class PushConsumer(ClientBase):
    """Calls a listener with the messages of its group's share of queues, from the `async with` on. See Producer for
    `where`."""

    def __init__(
        self,
        group: str,
        where: Where,
        listener: Listener,
        config: ConsumerConfig | None = None,
        *,
        orderly: bool = False,
    ) -> None:
        """`orderly`: each queue's messages in their order, one call at a time; else many at a time."""
        self.config = config or ConsumerConfig()
        broadcasting = self.config.message_model is MessageModel.BROADCASTING
        # a broadcast consumer finds its local offsets by its name
        super().__init__(group, where, instance_name="DEFAULT" if broadcasting else "")
        self.orderly = orderly
        self.process_queue_table: dict[MessageQueue, ProcessQueue] = {}
        self.offset_store: OffsetStore = (
            LocalFileOffsetStore(self.client.client_id, self.group, self.config.local_offset_store_dir)
            if broadcasting
            else RemoteBrokerOffsetStore(self.client, self.group)
        )
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._runner = ListenerRunner(
            listener, self.group, self.config.consume_thread_max, self.config.consume_message_hooks
        )
        self._send_back = SendBack(self.client, self.group, self.config)
        self._locks = QueueLocks(self.client, self.group) if orderly and not broadcasting else None
        parts = (self.client, self.group, self.config, self._runner, self.offset_store, self._send_back)
        self._service: ConsumeMessageService = (
            ConsumeMessageOrderlyService(*parts, self._locks, self._lost_lock)
            if orderly
            else ConsumeMessageConcurrentlyService(*parts)
        )
        self._pulls = PullAPIWrapper(self.client, self.group)
        self._pull_log = PullLog(self.group)
        self._pulling: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._retry_topic = RETRY_GROUP_TOPIC_PREFIX + self.group
        self._going = asyncio.Event()
        self._going.set()
        self._pop_service = ConsumeMessagePopService(
            self.client,
            self.group,
            self.config,
            self._runner,
            self._send_back,
            self._subscriptions.get,
            self._going,
        )
        self._consuming = False
        self._started_at = 0

    # --- what a program calls

    def subscribe(self, topic: str, selector: MessageSelector | str = SUB_ALL) -> None:
        """Before the start or later; again to change the filter of a topic. Raises ConfigError, IllegalTopicError."""
        validate_topic(topic)
        full = with_namespace(self.namespace, topic)
        self._subscriptions[full] = build_subscription_data(full, selector)
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Gives up its queues; running calls finish."""
        self._subscriptions.pop(with_namespace(self.namespace, topic), None)
        self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        if self._consuming:
            self.client.in_background(self._tell_brokers())

    async def _tell_brokers(self) -> None:
        await self.client.send_heartbeat_to_all_brokers()
        self.client.rebalance_immediately()

    async def send_message_back(self, message: MessageClientExt, delay_level: int = 0) -> None:
        """The message comes again, after the delay (0: the later the oftener), or is a dead letter (-1). SendError."""
        await self._send_back.send_message_back(message, delay_level)

    def suspend(self) -> None:
        """No more pulls until resume(); what is cached is still consumed."""
        self._going.clear()

    def resume(self) -> None:
        """Takes suspend() back."""
        self._going.set()

    # --- start and stop

    async def _start(self) -> None:
        config = self.config
        if config.message_model is MessageModel.CLUSTERING:
            self._subscriptions[self._retry_topic] = build_subscription_data(self._retry_topic)
        self.client.register_consumer(self)
        for topic, subscription in list(self._subscriptions.items()):
            try:
                await self.client.update_topic_route(topic)
                await check_subscription(self.client, self.group, subscription)
            except TopicNotFoundError as error:
                if topic != self._retry_topic:
                    logger.warning("group %s: %s; it is looked for again", self.group, error)
        self._service.start()
        await self.client.send_heartbeat_to_all_brokers()
        self._started_at = now_ms()
        self._consuming = True
        self.client.rebalance_immediately()

    async def _stop(self) -> None:
        self._consuming = False
        for task in self._pulling.values():
            task.cancel()
        await self._pop_service.stop(self.config.await_termination_s)
        await self._service.stop(self.config.await_termination_s)
        if self._releasing:
            await asyncio.wait(list(self._releasing.values()), timeout=self.config.await_termination_s)
        await self.offset_store.persist(list(self.process_queue_table), surely=True)
        if self._locks is not None:
            await self._locks.unlock(self.process_queue_table)
        for process_queue in self.process_queue_table.values():
            process_queue.drop()
        self.process_queue_table.clear()
        await self._send_back.close()
        if self.client.consumer_table.get(self.group) is self:
            await self.client.unregister(consumer_group=self.group)
        self._runner.close()

    # --- what the client asks

    def topics(self) -> set[str]:
        return set(self._subscriptions)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self.config.message_model,
            consume_from_where=self.config.consume_from_where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    async def persist_consumer_offset(self) -> None:
        await self.offset_store.persist(list(self.process_queue_table))

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: at for queue, at in self.offset_store.offset_table.items() if queue.topic == topic}

    def consumer_running_info(self) -> ConsumerRunningInfo:
        offsets = self.offset_store.offset_table
        return ConsumerRunningInfo(
            properties={
                **{f"PROP_FAILING_{number}": text for number, text in enumerate(failing(), 1)},
                "PROP_NAMESERVER_ADDR": self.client.config.namesrv_addr,
                "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.name,
                "PROP_CONSUMEORDERLY": "true" if self.orderly else "false",
                "PROP_THREADPOOL_CORE_SIZE": str(self.config.consume_thread_max),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_at),
            },
            subscription_set=list(self._subscriptions.values()),
            mq_table={
                queue: process_queue.info(offsets.get(queue, -1))
                for queue, process_queue in self.process_queue_table.items()
            },
            mq_pop_table={
                queue: PopProcessQueueInfo(
                    wait_ack_count=popped.waiting_for_ack,
                    droped=popped.dropped,
                    last_pop_timestamp=int(popped.last_pop_at * 1000),
                )
                for queue, popped in self._pop_service.table.items()
            },
        )

    async def reset_offset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        for queue in [queue for queue in self.process_queue_table if queue.topic == topic]:
            if queue in offsets:
                await self._move(self.process_queue_table[queue], offsets[queue])
        self.client.rebalance_immediately()

    async def consume_message_directly(self, message: MessageClientExt) -> ConsumeMessageDirectlyResult:
        begun = time.monotonic()
        queue = message.message_queue
        self._restore_topic(message)
        result = ConsumeMessageDirectlyResult(order=self.orderly)
        try:
            answer = await self._runner.run_raising([message], ConsumeContext(queue))
            later = answer is ConsumeResult.LATER
            result.consume_result = CMResult.CR_LATER if later else CMResult.CR_SUCCESS
        except Exception as error:
            result.consume_result = CMResult.CR_THROW_EXCEPTION
            result.remark = f"{type(error).__name__}: {error}"
        result.spent_time_mills = int((time.monotonic() - begun) * 1000)
        return result

    def _is_consuming(self) -> bool:
        return self._consuming

    # --- queues come and go

    async def do_rebalance(self) -> bool:
        if not self._consuming:
            return True
        balanced = True
        for topic in list(self._subscriptions):
            wanted = await self._allocate(topic)
            if not self._is_consuming():
                return True
            balanced &= wanted is not None and await self._update_process_queue_table(topic, wanted)
        for queue, process_queue in list(self.process_queue_table.items()):
            if queue.topic not in self._subscriptions:
                self._release(process_queue)
        return balanced

    async def _allocate(self, topic: str) -> set[MessageQueue] | None:
        """The queues to pull from; None when that cannot be said yet. Those to pop from are taken here."""
        config = self.config
        if config.client_rebalance or self.orderly or config.message_model is MessageModel.BROADCASTING:
            return await allocate_queues(
                self.client,
                self.group,
                topic,
                config.message_model,
                config.allocate_message_queue_strategy,
                self._pull_log,
            )
        assigned = await query_assignment(
            self.client, self.group, topic, config.message_model, self._pull_log
        )
        if assigned is None:
            return None
        pulled, popped = assigned
        if self._is_consuming():
            self._pop_service.update(topic, popped)
        return pulled

    async def _update_process_queue_table(self, topic: str, wanted: set[MessageQueue]) -> bool:
        """Gives up what is not wanted and takes what is; returns True if all of it could be done."""
        table = self.process_queue_table
        for queue in [queue for queue in table if queue.topic == topic and queue not in wanted]:
            self._release(table[queue])
        missing = {queue for queue in wanted if queue not in table and queue not in self._releasing}
        complete = not any(queue in self._releasing for queue in wanted)
        if not missing:
            return complete
        if self._locks is not None:
            locked = await self._locks.lock(missing)
            complete &= locked >= missing
            missing &= locked
        for queue in sorted(missing):
            try:
                # what was known of it is old: another consumer may have had it
                self.offset_store.remove_offset(queue)
                offset = await compute_pull_from_where(self.client, self.offset_store, queue, self.config)
            except MqlakeError as error:
                logger.warning("group %s: where to begin with %s: %s", self.group, queue, error)
                complete = False
                continue
            if not self._is_consuming():
                return True
            process_queue = ProcessQueue(queue)
            if self._locks is not None:
                process_queue.set_locked(True)
            self._begin_queue(process_queue, offset)
        return complete

    def _begin_queue(self, process_queue: ProcessQueue, offset: int) -> None:
        logger.info("group %s: takes %s from %d on", self.group, process_queue.queue, offset)
        self.process_queue_table[process_queue.queue] = process_queue
        self._service.assigned(process_queue)
        task = self.client.in_background(self._pull_loop(process_queue, offset))
        self._pulling[process_queue] = task
        task.add_done_callback(lambda task: self._pull_ended(process_queue, task))

    def _pull_ended(self, process_queue: ProcessQueue, task: asyncio.Task[None]) -> None:
        self._pulling.pop(process_queue, None)
        if not task.cancelled() and task.exception() is not None:
            self._forget(process_queue)  # the next rebalance assigns the queue again

    def _forget(self, process_queue: ProcessQueue) -> None:
        """Stops consuming the queue here; calls in flight no longer count."""
        process_queue.drop(void=True)
        self.process_queue_table.pop(process_queue.queue, None)
        if (task := self._pulling.get(process_queue)) is not None and task is not asyncio.current_task():
            task.cancel()

    async def _move(self, process_queue: ProcessQueue, offset: int) -> None:
        """Has the group go on at `offset` in a queue. Until the broker knows it no rebalance takes the queue: it would
        go on at the offset of before."""
        queue = process_queue.queue
        self._forget(process_queue)
        self.offset_store.update_offset(queue, offset)
        moving = self.client.in_background(self._persist_move(queue))
        if queue not in self._releasing:
            self._releasing[queue] = moving
            moving.add_done_callback(lambda _: self._releasing.pop(queue, None))
        await asyncio.wait([moving])

    async def _persist_move(self, queue: MessageQueue) -> None:
        tries = MOVE_TRIES
        while not await self.offset_store.persist([queue], surely=True) and (tries := tries - 1):
            await asyncio.sleep(self.config.pull_time_delay_when_exception_s)
        self.offset_store.remove_offset(queue)

    def _release(self, process_queue: ProcessQueue) -> None:
        """Releases the queue to its new consumer, with the offset that was reached."""
        queue = process_queue.queue
        if queue in self._releasing:
            return
        logger.info("group %s: gives up %s", self.group, queue)
        process_queue.drop()
        if (task := self._pulling.get(process_queue)) is not None:
            task.cancel()
        releasing = self.client.in_background(self._release_when_idle(process_queue))
        self._releasing[queue] = releasing
        releasing.add_done_callback(lambda _: self._releasing.pop(queue, None))

    async def _release_when_idle(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        await self._service.released(process_queue)
        if not process_queue.void:
            await self.offset_store.persist([queue], surely=True)
        self.offset_store.remove_offset(queue)
        if self._locks is not None:
            await self._locks.unlock([queue])
        self.process_queue_table.pop(queue, None)

    def _lost_lock(self, process_queue: ProcessQueue) -> None:
        """Another consumer has the queue's lock, and may have moved the group's offset."""
        logger.warning("group %s: the lock of %s is lost", self.group, process_queue.queue)
        process_queue.drop(void=True)
        self._release(process_queue)

    # --- pulling

    async def _pull_loop(self, process_queue: ProcessQueue, offset: int) -> None:
        queue, config = process_queue.queue, self.config
        clustering = config.message_model is MessageModel.CLUSTERING
        failed_before = False
        work = BackgroundWork(f"group {self.group}: pull of {queue}", logger)
        while True:
            async with work.round():
                await self._wait_for_room(process_queue)
                subscription = self._subscriptions.get(queue.topic)
                if process_queue.dropped or subscription is None:
                    return
                process_queue.last_pull_at = time.time()
                commit = self.offset_store.offset_table.get(queue) if clustering else None
                try:
                    result = await self._pulls.pull(
                        queue,
                        subscription,
                        offset,
                        max_num=config.pull_batch_size,
                        suspend_s=config.broker_suspend_max_time_s,
                        commit_offset=commit or None,
                    )
                    messages = matching_messages(result, subscription, config.max_body_size)
                except MqlakeError as error:
                    greeted = await self._pull_failed(queue, error)
                    if failed_before or not greeted:
                        await asyncio.sleep(config.pull_time_delay_when_exception_s)
                    failed_before = True
                    continue
                failed_before = False
                self._pull_log.worked(queue)
                if result.pull_status is PullStatus.OFFSET_ILLEGAL:
                    await self._correct_offset(process_queue, result)
                    return
                following = result.next_begin_offset
                for message in messages:
                    self._restore_topic(message)
                given = apply_policy(messages, config.on_undecodable, self.group)
                if given:
                    process_queue.put_messages(given)
                offset = following  # from here on what was pulled is not lost
                if given:
                    self._service.submit(process_queue, len(given))
                elif not len(process_queue):
                    # what the filter left out is done
                    self.offset_store.update_offset(queue, offset, increase_only=True)

    async def _wait_for_room(self, process_queue: ProcessQueue) -> None:
        config = self.config
        await self._going.wait()
        while not process_queue.dropped and (
            len(process_queue) > config.pull_threshold_for_queue
            or process_queue.size > config.pull_threshold_size_for_queue << 20
            or (not self.orderly and process_queue.max_span > config.consume_concurrently_max_span)
        ):
            process_queue.room.clear()
            await process_queue.room.wait()

    async def _pull_failed(self, queue: MessageQueue, error: MqlakeError) -> bool:
        """True if the broker did not know this consumer and now got a heartbeat."""
        if isinstance(error, ResponseError) and error.code in _NOT_KNOWN_TO_BROKER:
            logger.info("group %s: %s: %s", self.group, queue, error)
            with contextlib.suppress(MqlakeError):
                await self.client.greet(self._pulls.address(queue))
            return True
        self._pull_log.failed(queue, error)
        if isinstance(error, RemotingError):
            self.client.refresh_soon(queue.topic)
        return False

    async def _correct_offset(self, process_queue: ProcessQueue, result: PullResult) -> None:
        """The queue does not have the requested offset: continues where the broker says."""
        queue = process_queue.queue
        logger.warning(
            "group %s: %s continues at %d: it has offsets from %d to %d",
            self.group,
            queue,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
        )
        await self._move(process_queue, result.next_begin_offset)
        self.client.rebalance_immediately()

    def _restore_topic(self, message: MessageClientExt) -> None:
        """A message from the retry topic shows the topic it was sent to."""
        if message.topic == self._retry_topic:
            message.show_topic(message.properties.get(PROPERTY_RETRY_TOPIC, message.topic))
        if self.namespace:
            message.show_topic(without_namespace(self.namespace, message.topic))
