"""Finds the places where the timers go on when a store is opened, and makes the wheel again, from what can be relied
on.

    commit log ─▶ queue of rmq_sys_wheel_timer ─▶ timer log ─▶ timer wheel      each can be made from the one before
                              └── timercheck: what is before lastTimerQueueOffset was put into the log, or delivered;
                                  what is due before lastReadTimeMs was delivered

    the timer log is lost, damaged, or leads elsewhere    it is discarded, and the queue read again from its beginning
    it ends early                                         the queue is read again from there
    timercheck is lost                                    the last copy delivered says how far delivery had come
    what was delivered after the last write of timercheck is found in the commit log, and not delivered again

The wheel is not believed: it is made again from the timer log (from its last part if that is longer than SCAN_MAX).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mqlake.errors import FormatError
from mqlake.formats.columns import Int64s
from mqlake.formats.timer import MAGIC_DELETE, NO_SLOT, TIMER_UNIT_SIZE
from mqlake.message import PROPERTY_TIMER_DEQUEUE_MS, PROPERTY_TIMER_ENQUEUE_MS, TIMER_TOPIC
from mqlake.store.log.log_reader import LogReader
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.leads_to import offset_of
from mqlake.store.store_view import StoreView
from mqlake.store.timer.timer_checkpoint import TimerCheckpoint
from mqlake.store.timer.timer_log import TimerLog
from mqlake.store.timer.timer_record import (
    ENQUEUE_BYPASSED,
    Copies,
    TimerKey,
    TimerRecord,
    number_of,
    read_timer_record,
)
from mqlake.store.timer.timer_wheel import TimerWheel

logger = logging.getLogger(__name__)

SCAN_MAX = 1 << 30
"""Bytes of the timer log from which the wheel is made again; of a longer one the last file, and the wheel for what is
before it."""
LATE_MS = 60_000
"""How long before it was due a message has to have been stored to count as delivered in time."""
_MARK = PROPERTY_TIMER_DEQUEUE_MS.encode() + b"\x01"


@dataclasses.dataclass(slots=True)
class Recovered:
    read_time: int
    """ms: what is due before was delivered."""
    queue_offset: int
    """Queue offset of rmq_sys_wheel_timer to go on at."""
    replay_until: int
    """Queue offset before which all was in the log, or delivered, once."""
    known: Int64s
    """Physical offsets (ascending) of the messages from `queue_offset` on that the timer log has."""
    copies: Copies
    """Copies that `read_time` does not tell of."""
    rolled: dict[TimerKey, int]
    """Messages to be read again in many turns, and how often each was rolled."""
    rebuilt: str = ""
    """Why the timer log was made again; empty if it was not."""


def timer_queue(store: StoreView) -> ConsumeQueue | None:
    """The queue of the messages that wait."""
    queue = store.consume_queues.get(TIMER_TOPIC, 0)
    return queue if isinstance(queue, ConsumeQueue) else None


# ---------------------------------------------------------------------- copies in the commit log


def copies(store: StoreView, start: int) -> Iterator[tuple[int, TimerRecord]]:
    """(Physical offset, record) of what the timers wrote into the commit log, delivered or rolled, from the record at
    or after `start` on."""
    reader = LogReader(store.commit_log_files, check_crc=False)
    for chunk in reader.scan(max(start, store.min_phy_offset)):
        scan, base = chunk.scan, chunk.mapped_file.file_from_offset
        if not len(scan):
            continue
        first = int(scan.position[0])
        data = chunk.array[first : scan.end].tobytes()
        at = data.find(_MARK)
        while at >= 0:
            number = int(np.searchsorted(scan.position, first + at, side="right")) - 1
            position, size = int(scan.position[number]), int(scan.size[number])
            record = read_timer_record(data[position - first : position - first + size])
            if record.is_copy:
                yield base + position, record
            at = data.find(_MARK, position - first + size)


def copies_from(store: StoreView, start: int) -> Copies:
    """Returns what the timers wrote from a physical offset on. -1: nothing."""
    found = Copies()
    if start >= 0:
        for _, record in copies(store, start):
            found.add(record)
    return found


def _where_delivery_was(store: StoreView) -> int:
    """TIMER_OUT_MS of the last message that was delivered when it was due, as the commit log has it; 0: none was."""
    last = 0
    for _, record in copies(store, 0):
        bypassed = number_of(record.properties.get(PROPERTY_TIMER_ENQUEUE_MS)) == ENQUEUE_BYPASSED
        if not bypassed and not record.in_timer_topic:
            last = max(last, record.out_ms)
    return last


# ---------------------------------------------------------------------- the way back


def recover(
    store: StoreView, log: TimerLog, wheel: TimerWheel, checkpoint: TimerCheckpoint, now: int
) -> Recovered:
    """Finds where to go on, and brings log and wheel in order. OSError."""
    precision = wheel.precision_ms
    queue = timer_queue(store)
    low, high = (queue.min_offset_in_queue, queue.max_offset_in_queue) if queue is not None else (0, 0)
    data = checkpoint.data
    read_time = data.last_read_time_ms // precision * precision
    committed, done_until = data.last_timer_queue_offset, checkpoint.done_until
    this_step = now // precision * precision
    if high > low and (checkpoint.is_empty or committed > high):
        logger.warning(
            "%s is lost, or ahead of the log: the commit log is searched for what was delivered",
            checkpoint.path,
        )
        assert queue is not None
        read_time = _where_delivery_was(store)
        late_from = read_time - LATE_MS
        committed = store.get_offset_in_queue_by_time(TIMER_TOPIC, 0, late_from) if read_time else low
        unit = queue.get(committed)
        done_until = unit.physical_offset if unit is not None else store.max_phy_offset
    if read_time <= 0 or read_time > this_step + precision:
        read_time = this_step
    committed = min(max(committed, low), high)
    written = copies_from(store, done_until)
    result = Recovered(read_time, low, committed, np.empty(0, np.int64), written, {})
    result.rebuilt = _take_log(store, queue, log, wheel, checkpoint, result)
    if result.rebuilt:
        logger.warning("the timer log is rebuilt from the commit log: %s", result.rebuilt)
        log.discard()
        wheel.clear()
        result.queue_offset = low
        result.known = np.empty(0, np.int64)
        if queue is not None:
            result.rolled = _rolled(store, queue, low, high)
    return result


def _take_log(
    store: StoreView,
    queue: ConsumeQueue | None,
    log: TimerLog,
    wheel: TimerWheel,
    checkpoint: TimerCheckpoint,
    result: Recovered,
) -> str:
    """Takes over what the timer log holds into the wheel and the result; or says why it cannot be used."""
    if log.damage:
        return log.damage
    log.recover()
    if queue is None or log.last_position() < 0:
        lost = result.replay_until > result.queue_offset and checkpoint.data.last_timer_log_flush_pos > 0
        wheel.clear()
        return f"{log.directory} is gone" if lost else ""
    _cut_beyond(log, store.max_phy_offset)
    position = log.last_position()
    unit = log.get(position) if position >= 0 else None
    if unit is None:
        return f"{log.directory} leads beyond the commit log"
    if unit.offset < store.min_phy_offset:
        return ""  # nothing that is still there was put into it
    last = offset_of(queue, unit.offset)
    if last is None:
        return f"{log.directory}: the unit at {position} leads to no message of {TIMER_TOPIC}"
    result.queue_offset = min(last + 1, result.replay_until)
    at = queue.get(result.queue_offset)
    known_from = at.physical_offset if at is not None else store.max_phy_offset
    first, oldest = log.get(log.start), queue.get(queue.min_offset_in_queue)
    is_cleaned = first is None or oldest is None or first.offset <= oldest.physical_offset
    return _make_wheel(log, wheel, result, known_from, checkpoint, is_cleaned=is_cleaned)


def _cut_beyond(log: TimerLog, log_end: int) -> None:
    """Takes away the units that lead to where the commit log no longer (or not yet) has anything: units are in the
    order of the commit log."""
    for position, units in reversed(list(log.chunks())):
        kept = int(np.searchsorted(units["offset"], log_end))
        if kept < len(units):
            logger.warning("the timer log ends %d units earlier, as the commit log does", len(units) - kept)
            log.truncate(position + kept * TIMER_UNIT_SIZE)
        if kept:
            return


def _make_wheel(
    log: TimerLog,
    wheel: TimerWheel,
    result: Recovered,
    known_from: int,
    checkpoint: TimerCheckpoint,
    *,
    is_cleaned: bool,
) -> str:
    """The wheel, made again from the log; why it cannot be, when units that are still waiting are gone. `is_cleaned`:
    what was before the log's first unit has left the commit log too."""
    scan_start = log.start
    if log.end - scan_start > SCAN_MAX:
        used = wheel.slots(result.read_time)
        if not len(used) or int(used["last"].max()) < log.end:
            before = checkpoint.data.last_timer_log_flush_pos - log.file_size
            scan_start = max(log.start, log.file_start(max(before, 0)))
    found = waiting_units(log, result.read_time, wheel.precision_ms, scan_start, known_from)
    result.known = found.offsets
    keep_wheel = scan_start > log.start
    broken = found.broken(None if keep_wheel else log.start if is_cleaned else 0)
    if broken:
        return f"{log.directory}: {broken}"
    if not keep_wheel:
        wheel.clear()
    slots = found.slots()
    if keep_wheel:
        for number, step in enumerate(slots.steps.tolist()):
            slot = wheel.get(step * wheel.precision_ms)
            if slot is not NO_SLOT:
                of_slot = (found.steps == step) & (found.positions > slot.last)
                slots.firsts[number], slots.nums[number] = slot.first, slot.num + found.counts[of_slot].sum()
    wheel.put_many(*slots)
    return ""


