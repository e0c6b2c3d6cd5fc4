"""ScheduleMessageService: delivers delayed messages when they are due.

    SEND, DELAY=3 ──▶ SCHEDULE_TOPIC_XXXX, queue 2 (one a level) ── when due ──▶ REAL_TOPIC, REAL_QID

A level's messages are due in the order in which they were stored, so each level needs one cursor: the queue offset
of the next message to deliver, kept in delayOffset.json:

    {"dataVersion":…,"offsetTable":{1:5,2:0}}           level → queue offset

The consume queue holds the due time of each message (in place of the hash of its tags), so finding due messages reads
no records. A message that arrives at an empty level is not due before the level's delay is over, so an idle service
wakes a few times a second and still delivers to the millisecond.

Due messages are delivered in slices of 2 ms, with the broker's other work in between.

Crash: the log is flushed before the cursors are written, so a cursor on disk is never past a message that is lost.
Messages after it are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from mqlake.base.background import BackgroundTask, BackgroundWork
from mqlake.base.throttled_log import ThrottledLog
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import FormatError, OffsetOutOfRangeError
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.record import decode_record
from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    MessageTimeUp,
    delay_level_to_queue_id,
)
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import DataVersion
from mqlake.store.broker_stats import GROUP_GET_NUMS, GROUP_GET_SIZE, QUEUE_GET_NUMS, QUEUE_GET_SIZE
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.results import NEVER_STORED

logger = logging.getLogger(__name__)

SCHEDULE_CONSUMER_GROUP = "SCHEDULE_CONSUMER"
SLICE_S = 0.002
SLICE_UNITS = 512
LOOK_AGAIN_S = 1.0
"""Maximum time between two looks at a level: wall clocks are set, queues are deleted."""
RETRY_S = 0.1
"""Pause while the store accepts no messages."""


class DelayOffsetSerializeWrapper(JsonBody):
    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


class ScheduleMessageService(ConfigManager):
    """Call load(), correct_delay_offset() when the store has recovered, and start() when it accepts messages.
    `update_version_step`: deliveries per new data version (delayOffsetUpdateVersionStep)."""

    def __init__(
        self,
        path: str,
        store: DefaultMessageStore,
        update_version_step: int = 200,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(path)
        self.delay_level_table = store.commit_log.delay_levels
        """Level → delay in ms."""
        self.offset_table: dict[int, int] = {}
        self.data_version = DataVersion()
        self._store = store
        self._clock_ms = clock_ms or store.clock_ms
        self._update_version_step = update_version_step
        self._delivered = 0
        # each level is tried again ten times a second
        self._trouble = ThrottledLog(logger, logging.WARNING)
        self._task = BackgroundTask(self._run, "ScheduleMessageService")

    @property
    def max_delay_level(self) -> int:
        return max(self.delay_level_table)

    def running_stats(self) -> dict[str, str]:
        """`scheduleMessageOffset_<level>` → `cursor,end of the queue`."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._max_offset(level)}"
            for level, offset in self.offset_table.items()
        }

    def _max_offset(self, level: int) -> int:
        return self._store.max_offset_in_queue(SCHEDULE_TOPIC, delay_level_to_queue_id(level))

    # --- life

    def start(self) -> None:
        """Delivers from now on."""
        self._task.start()

    async def shutdown(self) -> None:
        """Stops between two messages. The cursors are persisted with the other config files."""
        await self._task.stop()

    def correct_delay_offset(self) -> None:
        """Moves the cursors into the queues that recovery and cleaning have left. Call it before the first new message:
        a message before its cursor would never be delivered."""
        for level, offset in self.offset_table.items():
            queue = self._queue(level)
            low, high = (
                (queue.min_offset_in_queue, queue.max_offset_in_queue) if queue is not None else (0, 0)
            )
            if not low <= offset <= high:
                self._move(level, min(max(offset, low), high), f"the queue holds {low} to {high}")

    async def _run(self) -> None:
        look_at = dict.fromkeys(self.delay_level_table, time.monotonic())
        works = {level: BackgroundWork(f"delay level {level}", logger) for level in look_at}
        while True:
            await asyncio.sleep(max(min(look_at.values()) - time.monotonic(), 0))
            # of one round, so that idle levels stay together: one wake-up for all of them
            now = time.monotonic()
            for level in [level for level, at in look_at.items() if at <= now]:
                wait_s = LOOK_AGAIN_S
                with works[level].round():  # an error of one level does not stop the others
                    wait_s = self.deliver_due(level)
                look_at[level] = now + wait_s
                if not wait_s:
                    await asyncio.sleep(0)  # others have their turn between two slices

    # --- delivery

    def deliver_due(self, level: int) -> float:
        """Delivers the due messages of a level, for at most 2 ms; returns the seconds until the next look."""
        delay_ms = self.delay_level_table[level]
        idle_s = min(delay_ms / 1000, LOOK_AGAIN_S)
        queue = self._queue(level)
        if queue is None:
            return idle_s
        offset = self.offset_table.get(level, 0)
        low, high = queue.min_offset_in_queue, queue.max_offset_in_queue
        if not low <= offset <= high:
            offset = self._move(level, min(max(offset, low), high), f"the queue holds {low} to {high}")
        if offset == high:
            return idle_s
        units = queue.get_range(offset, SLICE_UNITS)
        if len(units) == 0:  # the rest of this queue file is missing
            self._move(level, min(queue.roll_next_file(offset), high), "the queue has a gap")
            return 0.0
        stop_at = time.monotonic() + SLICE_S
        now = self._clock_ms()
        for physical_offset, size, due in units.tolist():
            # due later than a whole delay from now: the clock was set back, or the levels were shortened
            if now < due <= now + delay_ms:
                return min(float(due - now) / 1000, LOOK_AGAIN_S)
            if size != PRE_BLANK_SIZE and not self._deliver(level, physical_offset, size):
                return RETRY_S
            offset += 1
            self._advance(level, offset)
            if time.monotonic() >= stop_at:
                break
        return 0.0

    def _deliver(self, level: int, physical_offset: int, size: int) -> bool:
        """Stores one message where it belongs; False to try again later. A message that can never be stored is logged
        and skipped."""
        try:
            message = self._message_time_up(physical_offset, size)
        except (FormatError, OffsetOutOfRangeError) as error:
            logger.error("delay level %d: a message is skipped: %s", level, error)
            return True
        future = self._store.async_put_message(message)
        if not future.done():  # it is in the log; no client waits for its flush, only the cursors do
            self._trouble.worked("due messages are delivered again")
            self._count(level, size)
            return True
        result = future.result()
        if result.append_result is not None and result.append_result.is_ok:
            self._trouble.worked("due messages are delivered again")
            self._count(level, size)
            return True
        if result.status in NEVER_STORED:
            logger.error(
                "delay level %d: the message at %d can never be delivered: %s",
                level,
                physical_offset,
                result.reason,
            )
            return True
        self._trouble.failed(f"delay level {level}: {result.status.name} ({result.reason}), tried again")
        return False

    def _message_time_up(self, physical_offset: int, size: int) -> MessageTimeUp:
        record = self._store.select_one_message_by_offset(physical_offset, size)
        if record is None:
            raise OffsetOutOfRangeError(f"the commit log does not hold {physical_offset} any more")
        message = decode_record(record, message_class=MessageTimeUp)
        assert isinstance(message, MessageTimeUp)
        if message.physical_offset != physical_offset:
            raise FormatError(physical_offset, "no record begins here")
        topic = message.properties.get(PROPERTY_REAL_TOPIC)
        queue_id = message.properties.get(PROPERTY_REAL_QUEUE_ID, "")
        if not topic or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
            raise FormatError(
                0, f"REAL_TOPIC {topic!r} and REAL_QID {queue_id!r} do not say where it belongs"
            )
        if topic == TRANS_HALF_TOPIC:
            raise FormatError(physical_offset, "a half message is never delayed")
        message.topic = topic
        message.queue_id = int(queue_id)
        return message

    def _queue(self, level: int) -> ConsumeQueue | None:
        queue = self._store.consume_queues.get(SCHEDULE_TOPIC, delay_level_to_queue_id(level))
        return queue if isinstance(queue, ConsumeQueue) else None

    def _count(self, level: int, size: int) -> None:
        stats = self._store.broker_stats_manager
        key = f"{SCHEDULE_TOPIC}@{SCHEDULE_CONSUMER_GROUP}"
        queue_key = f"{SCHEDULE_TOPIC}@{delay_level_to_queue_id(level)}@{SCHEDULE_CONSUMER_GROUP}"
        stats.add(GROUP_GET_NUMS, key, 1)
        stats.add(GROUP_GET_SIZE, key, size)
        stats.add(QUEUE_GET_NUMS, queue_key, 1)
        stats.add(QUEUE_GET_SIZE, queue_key, size)

    # --- cursors

    def _advance(self, level: int, offset: int) -> None:
        self.offset_table[level] = offset
        self.dirty = True
        self._delivered += 1
        if self._delivered % self._update_version_step == 0:
            self.data_version.next_version()

    def _move(self, level: int, offset: int, reason: str) -> int:
        logger.error(
            "delay level %d: cursor corrected from %d to %d: %s",
            level,
            self.offset_table.get(level, 0),
            offset,
            reason,
        )
        self.offset_table[level] = offset
        self.dirty = True
        return offset

    def encode(self) -> dict[str, Any]:
        return DelayOffsetSerializeWrapper(
            offset_table=dict(self.offset_table), data_version=self.data_version
        ).to_value()

    def decode(self, value: Any) -> None:
        loaded = DelayOffsetSerializeWrapper.from_value(value)
        self.offset_table.update(loaded.offset_table)
        if loaded.data_version is not None:
            self.data_version = loaded.data_version

    def _write(self, copy: int, content: Callable[[], dict[str, Any]]) -> None:
        self._store.flush()
        super()._write(copy, content)
