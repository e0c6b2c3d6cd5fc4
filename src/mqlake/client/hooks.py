"""Send and consume hooks of a client: RocketMQ's SendMessageHook and ConsumeMessageHook, and their contexts.

    ProducerConfig(send_message_hooks=[…])      each try of a send: before ─▶ request, answer ─▶ after
    ConsumerConfig(consume_message_hooks=[…])   each call of a listener: before ─▶ listener ─▶ after

A send hook may also have `message_created(message)`. It is called for each message in the context of its sender, before
anything of the message is encoded, and may add properties.

They are called where the work is done: on the event loop, or in the thread of a listener that is not async. Their
exceptions are logged and have no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from mqlake.client.records import MessageClientExt
from mqlake.client.results import SendResult
from mqlake.message import Message
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

Context = TypeVar("Context")


@dataclass(slots=True, kw_only=True)
class SendMessageContext:
    producer_group: str
    message: Message
    """The message; of a batch, the one that holds it."""
    batch: Sequence[Message] | None
    message_queue: MessageQueue
    broker_addr: str
    send_result: SendResult | None = None
    """After; None when the try failed, and of a send that is not answered."""
    exception: Exception | None = None
    mq_trace_context: Any = None
    """The hooks' own, from before to after."""


@dataclass(slots=True, kw_only=True)
class ConsumeMessageContext:
    """One call of a listener."""

    consumer_group: str
    message_queue: MessageQueue
    messages: list[MessageClientExt]
    success: bool = False
    """After: True if they are consumed."""
    status: str = ""
    """After: the ConsumeResult, or the name of the exception."""
    mq_trace_context: Any = None


class SendMessageHook(Protocol):
    def hook_name(self) -> str: ...

    def send_message_before(self, context: SendMessageContext) -> None: ...

    def send_message_after(self, context: SendMessageContext) -> None: ...


@runtime_checkable
class MessageCreatedHook(Protocol):
    """A method that a SendMessageHook may have besides."""

    def message_created(self, message: Message) -> None: ...


class ConsumeMessageHook(Protocol):
    def hook_name(self) -> str: ...

    def consume_message_before(self, context: ConsumeMessageContext) -> None: ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None: ...


def call_hooks(methods: Sequence[Callable[[Context], None]], context: Context) -> None:
    """Calls each; an exception is logged, and those that follow are called."""
    for method in methods:
        try:
            method(context)
        except Exception:
            logger.exception(
                "hook %s failed; messages are not affected", getattr(method, "__qualname__", method)
            )