class Slots(NamedTuple):
    """Slots of a wheel: time divided by the precision, first and last position, how many wait."""

    steps: Int64s
    firsts: Int64s
    lasts: Int64s
    nums: Int64s


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingUnits:
    """The units of a timer log that are not due yet, by step and then by position."""

    steps: Int64s
    positions: Int64s
    previous: Int64s
    counts: Int64s
    """1 of a message, -1 of one that cancels another."""
    offsets: Int64s
    """Physical offsets of all units, waiting or not, from a certain one on."""

    def _begins(self) -> Int64s:
        return np.flatnonzero(np.r_[True, self.steps[1:] != self.steps[:-1]][: len(self.steps)])

    def broken(self, oldest: int | None) -> str:
        """Names a unit that does not lead to the one before it in its slot; empty if all do. Units before position
        `oldest` may be gone; None: it is not known which are."""
        begins = self._begins()
        follows = np.setdiff1d(np.arange(len(self.steps)), begins, assume_unique=True)
        wrong = follows[self.previous[follows] != self.positions[follows - 1]]
        if oldest is not None:
            wrong = np.r_[wrong, begins[self.previous[begins] >= oldest]]
        if not len(wrong):
            return ""
        position, before = int(self.positions[wrong[0]]), int(self.previous[wrong[0]])
        return f"the unit at {position} follows the one at {before}, which is not there"

    def slots(self) -> Slots:
        begins = self._begins()
        if not len(begins):
            return Slots(self.steps, self.positions.copy(), self.positions, self.counts)
        ends = np.r_[begins[1:], len(self.steps)] - 1
        nums = np.add.reduceat(self.counts, begins)
        return Slots(self.steps[begins], self.positions[begins].copy(), self.positions[ends], nums)


