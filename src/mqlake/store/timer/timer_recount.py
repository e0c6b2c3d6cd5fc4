"""How many timer messages wait for each topic, counted from the timer log.

    units that are not due ──topic_hash──▶ the topics that are known ──▶ count: messages less those that are recalled
                                └ several topics have this hash: the messages themselves say

The counts of TimerMetrics go up and down with every message, so whatever is not counted once (a crash before they were
written, a message that cannot be read) stays in them; counting again is what takes it out.
RocketMQ counts again once a day.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mqlake.errors import FormatError
from mqlake.formats.columns import Int64s
from mqlake.formats.timer import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT_SIZE
from mqlake.message import java_hash
from mqlake.store.timer.timer_log import TimerLog, Units
from mqlake.store.timer.timer_record import Recalls, TimerRecord, is_recalled
from mqlake.store.timer.timer_rescue import Rescue

Read = Callable[[int, int], TimerRecord]
"""The message at a physical offset, with its size. FormatError."""


def recalls_by_step(log: TimerLog, read_time: int, precision_ms: int, rescue: Rescue, read: Read) -> Recalls:
    """Every recall that waits, by the step at which its message is due."""
    found: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for units in _waiting(log, read_time, precision_ms, rescue):
        for unit in units[(units["magic"] & MAGIC_DELETE) != 0]:
            try:
                record = read(int(unit["offset"]), int(unit["record_size"]))
            except FormatError:
                continue
            found[_last_step(unit, record, precision_ms)].add(record.recalls)
    return dict(found)


def waiting_by_topic(
    log: TimerLog, read_time: int, precision_ms: int, rescue: Rescue, known: Iterable[str], read: Read
) -> Counter[str]:
    """Real topic → messages that wait and are not recalled, of those `known` and of all others that the log has."""
    recalls = recalls_by_step(log, read_time, precision_ms, rescue, read)
    recalled_topics = [java_hash(topic) for keys in recalls.values() for topic, _ in keys]
    topics: defaultdict[int, list[str]] = defaultdict(list)
    for topic in known:
        topics[java_hash(topic)].append(topic)
    found: Counter[str] = Counter()
    for units in _waiting(log, read_time, precision_ms, rescue):
        waiting = units[(units["magic"] & MAGIC_DELETE) == 0]
        hashes, which = np.unique(waiting["topic_hash"], return_inverse=True)
        for number, topic_hash in enumerate(hashes.tolist()):
            of_hash = np.flatnonzero(which == number)
            names = topics[topic_hash]
            if not names and topic_hash:  # of a topic that nobody knows: its first message names it
                names += _topics(waiting[of_hash[:1]], read)
            if len(names) == 1:
                found[names[0]] += len(of_hash)
            else:
                found.update(_topics(waiting[of_hash], read))
        # only those of which some may be recalled are read
        steps = _steps(waiting, precision_ms) * precision_ms
        rolls = (waiting["magic"] & MAGIC_ROLL) != 0
        may_be = np.isin(waiting["topic_hash"], recalled_topics) & (rolls | np.isin(steps, list(recalls)))
        for unit in waiting[may_be]:
            try:
                record = read(int(unit["offset"]), int(unit["record_size"]))
            except FormatError:
                continue
            keys = recalls.get(_last_step(unit, record, precision_ms), set())
            if is_recalled(record.real_topic, record.uniq_key, keys):
                names = topics[int(unit["topic_hash"])]
                found[names[0] if len(names) == 1 else record.real_topic] -= 1
    found.pop("", None)
    return Counter({topic: max(0, count) for topic, count in found.items()})


def _waiting(log: TimerLog, read_time: int, precision_ms: int, rescue: Rescue) -> Iterator[Units]:
    """The units that are not due, file by file."""
    for position, units in log.chunks():
        offsets = units["offset"].astype(np.int64)
        waits = (_steps(units, precision_ms) >= read_time // precision_ms) & (offsets >= rescue.moved_until)
        if rescue.done:
            positions = position + np.arange(len(units)) * TIMER_UNIT_SIZE
            waits &= ~np.isin(positions, list(rescue.done))
        yield units[waits]


def _steps(units: Units, precision_ms: int) -> Int64s:
    steps: Int64s = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
    return steps


def _last_step(unit: np.void, record: TimerRecord, precision_ms: int) -> int:
    """The step, ms, in which what the unit leads to is delivered: if it rolls, after one or more others."""
    due = record.out_ms if unit["magic"] & MAGIC_ROLL else int(unit["write_time"]) + int(unit["delay"])
    return due // precision_ms * precision_ms


def _topics(units: Units, read: Read) -> list[str]:
    """The real topic of each message; empty if it cannot be read."""
    found = []
    for offset, size in zip(units["offset"].tolist(), units["record_size"].tolist(), strict=True):
        try:
            found.append(read(offset, size).real_topic)
        except FormatError:
            found.append("")
    return found
