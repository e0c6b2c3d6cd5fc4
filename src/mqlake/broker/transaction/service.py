"""TransactionalMessageService: takes half messages, notes which have ended, and looks through those that have not.

    half queue   0 1 2 3 4 5 6 7 8 …        each round goes from where the last one ended to the first half message
                     ▲       ▲              that is too young to ask for
                     └ progress             3 has ended: passed over
    op queue     "0,1,3,"  "2,5,"           4 is open: put back as 9, with one more check to its name; then asked for

A half message that has ended is noted here at once and in the op queue a little later, many together. What died with
the broker in between is found again by the index. What ended is remembered for two rounds, by the half message's first
place, so the end of a message comes once, however often it was put back and whoever answers.

Progress is what the group CID_RMQ_SYS_TRANS has consumed of both topics, in consumerOffset.json as any group's. A
store that RocketMQ left goes on here, and the other way round.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from mqlake.base.throttled_log import ThrottledLog
from mqlake.broker.config import BrokerConfig
from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.broker.state.topic_config import PERM_READ_WRITE, TopicConfigManager
from mqlake.broker.transaction import messages
from mqlake.broker.transaction.metrics import TransactionMetrics
from mqlake.errors import FormatError, OffsetOutOfRangeError
from mqlake.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
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

logger = logging.getLogger(__name__)

MAX_PROCESS_TIME_S = 60.0
"""Seconds that one queue gets in a round; the next round goes on."""
SLICE = 256
"""Half messages between two turns of the rest of the broker."""
RETRY_S = 1.0
"""When the store takes no op messages."""

ASK_BYTES_MAX = 4 << 20
"""Bytes of half messages that are put back before their producers are asked: what a round needs of memory."""
_MESSAGE_BYTES = 1024  # beside its body, about

CONSUMER_GROUP = "CID_RMQ_SYS_TRANS"
OP_MSG_PULL_NUMS = 32
RECENT_MAX = 4096
"""Half messages that are remembered as they were stored: most end at once, and to read them again takes longer."""
RECENT_BYTES_MAX = 4 << 20
"""Bytes of the remembered messages' bodies."""
_SAME_MESSAGE_MAX = 8

Place = tuple[int, int]
"""A half queue, and the offset in it where a half message was first."""
Ask = Callable[[MessageExt], Awaitable[bool]]
"""Asks some producer what is to become of a half message, which is where the message says now; returns True if there
was one to ask."""


class TransactionState(enum.Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass
class _Round:
    """The state of one pass over a queue."""

    start_ms: int
    ended: set[int]
    """Half queue offsets that the op queue names."""
    deadline: float
    put_back: int = 0
    asked: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)
    """Producer group → messages that none of its producers could be asked about."""
    ask: list[MessageExt] = field(default_factory=list)
    """Put back, and not yet asked for."""
    ask_bytes: int = 0


