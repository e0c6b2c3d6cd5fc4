"""ConsumeMessageConcurrentlyService: messages of any queue in any order, many at a time.

What a listener does not consume goes back to the broker, which stores it again in the group's retry topic with a
delay; after too many tries among its dead letters. When the broker does not take it, it is sent to the retry topic
like any message; when that fails too, it is consumed again here, later.

A released queue is given away at once: another consumer also consumes messages in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from mqlake.base.background import BackgroundWork
from mqlake.client.consume.consume_service import ConsumeMessageService
from mqlake.client.consume.listener import ConsumeContext, ConsumeResult
from mqlake.client.consume.process_queue import ProcessQueue
from mqlake.client.consume.undecodable import delivered_message
from mqlake.client.records import MessageClientExt
from mqlake.errors import MqlakeError, UndecodableMessageError
from mqlake.remoting.bodies.client import MessageModel

logger = logging.getLogger(__name__)

CHUNK_MAX = 32
"""Calls that a thread makes in a row when many wait: handing over costs more than most calls."""
SUBMIT_LATER_S = 5.0
DELAY_LEVEL_OF_TIMEOUT = 3


@dataclass(slots=True, eq=False)
class ConsumeRequest:
    process_queue: ProcessQueue
    messages: list[MessageClientExt]
    begun: float = 0.0


@dataclass(eq=False)
class ConsumeMessageConcurrentlyService(ConsumeMessageService):
    _requests: asyncio.Queue[ConsumeRequest] = field(default_factory=asyncio.Queue, init=False)
    _under_way: set[ConsumeRequest] = field(default_factory=set, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _stopped: bool = field(default=False, init=False)

    def start(self) -> None:
        in_background = self.client.in_background
        self._tasks = [in_background(self._work()) for _ in range(self.config.consume_thread_max)]
        self._tasks.append(in_background(self._give_back_what_takes_too_long()))

    def submit(self, process_queue: ProcessQueue, count: int) -> None:
        size = self.config.consume_message_batch_max_size
        while messages := process_queue.take_messages(min(size, count)):
            count -= len(messages)
            undecodable = process_queue.undecodable.get(messages[0].queue_offset)
            if undecodable is None:
                self._requests.put_nowait(ConsumeRequest(process_queue, messages))
            else:
                self.client.in_background(self._bury(process_queue, undecodable))

    async def _bury(self, process_queue: ProcessQueue, undecodable: UndecodableMessageError) -> None:
        await self.send_to_dead_letters(process_queue, undecodable)
        self._remove(process_queue, [delivered_message(undecodable)])

    async def stop(self, timeout_s: float) -> None:
        self._stopped = True
        while not self._requests.empty():
            self._requests.get_nowait()
        if self._under_way:
            self._idle.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("group %s: a listener did not end within %g s", self.group, timeout_s)
        for task in self._tasks:
            task.cancel()

    async def _work(self) -> None:
        requests_queue, threads = self._requests, self.config.consume_thread_max
        turns = 0
        work = BackgroundWork(f"group {self.group}: consuming", logger)
        while not self._stopped:
            async with work.round():
                taken = [await requests_queue.get()]
                if self.runner.is_async:
                    turns += 1
                    if turns % CHUNK_MAX == 0:
                        await asyncio.sleep(0)  # the listener may never wait, and others want their turn
                else:
                    extra = min(requests_queue.qsize() // threads, CHUNK_MAX - 1)
                    taken += [requests_queue.get_nowait() for _ in range(extra)]
                requests = [request for request in taken if not request.process_queue.dropped]
                if requests and not self._stopped:
                    await self._consume(requests)

    async def _consume(self, requests: list[ConsumeRequest]) -> None:
        now = time.monotonic()
        for request in requests:
            request.begun = now
        self._under_way.update(requests)
        try:
            contexts = [ConsumeContext(request.process_queue.queue) for request in requests]
            calls = [(request.messages, context) for request, context in zip(requests, contexts, strict=True)]
            results = await self.runner.run(calls)
            for request, context, result in zip(requests, contexts, results, strict=True):
                await self._process_consume_result(request, context, result)
        except Exception:
            # the offset waits for them: what is not known to be done is consumed again
            for request in requests:
                left = [message for message in request.messages if request.process_queue.contains(message)]
                if left:
                    self.client.in_background(self._submit_later(request.process_queue, left))
            raise
        finally:
            self._under_way.difference_update(requests)
            if not self._under_way:
                self._idle.set()

    async def _process_consume_result(
        self, request: ConsumeRequest, context: ConsumeContext, result: ConsumeResult
    ) -> None:
        messages, process_queue = request.messages, request.process_queue
        consumed = 0
        if result is ConsumeResult.SUCCESS:
            consumed = len(messages) if context.ack_index is None else context.ack_index + 1
        done = messages
        failed = messages[max(0, consumed) :]
        if failed:
            if self.config.message_model is MessageModel.BROADCASTING:
                logger.warning(
                    "group %s: %d messages were not consumed; broadcast ones do not come again",
                    self.group,
                    len(failed),
                )
            else:
                given_back = await self._give_back(
                    process_queue, failed, context.delay_level_when_next_consume
                )
                again = [m for m, ok in zip(failed, given_back, strict=True) if not ok]
                if again:
                    done = [message for message in messages if message not in again]
                    self.client.in_background(self._submit_later(process_queue, again))
        self._remove(process_queue, done)

    def _remove(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        offset = process_queue.remove_messages(messages)
        if offset >= 0 and not process_queue.dropped:
            self.offset_store.update_offset(process_queue.queue, offset, increase_only=True)

    async def _give_back(
        self, process_queue: ProcessQueue, messages: list[MessageClientExt], delay_level: int
    ) -> list[bool]:
        async def one(message: MessageClientExt) -> bool:
            if not process_queue.contains(message):
                return True  # it took too long and was given back already
            try:
                await self.send_back.send_message_back(message, delay_level)
            except MqlakeError as error:
                logger.warning("group %s: a message cannot be given back: %s", self.group, error)
                message.reconsume_times += 1
                return False
            return True

        return await asyncio.gather(*(one(message) for message in messages))

    async def _submit_later(self, process_queue: ProcessQueue, messages: list[MessageClientExt]) -> None:
        await asyncio.sleep(SUBMIT_LATER_S)
        if not process_queue.dropped:
            self._requests.put_nowait(ConsumeRequest(process_queue, messages))

    async def _give_back_what_takes_too_long(self) -> None:
        timeout_s = self.config.consume_timeout_s
        work = BackgroundWork(f"group {self.group}: giving back what takes too long", logger)
        while True:
            await asyncio.sleep(timeout_s / 4)
            async with work.round():
                for request in list(self._under_way):
                    if time.monotonic() - request.begun > timeout_s and not request.process_queue.dropped:
                        logger.warning(
                            "group %s: the listener takes longer than %g s; its messages are given back",
                            self.group,
                            timeout_s,
                        )
                        given = await self._give_back(
                            request.process_queue, request.messages, DELAY_LEVEL_OF_TIMEOUT
                        )
                        gone = [m for m, ok in zip(request.messages, given, strict=True) if ok]
                        self._remove(request.process_queue, gone)
