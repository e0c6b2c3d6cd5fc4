"""ConsumeMessageOrderlyService: each queue's messages one call after the other, in the order of the queue.

In a cluster a queue is consumed only while the broker's lock on it is held; locks are renewed every 20 s. A message
that is not consumed is tried again in place, and all behind it wait; with `max_reconsume_times` it becomes a dead
letter in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqlake.client.listener import ConsumeContext, ConsumeResult, ListenerRunner
from mqlake.client.process_queue import ProcessQueue
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.client import MessageModel
from mqlake.remoting.bodies.topic import MessageQueue

if TYPE_CHECKING:
    from mqlake.client.push_consumer import PushConsumer

logger = logging.getLogger(__name__)

LOCK_INTERVAL_S = 20.0
LOCK_AGAIN_S = 1.0
SUSPEND_MIN_S, SUSPEND_MAX_S = 0.01, 30.0


class ConsumeMessageOrderlyService:
    def __init__(self, consumer: PushConsumer, runner: ListenerRunner) -> None:
        self._consumer = consumer
        self._config = consumer.config
        self._runner = runner
        self._threads = asyncio.Semaphore(consumer.config.consume_thread_max)
        self._consuming: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self.locks = consumer.config.message_model is MessageModel.CLUSTERING

    def start(self) -> None:
        if self.locks:
            self._renewing = self._consumer.client.in_background(self._lock_periodically())

    def assigned(self, process_queue: ProcessQueue) -> None:
        task = self._consumer.client.in_background(self._consume_queue(process_queue))
        self._consuming[process_queue] = task
        task.add_done_callback(lambda _: self._consuming.pop(process_queue, None))

    def submit(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        """The queue's own task finds them in the process queue."""

    async def released(self, process_queue: ProcessQueue) -> None:
        """Waits for the call that is under way."""
        task = self._consuming.get(process_queue)
        if task is not None:
            await asyncio.wait([task])

    async def stop(self, timeout_s: float) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        for process_queue in self._consuming:
            process_queue.drop()
        if self._consuming:
            _, late = await asyncio.wait(list(self._consuming.values()), timeout=timeout_s)
            for task in late:
                logger.warning(
                    "group %s: a listener did not end within %g s", self._consumer.group, timeout_s
                )
                task.cancel()

    # --- one queue

    async def _consume_queue(self, process_queue: ProcessQueue) -> None:
        while not process_queue.dropped:
            await process_queue.arrived.wait()
            if not await self._holds(process_queue):
                continue
            if messages := process_queue.take_messages(self._config.consume_message_batch_max_size):
                await self._consume(process_queue, messages)

    async def _holds(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue may be consumed now."""
        if process_queue.dropped:
            return False
        if not self.locks or process_queue.locked:
            return True
        process_queue.lock_changed.clear()
        if process_queue.queue in await self.lock([process_queue.queue]):
            process_queue.set_locked(True)
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOCK_AGAIN_S):
                await process_queue.lock_changed.wait()
        return False

    async def _consume(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        """Until the messages are done, or the queue is no longer this consumer's."""
        while not process_queue.dropped:
            if not await self._holds(process_queue):
                continue
            context = ConsumeContext(process_queue.queue)
            async with self._threads:
                (result,) = await self._runner.run([(messages, context)])
            # also when the queue was dropped meanwhile: its lock is given back only after this
            if result is ConsumeResult.SUCCESS or await self._are_dead_letters(messages):
                offset = process_queue.remove_messages(messages)
                if not process_queue.void:
                    self._consumer.offset_store.update_offset(process_queue.queue, offset, increase_only=True)
                return
            suspend_s = context.suspend_current_queue_time_s
            if suspend_s is None:
                suspend_s = self._config.suspend_current_queue_time_s
            await asyncio.sleep(min(max(suspend_s, SUSPEND_MIN_S), SUSPEND_MAX_S))

    async def _are_dead_letters(self, messages: list[MessageClientExt]) -> bool:
        """Counts one more try; true when all had too many and the broker took them."""
        limit = self._config.max_reconsume_times
        again = False
        for message in messages:
            if 0 <= limit <= message.reconsume_times:
                try:
                    await self._consumer.send_message_back_as_normal_message(message)
                    continue
                except MqlakeError as error:
                    logger.warning(
                        "group %s: a message cannot be given back: %s", self._consumer.group, error
                    )
            message.reconsume_times += 1
            again = True
        return not again

    # --- locks

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        grouped: dict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            grouped[queue.broker_name].add(queue)
        return grouped

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Those that are this consumer's now. A broker that does not answer gives none."""
        client, group = self._consumer.client, self._consumer.group
        locked: set[MessageQueue] = set()
        for broker_name, own in self._by_broker(queues).items():
            try:
                address = client.find_broker_address_in_publish(broker_name)
                locked |= await client.api.lock_batch_mq(address, group, client.client_id, own)
            except MqlakeError as error:
                logger.info("group %s: locks: %s", group, error)
        return locked

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        client, group = self._consumer.client, self._consumer.group
        for broker_name, own in self._by_broker(queues).items():
            try:
                address = client.find_broker_address_in_publish(broker_name)
                await client.api.unlock_batch_mq(address, group, client.client_id, own)
            except MqlakeError as error:
                logger.info("group %s: locks: %s", group, error)

    async def _lock_periodically(self) -> None:
        client, group = self._consumer.client, self._consumer.group
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            held = {queue: pq for queue, pq in self._consumer.process_queue_table.items() if not pq.dropped}
            for broker_name, own in self._by_broker(held).items():
                try:
                    address = client.find_broker_address_in_publish(broker_name)
                    locked = await client.api.lock_batch_mq(address, group, client.client_id, own)
                except MqlakeError as error:
                    logger.warning("group %s: locks are not renewed: %s", group, error)
                    continue
                for queue in own:
                    if queue in locked:
                        held[queue].set_locked(True)
                    else:
                        self._consumer.lost_lock(held[queue])
