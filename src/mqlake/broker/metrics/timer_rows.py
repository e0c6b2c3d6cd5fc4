"""The figures of the timers, under RocketMQ's names: name, description, (labels, value) rows, whether it only grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqlake.store.timer.timer_message_store import TimerMessageStore

TIMER_BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Upper bounds of rocketmq_timer_message_snapshot, RocketMQ's timerDist."""


class TimerRows(NamedTuple):
    name: str
    doc: str
    rows: list[tuple[dict[str, str], float]]
    is_total: bool = False


def timer_rows(timers: TimerMessageStore) -> Iterator[TimerRows]:
    yield TimerRows("rocketmq_timer_enqueue_lag", "Timer enqueue messages lag", [({}, timers.offset_behind)])
    yield TimerRows(
        "rocketmq_timer_enqueue_latency_milliseconds",
        "Timer enqueue latency",
        [({}, timers.enqueue_behind_ms)],
    )
    yield TimerRows("rocketmq_timer_dequeue_lag", "Timer dequeue messages lag", [({}, timers.dequeue_behind)])
    yield TimerRows(
        "rocketmq_timer_dequeue_latency_milliseconds",
        "Timer dequeue latency",
        [({}, timers.read_behind_ms)],
    )
    waiting = timers.metrics.timing_counts().items()
    yield TimerRows(
        "rocketmq_timing_messages",
        "Current message number in timing",
        [({"topic": topic}, count) for topic, count in waiting],
    )
    for name, doc, totals in (
        ("rocketmq_timer_enqueue", "Total number of timer enqueue", timers.enqueued_by_topic),
        ("rocketmq_timer_dequeue", "Total number of timer dequeue", timers.delivered_by_topic),
    ):
        yield TimerRows(name, doc, [({"topic": topic}, count) for topic, count in list(totals.items())], True)
    yield TimerRows(
        "rocketmq_timer_message_snapshot",
        "Timer message distribution snapshot, only count timing messages in 24h.",
        [
            ({"timer_bound_s": str(bound)}, count)
            for bound, count in zip(TIMER_BOUNDS_S, timers.pending_within(TIMER_BOUNDS_S), strict=True)
        ],
    )
    yield TimerRows(
        "mqlake_timer_skipped",
        "Timer messages that could not be read or delivered",
        [({}, timers.skipped)],
        True,
    )
    for name, doc, count in (
        ("mqlake_timer_moved", "Timer messages stored again because the disk was short", timers.rescue.moved),
        ("mqlake_timer_lost", "Timer messages deleted before they were due", timers.rescue.lost),
    ):
        yield TimerRows(name, doc, [({}, count)], True)
