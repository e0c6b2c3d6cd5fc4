"""Listeners: the functions that consume messages, and how they are called.

    async def listener(messages: list[MessageClientExt], context: ConsumeContext) -> ConsumeResult | None

An async function runs on the event loop, any other in a thread of its own pool, so it may block. Returning None
or SUCCESS means consumed; LATER, or any exception, means that the messages are to come again.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from mqlake.client.hooks import ConsumeMessageContext, ConsumeMessageHook, call_hooks
from mqlake.client.records import MessageClientExt
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)


class ConsumeResult(enum.Enum):
    """The result of a listener. None means SUCCESS, an exception LATER."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"
    """RECONSUME_LATER of a concurrent consumer, SUSPEND_CURRENT_QUEUE_A_MOMENT of an orderly one."""


@dataclass(slots=True)
class ConsumeContext:
    """A listener may set all but the queue."""

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    """When a concurrent consumer gets the messages again: a delay level; 0: the later the oftener; -1: never, they
    become dead letters."""
    ack_index: int | None = None
    """The last message of a batch that a concurrent consumer has consumed; -1 for none. None: all."""
    suspend_current_queue_time_s: float | None = None
    """How long an orderly consumer waits before it tries again. None: as configured."""


Listener = Callable[
    [list[MessageClientExt], ConsumeContext], ConsumeResult | Awaitable[ConsumeResult | None] | None
]
"""The function that a PushConsumer calls with messages, as many as consume_message_batch_max_size at most."""

Call = tuple[list[MessageClientExt], ConsumeContext]


def _result(answer: object) -> ConsumeResult:
    """Raises TypeError for an invalid result: its meaning is unknown, so the messages have to come again."""
    if answer is None:
        return ConsumeResult.SUCCESS
    if not isinstance(answer, ConsumeResult):
        raise TypeError(f"a listener has to return ConsumeResult or None, not {type(answer).__name__}")
    return answer


def _place(message: MessageClientExt) -> str:
    """Returns the place at which the message was read; of one that comes again also its topic, and how often it has
    come."""
    place = f"{message.read_topic}/{message.queue_id}@{message.queue_offset}"
    if message.read_topic == message.topic and not message.reconsume_times:
        return place
    return f"{place} (of {message.topic}, delivery {message.reconsume_times + 1})"


class ListenerRunner:
    """Calls a listener; exceptions of it are logged and count as LATER."""

    def __init__(
        self, listener: Listener, group: str, threads: int, hooks: Sequence[ConsumeMessageHook] = ()
    ) -> None:
        self._listener = listener
        self._hooks = hooks
        self._group = group
        call = getattr(listener, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)
        self._pool = (
            None if self.is_async else ThreadPoolExecutor(threads, thread_name_prefix=f"consume-{group}")
        )

    async def run(self, calls: list[Call]) -> list[ConsumeResult]:
        """One call after the other; what came of each."""
        if self._pool is not None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._run_all, calls)
        results = []
        for messages, context in calls:
            hooked = self._before(messages, context)
            try:
                answer = await cast("Awaitable[ConsumeResult | None]", self._listener(messages, context))
                results.append(_result(answer))
            except Exception as error:
                results.append(self._failed(messages, error, hooked))
            self._after(hooked, results[-1])
        return results

    def _before(
        self, messages: list[MessageClientExt], context: ConsumeContext
    ) -> ConsumeMessageContext | None:
        if not self._hooks:
            return None
        hooked = ConsumeMessageContext(
            consumer_group=self._group, message_queue=context.message_queue, messages=messages
        )
        call_hooks([hook.consume_message_before for hook in self._hooks], hooked)
        return hooked

    def _after(self, hooked: ConsumeMessageContext | None, result: ConsumeResult) -> None:
        if hooked is not None:
            hooked.success = result is ConsumeResult.SUCCESS
            hooked.status = hooked.status or result.value
            call_hooks([hook.consume_message_after for hook in self._hooks], hooked)

    async def run_raising(
        self, messages: list[MessageClientExt], context: ConsumeContext
    ) -> ConsumeResult | None:
        """One call; the listener's exception comes through."""
        if self._pool is not None:
            loop = asyncio.get_running_loop()
            done = await loop.run_in_executor(self._pool, self._listener, messages, context)
            return cast("ConsumeResult | None", done)
        return await cast("Awaitable[ConsumeResult | None]", self._listener(messages, context))

    def _run_all(self, calls: list[Call]) -> list[ConsumeResult]:
        results = []
        for messages, context in calls:
            hooked = self._before(messages, context)
            try:
                answer = cast("ConsumeResult | None", self._listener(messages, context))
                results.append(_result(answer))
            except Exception as error:
                results.append(self._failed(messages, error, hooked))
            self._after(hooked, results[-1])
        return results

    def _failed(
        self, messages: list[MessageClientExt], error: Exception, hooked: ConsumeMessageContext | None
    ) -> ConsumeResult:
        if hooked is not None:
            hooked.status = type(error).__name__
        logger.warning(
            "group %s: the listener failed at %s: %s: %s",
            self._group,
            _place(messages[0]),
            type(error).__name__,
            error,
            exc_info=error,
        )
        return ConsumeResult.LATER

    def close(self) -> None:
        """Does not wait for a running call."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
