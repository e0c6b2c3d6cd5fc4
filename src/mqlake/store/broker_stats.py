"""BrokerStatsManager: counters by topic, group and queue under RocketMQ's names, with rates.

A counter is a name (TOPIC_PUT_NUMS) and a key made of the parts that KEY_PARTS gives for the name, joined by
`@` (`topic@group`). Each keeps two totals, `value` and `times`, and three rows of snapshots of them:

    minute   a snapshot every 10 s,    the last 7
    hour     a snapshot every 10 min,  the last 7
    day      a snapshot every hour,    the last 25

The difference between a row's ends gives sum, tps and average (value a time). A counter that stood still for
a whole day is dropped, so memory is bounded by what is in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mqlake.base.clock import now_ms
from mqlake.message import is_system_topic

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
TOPIC_PUT_LATENCY = "TOPIC_PUT_LATENCY"
QUEUE_PUT_NUMS = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE = "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE = "QUEUE_GET_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
GROUP_GET_FROM_DISK_NUMS = "GROUP_GET_FROM_DISK_NUMS"
GROUP_GET_FROM_DISK_SIZE = "GROUP_GET_FROM_DISK_SIZE"
GROUP_GET_FALL_SIZE = "GROUP_GET_FALL_SIZE"
GROUP_GET_FALL_TIME = "GROUP_GET_FALL_TIME"
GROUP_ACK_NUMS = "GROUP_ACK_NUMS"
GROUP_CK_NUMS = "GROUP_CK_NUMS"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
BROKER_ACK_NUMS = "BROKER_ACK_NUMS"
BROKER_CK_NUMS = "BROKER_CK_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_FROM_DISK_NUMS = "BROKER_GET_FROM_DISK_NUMS"
BROKER_GET_FROM_DISK_SIZE = "BROKER_GET_FROM_DISK_SIZE"

_TOPIC = ("topic",)
_TOPIC_QUEUE = ("topic", "queue")
_QUEUE_TOPIC = ("queue", "topic")
_TOPIC_GROUP = ("topic", "group")
_TOPIC_QUEUE_GROUP = ("topic", "queue", "group")
_QUEUE_TOPIC_GROUP = ("queue", "topic", "group")
_CLUSTER = ("cluster",)

KEY_PARTS: dict[str, tuple[str, ...]] = {
    TOPIC_PUT_NUMS: _TOPIC,
    TOPIC_PUT_SIZE: _TOPIC,
    TOPIC_PUT_LATENCY: _QUEUE_TOPIC,
    QUEUE_PUT_NUMS: _TOPIC_QUEUE,
    QUEUE_PUT_SIZE: _TOPIC_QUEUE,
    QUEUE_GET_NUMS: _TOPIC_QUEUE_GROUP,
    QUEUE_GET_SIZE: _TOPIC_QUEUE_GROUP,
    GROUP_GET_NUMS: _TOPIC_GROUP,
    GROUP_GET_SIZE: _TOPIC_GROUP,
    GROUP_GET_LATENCY: _QUEUE_TOPIC_GROUP,
    GROUP_GET_FROM_DISK_NUMS: _TOPIC_GROUP,
    GROUP_GET_FROM_DISK_SIZE: _TOPIC_GROUP,
    GROUP_GET_FALL_SIZE: _QUEUE_TOPIC_GROUP,
    GROUP_GET_FALL_TIME: _QUEUE_TOPIC_GROUP,
    GROUP_ACK_NUMS: _TOPIC_GROUP,
    GROUP_CK_NUMS: _TOPIC_GROUP,
    SNDBCK_PUT_NUMS: _TOPIC_GROUP,
    DLQ_PUT_NUMS: _TOPIC_GROUP,
    BROKER_PUT_NUMS: _CLUSTER,
    BROKER_GET_NUMS: _CLUSTER,
    BROKER_ACK_NUMS: _CLUSTER,
    BROKER_CK_NUMS: _CLUSTER,
    BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC: _CLUSTER,
    BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC: _CLUSTER,
    BROKER_GET_FROM_DISK_NUMS: _CLUSTER,
    BROKER_GET_FROM_DISK_SIZE: _CLUSTER,
}

# These hold the last value, not a sum.
MOMENTS = frozenset({GROUP_GET_FALL_SIZE, GROUP_GET_FALL_TIME})

MINUTE_STEP_MS, MINUTE_SNAPSHOTS = 10_000, 7
HOUR_STEP_MS, HOUR_SNAPSHOTS = 600_000, 7
DAY_STEP_MS, DAY_SNAPSHOTS = 3_600_000, 25

# A timer that comes a little early must not lose its snapshot.
TIMER_SLACK_MS = 500


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """The change between the ends of a row: `sum` of values, `tps` a second, `avgpt` value a time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0
    times: int = 0


class _Row:
    """Snapshots (ms, times, value) at least `step_ms` apart."""

    __slots__ = ("_snapshots", "_step_ms")

    def __init__(self, start_ms: int, step_ms: int, size: int) -> None:
        self._step_ms = step_ms
        self._snapshots: deque[tuple[int, int, int]] = deque([(start_ms, 0, 0)], maxlen=size)

    def sample(self, now_ms: int, times: int, value: int) -> None:
        if now_ms - self._snapshots[-1][0] >= self._step_ms - TIMER_SLACK_MS:
            self._snapshots.append((now_ms, times, value))

    @property
    def stood_still(self) -> bool:
        """The row is full and its ends are equal."""
        snapshots = self._snapshots
        return len(snapshots) == snapshots.maxlen and snapshots[0][1:] == snapshots[-1][1:]

    def difference(self) -> StatsSnapshot:
        (begin_ms, begin_times, begin_value), (end_ms, end_times, end_value) = (
            self._snapshots[0],
            self._snapshots[-1],
        )
        total, times, elapsed_ms = end_value - begin_value, end_times - begin_times, end_ms - begin_ms
        return StatsSnapshot(
            sum=total,
            tps=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
            avgpt=total / times if times > 0 else 0.0,
            times=times,
        )


