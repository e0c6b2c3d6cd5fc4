"""ConsumeMessagePopService: a push consumer's queues that it pops from, as brokers assign them.

    broker: "pop queue -1 of broker-a" ─▶ a loop of pops ─▶ listener ─┬─ consumed ─▶ acknowledged
                                                                     └─ failed ───▶ invisible for longer and longer

A message whose invisible time is over before its turn comes is left out: the broker hands it out again. What has failed
too often becomes a dead letter; RocketMQ's consumer drops it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from mqlake.base.background import BackgroundWork
from mqlake.base.clock import now_ms
from mqlake.client.consume.consumer_config import ConsumerConfig
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult, ListenerRunner
from mqlake.client.consume.pop_api import POP_MAX, PopAPIWrapper
from mqlake.client.consume.pull_log import PullLog
from mqlake.client.consume.send_back import MAX_RECONSUME_TIMES, SendBack
from mqlake.client.consume.simple_consumer import init_mode
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError
from mqlake.message import ReceiptHandle
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

POP_DELAY_LEVELS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Invisible time after the first, second, ... failure; the last repeats. As RocketMQ's consumer."""
PAUSE_S = 0.05


class PopProcessQueue:
    """One queue that is popped from (id -1: any of a broker's)."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.waiting_for_ack = 0
        self.dropped = False
        self.last_pop_at = 0.0
        self.task: asyncio.Task[None] | None = None


class ConsumeMessagePopService:
    def __init__(
        self,
        client: MQClientInstance,
        group: str,
        config: ConsumerConfig,
        runner: ListenerRunner,
        send_back: SendBack,
        subscription: Callable[[str], SubscriptionData | None],
        going: asyncio.Event,
    ) -> None:
        """`subscription(topic)`: None when it is no longer subscribed to. `going`: not set while suspended."""
        self._client = client
        self._group = group
        self._pull_log = PullLog(group, "pop")
        self._config = config
        self._runner = runner
        self._send_back = send_back
        self._subscription = subscription
        self._going = going
        self._pops = PopAPIWrapper(client, group, config.max_body_size)
        self.table: dict[MessageQueue, PopProcessQueue] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(config.consume_thread_max)
        limit = config.max_reconsume_times
        self._max_reconsume_times = MAX_RECONSUME_TIMES if limit < 0 else limit

    def update(self, topic: str, wanted: set[MessageQueue]) -> None:
        """Pops from these queues of a topic from now on."""
        for queue in [queue for queue in self.table if queue.topic == topic and queue not in wanted]:
            logger.info("group %s: no longer pops from %s", self._group, queue)
            self._drop(self.table.pop(queue))
        for queue in sorted(wanted - self.table.keys()):
            logger.info("group %s: pops from %s", self._group, queue)
            process_queue = self.table[queue] = PopProcessQueue(queue)
            process_queue.task = self._client.in_background(self._pop_loop(process_queue))

    async def stop(self, timeout_s: float) -> None:
        """Pops no more, and waits for running listeners."""
        for process_queue in self.table.values():
            self._drop(process_queue)
        self.table.clear()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=timeout_s)

    def _drop(self, process_queue: PopProcessQueue) -> None:
        process_queue.dropped = True
        if process_queue.task is not None:
            process_queue.task.cancel()

    async def _pop_loop(self, process_queue: PopProcessQueue) -> None:
        queue, config = process_queue.queue, self._config
        work = BackgroundWork(f"group {self._group}: pop of {queue}", logger)
        while not process_queue.dropped:
            async with work.round():
                await self._going.wait()
                subscription = self._subscription(queue.topic)
                if subscription is None:
                    self.table.pop(queue, None)
                    return
                if process_queue.waiting_for_ack >= config.pop_threshold_for_queue:
                    await asyncio.sleep(PAUSE_S)
                    continue
                process_queue.last_pop_at = time.time()
                try:
                    messages = await self._pops.pop(
                        queue,
                        subscription,
                        max_num=min(config.pop_batch_nums, POP_MAX),
                        invisible_s=config.pop_invisible_time_s,
                        poll_s=config.broker_suspend_max_time_s,
                        init_mode=init_mode(config.consume_from_where),
                    )
                except MqlakeError as error:
                    self._pull_log.failed(queue, error)
                    self._client.refresh_soon(queue.topic)
                    await asyncio.sleep(config.pull_time_delay_when_exception_s)
                    continue
                self._pull_log.worked(queue)
                size = config.consume_message_batch_max_size
                for at in range(0, len(messages), size):
                    self._submit(process_queue, messages[at : at + size])

    def _submit(self, process_queue: PopProcessQueue, messages: list[MessageClientExt]) -> None:
        process_queue.waiting_for_ack += len(messages)
        call = self._client.in_background(self._consume(process_queue, messages))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _consume(self, process_queue: PopProcessQueue, messages: list[MessageClientExt]) -> None:
        count = len(messages)
        try:
            async with self._free:
                messages = [message for message in messages if not _is_over(message)]
                undecodable = [message for message in messages if message.undecodable]
                given = [message for message in messages if not message.undecodable]
                for message in undecodable:
                    await self._bury(message, message.undecodable)
                if given:
                    context = ConsumeContext(process_queue.queue)
                    (result,) = await self._runner.run([(given, context)])
                    await self._process_result(given, context, result)
        finally:
            process_queue.waiting_for_ack -= count

    async def _process_result(
        self, messages: list[MessageClientExt], context: ConsumeContext, result: ConsumeResult
    ) -> None:
        consumed = 0
        if result is ConsumeResult.SUCCESS:
            consumed = len(messages) if context.ack_index is None else context.ack_index + 1
        level = context.delay_level_when_next_consume
        for i, message in enumerate(messages):
            try:
                if i < consumed:
                    await self._pops.ack(message)
                elif level < 0 or message.reconsume_times >= self._max_reconsume_times:
                    await self._bury(message, "it has failed too often")
                else:
                    step = level or message.reconsume_times
                    delay_s = POP_DELAY_LEVELS_S[min(step, len(POP_DELAY_LEVELS_S) - 1)]
                    await self._pops.change_invisible_time(message, delay_s)
            except MqlakeError as error:
                logger.warning("group %s: a message comes again: %s", self._group, error)

    async def _bury(self, message: MessageClientExt, reason: str) -> None:
        """Keeps a message among the dead letters; it comes again if that does not work."""
        try:
            await self._send_back.send_dead_letter(message)
            await self._pops.ack(message)
        except MqlakeError as error:
            logger.warning("group %s: no dead letter (%s): %s", self._group, reason, error)
        else:
            logger.warning("group %s: a message is a dead letter now: %s", self._group, reason)


def _is_over(message: MessageClientExt) -> bool:
    """True if the broker may have handed it out again."""
    return now_ms() >= ReceiptHandle.parse(message.receipt_handle).visible_at
