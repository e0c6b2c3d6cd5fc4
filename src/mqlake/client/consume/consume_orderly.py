"""ConsumeMessageOrderlyService: each queue's messages one call after the other, in the order of the queue.

In a cluster a queue is consumed only while the broker's lock on it is held; locks are renewed every 20 s. A message
that is not consumed is tried again in place, and all after it wait; with `max_reconsume_times` it becomes a dead
letter in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mqlake.base.background import BackgroundWork
from mqlake.client.consume.consume_service import ConsumeMessageService
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult
from mqlake.client.consume.process_queue import ProcessQueue
from mqlake.client.consume.queue_locks import QueueLocks
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError

logger = logging.getLogger(__name__)

LOCK_INTERVAL_S = 20.0
LOCK_AGAIN_S = 1.0
SUSPEND_MIN_S, SUSPEND_MAX_S = 0.01, 30.0


@dataclass(eq=False)
class ConsumeMessageOrderlyService(ConsumeMessageService):
    locks: QueueLocks | None
    """None for broadcasting, where no other client consumes the queues."""
    lost_lock: Callable[[ProcessQueue], None]
    """Gives up a queue whose lock another consumer has."""
    _consuming: dict[ProcessQueue, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _renewing: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._threads = asyncio.Semaphore(self.config.consume_thread_max)

    def start(self) -> None:
        if self.locks is not None:
            self._renewing = self.client.in_background(self._lock_periodically(self.locks))

    def assigned(self, process_queue: ProcessQueue) -> None:
        task = self.client.in_background(self._consume_queue(process_queue))
        self._consuming[process_queue] = task
        task.add_done_callback(lambda _: self._consuming.pop(process_queue, None))

    async def released(self, process_queue: ProcessQueue) -> None:
        """Waits for the running call."""
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
                logger.warning("group %s: a listener did not end within %g s", self.group, timeout_s)
                task.cancel()

    # --- one queue

    async def _consume_queue(self, process_queue: ProcessQueue) -> None:
        work = BackgroundWork(f"group {self.group}: consuming of {process_queue.queue}", logger)
        messages: list[MessageClientExt] = []
        while not process_queue.dropped:
            async with work.round():
                if not messages:  # else those of a round that failed
                    await process_queue.arrived.wait()
                    if not await self._holds(process_queue):
                        continue
                    messages = process_queue.take_messages(self.config.consume_message_batch_max_size)
                if messages:
                    await self._consume(process_queue, messages)
                messages = []

    async def _holds(self, process_queue: ProcessQueue) -> bool:
        """True if the queue may be consumed now."""
        if process_queue.dropped:
            return False
        if self.locks is None or process_queue.locked:
            return True
        process_queue.lock_changed.clear()
        if process_queue.queue in await self.locks.lock([process_queue.queue]):
            process_queue.set_locked(True)
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOCK_AGAIN_S):
                await process_queue.lock_changed.wait()
        return False

    async def _consume(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        """Until the messages are done, or the queue is no longer this consumer's."""
        undecodable = process_queue.undecodable.get(messages[0].queue_offset)
        if undecodable is not None:
            await self.send_to_dead_letters(process_queue, undecodable)
            self._done(process_queue, messages)
            return
        while not process_queue.dropped:
            if not await self._holds(process_queue):
                continue
            context = ConsumeContext(process_queue.queue)
            async with self._threads:
                (result,) = await self.runner.run([(messages, context)])
            # also when the queue was dropped meanwhile: its lock is given back only after this
            if result is ConsumeResult.SUCCESS or await self._are_dead_letters(messages):
                self._done(process_queue, messages)
                return
            suspend_s = context.suspend_current_queue_time_s
            if suspend_s is None:
                suspend_s = self.config.suspend_current_queue_time_s
            await asyncio.sleep(min(max(suspend_s, SUSPEND_MIN_S), SUSPEND_MAX_S))

    def _done(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        offset = process_queue.remove_messages(messages)
        if not process_queue.void:
            self.offset_store.update_offset(process_queue.queue, offset, increase_only=True)

    async def _are_dead_letters(self, messages: list[MessageClientExt]) -> bool:
        """Counts one more try; true when all had too many and the broker took them."""
        limit = self.config.max_reconsume_times
        again = False
        for message in messages:
            if 0 <= limit <= message.reconsume_times:
                try:
                    await self.send_back.send_message_back_as_normal_message(message)
                    continue
                except MqlakeError as error:
                    logger.warning("group %s: a message cannot be given back: %s", self.group, error)
            message.reconsume_times += 1
            again = True
        return not again

    # --- locks

    async def _lock_periodically(self, locks: QueueLocks) -> None:
        work = BackgroundWork(f"group {self.group}: renewing of locks", logger)
        while True:
            await asyncio.sleep(LOCK_INTERVAL_S)
            async with work.round():
                held = {each.queue: each for each in self._consuming if not each.dropped}
                async for queue, is_locked in locks.renew(held):
                    if is_locked:
                        held[queue].set_locked(True)
                    else:
                        self.lost_lock(held[queue])
