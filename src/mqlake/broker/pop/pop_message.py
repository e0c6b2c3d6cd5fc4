"""PopMessageProcessor: 200050 POP_MESSAGE, 200052 PEEK_MESSAGE, 200055 POLLING_INFO.

    request ─▶ may the group? ─▶ [retry topic] ─▶ queues of the topic ─▶ [retry topic] ─▶ answer
                                       └────────── each: lock, offset, messages, checkpoint
                                                   nothing anywhere ─▶ PopLongPollingService

Records are sent as they lie in the log. Only those of a retry topic are encoded again, with the topic that was asked
for: the client sees from the receipt handle where they are.

A checkpoint is stored before the answer leaves, and under SYNC_FLUSH on the disk. Offsets that a new group begins with
are written before its first answer: after a crash it begins at the same place.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from mqlake.base.clock import now_ms
from mqlake.broker.filter import TAG, is_tag_type
from mqlake.broker.filter.message_filter import ExpressionMessageFilter
from mqlake.broker.mqtrace.contexts import pop_context
from mqlake.broker.pop.checkpoint import Checkpoint, CheckpointKey
from mqlake.broker.pop.polling import ANY_QUEUE, EARLIER_MS, Wait, Waiter
from mqlake.broker.pop.queues import PendingRange, PopQueue
from mqlake.broker.pop.state import PopState
from mqlake.broker.services.after_dispatch import when_dispatched
from mqlake.broker.services.archived import read_ahead, with_archive
from mqlake.broker.services.error_responses import with_default_header
from mqlake.broker.state.consumer_filter import ConsumerFilterData
from mqlake.errors import ResponseError
from mqlake.formats.record import decode_record, encode_message
from mqlake.message import (
    NORMAL_TOPIC,
    ORDER_REVIVE_QUEUE_ID,
    PROPERTY_POP_CK,
    ReceiptHandle,
    order_count_info,
    pop_retry_topic,
    retry_flag,
    tags_code,
)
from mqlake.remoting.bodies.client import ConsumeType, MessageModel, SubscriptionData
from mqlake.remoting.bodies.topic import PERM_READ, TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, Buffer, RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import (
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from mqlake.remoting.processors import answers
from mqlake.store.filter import SUBSCRIBE_ALL, MessageFilter, TagFilter
from mqlake.store.log.commit_log import RETRY_TOPIC_LENGTH_MAX
from mqlake.store.results import STORED, GetMessageResult, GetMessageStatus, PutMessageFuture

logger = logging.getLogger(__name__)

MESSAGES_MAX = 32
LATE_MS = 500
"""A request whose time was over so long ago is answered at once."""
INIT_MIN, INIT_MAX = 0, 1
COMPENSATION_MS = 60_000

_CORRECTED = (
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_FOUND_NULL,
)
_PASSED = (
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
)


@dataclass(slots=True, eq=False)
class Pop:
    """One POP_MESSAGE while it is executed."""

    header: PopMessageRequestHeader
    topic_config: TopicConfig
    message_filter: MessageFilter | None
    pop_time: int
    revive_queue_id: int
    buffers: list[Buffer] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    handed_out: list[tuple[PopQueue, GetMessageResult]] = field(default_factory=list)
    """The messages that hooks are told of, if there are any hooks."""
    start_infos: list[str] = field(default_factory=list)
    msg_infos: list[str] = field(default_factory=list)
    order_infos: list[str] = field(default_factory=list)
    cold: list[PopQueue] = field(default_factory=list)
    """Queues whose next messages have to be read from the disk."""
    waits: list[PutMessageFuture] = field(default_factory=list)
    stored_later: list[tuple[PopQueue, PendingRange]] = field(default_factory=list)
    initialized: bool = False
    """True if the group has a new offset, which is to be written."""

    @property
    def room(self) -> int:
        return self.header.max_msg_nums - self.count


_REFUSED = with_default_header(
    lambda: PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0)
)


class PopMessageProcessor:
    def __init__(self, state: PopState) -> None:
        self._state = state
        self._broker = broker = state.broker
        self._queues = state.queues
        self._revive_queue = 0
        self._random = random.Random()
        self._compensated: dict[tuple[str, str], tuple[str | None, int]] = {}
        self._filters = functools.lru_cache(maxsize=4096)(self._filter)
        self._build_filter_data = broker.consumer_filter_manager.build

    # --- requests

    @answers(RequestCode.POP_MESSAGE, _REFUSED)
    def pop_message(
        self, connection: Connection | None, header: PopMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        now = self._broker.clock_ms()
        if header.born_time == 0:
            header.born_time = now
        if now - header.born_time - header.poll_time > LATE_MS:
            raise ResponseError(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._name}] pop message is timeout too much"
            )
        store = self._broker.store
        if header.poll_time <= 0 and store.dispatch_behind_bytes and not self._may_be_more(header):
            # not told of no message while dispatch gathers some
            pop = functools.partial(self._execute, connection, header, None)
            return asyncio.ensure_future(when_dispatched(store, pop))
        return self._execute(connection, header, None)

    @answers(RequestCode.POLLING_INFO, with_default_header(lambda: PollingInfoResponseHeader(polling_num=0)))
    def polling_info(self, header: PollingInfoRequestHeader) -> RemotingCommand:
        """200055 POLLING_INFO: how many pops of a group wait at a queue."""
        key = header.topic, header.consumer_group, header.queue_id
        return RemotingCommand.create_response(
            header=PollingInfoResponseHeader(polling_num=self._state.pop_polling.polling_num(key))
        )

    @property
    def _name(self) -> str:
        return self._broker.config.broker_ip1

    # --- from request to answer

    def _execute(
        self,
        connection: Connection | None,
        header: PopMessageRequestHeader,
        waiter: Waiter | None,
        *,
        is_over: bool = False,
    ) -> Answer | Awaitable[Answer]:
        """The answer to a pop. One that has waited sets its waiter's answer, or waits again."""
        pop = self._begin(header)
        self._sweep(pop)
        if pop.waits or pop.initialized or (pop.cold and pop.room):
            return self._finish_later(connection, pop, waiter, is_over)
        return self._finish(connection, pop, waiter, is_over)

    async def _finish_later(
        self, connection: Connection | None, pop: Pop, waiter: Waiter | None, is_over: bool
    ) -> Answer:
        await self._read_cold(pop)
        for future in pop.waits:
            await future
        for queue, pending in pop.stored_later:
            self._queues.stored(queue, pending)
        if pop.initialized:
            # without its group a checkpoint is dropped, and a group that a request has created is not on disk yet
            await self._broker.subscription_group_manager.persist_in_background()
            await self._broker.consumer_offset_manager.persist_in_background()
        answer = self._finish(connection, pop, waiter, is_over)
        return await answer if isinstance(answer, Awaitable) else answer

    def _finish(
        self, connection: Connection | None, pop: Pop, waiter: Waiter | None, is_over: bool
    ) -> Answer | Awaitable[Answer]:
        header = pop.header
        if pop.buffers:
            if pop.rest > 0:
                self._state.wake(header.topic, header.consumer_group)
            for queue, result in pop.handed_out:
                self._broker.hooks.execute_consume_message_hook_before(
                    pop_context(self._broker, connection, queue.group, queue.topic, queue.queue_id, result)
                )
            return self._found(pop)
        if is_over or header.poll_time <= 0:
            return self._empty(ResponseCode.POLLING_TIMEOUT, pop)
        if waiter is None:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            deadline = header.born_time + header.poll_time - EARLIER_MS
            key = header.topic, header.consumer_group, header.queue_id
            waiter = Waiter(connection, key, deadline, answer, functools.partial(self._woken, header))
        wait = self._state.pop_polling.wait(waiter, lambda: self._may_be_more(header))
        if wait is Wait.WAITS:
            self._broker.store.messages_awaited()
            return waiter.answer
        return self._empty(
            ResponseCode.POLLING_FULL if wait is Wait.FULL else ResponseCode.POLLING_TIMEOUT, pop
        )

    def _woken(self, header: PopMessageRequestHeader, waiter: Waiter, is_over: bool) -> None:
        try:
            answer = self._execute(waiter.connection, header, waiter, is_over=is_over)
        except Exception as error:  # answered like any failure of a processor
            waiter.answer.set_exception(error)
            return
        if answer is waiter.answer:
            return  # it waits again
        if isinstance(answer, Awaitable):
            later = asyncio.ensure_future(answer)
            if waiter.connection is not None:
                waiter.connection.stop_waits_for(later)
            later.add_done_callback(functools.partial(_pass_on, waiter.answer))
        else:
            waiter.answer.set_result(answer)

    def _found(self, pop: Pop) -> RemotingCommand:
        header = pop.header
        fields = {
            "popTime": str(pop.pop_time),
            "invisibleTime": str(header.invisible_time),
            "reviveQid": str(pop.revive_queue_id),
            "restNum": str(pop.rest),
            "startOffsetInfo": ";".join(pop.start_infos),
            "msgOffsetInfo": ";".join(pop.msg_infos),
        }
        if header.order:
            fields["orderCountInfo"] = ";".join(pop.order_infos)
        return RemotingCommand(
            ResponseCode.SUCCESS, flag=RESPONSE_FLAG, remark="FOUND", ext_fields=fields, body=pop.buffers
        )

    def _empty(self, code: ResponseCode, pop: Pop) -> RemotingCommand:
        fields = {
            "popTime": str(pop.pop_time),
            "invisibleTime": str(pop.header.invisible_time),
            "reviveQid": str(pop.revive_queue_id),
            "restNum": str(pop.rest),
            "startOffsetInfo": "",
            "msgOffsetInfo": "",
        }
        if pop.header.order:
            fields["orderCountInfo"] = ""
        return RemotingCommand(code, flag=RESPONSE_FLAG, remark="NO_MESSAGE_IN_QUEUE", ext_fields=fields)

    # --- may it, and what does it want

    def _begin(self, header: PopMessageRequestHeader) -> Pop:
        """ResponseError if the group may not pop."""
        topic_config = self._check(header)
        message_filter = self._filter_of(header)
        if header.order:
            revive_queue_id = ORDER_REVIVE_QUEUE_ID
        else:
            self._revive_queue = (self._revive_queue + 1) % self._broker.config.revive_queue_num
            revive_queue_id = self._revive_queue
        return Pop(header, topic_config, message_filter, self._broker.clock_ms(), revive_queue_id)

    def _check(self, header: PopMessageRequestHeader) -> TopicConfig:
        broker = self._broker
        config = broker.config
        if broker.is_slave:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave; pop from "
                "its master",
            )
        if not config.broker_permission & PERM_READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._name}] pop message is forbidden"
            )
        if header.max_msg_nums > MESSAGES_MAX:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._name}] pop message's num is greater than {MESSAGES_MAX}",
            )
        self._state.check_invisible_time(header.invisible_time)
        if len(pop_retry_topic(header.topic, header.consumer_group)) > RETRY_TOPIC_LENGTH_MAX:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"the names of {header.topic} and {header.consumer_group} are too long together: their retry "
                f"topic may have {RETRY_TOPIC_LENGTH_MAX} characters",
            )
        return self._state.check_readable(header.topic, header.queue_id, header.consumer_group)

    def _filter_of(self, header: PopMessageRequestHeader) -> MessageFilter | None:
        expression = header.exp or SUBSCRIBE_ALL
        kind = (header.exp_type if header.exp else None) or TAG
        message_filter = self._filters(header.topic, header.consumer_group, expression, kind)
        self._compensate(header, expression, kind)
        return message_filter

    def _filter(self, topic: str, group: str, expression: str, kind: str) -> MessageFilter | None:
        """The filter of a pop. ResponseError if it does not parse."""
        if is_tag_type(kind):
            by_tags = TagFilter(expression)
            return by_tags if by_tags.codes else None
        if not self._broker.config.enable_property_filter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}: "
                "set enablePropertyFilter=true",
            )
        data: ConsumerFilterData = self._build_filter_data(topic, group, expression, kind, now_ms())
        if data.compiled_expression is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {expression!r}",
            )
        return ExpressionMessageFilter(_subscription(topic, expression, kind), data)

    def _compensate(self, header: PopMessageRequestHeader, expression: str, kind: str) -> None:
        """Remembers the subscription of a group without heartbeats, for operators' requests."""
        group, topic = header.consumer_group, header.topic
        manager = self._broker.consumer_manager
        if manager.get_consumer_group_info(group) is not None:
            return
        now = self._broker.clock_ms()
        known = self._compensated.get((group, topic))
        if known is not None and known[0] == expression and now - known[1] < COMPENSATION_MS:
            return
        if len(self._compensated) > 10_000:
            self._compensated.clear()
        self._compensated[group, topic] = expression, now
        manager.compensate_basic_consumer_info(group, ConsumeType.CONSUME_POP, MessageModel.CLUSTERING)
        manager.compensate_subscribe_data(group, topic, _subscription(topic, expression, kind))

    # --- which queues, in which order

    def _sweep(self, pop: Pop) -> None:
        header, config = pop.header, self._broker.config
        dice = self._random.randrange(100)
        by_priority = not header.order and _is_priority(pop.topic_config)
        from_retry = (
            config.pop_from_retry_probability_for_priority
            if by_priority
            else config.pop_from_retry_probability
        )
        retry_topics = [] if header.order else self._state.retry_topics(header.topic, header.consumer_group)
        if len(retry_topics) > 1:  # one answer never has messages of both
            retry_topics = [retry_topics[dice % 2]]
        retry_first = dice < from_retry
        if retry_first:
            self._sweep_topics(pop, retry_topics, dice)
        if header.queue_id >= 0:
            self._pop_queue(pop, header.topic, header.queue_id)
        else:
            for queue_id in self._queue_ids(pop, dice, by_priority):
                self._pop_queue(pop, header.topic, queue_id)
        if not retry_first and pop.room > 0:
            self._sweep_topics(pop, retry_topics, dice)

    def _sweep_topics(self, pop: Pop, topics: Sequence[str], dice: int) -> None:
        for topic in topics:
            config = self._broker.topic_config_manager.select_topic_config(topic)
            if config is None or not config.perm & PERM_READ:
                continue
            count = config.read_queue_nums
            for i in range(count):
                self._pop_queue(pop, topic, (dice + i) % count)

    def _queue_ids(self, pop: Pop, dice: int, by_priority: bool) -> Sequence[int]:
        count = pop.topic_config.read_queue_nums
        if by_priority and dice < self._priority_factor(pop.header.consumer_group):
            ascending = self._broker.config.priority_order_asc
            return range(count - 1, -1, -1) if ascending else range(count)
        return [(dice + i) % count for i in range(count)]

    def _priority_factor(self, group: str) -> int:
        config = self._broker.subscription_group_manager.find_subscription_group_config(group)
        text = (config.attributes or {}).get(PRIORITY_FACTOR) if config is not None else None
        return int(text) if text is not None and text.isdecimal() else PRIORITY_FACTOR_DEFAULT

    # --- one queue

    def _pop_queue(self, pop: Pop, topic: str, queue_id: int) -> None:
        """Takes messages of a queue as far as there is room, else counts what is there."""
        header = pop.header
        queue = self._queues.get(topic, header.consumer_group, queue_id)
        maximum = self._broker.store.max_offset_in_queue(topic, queue_id)
        if queue.in_use or pop.room <= 0:
            if not (header.order and queue.in_use):
                pop.rest += max(maximum - max(self._queues.next_offset(queue), 0), 0)
            return
        config = self._broker.config
        if config.enable_pop_message_threshold and queue.in_flight >= config.pop_inflight_message_threshold:
            logger.warning(
                "%s@%s-%d: %d messages are in flight, no more are popped",
                topic,
                header.consumer_group,
                queue_id,
                queue.in_flight,
            )
            return
        offset = self._offset(pop, queue)
        if header.order:
            blocked = self._state.order_info_manager.blocked_until(
                topic, header.consumer_group, queue_id, header.attempt_id, header.invisible_time
            )
            if blocked:
                self._state.wake_at(topic, header.consumer_group, blocked)
                return
            queue.in_flight = 0
        if offset == maximum:
            return
        self._take_messages(pop, queue, offset, may_wait=False)

    def _take_messages(self, pop: Pop, queue: PopQueue, offset: int, *, may_wait: bool) -> None:
        store, header = self._broker.store, pop.header
        try:
            result = self._get(pop, queue, offset, may_wait)
            if result.status in _CORRECTED and result.next_begin_offset != offset:
                self._queues.correct(queue, offset, result.next_begin_offset)
                result = self._get(pop, queue, result.next_begin_offset, may_wait)
        except BlockingIOError:
            queue.in_use = True
            pop.cold.append(queue)
            return
        if result.status is GetMessageStatus.FOUND and result.buffers:
            if not self._hand_out(pop, queue, result):
                return
        elif result.status in _PASSED and result.next_begin_offset > offset:
            if header.order:
                self._queues.commit(queue, result.next_begin_offset)
            else:
                self._queues.passed(queue, result.next_begin_offset)
        pop.rest += max(store.max_offset_in_queue(queue.topic, queue.queue_id) - result.next_begin_offset, 0)

    def _get(self, pop: Pop, queue: PopQueue, offset: int, may_wait: bool) -> GetMessageResult:
        began = time.monotonic_ns()
        stats = self._broker.store.store_stats_service
        result = self._broker.store.get_message(
            queue.group,
            queue.topic,
            queue.queue_id,
            offset,
            pop.room,
            pop.message_filter,
            may_wait=may_wait,
        )
        elapsed_ms = (time.monotonic_ns() - began) // 1_000_000
        if result.status is GetMessageStatus.FOUND:
            stats.get_found(result.message_count, elapsed_ms)
            self._broker.broker_stats_manager.get(
                queue.group,
                queue.topic,
                queue.queue_id,
                result.message_count,
                result.buffer_total_size,
                elapsed_ms,
                1,
            )
        else:
            stats.get_missed(elapsed_ms)
        return result

    def _hand_out(self, pop: Pop, queue: PopQueue, result: GetMessageResult) -> bool:
        """False if the checkpoint could not be stored: then the messages stay where they are."""
        header, offsets = pop.header, result.queue_offsets
        start = int(offsets[0])
        flag = NORMAL_TOPIC if queue.topic == header.topic else retry_flag(queue.topic)
        if header.order:
            counts = self._state.order_info_manager.update(
                queue.topic,
                queue.group,
                queue.queue_id,
                header.attempt_id,
                pop.pop_time,
                header.invisible_time,
                offsets,
            )
            self._queues.commit(queue, start)
            pop.order_infos.append(order_count_info(flag, queue.queue_id, counts, offsets))
        else:
            key = CheckpointKey(
                queue.topic,
                queue.group,
                queue.queue_id,
                start,
                pop.pop_time,
                self._broker.config.broker_name,
            )
            checkpoint = Checkpoint(key, header.invisible_time, [offset - start for offset in offsets])
            if not self._put_checkpoint(pop, queue, checkpoint, result.next_begin_offset):
                return False
        queue.in_flight += len(offsets)
        if self._broker.hooks.consume:
            pop.handed_out.append((queue, result))
        pop.count += result.message_count
        pop.start_infos.append(f"{flag} {queue.queue_id} {start}")
        pop.msg_infos.append(f"{flag} {queue.queue_id} {','.join(map(str, offsets))}")
        if flag == NORMAL_TOPIC or self._broker.config.pop_response_return_actual_retry_topic:
            pop.buffers += result.buffers
        else:
            handle = ReceiptHandle(
                start,
                pop.pop_time,
                header.invisible_time,
                pop.revive_queue_id,
                flag,
                self._broker.config.broker_name,
                queue.queue_id,
            )
            for record, offset in zip(result.records(), offsets, strict=True):
                pop.buffers.append(_renamed(record, header.topic, handle._replace(queue_offset=offset)))
        return True

    def _put_checkpoint(self, pop: Pop, queue: PopQueue, checkpoint: Checkpoint, next_offset: int) -> bool:
        """Puts a checkpoint into the store. False if that does not take it."""
        future = self._state.revive_log.put_checkpoint(checkpoint, pop.revive_queue_id)
        if future.done():
            result = future.result()
            if result.status not in STORED:
                logger.warning("no checkpoint could be stored, so nothing is handed out: %s", result.reason)
                return False
            self._queues.passed(queue, next_offset)
        else:
            pending = self._queues.handed_out(queue, next_offset)
            pop.waits.append(future)
            pop.stored_later.append((queue, pending))
        return True

    async def _read_cold(self, pop: Pop) -> None:
        """Takes messages that have to be read from the disk first; a thread waits for it."""
        cold, pop.cold = pop.cold, []
        try:
            for queue in cold:
                if pop.room <= 0:
                    break
                offset = self._queues.next_offset(queue)
                await read_ahead(self._broker.store, queue.topic, queue.queue_id, offset, pop.room)
                self._take_messages(pop, queue, self._queues.next_offset(queue), may_wait=True)
        finally:
            for queue in cold:
                queue.in_use = False

    # --- offsets

    def _offset(self, pop: Pop, queue: PopQueue) -> int:
        """The offset of the next message; a new group gets one, an operator's reset is taken."""
        offsets = self._broker.consumer_offset_manager
        reset = offsets.query_then_erase_reset_offset(queue.topic, queue.group, queue.queue_id)
        if reset is not None and self._broker.config.use_server_side_reset_offset:
            self._state.order_info_manager.clear_block(queue.topic, queue.group, queue.queue_id)
            self._queues.reset(queue, reset)
            return reset
        offset = self._queues.next_offset(queue)
        if offset < 0:
            offset = initial_offset(self._state, queue.topic, queue.queue_id, pop.header.init_mode)
            self._queues.commit(queue, offset)
            pop.initialized = True
        return offset

    def _may_be_more(self, header: PopMessageRequestHeader) -> bool:
        """True if a pop that waits would find something now."""
        return available(
            self._state, header.topic, header.consumer_group, header.queue_id, header.order, header.attempt_id
        )

    # --- peek

    @answers(RequestCode.PEEK_MESSAGE, _REFUSED, with_archive)
    def peek_message(self, header: PeekMessageRequestHeader) -> RemotingCommand:
        """200052 PEEK_MESSAGE: messages that a pop would hand out, without any effect."""
        topic_config = self._broker.topic_config_manager.existing_topic(header.topic)
        if not topic_config.perm & PERM_READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] peeking message is forbidden"
            )
        if not ANY_QUEUE <= header.queue_id < topic_config.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}]",
            )
        self._broker.subscription_group_manager.existing_group(header.consumer_group)
        queue_ids = [header.queue_id] if header.queue_id >= 0 else list(range(topic_config.read_queue_nums))
        store, buffers, count, rest = self._broker.store, [], 0, 0
        for queue_id in queue_ids:
            offset = next_offset(self._state, header.topic, header.consumer_group, queue_id)
            maximum = store.max_offset_in_queue(header.topic, queue_id)
            room = min(header.max_msg_nums, MESSAGES_MAX) - count
            if room > 0 and offset < maximum:
                result = store.get_message(header.consumer_group, header.topic, queue_id, offset, room)
                buffers += result.buffers
                count += result.message_count
            rest += max(maximum - offset, 0)  # those in the answer count too, as in RocketMQ's
        response = RemotingCommand.create_response(
            ResponseCode.SUCCESS if buffers else ResponseCode.PULL_NOT_FOUND,
            "FOUND" if buffers else "NO_MESSAGE_IN_QUEUE",
            body=buffers or None,
        )
        response.ext_fields |= {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        return response


PRIORITY_FACTOR = "priority.factor"
PRIORITY_FACTOR_DEFAULT = 100


def _is_priority(config: TopicConfig) -> bool:
    return (config.attributes or {}).get("message.type") == "PRIORITY"


def initial_offset(state: PopState, topic: str, queue_id: int, init_mode: int) -> int:
    """Returns the offset at which a new group begins in a queue."""
    store = state.broker.store
    lowest = max(store.min_offset_in_queue(topic, queue_id), 0)
    if init_mode == INIT_MIN or retry_flag(topic) != NORMAL_TOPIC:
        return lowest
    if (
        state.broker.config.init_pop_offset_by_check_msg_in_mem
        and lowest == 0
        and store.check_in_mem_by_consume_offset(topic, queue_id, 0)
    ):
        return 0
    return max(store.max_offset_in_queue(topic, queue_id) - 1, 0)


def next_offset(state: PopState, topic: str, group: str, queue_id: int) -> int:
    """The offset of the next message that a pop would find, without any effect; a new group's is the first."""
    queue = state.queues.find(topic, group, queue_id)
    if queue is not None:
        offset = state.queues.next_offset(queue)
    else:
        offset = state.broker.consumer_offset_manager.query_offset(group, topic, queue_id)
    return offset if offset >= 0 else max(state.broker.store.min_offset_in_queue(topic, queue_id), 0)


def available(
    state: PopState, topic: str, group: str, queue_id: int, order: bool, attempt_id: str | None
) -> bool:
    """True if there are messages for a pop at a queue, or at any (-1)."""
    manager, store = state.broker.topic_config_manager, state.broker.store

    def has(name: str, one: int) -> bool:
        if store.max_offset_in_queue(name, one) <= next_offset(state, name, group, one):
            return False
        queue = state.queues.find(name, group, one)
        if queue is not None and queue.in_use:
            return False  # the pop that uses it wakes others
        return not (order and state.order_info_manager.blocked_until(name, group, one, attempt_id))

    config = manager.select_topic_config(topic)
    if config is None:
        return False
    queue_ids = range(config.read_queue_nums) if queue_id < 0 else (queue_id,)
    if any(has(topic, one) for one in queue_ids):
        return True
    if order:
        return False
    for name in state.retry_topics(topic, group):
        retry = manager.select_topic_config(name)
        if retry is not None and any(has(name, one) for one in range(retry.read_queue_nums)):
            return True
    return False


def _subscription(topic: str, expression: str, kind: str) -> SubscriptionData:
    tags: set[str] = set()
    if is_tag_type(kind) and expression != SUBSCRIBE_ALL:
        tags = {tag.strip() for tag in expression.split("||") if tag.strip()}
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set={tags_code(tag) for tag in tags},
        sub_version=now_ms(),
        expression_type=kind,
    )


def _renamed(record: memoryview, topic: str, handle: ReceiptHandle) -> bytes:
    """A record of a retry topic as one of `topic`, with its receipt handle as a property."""
    message = decode_record(record)
    message.topic = topic
    message.properties[PROPERTY_POP_CK] = handle.text
    return encode_message(message)


def _pass_on(answer: asyncio.Future[Answer], later: asyncio.Future[Answer]) -> None:
    if answer.done():
        return
    if later.cancelled():
        answer.cancel()
    elif (error := later.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(later.result())
