"""Lists the messages that wait in a store's timers, and checks that its files agree, without writing anything; also
beside a running broker.

    queue of rmq_sys_wheel_timer ─┬─ what the timer log has, and timercheck says is not delivered ─┐
                                  └─ what comes after its last unit ───────────────────────────────┴─▶ by due time

Memory: 32 bytes for each message that waits; records are read one at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

import numpy as np

from mqlake.base.findings import Finding, Findings, Severity
from mqlake.errors import FormatError
from mqlake.formats.columns import Int64s
from mqlake.formats.timer import MAGIC_DELETE, MAGIC_ROLL, SLOT_SIZE, SLOTS_TOTAL, TIMER_WHEEL_SIZE
from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from mqlake.store.queues.leads_to import offset_of
from mqlake.store.store_view import StoreView
from mqlake.store.timer.timer_checkpoint import TimerCheckpoint
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_record import TimerRecord, number_of, read_timer_record
from mqlake.store.timer.timer_recovery import Slots, timer_queue, waiting_units
from mqlake.store.timer.timer_wheel import TimerWheel

CHUNK = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class PendingTimer:
    """A message that waits. Times are ms since 1970."""

    due: int
    """The end of its step: from then on it is delivered."""
    topic: str
    queue_id: int
    uniq_key: str
    is_recalled: bool
    roll_times: int
    """How often it was stored again because it waits longer than the wheel looks ahead."""
    stored: int
    physical_offset: int
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class TimerState:
    """State of the timer files."""

    waiting: int
    """Messages, recalls not counted; those too that the wheel does not have yet."""
    first_due: int
    """ms since 1970; 0 if none waits."""
    last_due: int
    read_time: int
    """Messages due before this time have been delivered."""
    queue_offset: int
    """Queue offset of rmq_sys_wheel_timer: messages before it are in the timer log, or were delivered."""
    queue_end: int
    log_start: int
    log_end: int


class TimerView:
    """The timers of a store that is open for reading. Close it, or use it in a `with`. OSError."""

    def __init__(self, store: StoreView) -> None:
        config = store.config
        self.store = store
        self.precision_ms = config.timer_precision_ms
        self.log = TimerLog(config.timer_log_dir, config.mapped_file_size_timer_log, read_only=True)
        self.log.recover()
        self.checkpoint = TimerCheckpoint(f"{config.config_dir}/timercheck")
        self.read_time = self.checkpoint.data.last_read_time_ms // self.precision_ms * self.precision_ms
        self._waiting = self._collect()

    def close(self) -> None:
        self.log.close()

    def __enter__(self) -> TimerView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> TimerState:
        due, _, _, kinds = self._waiting
        messages = due[kinds & MAGIC_DELETE == 0]
        queue, data = timer_queue(self.store), self.checkpoint.data
        return TimerState(
            len(messages),
            int(messages[0]) if len(messages) else 0,
            int(messages[-1]) if len(messages) else 0,
            data.last_read_time_ms,
            data.last_timer_queue_offset,
            queue.max_offset_in_queue if queue is not None else 0,
            self.log.start,
            self.log.end,
        )

    def pending(
        self, *, topic: str | None = None, start_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[PendingTimer]:
        """Yields waiting messages in the order in which they are due; of one topic, or due in [start, end)."""
        keys = self._recalled()
        due, offsets, sizes, kinds = self._waiting
        chosen = (kinds & MAGIC_DELETE == 0) & (due >= start_ms)
        if end_ms is not None:
            chosen &= due < end_ms
        for number in np.flatnonzero(chosen).tolist():
            record = self._read(int(offsets[number]), int(sizes[number]))
            if record is None or (topic is not None and record.real_topic != topic):
                continue
            properties, real_topic = record.properties, record.real_topic
            uniq_key = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
            offset, size = int(offsets[number]), int(sizes[number])
            yield PendingTimer(
                int(due[number]),
                real_topic,
                max(0, number_of(properties.get(PROPERTY_REAL_QUEUE_ID))),
                uniq_key,
                bool({(real_topic, uniq_key), (real_topic, f"{real_topic}+{uniq_key}")} & keys),
                max(0, number_of(properties.get(PROPERTY_TIMER_ROLL_TIMES))),
                self.store.store_timestamp_at(offset, size),
                offset,
                size,
            )

    # --- what waits

    def _collect(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """(Due, physical offset, size, magic) of all that waits, by due time."""
        parts = [np.empty((4, 0), np.int64)]
        for _, units in self.log.chunks():
            due = units["write_time"].astype(np.int64) + units["delay"]
            chosen = np.flatnonzero(due // self.precision_ms * self.precision_ms >= self.read_time)
            columns = [due[chosen], *(units[name][chosen] for name in ("offset", "record_size", "magic"))]
            part = np.stack([np.asarray(column, np.int64) for column in columns])
            for number in np.flatnonzero(part[3] & MAGIC_ROLL).tolist():  # its stop is not when it is due
                record = self._read(int(part[1, number]), int(part[2, number]))
                part[0, number] = record.out_ms if record is not None else part[0, number]
            parts.append(part)
        parts += self._not_in_log()
        table = np.concatenate(parts, axis=1)
        table = table[:, np.argsort(table[0], kind="stable")]
        due, offsets, sizes, kinds = table
        return due // self.precision_ms * self.precision_ms + self.precision_ms, offsets, sizes, kinds

    def _not_in_log(self) -> Iterator[Int64s]:
        """The same of what came after the log's last unit, and is not delivered."""
        queue = timer_queue(self.store)
        if queue is None:
            return
        last = self.log.get(self.log.last_position()) if self.log.last_position() >= 0 else None
        number = offset_of(queue, last.offset) if last is not None else None
        offset = queue.min_offset_in_queue if number is None else number + 1
        while offset < queue.max_offset_in_queue:
            units = queue.get_range(offset, CHUNK)
            if not len(units):
                offset = queue.roll_next_file(offset)
                continue
            found = []
            for place, (physical_offset, size, _) in enumerate(units.tolist(), offset):
                record = self._read(physical_offset, size)
                is_old = place < self.checkpoint.data.last_timer_queue_offset
                if record is not None and record.out_ms >= (self.read_time if is_old else 0):
                    found.append(
                        (record.out_ms, physical_offset, size, MAGIC_DELETE if record.is_delete else 0)
                    )
            offset += len(units)
            yield np.array(found, np.int64).reshape(-1, 4).T

    def _recalled(self) -> set[tuple[str, str]]:
        _, offsets, sizes, kinds = self._waiting
        keys = set()
        for number in np.flatnonzero(kinds & MAGIC_DELETE).tolist():
            record = self._read(int(offsets[number]), int(sizes[number]))
            if record is not None:
                keys.add((record.real_topic, record.properties.get(PROPERTY_TIMER_DEL_UNIQKEY, "")))
        return keys

    def _read(self, physical_offset: int, size: int) -> TimerRecord | None:
        record = self.store.select_one_message_by_offset(physical_offset, size)
        with contextlib.suppress(FormatError):
            if record is not None:
                found = read_timer_record(record)
                return found if found.in_timer_topic and found.out_ms >= 0 else None
        return None

    # --- whether it agrees

    def verify(self, findings: Findings, *, settled: bool) -> None:
        """Log, wheel and queue against each other. What is wrong is made again at the next start of a broker of
        mqlake's; RocketMQ's would lose what waits. `settled`: the store was closed cleanly, and nobody writes."""
        severity = Severity.DAMAGE if settled else Severity.NOTE
        queue = timer_queue(self.store)

        def add(kind: str, path: str, position: int, text: str) -> None:
            findings.add(Finding(severity, kind, path, position, f"{text}; the next start makes it again"))

        if self.log.damage:
            add("timer log", self.log.directory, 0, self.log.damage)
            return
        if queue is None or not self.checkpoint.data.last_timer_queue_offset:
            return
        if self.checkpoint.data.last_timer_log_flush_pos > self.log.end:
            text = (
                f"it ends at {self.log.end}, timercheck says {self.checkpoint.data.last_timer_log_flush_pos}"
            )
            add("timer log", self.log.directory, self.log.end, text)
        units = waiting_units(self.log, self.read_time, self.precision_ms, self.log.start, 0)
        for offset in units.offsets[units.offsets >= self.store.min_phy_offset].tolist():
            if offset_of(queue, offset) is None:
                add(
                    "timer log", self.log.directory, 0, f"a unit leads to {offset}, where no timer message is"
                )
        if broken := units.broken(self.log.start):
            add("timer log", self.log.directory, 0, broken)
        self._verify_wheel(add, units.slots())

    def _verify_wheel(self, add: Callable[[str, str, int, str], None], slots: Slots) -> None:
        path = self.store.config.timer_wheel_path
        if not len(slots.steps) and not os.path.exists(path):
            return
        wheel = TimerWheel(path, self.precision_ms, read_only=True)
        try:
            if wheel.was_damaged:
                add("timer wheel", path, 0, f"it has not {TIMER_WHEEL_SIZE} bytes")
                return
            found = {int(slot["time"]): int(slot["last"]) for slot in wheel.slots(self.read_time)}
            wanted = dict(zip(slots.steps.tolist(), slots.lasts.tolist(), strict=True))
            for step in sorted(step for step in {*found, *wanted} if found.get(step) != wanted.get(step)):
                text = (
                    f"the slot of {step * self.precision_ms} leads to {found.get(step, 'nothing')}, "
                    f"the timer log to {wanted.get(step, 'nothing')}"
                )
                add("timer wheel", path, step % (2 * SLOTS_TOTAL) * SLOT_SIZE, text)
        finally:
            wheel.close()