class TransactionalMessageService:
    def __init__(
        self,
        store: DefaultMessageStore,
        consumer_offset_manager: ConsumerOffsetManager,
        topic_config_manager: TopicConfigManager,
        metrics: TransactionMetrics,
        config: Callable[[], BrokerConfig],
        store_host: Callable[[], Host],
        clock_ms: Callable[[], int],
    ) -> None:
        """`config()` may change while the broker runs. `store_host()` is where the broker listens, known only after its
        start."""
        self.store = store
        self.metrics = metrics
        self.clock_ms = clock_ms
        self._consumer_offset_manager = consumer_offset_manager
        self._topic_config_manager = topic_config_manager
        self._config = config
        self._store_host = store_host
        self._started_ms = clock_ms()
        self._recent: dict[int, MessageExtBrokerInner] = {}
        """Physical offset → half message, the oldest first."""
        self._recent_bytes = 0
        self._ended: dict[Place, TransactionState] = {}
        """How half messages ended, since the last round, and before it."""
        self._ended_before: dict[Place, TransactionState] = {}
        self._removed: dict[int, list[int]] = {}
        """Half queue → offsets that no op message names yet."""
        self._removed_size = 0
        self._op_trouble = ThrottledLog(logger, logging.WARNING)
        self._op_timer: asyncio.TimerHandle | None = None
        self._asked_ms: dict[str, int] = {}
        """Producer group → when one of its producers was last asked."""

    # --- half messages

    def async_prepare_message(self, message: MessageExtBrokerInner) -> PutMessageFuture:
        """Stores a message that nobody sees until its transaction is committed."""
        topic = message.topic
        messages.to_half(message)
        message.body = bytes(message.body)  # a slice of what was received is another's soon
        future = self.store.async_put_message(message)
        if not future.done() or future.result().is_ok:
            self._remember(message)
            self.prepared(topic)
        return future

    def _remember(self, message: MessageExtBrokerInner) -> None:
        recent = self._recent
        recent[message.physical_offset] = message
        self._recent_bytes += len(message.body)
        while len(recent) > RECENT_MAX or self._recent_bytes > RECENT_BYTES_MAX:
            oldest = recent.pop(next(iter(recent)))
            self._recent_bytes -= len(oldest.body)

    def prepared(self, topic: str) -> None:
        """Counts a half message that was stored, of a message for `topic`."""
        self.metrics.add_and_get(topic, 1)

    def ended_as(self, place: Place) -> TransactionState | None:
        """How a half message, or one that it is a copy of, has ended; None when it is open or that was long ago."""
        return self._ended.get(place) or self._ended_before.get(place)

    def end(self, place: Place, state: TransactionState) -> None:
        """Takes note that a half message has ended, before anybody can say so again."""
        self._ended[place] = state

    def reopen(self, place: Place) -> None:
        """It has not: the final message could not be stored."""
        self._ended.pop(place, None)

    def delete_prepare_message(self, half: MessageExt) -> None:
        """Has the op queue say that a half message has ended, with the next op message."""
        self.delete_prepared(
            half.queue_id,
            half.queue_offset,
            half.properties.get(PROPERTY_REAL_TOPIC, ""),
            half.born_timestamp,
            committed=self.ended_as(place_of(half)) is TransactionState.COMMITTED,
        )

    def delete_prepared(
        self, queue_id: int, offset: int, topic: str, born_timestamp: int, *, committed: bool
    ) -> None:
        """As `delete_prepare_message`, of the half message at a queue offset, which belongs to `topic`."""
        self._removed.setdefault(queue_id, []).append(offset)
        self._removed_size += len(str(offset)) + 1
        self.metrics.finished(topic, born_timestamp, committed=committed)
        config = self._config()
        if self._removed_size > config.transaction_op_msg_max_size:
            self.batch_send_op_message()
        else:
            self._send_op_message_in(config.transaction_op_batch_interval / 1000)

    # --- op messages

    def write_op(self, queue_id: int, body: bytes) -> bool:
        """Stores an op message; returns True if the log has it."""
        return self.put(messages.op_message(body, queue_id, self._store_host(), self.clock_ms()))

    def _send_op_message_in(self, seconds: float) -> None:
        if self._op_timer is None:
            self._op_timer = asyncio.get_running_loop().call_later(seconds, self.batch_send_op_message)

    def batch_send_op_message(self) -> bool:
        """Writes what has ended into the op queue; returns True if the log has all of it. The rest is tried again."""
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None
        size_max = self._config().transaction_op_msg_max_size
        waiting = deque(
            (queue_id, batch, body)
            for queue_id, offsets in self._removed.items()
            for batch, body in messages.op_bodies(offsets, size_max)
        )
        had_some, refused = bool(waiting), []
        self._removed, self._removed_size = {}, 0
        try:
            while waiting:
                queue_id, _, body = waiting[0]
                if not self.write_op(queue_id, body):
                    refused.append(waiting[0])
                waiting.popleft()
        finally:  # if the store raised, too: an op that is there twice ends the same half messages
            for queue_id, batch, body in (*refused, *waiting):
                self._removed.setdefault(queue_id, []).extend(batch)
                self._removed_size += len(body)
            if self._removed:
                self._op_trouble.failed(
                    f"the op queue takes nothing, tried again: {self._removed_size} bytes wait"
                )
                self._send_op_message_in(RETRY_S)
        if had_some and not refused:
            self._op_trouble.worked("the op queue takes messages again")
        return not self._removed

    def close(self) -> None:
        """Writes down what is in memory only, while the store still takes it."""
        self.batch_send_op_message()
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None

    # --- reading

    def _get_half_message(self, queue_id: int, offset: int) -> tuple[MessageExt | None, int]:
        """The half message at a queue offset, and the offset to go on with; None when none is there."""
        # what cannot be decoded would stop the checks of the whole queue
        found = self.store.get_message(CONSUMER_GROUP, TRANS_HALF_TOPIC, queue_id, offset, 1, check_crc=True)
        return next(found.messages(), None), found.next_begin_offset

    def _op_messages(self, queue_id: int, offset: int) -> Iterator[list[MessageExt]]:
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

    # --- progress

    def _fetch_consume_offset(self, topic: str, queue_id: int) -> int:
        """Returns the offset to go on at in a queue: within what the store holds of it, whatever is written down."""
        low = max(self.store.min_offset_in_queue(topic, queue_id), 0)  # -1: there is no such queue yet
        known = self._consumer_offset_manager.query_offset(CONSUMER_GROUP, topic, queue_id)
        return min(max(known, low), self.store.max_offset_in_queue(topic, queue_id))

    def _update_consume_offset(self, topic: str, queue_id: int, offset: int) -> None:
        host, port = self._store_host()
        self._consumer_offset_manager.commit_offset(f"{host}:{port}", CONSUMER_GROUP, topic, queue_id, offset)

    # --- open ones

    async def check(self, ask: Ask) -> None:
        """One round over all half queues. StoreCorruptError, FormatError for a queue that cannot be read."""
        config = self._topic_config_manager.select_topic_config(TRANS_HALF_TOPIC)
        for queue_id in range(1 if config is None else config.read_queue_nums):
            await self._check_queue(queue_id, ask)
        self._ended_before, self._ended = self._ended, {}

    async def _check_queue(self, queue_id: int, ask: Ask) -> None:
        self.batch_send_op_message()
        op_offset = self._fetch_consume_offset(TRANS_OP_HALF_TOPIC, queue_id)
        ops: list[tuple[int, list[int]]] = []
        for found in self._op_messages(queue_id, op_offset):
            ops += [(op.queue_offset, messages.ended_in(op)) for op in found]
            await asyncio.sleep(0)
        this = _Round(
            self.clock_ms(),
            {offset for _, offsets in ops for offset in offsets},
            time.monotonic() + MAX_PROCESS_TIME_S,
        )
        half_offset = new_offset = self._fetch_consume_offset(TRANS_HALF_TOPIC, queue_id)
        more = True
        while more:
            new_offset, more = await self._look_through(queue_id, new_offset, this)
            if this.put_back:
                # progress on the disk must not be past a message whose copy is not there
                await asyncio.to_thread(self.store.flush)
            await self._ask_for(this, ask)
        new_op_offset = op_offset
        for place, offsets in ops:
            if any(offset >= new_offset for offset in offsets):
                break
            new_op_offset = place + 1
        if new_offset != half_offset:
            self._update_consume_offset(TRANS_HALF_TOPIC, queue_id, new_offset)
        if new_op_offset != op_offset:
            self._update_consume_offset(TRANS_OP_HALF_TOPIC, queue_id, new_op_offset)
        for group, count in this.not_asked.items():
            logger.warning(
                "half queue %d: %d messages are open and no producer of their group %s could be asked",
                queue_id,
                count,
                group,
            )
        quiet = (new_offset, new_op_offset) == (half_offset, op_offset) and not this.asked
        logger.log(
            logging.DEBUG if quiet else logging.INFO,
            "half queue %d: from %d to %d, %d put back, %d asked for; op queue from %d to %d",
            queue_id,
            half_offset,
            new_offset,
            this.put_back,
            this.asked,
            op_offset,
            new_op_offset,
        )

    async def _ask_for(self, this: _Round, ask: Ask) -> None:
        for message in this.ask:
            group = _group(message)
            if await ask(message):
                this.asked += 1
                self._asked_ms[group] = self.clock_ms()
            else:
                this.not_asked[group] += 1
        this.ask.clear()
        this.ask_bytes = 0

    async def _look_through(self, queue_id: int, offset: int, this: _Round) -> tuple[int, bool]:
        """Deals with half messages from `offset` on; how far that went, and whether the round goes on there."""
        looked_at = 0
        while time.monotonic() < this.deadline:
            if this.ask_bytes >= ASK_BYTES_MAX:
                return offset, True
            looked_at += 1
            if looked_at % SLICE == 0:
                await asyncio.sleep(0)
            if offset in this.ended:
                offset += 1
                continue
            half, following = self._get_half_message(queue_id, offset)
            if half is None:
                if following <= offset:
                    break
                offset = following  # messages that the store does not have any more
            elif self._deal_with(half, this):
                offset += 1
            else:
                break
        return offset, False

    def _deal_with(self, half: MessageExt, this: _Round) -> bool:
        """True if the round may go on after this half message; False also when the store takes nothing."""
        first = messages.prepared_queue_offset(half)
        if first in this.ended or self.ended_as(place_of(half)) is not None:
            return True
        if half.store_timestamp <= self._started_ms and self._ended_before_the_start(half):
            return True
        config = self._config()
        reserved_ms = self.store.config.file_reserved_time * 3_600_000
        age_ms = self.clock_ms() - half.born_timestamp
        times = messages.check_times(half)
        if times >= config.transaction_check_max:
            return self._discard(
                half, f"was checked {times} times without an answer; {self._last_asked(half)}"
            )
        if age_ms > reserved_ms:
            return self._discard(half, f"is older than fileReservedTime ({reserved_ms // 3_600_000} h)")
        if half.store_timestamp >= this.start_ms:
            return False
        immunity_ms = messages.check_immunity_ms(half)
        if immunity_ms is not None and age_ms < immunity_ms:
            return self._put_back(half, this, asked=False) is not None
        if immunity_ms is None and 0 <= age_ms < config.transaction_time_out:
            return False
        copy = self._put_back(half, this, asked=True)
        if copy is None:
            return False
        this.ask.append(copy)
        this.ask_bytes += len(copy.body) + _MESSAGE_BYTES
        return True

    def _ended_before_the_start(self, half: MessageExt) -> bool:
        try:
            committed = self._is_committed(half)
        except FormatError as error:  # nobody can end it
            logger.error("half message %d: %s; it is passed over", half.queue_offset, error)
            return True
        if committed:
            logger.info("half message %d was committed before the broker ended", half.queue_offset)
            self.end(place_of(half), TransactionState.COMMITTED)
            self.delete_prepare_message(half)
        return committed

    def _is_committed(self, half: MessageExt) -> bool:
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

    def put(self, message: MessageExtBrokerInner) -> bool:
        """Stores a message of the broker's own, for which nobody waits; returns True if the log has it."""
        future = self.store.async_put_message(message)
        if not future.done():
            return True
        appended = future.result().append_result
        return appended is not None and appended.is_ok

    def _put_back(self, half: MessageExt, this: _Round, *, asked: bool) -> MessageExt | None:
        copy = messages.put_back(half, asked=asked)
        if not self.put(copy):
            logger.error("half message %d cannot be put back, tried again", half.queue_offset)
            return None
        this.put_back += 1
        return copy

    def _last_asked(self, half: MessageExt) -> str:
        """A check counts whether there is a producer to ask or not, as in RocketMQ."""
        group = _group(half)
        last_ms = self._asked_ms.get(group)
        if last_ms is None:
            return f"no producer of its group {group} could be asked since the broker started"
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_ms / 1000))
        return f"a producer of its group {group} was last asked at {at}"

    def _discard(self, half: MessageExt, why: str) -> bool:
        """Stores a half message that nobody would decide on where an operator finds it."""
        topic = half.properties.get(PROPERTY_REAL_TOPIC, "")
        self._topic_config_manager.create_topic_if_absent(
            TopicConfig(
                topic_name=TRANS_CHECK_MAX_TIME_TOPIC,
                read_queue_nums=1,
                write_queue_nums=1,
                perm=PERM_READ_WRITE,
            )
        )
        if not self.put(messages.discarded(half)):
            logger.error("half message %d cannot be discarded, tried again", half.queue_offset)
            return False
        self.metrics.add_and_get(topic, -1)
        logger.error(
            "half message %d of %s (%s) %s: it is moved to TRANS_CHECK_MAX_TIME_TOPIC",
            half.queue_offset,
            topic,
            half.uniq_key,
            why,
        )
        return True


def place_of(half: MessageExt) -> Place:
    return half.queue_id, messages.prepared_queue_offset(half)


def _group(half: MessageExt) -> str:
    return half.properties.get(PROPERTY_PRODUCER_GROUP, "")
