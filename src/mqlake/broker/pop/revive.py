"""PopReviveService: messages whose invisible time is over without an acknowledgement go to the group's retry topic.

    revive topic, queue by queue                            ┌─ all acknowledged ──────────▶ done
    ck ─▶ pending ◀─ acknowledgements set bits ── time over ┤
                                                            └─ some not: each message is read at its
                                                               offset and stored in the retry topic

The timer delivers a checkpoint before its acknowledgements. A checkpoint is due when the timer has delivered everything
up to its revive time, and that has been read here: then no acknowledgement made in time is missing. What the consumers
acknowledge late still counts until then.

The offset of a revive queue is committed when everything before it is done: every message that was not acknowledged is
in the retry topic. A broker that is killed in between does the rest again, so a message may come twice, but none is
lost. Acknowledgements that come before their checkpoint wait for it as long as the timer may still deliver it.

Runs on the master alone. Checkpoints of another broker name, from a broker that was renamed, are handled like its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from mqlake.base.background import BackgroundTask, BackgroundWork
from mqlake.base.throttled_log import ThrottledLog
from mqlake.broker.pop.checkpoint import (
    ACK_CODE,
    BATCH_ACK_CODE,
    CHECKPOINT_CODE,
    Acknowledgement,
    Checkpoint,
    CheckpointKey,
    body_of,
    decode_acknowledgement,
    decode_checkpoint,
)
from mqlake.broker.pop.recover import RevivedBefore
from mqlake.broker.pop.state import PopState
from mqlake.broker.services.archived import read_ahead
from mqlake.errors import FormatError
from mqlake.formats.record import decode_record
from mqlake.message import (
    NORMAL_TOPIC,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_TIMER_DELIVER_MS,
    REVIVE_GROUP,
    TIMER_TOPIC,
    MessageTimeUp,
    normal_topic,
    pop_retry_topic,
    retry_flag,
    tags_code,
)
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE
from mqlake.store.results import NEVER_STORED, STORED, GetMessageStatus, PutMessageFuture, PutMessageResult
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

REVIVE_CLIENT = "revive"
PAGE = 512
"""Records of a revive queue that are read at a time."""
PENDING_MAX = 50_000
"""Checkpoints of one revive queue in memory; more are read when some are done."""
EARLY_MAX = 10_000
"""Acknowledgements without a checkpoint that wait for it."""
DONE_MAX = 10_000
"""Checkpoints that are remembered as done: the timer may deliver one twice after a crash."""
TURN_S = 0.003
PERM_READ_WRITE = PERM_READ | PERM_WRITE

CODES = frozenset({CHECKPOINT_CODE, ACK_CODE, BATCH_ACK_CODE})
LOOK_PAUSE_S = 0.005
LOOKS = 200


class _Early:
    """Acknowledgements of a checkpoint that has not come yet. `revive_time`: of the checkpoint."""

    __slots__ = ("offsets", "revive_offset", "revive_time")

    def __init__(self, revive_offset: int, revive_time: int) -> None:
        self.offsets: list[int] = []
        self.revive_offset = revive_offset
        self.revive_time = revive_time


class ReviveQueue:
    def __init__(self, queue_id: int, broker_name: str, next_offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        """The next record to read."""
        self.committed = next_offset - 1
        """The last record that is done, as RocketMQ counts."""
        self.pending: OrderedDict[CheckpointKey, Checkpoint] = OrderedDict()
        """In the order of their records."""
        self.due: list[tuple[int, int, CheckpointKey]] = []
        """A heap of (revive time, record, checkpoint)."""
        self.early: OrderedDict[CheckpointKey, _Early] = OrderedDict()
        self.done: OrderedDict[CheckpointKey, None] = OrderedDict()
        self._held: dict[CheckpointKey, int] = {}
        """Checkpoints of which an acknowledgement came first: its record."""
        self._broker_name = broker_name

    # --- records come

    def read(self, code: int, record: memoryview, offset: int) -> None:
        """Takes the record at a queue offset. FormatError if it is neither checkpoint nor acknowledgement."""
        self.next_offset = offset + 1
        body = body_of(record)
        if code == CHECKPOINT_CODE:
            self.take_checkpoint(decode_checkpoint(body, self._broker_name, offset))
        elif code in (ACK_CODE, BATCH_ACK_CODE):
            acknowledgement = decode_acknowledgement(body, self._broker_name)
            if not self.take_acknowledgement(acknowledgement):
                self._wait_for_checkpoint(acknowledgement, record, offset)
        else:
            raise FormatError(0, "neither checkpoint nor acknowledgement")

    def take_checkpoint(self, checkpoint: Checkpoint) -> None:
        key = checkpoint.key
        if key in self.done:
            return
        known = self.pending.get(key)
        if known is not None:  # stored or delivered twice
            known.bits |= checkpoint.bits
            return
        early = self.early.pop(key, None)
        if early is not None:
            for offset in early.offsets:
                checkpoint.acknowledge(offset)
            self._held[key] = early.revive_offset
        self.pending[key] = checkpoint
        heapq.heappush(self.due, (checkpoint.revive_time, checkpoint.revive_offset, key))

    def take_acknowledgement(self, acknowledgement: Acknowledgement) -> bool:
        """False if its checkpoint is not here."""
        checkpoint = self.pending.get(acknowledgement.key)
        if checkpoint is None:
            return acknowledgement.key in self.done
        for offset in acknowledgement.offsets:
            checkpoint.acknowledge(offset)
        return True

    def _wait_for_checkpoint(self, acknowledgement: Acknowledgement, record: memoryview, offset: int) -> None:
        key = acknowledgement.key
        early = self.early.get(key)
        if early is None:
            if len(self.early) >= EARLY_MAX:
                self.early.popitem(last=False)
            properties = decode_record(record, check_crc=False, read_body=False).properties
            due = properties.get(PROPERTY_TIMER_DELIVER_MS, "")
            early = self.early[key] = _Early(offset, int(due) if due.isdecimal() else key.pop_time)
        early.offsets += acknowledgement.offsets

    # --- records go

    def next_due(self, until: int) -> Checkpoint | None:
        """The first checkpoint whose revive time is before `until`."""
        while self.due and self.due[0][0] < until:
            key = self.due[0][2]
            checkpoint = self.pending.get(key)
            if checkpoint is not None:
                return checkpoint
            heapq.heappop(self.due)
        return None

    def finish(self, checkpoint: Checkpoint) -> None:
        """All messages of a checkpoint are acknowledged or in the retry topic."""
        self.pending.pop(checkpoint.key, None)
        self._held.pop(checkpoint.key, None)
        self.done[checkpoint.key] = None
        if len(self.done) > DONE_MAX:
            self.done.popitem(last=False)

    def drop_early(self, until: int) -> int:
        """Drops acknowledgements whose checkpoint should have come; how many."""
        late = [key for key, early in self.early.items() if early.revive_time < until]
        for key in late:
            del self.early[key]
        return len(late)

    def done_until(self) -> int:
        """The last record such that it and all before it are done."""
        held = [next(iter(self.pending.values())).revive_offset] if self.pending else []
        held += self._held.values()
        held += [early.revive_offset for early in self.early.values()]
        return min(held, default=self.next_offset) - 1


class PopReviveService:
    """Without timers it does nothing, and nothing can be popped."""

    def __init__(self, state: PopState, timers: TimerMessageStore | None) -> None:
        self._state = state
        self._broker = state.broker
        self._timers = timers
        self.queues: list[ReviveQueue] = []
        self.revived = 0
        """Messages that were put into a retry topic since the start."""
        self.counts: dict[tuple[str, str], int] = {}
        """(Topic, group) → messages that were put into a retry topic."""
        self.checkpoints_in = self.acknowledgements_in = 0
        self._trouble = ThrottledLog(logger, logging.WARNING)
        self.revived_before = RevivedBefore()
        self._round = asyncio.Lock()
        self._task = BackgroundTask(self._run, "PopReviveService")

    # --- life

    def start(self) -> None:
        """Runs from now on, where the last broker on this directory has stopped."""
        self.load()
        self._task.start()

    async def shutdown(self) -> None:
        await self._task.stop()
        self.queues = []

    def load(self) -> None:
        broker = self._broker
        topic = self._state.revive_log.topic
        config = broker.topic_config_manager.select_topic_config(topic)
        count = config.read_queue_nums if config is not None else broker.config.revive_queue_num
        self.queues = []
        for queue_id in range(count):
            # what is in the log now may have been revived before a crash
            self.revived_before.until[queue_id] = broker.store.max_offset_in_queue(topic, queue_id)
            committed = broker.consumer_offset_manager.query_offset(REVIVE_GROUP, topic, queue_id)
            low = max(broker.store.min_offset_in_queue(topic, queue_id), 0)
            high = broker.store.max_offset_in_queue(topic, queue_id)
            # Java begins at 0 as well when nothing is committed
            following = min(max(committed + 1 if committed >= 0 else 0, low), high)
            self.queues.append(ReviveQueue(queue_id, broker.config.broker_name, following))

    @property
    def is_running(self) -> bool:
        return self._task.is_running

    async def _run(self) -> None:
        work = BackgroundWork("reviving of popped messages", logger)
        while True:
            await asyncio.sleep(self._broker.config.revive_interval / 1000)
            if self._broker.is_slave:
                continue
            async with work.round():
                await self.revive()

    # --- one round

    async def revive(self) -> None:
        """Reads what has come, and handles what is due."""
        async with self._round:
            await self._revive()

    async def _revive(self) -> None:
        if not any(map(self._has_any, self.queues)):
            return
        until = await self._delivered_until()
        if until is None:
            return
        for queue in self.queues:
            while await self._read(queue):
                before = len(queue.pending)
                await self._revive_due(queue, until)
                if len(queue.pending) == before:
                    break
            await self._revive_due(queue, until)
            dropped = queue.drop_early(until)
            if dropped:
                logger.info(
                    "revive queue %d: %d acknowledgements without checkpoint", queue.queue_id, dropped
                )
            self._commit(queue)

    def _has_any(self, queue: ReviveQueue) -> bool:
        """True if a revive queue holds anything that is not done."""
        end = self._broker.store.max_offset_in_queue(self._state.revive_log.topic, queue.queue_id)
        return queue.committed + 1 < end

    async def _delivered_until(self) -> int | None:
        """All acknowledgements of checkpoints that were due before this time (ms) are in the revive topic and can be
        read; None if that takes too long now."""
        timers, store = self._timers, self._broker.store
        if timers is None:
            return None
        until = timers.curr_read_time_ms + 1
        # an acknowledgement that was put just before its time may be on its way into the wheel still; then the timer
        # stores it at once
        if not await self._until(store.is_dispatched_until, store.max_phy_offset):
            return None
        in_timer_queue = store.max_offset_in_queue(TIMER_TOPIC, 0)
        if not await self._until(lambda offset: timers.commit_queue_offset >= offset, in_timer_queue):
            return None
        if not await self._until(store.is_dispatched_until, store.max_phy_offset):
            return None
        return until

    async def _until(self, has_come: Callable[[int], bool], offset: int) -> bool:
        for _ in range(LOOKS):
            if has_come(offset):
                return True
            await asyncio.sleep(LOOK_PAUSE_S)
        return False

    async def _read(self, queue: ReviveQueue) -> bool:
        """Reads records into memory; returns True if there are more than fit."""
        topic, store = self._state.revive_log.topic, self._broker.store
        turn_ends = time.monotonic() + TURN_S
        while queue.next_offset < store.max_offset_in_queue(topic, queue.queue_id):
            if len(queue.pending) >= PENDING_MAX:
                return True
            start = queue.next_offset
            result = store.get_message(REVIVE_GROUP, topic, queue.queue_id, start, PAGE)
            if result.next_begin_offset <= start:
                return False
            units = store.consume_queues.get(topic, queue.queue_id)
            codes = [] if units is None else units.get_range(start, PAGE)["tags_code"].tolist()
            for record, offset in zip(result.records(), result.queue_offsets, strict=True):
                self._read_one(queue, record, int(offset), codes[offset - start : offset - start + 1])
                if time.monotonic() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + TURN_S
            queue.next_offset = max(queue.next_offset, result.next_begin_offset)
        return False

    def _read_one(self, queue: ReviveQueue, record: memoryview, offset: int, codes: list[int]) -> None:
        try:
            code = codes[0] if codes and codes[0] in CODES else _code_of(record)
            queue.read(code, record, offset)
        except FormatError as error:
            logger.error(
                "%s-%d: record %d is skipped: %s",
                self._state.revive_log.topic,
                queue.queue_id,
                offset,
                error.reason,
            )
        else:
            if code == CHECKPOINT_CODE:
                self.checkpoints_in += 1
            else:
                self.acknowledgements_in += 1

    async def _revive_due(self, queue: ReviveQueue, until: int) -> None:
        turn_ends = time.monotonic() + TURN_S
        while (checkpoint := queue.next_due(until)) is not None:
            if not checkpoint.is_done and not await self._revive_one(checkpoint):
                return  # tried again in the next round
            queue.finish(checkpoint)
            if time.monotonic() >= turn_ends:
                self._commit(queue)
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_S

    def _commit(self, queue: ReviveQueue) -> None:
        done = queue.done_until()
        if done > queue.committed:
            queue.committed = done
            self._broker.consumer_offset_manager.commit_offset(
                REVIVE_CLIENT, REVIVE_GROUP, self._state.revive_log.topic, queue.queue_id, done
            )

    # --- one checkpoint

    async def _revive_one(self, checkpoint: Checkpoint) -> bool:
        """Puts what is not acknowledged into the retry topic; False if the store does not take it now."""
        key = checkpoint.key
        broker, state = self._broker, self._state
        normal = normal_topic(key.topic, key.group)
        if broker.topic_config_manager.select_topic_config(normal) is None or not self._has_group(key):
            logger.warning("%s is dropped: its topic or its group is gone", checkpoint)
            return True
        revived = self.revived
        waits: list[tuple[int, PutMessageFuture]] = []
        for offset in checkpoint.open_offsets():
            message = await self._message(key, offset)
            if message is None:
                checkpoint.acknowledge(offset)
                continue
            self._prepare(message, checkpoint, normal)
            if not checkpoint.suspend and self.revived_before.take(checkpoint, message):
                checkpoint.acknowledge(offset)
                continue
            future = broker.store.async_put_message(message)
            if not future.done():
                waits.append((offset, future))
            elif not self._settle(checkpoint, offset, future.result(), normal):
                break
        for offset, future in waits:
            self._settle(checkpoint, offset, await future, normal)
        if self.revived > revived:
            state.wake(normal, key.group)
        return checkpoint.is_done

    def _has_group(self, key: CheckpointKey) -> bool:
        """Also one that has offsets only: it was created by a request, or is known to the former master."""
        broker = self._broker
        return (
            broker.subscription_group_manager.contains_subscription_group(key.group)
            or broker.consumer_offset_manager.query_offsets(key.group, key.topic) is not None
        )

    def _settle(self, checkpoint: Checkpoint, offset: int, result: PutMessageResult, normal: str) -> bool:
        """Takes note of what became of a message; False if it is to be stored again."""
        if result.status in STORED:
            self._trouble.worked("messages are revived again")
            checkpoint.acknowledge(offset)
            self._count(checkpoint.key, normal)
            return True
        if result.status in NEVER_STORED:
            logger.error(
                "%s: the message at %d can never be stored in the retry topic: %s",
                checkpoint,
                offset,
                result.reason,
            )
            checkpoint.acknowledge(offset)
            return True
        self._trouble.failed(
            f"messages cannot be revived: {result.status.name} ({result.reason}), tried again"
        )
        return False

    def _count(self, key: CheckpointKey, normal: str) -> None:
        self.revived += 1
        self.counts[normal, key.group] = self.counts.get((normal, key.group), 0) + 1
        if key.pop_time >= self._state.started_at:
            self._state.queues.done(key.topic, key.group, key.queue_id)

    async def _message(self, key: CheckpointKey, offset: int) -> MessageTimeUp | None:
        """The message at exactly this offset; None if it is gone, or damaged, which the store reports."""
        store = self._broker.store
        arguments = key.group, key.topic, key.queue_id, offset, 1
        try:
            result = store.get_message(*arguments, may_wait=False)
        except BlockingIOError:
            await read_ahead(store, key.topic, key.queue_id, offset, 1)
            result = store.get_message(*arguments)
        if result.status is not GetMessageStatus.FOUND or int(result.queue_offsets[0]) != offset:
            logger.warning(
                "%s-%d: message %d is gone (%s)", key.topic, key.queue_id, offset, result.status.name
            )
            return None
        try:
            message = decode_record(next(result.records()), message_class=MessageTimeUp)
        except FormatError as error:
            logger.error("%s-%d: message %d is damaged: %s", key.topic, key.queue_id, offset, error)
            return None
        assert isinstance(message, MessageTimeUp)
        return message

    def _prepare(self, message: MessageTimeUp, checkpoint: Checkpoint, normal: str) -> None:
        """Makes the record of the retry topic of a message. It is not delayed again, whatever its properties say."""
        key, broker = checkpoint.key, self._broker
        host = broker.store_host
        if retry_flag(key.topic) == NORMAL_TOPIC:
            topic = pop_retry_topic(normal, key.group, v2=broker.config.enable_retry_topic_v2)
        else:
            topic = key.topic
        if message.reconsume_times == 0 or PROPERTY_FIRST_POP_TIME not in message.properties:
            message.properties[PROPERTY_FIRST_POP_TIME] = str(key.pop_time)
        message.properties[PROPERTY_ORIGIN_GROUP] = key.group
        message.topic = topic
        if not checkpoint.suspend:
            message.reconsume_times += 1
        queue_id = message.queue_id if broker.config.use_separate_retry_queue else 0
        message.queue_id = queue_id
        message.born_host = message.store_host = host
        known = broker.topic_config_manager.select_topic_config(topic)
        if known is None or queue_id >= known.read_queue_nums:
            self._make_topic(topic, key.group, queue_id + 1)

    def _make_topic(self, topic: str, group: str, queue_nums: int) -> None:
        topics, offsets = self._broker.topic_config_manager, self._broker.consumer_offset_manager
        known = topics.select_topic_config(topic)
        if known is None:
            topics.create_topic_in_send_message_back_method(topic, queue_nums, PERM_READ_WRITE, 0)
        else:
            grown = dataclasses.replace(
                known, read_queue_nums=queue_nums, write_queue_nums=queue_nums, attributes={}
            )
            topics.update_topic_config(grown)
        for queue_id in range(queue_nums):
            if offsets.query_offset(group, topic, queue_id) < 0:
                offsets.commit_offset(REVIVE_CLIENT, group, topic, queue_id, 0)

    # --- figures

    def lag(self, queue: ReviveQueue) -> int:
        """Records that are not done."""
        topic = self._state.revive_log.topic
        return max(self._broker.store.max_offset_in_queue(topic, queue.queue_id) - queue.committed - 1, 0)

    def latency_ms(self, queue: ReviveQueue) -> int:
        """How long the first record that is not done has been over its time."""
        if not queue.due:
            return 0
        return max(self._broker.clock_ms() - queue.due[0][0], 0)


def _code_of(record: memoryview) -> int:
    """For a queue that keeps its tags in an extra file."""
    return tags_code(decode_record(record, check_crc=False, read_body=False).tags)
