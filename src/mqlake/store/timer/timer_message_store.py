"""TimerMessageStore: keeps timer messages until they are due, then stores them where they belong.

    commit log ─▶ queue of rmq_sys_wheel_timer ──enqueue──▶ TimerLog, TimerWheel
                                      ▲                          │ write time W: what is due before it is not put in
                                      │ rolled: put again        │ read time R: what is due before it has been delivered
                                      └──────────────────────── dequeue ─▶ commit log: REAL_TOPIC, REAL_QID

One thread does both. A round puts what has come into the wheel, moves W to the step that runs now, and delivers the
steps from R to W. A message is stored at the earliest one step after TIMER_OUT_MS, which is before the time asked for:
never early. What is due before W when it comes is stored at once, unless the clock was set back since.

Crash: the copies are flushed before R is written, so R is never later than what the disk has; the copies after it are
found in the commit log and not made again. A message that the store does not take is tried again until it does.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import FormatError
from mqlake.formats.columns import Int64s
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.timer import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_POSITION,
    NO_SLOT,
    SLOTS_TOTAL,
    Slot,
    TimerCheckpointData,
    TimerUnit,
)
from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    TIMER_TOPIC,
    MessageExtBrokerInner,
    java_hash,
)
from mqlake.store.dispatch import Arrival
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import NEVER_STORED, PutMessageStatus
from mqlake.store.timer.timer_checkpoint import TimerCheckpoint
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_metrics import TimerMetrics
from mqlake.store.timer.timer_record import (
    ENQUEUE_BYPASSED,
    Copies,
    Recalls,
    TimerRecord,
    decode_timer_message,
    is_recalled,
    number_of,
    read_timer_record,
    roll_times,
)
from mqlake.store.timer.timer_recount import recalls_by_step, waiting_by_topic
from mqlake.store.timer.timer_recovery import Recovered, copies_from, recover, timer_queue
from mqlake.store.timer.timer_rescue import FILE_NAME as RESCUE_FILE
from mqlake.store.timer.timer_rescue import Rescue, waiting_before
from mqlake.store.timer.timer_wheel import TimerWheel

logger = logging.getLogger(__name__)

CHUNK = 512
"""Messages that are put into the wheel, or delivered, in one go."""
ROUND_CHUNKS = 8
"""Chunks that are put into the wheel before the next look at what is due."""
RETRY_S = 0.1
REQUEUE_LOOK_S = 0.001
METRICS_FLUSH_S = 5.0
RECOUNT_S = 3600.0
CLEAN_S = 30.0
RATE_SAMPLES = 10
DELAY_MAX_MS = 2**31 - 1


class _DamageError(Exception):
    """The timer log does not hold what the wheel leads to."""


def slot_time(due: int, write_time: int, window: int, precision: int) -> tuple[int, bool]:
    """When a message that is put into the wheel at `write_time` is read from it, and whether it is only a stop: it
    rolls if it is due after the window. All in ms."""
    left = due - write_time - window
    if left < 0:
        return due, False
    # so short a rest would be a stop of its own: two of nearly the same length instead
    stop = window // 2 // precision * precision if left < window // precision // 3 * precision else window
    return write_time + stop, True


class TimerMessageStore:
    """The timers of a store. load() when the store has recovered and before anything is put, start(), shutdown()
    before the store's own. A slave delivers nothing: `start_dequeue()` is for one that has become master."""

    def __init__(self, store: DefaultMessageStore) -> None:
        config = store.config
        self._store = store
        self._config = config
        self._clock_ms = store.clock_ms
        self.precision_ms = config.timer_precision_ms
        self.metrics = TimerMetrics(f"{config.config_dir}/timermetrics")
        self.is_dequeuing = False
        self.rebuilt = ""
        """Why the timer log was made again at the start; empty if it was not."""
        self.curr_read_time_ms = 0
        self.curr_write_time_ms = 0
        self.commit_queue_offset = 0
        self.enqueued = self.delivered = self.cancelled = self.skipped = 0
        """Messages since the start: put into the wheel; delivered; recalled; that could not be read."""
        self.enqueue_rate, self.dequeue_rate = _Rate(), _Rate()
        self.enqueued_by_topic: Counter[str] = Counter()
        self.delivered_by_topic: Counter[str] = Counter()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ThrottledLog(logger)
        self._topic_hashes: dict[str, int] = {}
        self._recalls: Recalls = {}
        """Recalls whose messages are counted out already."""
        self._catching_up = True
        self._is_promoted = False
        self._seen_until = 0
        self._is_open = False
        self._unflushed = False
        self._next_flush = self._next_metrics = self._next_clean = self._next_recount = 0.0
        self._dequeue_from = self._rolled_until = 0
        self._done_until = -1
        self.rescue = Rescue(f"{config.config_dir}/{RESCUE_FILE}")
        self._log_begins = 0
        store.may_force_delete = self._may_go
        store.timer_put.slot_num = self._slot_num
        store.message_arriving_listeners.append(self._on_arrival)

    # ------------------------------------------------------------------ life

    def load(self) -> None:
        """Brings log and wheel in order with the commit log; nothing is delivered yet. OSError."""
        config = self._config
        self.metrics.load()
        self.rescue.load()
        self._log = TimerLog(config.timer_log_dir, config.mapped_file_size_timer_log)
        self._wheel = TimerWheel(config.timer_wheel_path, self.precision_ms)
        self._checkpoint = TimerCheckpoint(f"{config.config_dir}/timercheck")
        self._recover()
        self._is_open = True

    def _recover(self) -> None:
        now = self._clock_ms()
        found = recover(self._store, self._log, self._wheel, self._checkpoint, now)
        self._replay = found
        self._account_for(found.copies)
        self.rebuilt = found.rebuilt
        self._queue_offset = found.queue_offset
        self.commit_queue_offset = found.replay_until
        self.curr_read_time_ms = found.read_time
        # what came meanwhile goes into the steps that were missed, so that it can still be cancelled
        earliest = self._step(now) - SLOTS_TOTAL * self.precision_ms
        self.curr_write_time_ms = max(found.read_time, earliest)
        self._catching_up = True
        self._unflushed = self._unflushed or self._wheel.is_dirty
        self._done_until = self._checkpoint.done_until
        self._seen_until = self._store.max_phy_offset
        if self._done_until < 0:
            self._done_until = self._seen_until
        self._recount()

    def _account_for(self, copies: Copies) -> None:
        """They are not to be made again."""
        self._replay.copies = copies
        # what was rolled is due long after, but was read from the wheel before now
        now = max(self._step(self._clock_ms()), self._replay.read_time)
        self._copied_until = min(copies.last_out_ms, now) + self.precision_ms

    def start(self, *, dequeue: bool = True) -> None:
        """Runs the service; with `dequeue` it delivers as well."""
        self._dequeue_from = self._clock_ms() + max(0, self._config.disappear_time_after_start)
        if dequeue:
            self.start_dequeue()
        self._thread = threading.Thread(target=self._run, name="TimerMessageStore", daemon=True)
        self._thread.start()

    def start_dequeue(self) -> None:
        """Delivers from now on: this broker has become master."""
        self._is_promoted = self._thread is not None and not self.is_dequeuing
        self.is_dequeuing = True
        self._wake.set()

    def shutdown(self) -> None:
        """Ends the service and makes its progress durable. Idempotent."""
        self._stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            try:
                self.flush()
                self.metrics.persist()
            except OSError as error:
                logger.error("the progress of the timers cannot be written: %s", error)
        if self._is_open:
            self._is_open = False
            self._log.close()
            self._wheel.close()
            self._checkpoint.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self.run_once()
            except _DamageError as damage:
                logger.error("%s: the timer log is rebuilt from the commit log", damage)
                self._rebuild(str(damage))
                wait_s = 0.0
            except OSError as error:
                self._trouble.failed(f"timer messages wait: {error}")
                wait_s = RETRY_S
            except Exception:  # a fault of one message must not end the service: it is tried again
                logger.exception("timer messages: tried again")
                wait_s = 1.0
            else:
                self._trouble.worked("timer messages are handled again")
            if wait_s > 0:
                self._wake.wait(wait_s)
            self._wake.clear()

    def run_once(self) -> float:
        """One round; returns the seconds until the next one is worth it (an arrival comes before). OSError."""
        if self._is_promoted:
            self._is_promoted = False
            self._account_for(copies_from(self._store, self._done_until))
        caught_up = self._enqueue()
        if (
            self.is_dequeuing
            and not self._config.timer_stop_dequeue
            and self._clock_ms() >= self._dequeue_from
        ):
            self._dequeue()
        self._count_lost()
        if caught_up and self.is_dequeuing:
            self._move_out(self.rescue.asked)
        self._do_regular_work()
        if not caught_up and not self._config.timer_stop_enqueue:
            return 0.0
        if not self._rolled_are_requeued():
            self._stop.wait(REQUEUE_LOOK_S)
            return 0.0
        now = self._clock_ms()
        return (self._step(now) + self.precision_ms - now + 0.5) / 1000

    def _rebuild(self, reason: str) -> None:
        """From the commit log; what is due before the read time has been delivered."""
        try:
            self._log.discard()
            self._checkpoint.data.last_read_time_ms = self.curr_read_time_ms
            self._checkpoint.data.last_timer_queue_offset = self.commit_queue_offset
            self._checkpoint.data.last_timer_log_flush_pos = max(
                1, self._checkpoint.data.last_timer_log_flush_pos
            )
            self._recover()
            self.rebuilt = self.rebuilt or reason
        except OSError as error:
            self._trouble.failed(f"timer messages wait: {error}")
            self._stop.wait(RETRY_S)

    def _step(self, time_ms: int) -> int:
        return time_ms // self.precision_ms * self.precision_ms

    def _on_arrival(self, arrival: Arrival) -> None:
        if arrival.topic == TIMER_TOPIC:
            self._wake.set()

    def _slot_num(self, out_ms: int) -> int:
        return self._wheel.num(out_ms) if self._is_open else 0

    # ------------------------------------------------------------------ enqueue

    @property
    def roll_window_ms(self) -> int:
        """How far ahead a message is put into the wheel; never so far that its record would expire before."""
        slots = self._config.timer_roll_window_slot
        if not 2 <= slots <= SLOTS_TOTAL - 60:
            slots = SLOTS_TOTAL - 60
        kept_ms = self._config.file_reserved_time * 3_600_000 * 2 // 3
        return min(slots * self.precision_ms, max(self._step(kept_ms), 2 * self.precision_ms), DELAY_MAX_MS)

    def _enqueue(self) -> bool:
        """Puts what has come into the wheel, a few chunks of it; returns True if that was all. OSError."""
        if self._config.timer_stop_enqueue:
            return True
        for _ in range(ROUND_CHUNKS):
            now = self._clock_ms()
            queue = timer_queue(self._store)
            high = queue.max_offset_in_queue if queue is not None else 0
            if not self.is_dequeuing and self._store.config.broker_role.name == "SLAVE":
                high = min(high, self._checkpoint.data.master_timer_queue_offset)
            if queue is not None and self._queue_offset < high:
                self._enqueue_chunk(high)
            caught_up = self._queue_offset >= high
            if caught_up:
                self._catching_up = False
            if not self._catching_up:
                self.curr_write_time_ms = max(self.curr_write_time_ms, self._step(now))
            if caught_up or self._stop.is_set():
                return caught_up
            self._flush_if_due()
        return False

    def _enqueue_chunk(self, high: int) -> None:
        queue = timer_queue(self._store)
        assert queue is not None
        offset = max(self._queue_offset, queue.min_offset_in_queue)
        units = queue.get_range(offset, min(CHUNK, high - offset))
        if not len(units):
            self._queue_offset = min(queue.roll_next_file(offset), high)
            return
        batch = _Batch(self._wheel)
        for physical_offset, size, _ in units.tolist():
            if size != PRE_BLANK_SIZE:
                self._enqueue_one(batch, offset, physical_offset, size)
            offset += 1
        if not self._put_all(batch.expired):
            return  # stopped: the chunk is read again
        self._log.write()
        batch.apply()
        for due, keys in batch.recalls.items():
            self._count_recalled(batch, due, keys)
        self._queue_offset = offset
        self.commit_queue_offset = max(self.commit_queue_offset, offset)
        self._unflushed = True
        self.enqueued += batch.count
        self.enqueue_rate.add(batch.count)
        now = self._clock_ms()
        if batch.counts:
            self.metrics.add(batch.counts, now)
            self.enqueued_by_topic.update(
                {topic: count for topic, count in batch.counts.items() if count > 0}
            )
        if self._queue_offset >= self._replay.replay_until and self._replay.rolled:
            self._replay.rolled.clear()

    def _enqueue_one(self, batch: _Batch, queue_offset: int, physical_offset: int, size: int) -> None:
        """Puts one message into the wheel, or among those that are stored at once."""
        replay = self._replay
        if len(replay.known):
            at = int(np.searchsorted(replay.known, physical_offset))
            if at < len(replay.known) and replay.known[at] == physical_offset:
                return
            if at == len(replay.known):
                replay.known = replay.known[:0]
        try:
            record = self._read(physical_offset, size)
        except FormatError as error:
            self._skip(physical_offset, error)
            return
        due = record.out_ms
        if due < 0:
            self._skip(physical_offset, FormatError(0, "it does not say when it is due (TIMER_OUT_MS)"))
            return
        if queue_offset < replay.replay_until and (
            due < self.curr_read_time_ms or replay.rolled.get(record.key, 0) > record.roll_times
        ):
            return
        due = self._step(due)
        earliest = self.curr_read_time_ms
        if due < earliest and self.is_dequeuing:
            if due + self.precision_ms <= self._clock_ms():
                if not record.is_delete:
                    batch.expired.append((physical_offset, size, due))
                return
            due = earliest  # the clock was set back: not before it says so
        self._put_into_wheel(batch, record, physical_offset, size, due)

    def _put_into_wheel(
        self, batch: _Batch, record: TimerRecord, physical_offset: int, size: int, due: int
    ) -> None:
        write_time = min(
            self.curr_write_time_ms, due
        )  # after some time away steps before it are still to come
        due, rolls = slot_time(due, write_time, self.roll_window_ms, self.precision_ms)
        magic = MAGIC_DEFAULT | MAGIC_ROLL if rolls else MAGIC_DEFAULT
        if record.is_delete:
            magic |= MAGIC_DELETE
        topic = record.real_topic
        topic_hash = self._topic_hashes.get(topic)
        if topic_hash is None:
            topic_hash = self._topic_hashes[topic] = java_hash(topic)
        slot = batch.slot(due)
        delay = max(min(due - write_time, DELAY_MAX_MS), -DELAY_MAX_MS)
        position = self._log.append(
            TimerUnit(slot.last, magic, write_time, delay, physical_offset, size, topic_hash)
        )
        first = position if slot.first == NO_POSITION else slot.first
        waits = 0
        if not record.is_delete:
            final = self._step(record.out_ms) if rolls else due
            waits = 0 if self._is_counted_out(record.properties, final) else 1
        elif not rolls:
            batch.recalls[due].add(record.recalls)
        batch.slots[due] = Slot(due, first, position, slot.num + waits)
        batch.count += 1
        batch.counts[topic] += waits

    def _count_recalled(self, batch: _Batch, due: int, keys: set[tuple[str, str]]) -> None:
        """Counts out the messages of a step that new recalls cancel; a recall of nothing changes no count."""
        known = self._recalls.setdefault(due, set())
        topics = {java_hash(topic) for topic, _ in keys}
        recalled = 0
        for position in self._positions(due)[0] if keys - known else ():
            unit = self._log.get(position)
            assert unit is not None
            if (
                unit.is_roll
                or unit.topic_hash not in topics
                or self.rescue.passes_over(position, unit.offset)
            ):
                continue
            try:
                record = self._read(unit.offset, unit.record_size)
            except FormatError:
                continue  # said when it is due
            topic, uniq_key = record.real_topic, record.uniq_key
            if is_recalled(topic, uniq_key, keys) and not is_recalled(topic, uniq_key, known):
                batch.counts[topic] -= 1
                recalled += 1
        known |= keys
        if recalled:
            slot = self._wheel.get(due)
            self._wheel.put(due, slot.first, slot.last, slot.num - recalled, slot.magic)

    def _is_counted_out(self, properties: Mapping[str, str], due: int) -> bool:
        """True if a recall has taken the message, whose last step is `due`, out of the counts."""
        keys = self._recalls.get(due)
        return keys is not None and is_recalled(
            properties.get(PROPERTY_REAL_TOPIC, ""),
            properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""),
            keys,
        )

    def _read(self, physical_offset: int, size: int) -> TimerRecord:
        """FormatError if it cannot be read."""
        record = self._store.select_one_message_by_offset(physical_offset, size)
        if record is None:
            raise FormatError(0, "the commit log does not hold it any more")
        return read_timer_record(record)

    def _skip(self, physical_offset: int, error: FormatError) -> None:
        self.skipped += 1
        logger.error(
            "%s: the timer message at %d is skipped: %s",
            self._store.config.commit_log_dir,
            physical_offset,
            error.reason,
        )

    # ------------------------------------------------------------------ dequeue

    def _dequeue(self) -> None:
        """Delivers what is due before the write time. OSError, _DamageError."""
        while (
            self.curr_read_time_ms < self.curr_write_time_ms and self.is_dequeuing and not self._stop.is_set()
        ):
            if not self._rolled_are_requeued():
                return
            time_ms = self._wheel.next_in_use(self.curr_read_time_ms, self.curr_write_time_ms)
            if time_ms > self.curr_read_time_ms:
                self._advance(time_ms)
                continue
            if not self._dequeue_slot(time_ms):
                return
            if not self._replay.copies:  # else the log has copies from later steps too, of before a crash
                self._done_until = self._store.max_phy_offset
            self._advance(time_ms + self.precision_ms)
            self._flush_if_due()

    def _rolled_are_requeued(self) -> bool:
        """True if what was rolled, and is due in one of the next steps, is in the wheel. It is so after some time
        away: later steps would go before it, and a message before the recall that was rolled."""
        if self._rolled_until and self.is_dequeuing and not self._config.timer_stop_enqueue:
            queue = timer_queue(self._store)
            end = queue.max_offset_in_queue if queue is not None else 0
            if not self._store.is_dispatched_until(self._rolled_until) or self._queue_offset < end:
                return False
        self._rolled_until = 0
        return True

    def _advance(self, time_ms: int) -> None:
        if self._replay.copies and time_ms > self._copied_until:
            self._replay.copies.clear()
        self.curr_read_time_ms = time_ms
        self._unflushed = True

    def _dequeue_slot(self, time_ms: int) -> bool:
        """Delivers all that is due in one step; False if it was interrupted."""
        normal, deletes = self._positions(time_ms)
        keys = self._delete_keys(deletes)
        for start in range(0, len(normal), CHUNK):
            if not self._deliver_chunk(normal[start : start + CHUNK], keys):
                return False
            self._flush_if_due()
        self._recalls.pop(time_ms, None)
        return True

    def _positions(self, time_ms: int) -> tuple[array[int], array[int]]:
        """Positions of a step's units, oldest first: of messages, and of those that cancel others."""
        normal, deletes = array("q"), array("q")
        position = self._wheel.get(time_ms).last
        while position != NO_POSITION:
            unit = self._log.get(position)
            if unit is None or self._step(unit.due) != time_ms or unit.prev >= position:
                raise _DamageError(f"{self._log.directory}: no unit of the step {time_ms} at {position}")
            (deletes if unit.is_delete and not unit.is_roll else normal).append(position)
            position = unit.prev
        normal.reverse()
        deletes.reverse()
        return normal, deletes

    def _delete_keys(self, positions: Iterable[int]) -> set[tuple[str, str]]:
        """(Real topic of the cancelling message, key that it names)."""
        keys = set()
        for position in positions:
            unit = self._log.get(position)
            assert unit is not None
            if self.rescue.passes_over(position, unit.offset):
                continue
            try:
                record = self._read(unit.offset, unit.record_size)
            except FormatError as error:
                self._skip(unit.offset, error)
                continue
            keys.add(record.recalls)
        return keys

    def _deliver_chunk(self, positions: array[int], keys: set[tuple[str, str]]) -> bool:
        messages: list[MessageExtBrokerInner] = []
        counts: Counter[str] = Counter()
        cancelled = 0
        comes_back = False
        for position in positions:
            unit = self._log.get(position)
            assert unit is not None
            if self.rescue.passes_over(position, unit.offset):
                continue
            message = self._message(unit)
            if message is None:
                continue
            topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
            if not unit.is_delete and not self._is_counted_out(
                message.properties, self._last_step(unit, message)
            ):
                counts[topic] -= 1
            if keys and not unit.is_roll:
                uniq_key = message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
                if is_recalled(topic, uniq_key, keys):
                    cancelled += 1
                    continue
            self._time_up(message, unit.write_time, is_roll=unit.is_roll)
            if not self._was_delivered(message):
                messages.append(message)
                out = number_of(message.properties.get(PROPERTY_TIMER_OUT_MS))
                comes_back = comes_back or (unit.is_roll and out < self.curr_write_time_ms)
        if not self._store_all(messages):
            return False
        if comes_back:
            self._rolled_until = self._store.max_phy_offset
        self.cancelled += cancelled
        if counts:
            self.metrics.add(counts, self._clock_ms())
        return True

    def _message(self, unit: TimerUnit) -> MessageExtBrokerInner | None:
        record = self._store.select_one_message_by_offset(unit.offset, unit.record_size)
        try:
            if record is None:
                raise FormatError(0, "the commit log does not hold it any more")
            return decode_timer_message(record, unit.offset, unit.due, is_roll=unit.is_roll)
        except FormatError as error:
            self._skip(unit.offset, error)
            return None

    def _last_step(self, unit: TimerUnit, message: MessageExtBrokerInner) -> int:
        """The step in which the message is delivered: of a unit that rolls, after one or more others."""
        out = number_of(message.properties.get(PROPERTY_TIMER_OUT_MS)) if unit.is_roll else unit.due
        return self._step(out)

    def _time_up(self, message: MessageExtBrokerInner, enqueue_ms: int, *, is_roll: bool) -> None:
        """Makes of a message that waited the one that is stored now."""
        properties = message.properties
        properties.pop(PROPERTY_WAIT_STORE_MSG_OK, None)
        properties[PROPERTY_TIMER_ENQUEUE_MS] = str(enqueue_ms)
        if is_roll:
            properties[PROPERTY_TIMER_ROLL_TIMES] = str(roll_times(properties) + 1)
        else:
            message.topic = properties.get(PROPERTY_REAL_TOPIC, "")
            message.queue_id = max(0, number_of(properties.get(PROPERTY_REAL_QUEUE_ID)))
        properties[PROPERTY_TIMER_DEQUEUE_MS] = str(self._clock_ms())

    def _put_all(self, expired: list[tuple[int, int, int]]) -> bool:
        """Stores what was due before it could be put into the wheel: (physical offset, size, due)."""
        messages = []
        for physical_offset, size, due in expired:
            unit = TimerUnit(NO_POSITION, MAGIC_DEFAULT, due, 0, physical_offset, size, 0)
            message = self._message(unit)
            if message is not None:
                self._time_up(message, ENQUEUE_BYPASSED, is_roll=False)
                if not self._was_delivered(message):
                    messages.append(message)
        return self._store_all(messages)

    def _was_delivered(self, message: MessageExtBrokerInner) -> bool:
        """True if a copy of the message as it is now was stored before a crash, and is not accounted for yet."""
        copies = self._replay.copies
        return bool(copies) and copies.take(message.properties, is_roll=message.topic == TIMER_TOPIC)

    def _store_all(self, messages: list[MessageExtBrokerInner]) -> bool:
        """Stores them in their order, each as often as it takes; False if the service ends before."""
        for message in messages:
            while not self._store_one(message):
                if self._stop.wait(RETRY_S) or not self.is_dequeuing:
                    return False
        if messages:
            self._unflushed = True
            self.delivered += len(messages)
            self.dequeue_rate.add(len(messages))
            self.delivered_by_topic.update(
                message.properties.get(PROPERTY_REAL_TOPIC, "") for message in messages
            )
        return True

    def _store_one(self, message: MessageExtBrokerInner) -> bool:
        """True if nothing is left to do for it. Nobody waits for its flush; only the progress does."""
        put = self._store.async_put_message(message)
        result = put.result() if put.done() else None
        if result is None or (result.append_result is not None and result.append_result.is_ok):
            self._trouble.worked("due messages are delivered again")
            return True
        if (
            result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
            and PROPERTY_TIMER_DEQUEUE_MS in message.properties
        ):
            # it came as long as it may be: it goes without what the timers add
            for name in (PROPERTY_TIMER_ENQUEUE_MS, PROPERTY_TIMER_DEQUEUE_MS):
                del message.properties[name]
            return self._store_one(message)
        if result.status in NEVER_STORED:
            self.skipped += 1
            logger.error(
                "the timer message at %d can never be delivered to %s: %s",
                message.physical_offset,
                message.topic,
                result.reason,
            )
            return True
        self._trouble.failed(f"timer messages: {result.status.name} ({result.reason}), tried again")
        return False

    # ------------------------------------------------------------------ places that have to be left

    def _may_go(self, end: int) -> bool:
        """Asked by the cleaner about the commit log before `end`: False while messages that wait in it are moved."""
        if not self._is_open or not self.is_dequeuing or end <= self.rescue.moved_until:
            return True  # a slave's messages are moved by its master
        self.rescue.asked = max(self.rescue.asked, end)
        self._wake.set()
        return False

    def _move_out(self, until: int) -> None:
        """Stores what waits before `until` again, as what is rolled. OSError."""
        rescue = self.rescue
        if until <= rescue.moved_until:
            return
        if until > rescue.begun:
            found = self._waiting_before(until)
            rescue.left = [position for position in found[::-1].tolist() if position not in rescue.done]
            rescue.begun = until
        counts: Counter[str] = Counter()
        while rescue.left and not self._stop.is_set():
            position = rescue.left[-1]
            unit = self._log.get(position)
            assert unit is not None
            message = self._message(unit)
            if message is not None:
                self._time_up(message, unit.write_time, is_roll=True)
                if not self._store_one(message):
                    break  # the next round goes on here
                if not unit.is_delete and not self._is_counted_out(
                    message.properties, self._last_step(unit, message)
                ):
                    counts[message.properties.get(PROPERTY_REAL_TOPIC, "")] -= 1
                rescue.moved += 1
            rescue.left.pop()
            rescue.done.add(position)
        if counts:
            self.metrics.add(counts, self._clock_ms())
        if not rescue.left:
            self._store.flush()
            moved = len(rescue.done)
            rescue.finish(until)
            if moved:
                logger.warning(
                    "the disk is short: %d timer messages of the commit log before %d were stored again",
                    moved,
                    until,
                )

    def _waiting_before(self, until: int) -> Int64s:
        known = self.rescue.moved_until
        return waiting_before(self._log, until, known, self.curr_read_time_ms, self.precision_ms)

    def _count_lost(self) -> None:
        """Reports what the cleaner has deleted before it was due. OSError."""
        begins = self._store.min_phy_offset
        if begins <= self._log_begins:
            return
        self._log_begins = begins
        if begins <= self.rescue.moved_until:
            return
        lost = 0
        if self.is_dequeuing:  # a slave's log is its master's, who knows
            gone = self._waiting_before(begins)
            lost = sum(position not in self.rescue.done for position in gone.tolist())
        if lost:
            self.rescue.lost += lost
            logger.error(
                "%d timer messages are lost: the commit log before %d, where they waited, was deleted because "
                "the disk was full",
                lost,
                begins,
            )
        self.rescue.finish(begins)

    # ------------------------------------------------------------------ progress on disk

    def _flush_if_due(self) -> None:
        if self._unflushed and time.monotonic() >= self._next_flush:
            self.flush()
            self._next_flush = time.monotonic() + self._config.timer_flush_interval_ms / 1000

    def _do_regular_work(self) -> None:
        self._flush_if_due()
        now = time.monotonic()
        if now >= self._next_metrics:
            self._next_metrics = now + METRICS_FLUSH_S
            self.metrics.persist()
        if now >= self._next_clean:
            self._next_clean = now + CLEAN_S
            self._log.delete_expired(self._store.min_phy_offset)
            read_time = self.curr_read_time_ms
            self._recalls = {due: keys for due, keys in self._recalls.items() if due >= read_time}
        if now >= self._next_recount and self.is_dequeuing:  # a slave has its master's counts
            self._recount()

    def _recount(self) -> None:
        """Corrects the counts of waiting messages by a count of the timer log."""
        self._next_recount = time.monotonic() + RECOUNT_S
        known = self.metrics.timing_counts()
        self._recalls = recalls_by_step(
            self._log, self.curr_read_time_ms, self.precision_ms, self.rescue, self._read
        )
        counts = waiting_by_topic(
            self._log, self.curr_read_time_ms, self.precision_ms, self.rescue, known, self._read
        )
        self.metrics.correct(counts, self._clock_ms())

    def flush(self) -> None:
        """Makes the progress so far durable: the copies first, then the log, the wheel, and what tells of them last.
        OSError; StoreError after the store has failed."""
        if not self._unflushed:
            return
        self._unflushed = False
        read_time, queue_offset, done_until = (
            self.curr_read_time_ms,
            self.commit_queue_offset,
            self._done_until,
        )
        try:
            self._store.flush()
            self._log.flush()
            self._wheel.flush()
            checkpoint, data = self._checkpoint, self._checkpoint.data
            before = astuple(data)
            data.last_read_time_ms = read_time
            data.last_timer_log_flush_pos = self._log.flushed
            data.last_timer_queue_offset = queue_offset
            if self.is_dequeuing:
                data.master_timer_queue_offset = queue_offset
            if astuple(data) != before:
                data.counter += 1
                data.timestamp = self._clock_ms()
            checkpoint.done_until = done_until
            checkpoint.flush()
        except BaseException:
            self._unflushed = True
            raise

    # ------------------------------------------------------------------ for masters and slaves

    def checkpoint_bytes(self) -> bytes:
        """The answer to GET_TIMER_CHECK_POINT: 56 bytes."""
        return self._checkpoint.data.encode()

    def set_checkpoint(self, body: bytes) -> None:
        """On a slave: takes over how far the master is. TruncatedRecordError."""
        if self.is_dequeuing:
            return
        master, own = TimerCheckpointData.decode(body), self._checkpoint.data
        # what the master delivers from its read time on comes after what was here before it was asked
        seen_until, self._seen_until = self._seen_until, self._store.max_phy_offset
        own.master_timer_queue_offset = master.master_timer_queue_offset
        if len(body) >= 56:
            own.state_version, own.timestamp, own.counter = (
                master.state_version,
                master.timestamp,
                master.counter,
            )
        read_time = self._step(master.last_read_time_ms)
        if read_time > self.curr_read_time_ms:
            self._done_until = seen_until
            self._advance(read_time)
        self._wake.set()

    # ------------------------------------------------------------------ for operators

    @property
    def read_behind_ms(self) -> int:
        """How late delivery is, in ms."""
        if not self.is_dequeuing or self._config.timer_stop_dequeue:
            return 0
        return max(0, self._clock_ms() - 2 * self.precision_ms - self.curr_read_time_ms)

    @property
    def enqueue_behind_ms(self) -> int:
        """Age of the oldest message that is not in the wheel yet."""
        stored = self._store.message_store_timestamp(TIMER_TOPIC, 0, self.commit_queue_offset)
        return max(0, self._clock_ms() - stored) if stored > 0 and self.offset_behind else 0

    @property
    def dequeue_behind(self) -> int:
        """Messages that are due and not delivered yet."""
        (late,) = self.pending_within((-self.precision_ms // 1000,))
        return late

    @property
    def offset_behind(self) -> int:
        """Number of messages that are not in the wheel yet."""
        queue = timer_queue(self._store)
        return max(0, (queue.max_offset_in_queue if queue is not None else 0) - self.commit_queue_offset)

    @property
    def all_congest_num(self) -> int:
        """Messages that wait in the wheel."""
        return self._wheel.all_num(self.curr_read_time_ms) if self._is_open else 0

    def pending_within(self, bounds_s: Iterable[int]) -> list[int]:
        """How many wait that are due within so many seconds, for each bound."""
        if not self._is_open:
            return [0 for _ in bounds_s]
        slots = self._wheel.slots(self.curr_read_time_ms)
        times = slots["time"].astype(np.int64) * self.precision_ms
        sums = np.r_[0, np.cumsum(slots["num"].astype(np.int64))]
        now = self._clock_ms()
        return [int(sums[np.searchsorted(times, now + bound * 1000)]) for bound in bounds_s]

    def runtime_info(self) -> dict[str, str]:
        """RocketMQ's runtime keys on timers, and their values."""
        return {
            "timerReadBehind": str(self.read_behind_ms // 1000),
            "timerOffsetBehind": str(self.offset_behind),
            "timerCongestNum": str(self.all_congest_num),
            "timerEnqueueTps": f"{self.enqueue_rate.per_second():.1f}",
            "timerDequeueTps": f"{self.dequeue_rate.per_second():.1f}",
        }

    def status(self) -> dict[str, Any]:
        """The progress, for tests and logs."""
        return {
            "readTime": self.curr_read_time_ms,
            "writeTime": self.curr_write_time_ms,
            "queueOffset": self.commit_queue_offset,
            "enqueued": self.enqueued,
            "delivered": self.delivered,
            "cancelled": self.cancelled,
            "skipped": self.skipped,
        }

    @property
    def recovered(self) -> Recovered:
        """Findings of the start."""
        return self._replay


class _Batch:
    """Messages on their way into the wheel: it changes when the log has them."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self.slots: dict[int, Slot] = {}
        self.expired: list[tuple[int, int, int]] = []
        self.counts: Counter[str] = Counter()
        self.recalls: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
        self.count = 0

    def slot(self, due: int) -> Slot:
        found = self.slots.get(due)
        if found is None:
            found = self._wheel.get(due)
        return Slot(due, NO_POSITION, NO_POSITION) if found is NO_SLOT else found

    def apply(self) -> None:
        for slot in self.slots.values():
            self._wheel.put(slot.time, slot.first, slot.last, slot.num)


class _Rate:
    """Events per second, over the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SAMPLES + 1)
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        second = int(time.monotonic())
        with self._lock:
            if self._seconds and self._seconds[-1][0] == second:
                count += self._seconds.pop()[1]
            self._seconds.append((second, count))

    def per_second(self) -> float:
        now = int(time.monotonic())
        with self._lock:
            return sum(count for at, count in self._seconds if now - RATE_SAMPLES <= at < now) / RATE_SAMPLES
