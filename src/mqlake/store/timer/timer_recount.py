"""How many timer messages wait for each topic, counted from the timer log.

    units that are not due ──topic_hash──▶ the topics that are known ──▶ count: messages less those that cancel them
                                └ several topics have this hash: the messages themselves say

The counts of TimerMetrics go up and down with every message, so whatever is not counted once (a crash before they were
written, a recall of nothing, a message that cannot be read) stays in them; counting again is what takes it out.
RocketMQ counts again once a day.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from mqlake.errors import FormatError
from mqlake.formats.timer import MAGIC_DELETE, TIMER_UNIT_SIZE
from mqlake.message import java_hash
from mqlake.store.timer.timer_log import TimerLog, Units
from mqlake.store.timer.timer_record import TimerRecord
from mqlake.store.timer.timer_rescue import Rescue

Read = Callable[[int, int], TimerRecord]
"""The message at a physical offset, with its size. FormatError."""


def waiting_by_topic(
    log: TimerLog, read_time: int, precision_ms: int, rescue: Rescue, known: Iterable[str], read: Read
) -> Counter[str]:
    """Real topic → messages that wait, of those `known` and of all others that the log has."""
    topics: defaultdict[int, list[str]] = defaultdict(list)
    for topic in known:
        topics[java_hash(topic)].append(topic)
    found: Counter[str] = Counter()
    for position, units in log.chunks():
        offsets = units["offset"].astype(np.int64)
        steps = (units["write_time"].astype(np.int64) + units["delay"]) // precision_ms
        waits = (steps >= read_time // precision_ms) & (offsets >= rescue.moved_until)
        if rescue.done:
            positions = position + np.arange(len(units)) * TIMER_UNIT_SIZE
            waits &= ~np.isin(positions, list(rescue.done))
        waiting = units[waits]
        counts = np.where((waiting["magic"] & MAGIC_DELETE) != 0, -1, 1)
        hashes, which = np.unique(waiting["topic_hash"], return_inverse=True)
        for number, topic_hash in enumerate(hashes.tolist()):
            of_hash = np.flatnonzero(which == number)
            names = topics[topic_hash]
            if not names and topic_hash:  # of a topic that nobody knows: its first message names it
                names += _topics(waiting[of_hash[:1]], read)
            if len(names) == 1:
                found[names[0]] += int(counts[of_hash].sum())
                continue
            for topic, count in zip(_topics(waiting[of_hash], read), counts[of_hash].tolist(), strict=True):
                found[topic] += count
    found.pop("", None)
    return Counter({topic: max(0, count) for topic, count in found.items()})


def _topics(units: Units, read: Read) -> list[str]:
    """The real topic of each message; empty if it cannot be read."""
    found = []
    for offset, size in zip(units["offset"].tolist(), units["record_size"].tolist(), strict=True):
        try:
            found.append(read(offset, size).real_topic)
        except FormatError:
            found.append("")
    return found