def waiting_units(
    log: TimerLog, read_time: int, precision_ms: int, start: int, offsets_from: int
) -> WaitingUnits:
    """From position `start` of the log on; `offsets` are those from `offsets_from` on."""
    offsets, waiting = [np.empty(0, np.int64)], [np.empty((4, 0), np.int64)]
    for position, units in log.chunks(start):
        of_units = units["offset"].astype(np.int64)
        offsets.append(of_units[of_units >= offsets_from])
        steps = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
        chosen = np.flatnonzero(steps >= read_time // precision_ms)
        counts = np.where((units["magic"][chosen] & MAGIC_DELETE) != 0, -1, 1)
        positions = position + chosen * TIMER_UNIT_SIZE
        waiting.append(np.stack((steps[chosen], positions, units["prev"][chosen].astype(np.int64), counts)))
    columns = np.concatenate(waiting, axis=1)
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    steps, positions, previous, counts = columns
    return WaitingUnits(steps, positions, previous, counts, np.concatenate(offsets))


def _rolled(store: StoreView, queue: ConsumeQueue, low: int, high: int) -> dict[TimerKey, int]:
    """Returns what was put into the wheel again later on: its earlier records have been read."""
    found: dict[TimerKey, int] = {}
    offset = low
    while offset < high:
        units = queue.get_range(offset, 4096)
        if not len(units):
            offset = queue.roll_next_file(offset)
            continue
        offset += len(units)
        for physical_offset, size, _ in units.tolist():
            record = store.select_one_message_by_offset(physical_offset, size)
            if record is None:
                continue
            try:
                timer = read_timer_record(record)
            except FormatError:
                continue
            key, times = timer.key, timer.roll_times
            if times and key[1]:
                found[key] = max(times, found.get(key, 0))
    return found
