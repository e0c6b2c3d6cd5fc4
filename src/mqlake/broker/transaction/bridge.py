"""TransactionalMessageBridge: the half and op queues in the store, and how far they are dealt with.

Progress is what the group CID_RMQ_SYS_TRANS has consumed of both topics, in consumerOffset.json as any group's. A
store that RocketMQ left goes on here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.broker.state.topic_config import PERM_READ_WRITE, TopicConfigManager
from mqlake.broker.transaction import messages
from mqlake.errors import FormatError, OffsetOutOfRangeError
from mqlake.message import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    Host,
    MessageExt,
    MessageExtBrokerInner,
    MessageSysFlag,
)
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import PutMessageFuture

CONSUMER_GROUP = "CID_RMQ_SYS_TRANS"
OP_MSG_PULL_NUMS = 32
RECENT_MAX = 4096
"""Half messages that are remembered as they were stored: most end at once, and to read them again takes longer."""
RECENT_BYTES_MAX = 4 << 20
"""Bytes of the remembered messages' bodies."""
_SAME_MESSAGE_MAX = 8


class TransactionalMessageBridge:
    """`store_host()` is where the broker listens, which is known only after its start."""

    def __init__(
        self,
        store: DefaultMessageStore,
        consumer_offset_manager: ConsumerOffsetManager,
        topic_config_manager: TopicConfigManager,
        store_host: Callable[[], Host],
        clock_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.clock_ms = clock_ms
        self._consumer_offset_manager = consumer_offset_manager
        self._topic_config_manager = topic_config_manager
        self._store_host = store_host
        self._recent: dict[int, MessageExtBrokerInner] = {}
        """Physical offset → half message, the oldest first."""
        self._recent_bytes = 0

    # --- progress

    def half_queue_ids(self) -> range:
        config = self._topic_config_manager.select_topic_config(TRANS_HALF_TOPIC)
        return range(config.read_queue_nums if config is not None else 1)

    def fetch_consume_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset to go on at in a queue: within what the store holds of it, whatever is written down."""
        low = max(self.store.min_offset_in_queue(topic, queue_id), 0)  # -1: there is no such queue yet
        known = self._consumer_offset_manager.query_offset(CONSUMER_GROUP, topic, queue_id)
        return min(max(known, low), self.store.max_offset_in_queue(topic, queue_id))

    def update_consume_offset(self, topic: str, queue_id: int, offset: int) -> None:
        host, port = self._store_host()
        self._consumer_offset_manager.commit_offset(f"{host}:{port}", CONSUMER_GROUP, topic, queue_id, offset)

    # --- reading

    def get_half_message(self, queue_id: int, offset: int) -> tuple[MessageExt | None, int]:
        """The half message at a queue offset, and the offset to go on with; None when none is there."""
        # what cannot be decoded would stop the checks of the whole queue
        found = self.store.get_message(CONSUMER_GROUP, TRANS_HALF_TOPIC, queue_id, offset, 1, check_crc=True)
        return next(found.messages(), None), found.next_begin_offset

    def op_messages(self, queue_id: int, offset: int) -> Iterator[list[MessageExt]]:
        """The op messages of a queue from an offset on, some at a time."""
        while True:
            found = self.store.get_message(
                CONSUMER_GROUP, TRANS_OP_HALF_TOPIC, queue_id, offset, OP_MSG_PULL_NUMS, check_crc=True
            )
            if found.message_count == 0 and found.next_begin_offset <= offset:
                return
            yield list(found.messages())
            offset = found.next_begin_offset

    def look_half_message(self, commit_log_offset: int) -> MessageExt | None:
        """The half message at a physical offset."""
        recent = self._recent.pop(commit_log_offset, None)
        if recent is not None:  # its end comes once; should it come again, the log has the message
            self._recent_bytes -= len(recent.body)
            return recent
        try:
            message = self.store.look_message_by_offset(commit_log_offset)
        except (OffsetOutOfRangeError, FormatError):
            return None
        return message if message.topic == TRANS_HALF_TOPIC else None

    def is_committed(self, half: MessageExt) -> bool:
        """True if the message was committed, by the index: for half messages from before the start, whose end may
        have been noted in memory only when the broker died."""
        topic, _ = messages.real_place(half)
        if not half.uniq_key:
            return False
        return any(
            MessageSysFlag.transaction_value(found.sys_flag) == MessageSysFlag.TRANSACTION_COMMIT_TYPE
            and (found.uniq_key, found.born_timestamp, found.body_crc)
            == (half.uniq_key, half.born_timestamp, half.body_crc)
            for found in self.store.query_message(
                topic, half.uniq_key, _SAME_MESSAGE_MAX, check_crc=True
            ).messages()
        )

    # --- writing

    def async_put_half_message(self, message: MessageExtBrokerInner) -> PutMessageFuture:
        messages.to_half(message)
        message.body = bytes(message.body)  # a slice of what was received is another's soon
        future = self.store.async_put_message(message)
        if not future.done() or future.result().is_ok:
            self._remember(message)
        return future

    def _remember(self, message: MessageExtBrokerInner) -> None:
        recent = self._recent
        recent[message.physical_offset] = message
        self._recent_bytes += len(message.body)
        while len(recent) > RECENT_MAX or self._recent_bytes > RECENT_BYTES_MAX:
            oldest = recent.pop(next(iter(recent)))
            self._recent_bytes -= len(oldest.body)

    def async_put_message(self, message: MessageExtBrokerInner) -> PutMessageFuture:
        return self.store.async_put_message(message)

    def put(self, message: MessageExtBrokerInner) -> bool:
        """Stores a message of the broker's own, for which nobody waits; returns True if the log has it."""
        future = self.store.async_put_message(message)
        if not future.done():
            return True
        appended = future.result().append_result
        return appended is not None and appended.is_ok

    def write_op(self, queue_id: int, body: bytes) -> bool:
        """Stores an op message; returns True if the log has it."""
        return self.put(messages.op_message(body, queue_id, self._store_host(), self.clock_ms()))

    def discard(self, half: MessageExt) -> bool:
        """Stores a half message that nobody would decide on where an operator finds it; returns True if the log has
        it."""
        self._topic_config_manager.create_topic_if_absent(
            TopicConfig(
                topic_name=TRANS_CHECK_MAX_TIME_TOPIC,
                read_queue_nums=1,
                write_queue_nums=1,
                perm=PERM_READ_WRITE,
            )
        )
        return self.put(messages.discarded(half))
