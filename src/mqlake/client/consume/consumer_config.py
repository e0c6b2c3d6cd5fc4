"""ConsumerConfig: how consumers pull, cache and consume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqlake.base.arguments import checked
from mqlake.client.consume.offset_store import LOCAL_OFFSET_STORE_DIR
from mqlake.client.consume.undecodable import CHOICES, OnUndecodable
from mqlake.client.hooks import ConsumeMessageHook
from mqlake.client.records import MAX_BODY_SIZE
from mqlake.errors import ConfigError
from mqlake.remoting.allocate import AllocateMessageQueueStrategy, averagely
from mqlake.remoting.bodies.client import ConsumeFromWhere, MessageModel


@checked
@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """How consumers pull, cache and consume. Names and values are those of RocketMQ's DefaultMQPushConsumer and
    DefaultLitePullConsumer.

    message_model: CLUSTERING: each message goes to one consumer of the group. BROADCASTING: to all.
    consume_from_where: where a queue begins that the group has no offset of.
    consume_timestamp: ms since 1970, for CONSUME_FROM_TIMESTAMP.
    allocate_message_queue_strategy: divides a topic's queues among the members of the group.
    pull_batch_size: messages of one pull; the broker may have a lower limit.
    pull_threshold_for_queue: messages of a queue that may be cached before pulling pauses.
    pull_threshold_size_for_queue: MiB of bodies of a queue, likewise.
    consume_concurrently_max_span: offsets between the oldest and the newest cached message of a queue, likewise (not
        when orderly).
    local_offset_store_dir: directory of the offsets of BROADCASTING.
    broker_suspend_max_time_s: seconds for which a broker holds a pull if there are no messages.
    pull_time_delay_when_exception_s: seconds before a pull that failed is tried again.
    on_undecodable: how to treat a message whose body cannot be decoded: "raise", "skip", "raw", or a function that is
        given the message. See `mqlake.client.consume.undecodable`.
    max_body_size: bytes that a compressed body may unpack to; a larger one cannot be decoded.

    Of push consumers only:

    consume_thread_max: calls of the listener at a time, at most.
    consume_message_batch_max_size: messages of one call, at most.
    max_reconsume_times: tries after the first before a message becomes a dead letter. -1: 16, or no limit when orderly.
    suspend_current_queue_time_s: seconds before an orderly consumer tries again.
    consume_timeout_s: seconds of a listener's call after which its messages are given back (not when orderly).
    await_termination_s: seconds that closing waits for running listeners.
    client_rebalance: False: brokers divide the queues, and say whether to pull or to pop (concurrent push consumers in
        CLUSTERING mode; an operator sets it: `mqlake admin group set-mode`, mqadmin's setConsumeMode).
    pop_invisible_time_s: seconds for which popped messages are kept from others.
    pop_batch_nums: messages of one pop, at most 32.
    pop_threshold_for_queue: messages without acknowledgement of one assignment at which popping pauses.
    consume_message_hooks: called around each call of the listener, see `mqlake.client.hooks`.

    Of pull consumers only:

    auto_commit: positions are persisted without `commit()`, every 5 s and at the end.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: int = 0
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = averagely
    pull_batch_size: int = 32
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100
    consume_concurrently_max_span: int = 2000
    local_offset_store_dir: str = LOCAL_OFFSET_STORE_DIR
    broker_suspend_max_time_s: float = 15.0
    pull_time_delay_when_exception_s: float = 1.0
    on_undecodable: OnUndecodable = "raise"
    max_body_size: int = MAX_BODY_SIZE

    consume_thread_max: int = 20
    consume_message_batch_max_size: int = 1
    max_reconsume_times: int = -1
    suspend_current_queue_time_s: float = 1.0
    consume_timeout_s: float = 15 * 60.0
    await_termination_s: float = 10.0
    client_rebalance: bool = True
    pop_invisible_time_s: float = 60.0
    pop_batch_nums: int = 32
    pop_threshold_for_queue: int = 96
    consume_message_hooks: Sequence[ConsumeMessageHook] = ()

    auto_commit: bool = True

    def __post_init__(self) -> None:
        if self.on_undecodable not in CHOICES and not callable(self.on_undecodable):
            raise ConfigError(
                f"on_undecodable is {self.on_undecodable!r}: one of {', '.join(CHOICES)} or a function is needed"
            )
        for name in (
            "pull_batch_size",
            "consume_thread_max",
            "consume_message_batch_max_size",
            "max_body_size",
            "pop_batch_nums",
            "pop_threshold_for_queue",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: at least 1 is needed")