class StatsItem:
    __slots__ = ("day", "hour", "minute", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self.times = 0
        self.minute = _Row(now_ms, MINUTE_STEP_MS, MINUTE_SNAPSHOTS)
        self.hour = _Row(now_ms, HOUR_STEP_MS, HOUR_SNAPSHOTS)
        self.day = _Row(now_ms, DAY_STEP_MS, DAY_SNAPSHOTS)

    def sample(self, now_ms: int) -> None:
        for row in (self.minute, self.hour, self.day):
            row.sample(now_ms, self.times, self.value)


class BrokerStatsManager:
    """All counters of one broker. Call `sample` every 10 s.

    `enable_queue_stat` False leaves the QUEUE_* counters out. `clock` gives ms since 1970.
    """

    def __init__(
        self,
        cluster_name: str = "DefaultCluster",
        *,
        enable_queue_stat: bool = True,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.cluster_name = cluster_name
        self.enable_queue_stat = enable_queue_stat
        self._clock = clock
        self._table: dict[str, dict[str, StatsItem]] = {name: {} for name in KEY_PARTS}
        self.count_late: list[Callable[[], None]] = []
        """Called before counters go, by those who add to them some time after the fact."""

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Adds to the counter `name` of `key` (for MOMENTS: sets it)."""
        items = self._table[name]
        try:
            item = items[key]
        except KeyError:
            item = items[key] = StatsItem(self._clock())
        if name in MOMENTS:
            item.value = value
        else:
            item.value += value
            item.times += times

    def put(self, topic: str, queue_id: int, count: int, size: int, latency_ms: int) -> None:
        """`count` messages of `size` bytes together were put to one queue by one request."""
        self.add(TOPIC_PUT_NUMS, topic, count)
        self.add(TOPIC_PUT_SIZE, topic, size)
        self.add(TOPIC_PUT_LATENCY, f"{queue_id}@{topic}", latency_ms)
        self.add(BROKER_PUT_NUMS, self.cluster_name, count)
        if not is_system_topic(topic):
            self.add(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, self.cluster_name, count)
        if self.enable_queue_stat:
            self.add(QUEUE_PUT_NUMS, f"{topic}@{queue_id}", count)
            self.add(QUEUE_PUT_SIZE, f"{topic}@{queue_id}", size)

    def get(
        self, group: str, topic: str, queue_id: int, count: int, size: int, latency_ms: int, times: int = 1
    ) -> None:
        """A group got `count` messages of `size` bytes together from one queue by `times` requests."""
        key = f"{topic}@{group}"
        latency_key = f"{queue_id}@{key}" if self.enable_queue_stat else key
        self.add(GROUP_GET_NUMS, key, count, times)
        self.add(GROUP_GET_SIZE, key, size, times)
        self.add(GROUP_GET_LATENCY, latency_key, latency_ms, times)
        self.add(BROKER_GET_NUMS, self.cluster_name, count, times)
        if not is_system_topic(topic):
            self.add(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self.cluster_name, count, times)
        if self.enable_queue_stat:
            queue_key = f"{topic}@{queue_id}@{group}"
            self.add(QUEUE_GET_NUMS, queue_key, count, times)
            self.add(QUEUE_GET_SIZE, queue_key, size, times)

    def record_disk_fall_behind(self, group: str, topic: str, queue_id: int, size: int, time_ms: int) -> None:
        """How far a group's reads are behind the end of the log: bytes, and ms between then and now."""
        key = f"{queue_id}@{topic}@{group}"
        self.add(GROUP_GET_FALL_SIZE, key, size)
        self.add(GROUP_GET_FALL_TIME, key, time_ms)

    def item(self, name: str, key: str) -> StatsItem | None:
        """The counter, None when nothing was counted (or nobody knows the name)."""
        return self._table.get(name, {}).get(key)

    def keys(self, name: str) -> list[str]:
        return sorted(self._table[name])

    def tps_topic_put_nums(self, topic: str) -> float:
        """Messages a second put to `topic` within the last minute."""
        return self._minute_tps(TOPIC_PUT_NUMS, topic)

    def tps_group_get_nums(self, group: str, topic: str) -> float:
        """Messages a second that `group` got of `topic` within the last minute."""
        return self._minute_tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def _minute_tps(self, name: str, key: str) -> float:
        item = self.item(name, key)
        return item.minute.difference().tps if item else 0.0

    def sample(self) -> None:
        """Takes the snapshots that are due, and drops what stood still for a day."""
        now = self._clock()
        for items in self._table.values():
            for key, item in list(items.items()):
                item.sample(now)
                if item.day.stood_still:
                    items.pop(key, None)

    def on_topic_deleted(self, topic: str) -> None:
        self._forget("topic", topic)

    def on_group_deleted(self, group: str) -> None:
        self._forget("group", group)

    def _forget(self, part: str, value: str) -> None:
        for count in self.count_late:  # else the counters would be back a moment later
            count()
        for name, parts in KEY_PARTS.items():
            if part not in parts:
                continue
            items = self._table[name]
            # Counted from the end: a latency key may lack the queue before the others.
            position = parts.index(part) - len(parts)
            for key in [key for key in items if key.split("@")[position] == value]:
                items.pop(key, None)
