"""Send and consume hooks: RocketMQ's SendMessageHook and ConsumeMessageHook, and the contexts they are handed.

    send ──▶ send_message_before(context) ──▶ checks, store ──▶ send_message_after(context) ──▶ answer
    pull ──▶ checks, store ──▶ consume_message_before(context) ──▶ answer
    CONSUMER_SEND_MSG_BACK ──▶ store ──▶ consume_message_after(context) ──▶ answer

A program registers hooks in `BrokerController.broker.hooks`. Installed packages offer them as entry points in the
groups SEND_HOOKS and CONSUME_HOOKS: each names a callable that takes the Broker and returns the hook.

Hooks run on the broker's event loop, so they must not block. While a send hook is registered, sends take the slow
path, and pulls while a consume hook is. A hook that raises ResponseError from `send_message_before` refuses the send
with that code (RocketMQ's AbortProcessException); any other error of a hook is logged, and changes nothing. Unlike in
RocketMQ, `send_message_after` follows every send, also one that was refused.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from mqlake.base.plugins import load_plugins
from mqlake.errors import ConfigError, ResponseError
from mqlake.formats.trace import MessageType
from mqlake.message import MessageExt

logger = logging.getLogger(__name__)

SEND_HOOKS = "mqlake.send_message_hooks"
CONSUME_HOOKS = "mqlake.consume_message_hooks"


class StatsType(enum.Enum):
    """The result: RocketMQ's BrokerStatsManager.StatsType."""

    SEND_SUCCESS = "SEND_SUCCESS"
    SEND_FAILURE = "SEND_FAILURE"
    RCV_SUCCESS = "RCV_SUCCESS"
    RCV_EPOLLS = "RCV_EPOLLS"
    SEND_BACK = "SEND_BACK"
    SEND_BACK_TO_DLQ = "SEND_BACK_TO_DLQ"


@dataclass(slots=True, kw_only=True)
class SendMessageContext:
    """One send. Times are ms, lengths and sizes bytes."""

    producer_group: str
    topic: str
    queue_id: int
    """Before: the requested queue, -1 for any; after: the queue it went to."""
    body_length: int
    msg_props: dict[str, str]
    """The message's properties as received; changes have no effect."""
    born_host: str
    broker_addr: str
    broker_region_id: str
    born_timestamp: int
    request_timestamp: int
    msg_unique_key: str
    """UNIQ_KEY; for a batch those of all its messages, separated by commas; empty without one."""
    msg_type: MessageType

    # after
    msg_id: str = ""
    """The offset message id; for a batch several, separated by commas; empty if it was not stored."""
    queue_offset: int = -1
    code: int = 0
    """The answer's."""
    error_msg: str = ""
    success: bool = False
    """True if the message was stored as durably as the configuration demands."""
    send_stat: StatsType = StatsType.SEND_FAILURE
    send_msg_num: int = 0
    """Messages stored."""
    send_msg_size: int = 0
    """Bytes of the records."""

    mq_trace_context: Any = None
    """The hooks' own data, kept from before to after."""


@dataclass(kw_only=True)
class ConsumeMessageContext:
    """One answer to a pull, or one message sent back."""

    consumer_group: str
    topic: str
    queue_id: int
    client_host: str
    store_host: str
    success: bool
    status: str
    """For a pull: the store's status, as in the answer's remark."""
    rcv_stat: StatsType
    rcv_msg_num: int = 0
    rcv_msg_size: int = 0
    """Bytes of the records."""
    delay_level: int = 0
    """For a message sent back: its delay level; 0 for a dead letter."""
    read: Callable[[], Sequence[MessageExt]] = field(default=tuple, repr=False)
    mq_trace_context: Any = None

    @cached_property
    def messages(self) -> Sequence[MessageExt]:
        """The messages, decoded when first asked for. FormatError when a record is damaged."""
        return self.read()

    @property
    def message_ids(self) -> dict[str, int]:
        """Their unique keys (without one the offset message id), each with its queue offset."""
        return {message.uniq_key or message.msg_id: message.queue_offset for message in self.messages}


@runtime_checkable
class SendMessageHook(Protocol):
    def hook_name(self) -> str: ...

    def send_message_before(self, context: SendMessageContext) -> None:
        """ResponseError refuses the send."""

    def send_message_after(self, context: SendMessageContext) -> None: ...


@runtime_checkable
class ConsumeMessageHook(Protocol):
    def hook_name(self) -> str: ...

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """A pull is about to be answered."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """A consumer could not handle a message and sent it back."""


class Hooks:
    """The hooks of one broker, called in the order of their registration."""

    def __init__(self) -> None:
        self.send: list[SendMessageHook] = []
        self.consume: list[ConsumeMessageHook] = []
        self._failed: set[tuple[str, str]] = set()

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """TypeError when it lacks a method."""
        _require(hook, SendMessageHook)
        self.send.append(hook)
        logger.info("send hook: %s", hook.hook_name())

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """TypeError when it lacks a method."""
        _require(hook, ConsumeMessageHook)
        self.consume.append(hook)
        logger.info("consume hook: %s", hook.hook_name())

    def register_plugins(self, broker: object) -> None:
        """Registers the hooks of installed packages. ConfigError names one that cannot be used."""
        for group, register in (
            (SEND_HOOKS, self.register_send_message_hook),
            (CONSUME_HOOKS, self.register_consume_message_hook),
        ):
            for plugin in load_plugins(group):
                try:
                    register(plugin.value(broker))
                except Exception as error:
                    raise ConfigError(
                        f"the plug-in {plugin.name} of {group} cannot be used: {type(error).__name__}: {error}"
                    ) from error

    # --- called by processors

    def execute_send_message_hook_before(self, context: SendMessageContext) -> None:
        """ResponseError when a hook refuses the send; the hooks that follow are not called then."""
        self._call(self.send, "send_message_before", context, refusal=ResponseError)

    def execute_send_message_hook_after(self, context: SendMessageContext) -> None:
        self._call(self.send, "send_message_after", context)

    def execute_consume_message_hook_before(self, context: ConsumeMessageContext) -> None:
        self._call(self.consume, "consume_message_before", context)

    def execute_consume_message_hook_after(self, context: ConsumeMessageContext) -> None:
        self._call(self.consume, "consume_message_after", context)

    def _call(
        self,
        hooks: Sequence[SendMessageHook | ConsumeMessageHook],
        method: str,
        context: SendMessageContext | ConsumeMessageContext,
        refusal: type[Exception] | tuple[()] = (),
    ) -> None:
        for hook in hooks:
            try:
                getattr(hook, method)(context)
            except refusal:
                raise
            except Exception:
                self._log(hook, method)

    def _log(self, hook: SendMessageHook | ConsumeMessageHook, method: str) -> None:
        """Logs the first failure of a hook's method as an error, later ones at debug level: there may be many."""
        key = (hook.hook_name(), method)
        level = logging.DEBUG if key in self._failed else logging.ERROR
        self._failed.add(key)
        logger.log(level, "hook %s: %s failed; messages are not affected", *key, exc_info=True)


def _require(hook: object, protocol: type[Any]) -> None:
    if not isinstance(hook, protocol):
        needed = [name for name in vars(protocol) if not name.startswith("_")]
        missing = ", ".join(name for name in needed if not callable(getattr(hook, name, None)))
        raise TypeError(f"{type(hook).__name__} is not a {protocol.__name__}: it lacks {missing}")
