"""StoreStatsService: what the store did, in numbers under RocketMQ's names.

Counting is a few additions to plain ints. A put's time (whole ms) is one increment in a histogram with a slot
per millisecond; RocketMQ's 13 labelled ranges and the percentiles are made from it when somebody asks. Rates
come from totals sampled once a second, kept for ten minutes.

Counts are exact when puts (and likewise gets) are counted by one thread at a time, as under the store's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mqlake.base.clock import now_ms

MAX_RECORDS_OF_SAMPLING = 600
WINDOW_MS = 60_000
HISTOGRAM_MS = 10_000

# Label and the first millisecond that is above the range; a range begins where the one before ends.
PUT_MESSAGE_ENTIRE_TIME_RANGES: tuple[tuple[str, int], ...] = (
    ("[<=0ms]", 1),
    ("[0~10ms]", 10),
    ("[10~50ms]", 50),
    ("[50~100ms]", 100),
    ("[100~200ms]", 200),
    ("[200~500ms]", 500),
    ("[500ms~1s]", 1000),
    ("[1~2s]", 2000),
    ("[2~3s]", 3000),
    ("[3~4s]", 4000),
    ("[4~5s]", 5000),
    ("[5~10s]", 10_000),
    ("[10s~]", HISTOGRAM_MS + 1),
)


class FastPutCounts(Protocol):
    """The counts that a log's fast path keeps of its own puts."""

    @property
    def puts(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes of all records."""

    @property
    def slowest_ms(self) -> int: ...
    def histogram(self) -> list[int]:
        """How many took so many ms; HISTOGRAM_MS and longer are one."""

    def topic_totals(self) -> dict[str, tuple[int, int]]:
        """Topic → (messages, bytes of records)."""

    def forget(self, topic: str) -> None: ...


class _NoPuts:
    puts = size = slowest_ms = 0

    def histogram(self) -> list[int]:
        return [0] * (HISTOGRAM_MS + 1)

    def topic_totals(self) -> dict[str, tuple[int, int]]:
        return {}

    def forget(self, topic: str) -> None: ...


class StoreStatsService:
    """Counters of one store. `clock` gives milliseconds since 1970. Call `sample` once a second."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self.boot_timestamp = clock()
        self._put_times = 0
        self._put_size = 0
        self.put_message_failed_times = 0
        self._put_time_max = 0
        self.get_message_times_total_found = 0
        self.get_message_times_total_miss = 0
        self.get_message_transferred_msg_count = 0
        self.get_message_entire_time_max = 0
        self.dispatch_max_buffer = 0
        self.fast_puts: FastPutCounts = _NoPuts()
        """Added to the puts that put() is told of."""
        self._fast_histogram = self.fast_puts.histogram()
        self._topics: dict[str, list[int]] = {}
        self._histogram = [0] * (HISTOGRAM_MS + 1)
        self._last_histogram: list[int] | None = None
        self._window_start = self.boot_timestamp
        self._samples: deque[tuple[int, int, int, int, int]] = deque(maxlen=MAX_RECORDS_OF_SAMPLING + 1)
        self._samples.append(self._totals())

    # -- counting --------------------------------------------------------------------------------

    def put(self, topic: str, count: int, size: int, elapsed_ms: int, puts: int = 1) -> None:
        """`puts` successful puts of `count` messages together, `size` bytes of records, each in so many ms."""
        self._put_times += count
        self._put_size += size
        try:
            totals = self._topics[topic]
        except KeyError:
            totals = self._topics[topic] = [0, 0]
        totals[0] += count
        totals[1] += size
        if 0 <= elapsed_ms < HISTOGRAM_MS:
            self._histogram[elapsed_ms] += puts
        else:  # beyond the last slot, or the clock was set back
            self._histogram[HISTOGRAM_MS if elapsed_ms > 0 else 0] += puts
        if elapsed_ms > self._put_time_max:
            self._put_time_max = elapsed_ms

    def put_failed(self) -> None:
        self.put_message_failed_times += 1

    def get_found(self, count: int, elapsed_ms: int, times: int = 1) -> None:
        """Counts `times` gets that found `count` messages together; none: only how long one took."""
        self.get_message_times_total_found += times
        self.get_message_transferred_msg_count += count
        if elapsed_ms > self.get_message_entire_time_max:
            self.get_message_entire_time_max = elapsed_ms

    def get_missed(self, elapsed_ms: int) -> None:
        """One get that found nothing."""
        self.get_message_times_total_miss += 1
        if elapsed_ms > self.get_message_entire_time_max:
            self.get_message_entire_time_max = elapsed_ms

    def dispatched(self, behind_bytes: int) -> None:
        """Notes how far dispatch was behind the log; the largest value is kept."""
        self.dispatch_max_buffer = max(self.dispatch_max_buffer, behind_bytes)

    def remove_topic(self, topic: str) -> None:
        """Forgets a deleted topic; the store's totals stay."""
        self._topics.pop(topic, None)
        self.fast_puts.forget(topic)

    # -- sampling --------------------------------------------------------------------------------

    def sample(self) -> None:
        """Notes the totals for the rates, and once a minute begins a new histogram."""
        self._samples.append(self._totals())
        now = self._samples[-1][0]
        if now - self._window_start >= WINDOW_MS:
            self._window_start = now
            fast = self.fast_puts.histogram()
            self._last_histogram = self._window_so_far(fast)
            self._histogram, self._fast_histogram = [0] * (HISTOGRAM_MS + 1), fast

    def _totals(self) -> tuple[int, int, int, int, int]:
        return (
            self._clock(),
            self.put_message_times_total,
            self.get_message_times_total_found,
            self.get_message_times_total_miss,
            self.get_message_transferred_msg_count,
        )

    # -- answers ---------------------------------------------------------------------------------

    def topic_totals(self) -> dict[str, tuple[int, int]]:
        """Topic → (messages, bytes of records) put to it."""
        totals = {topic: (count, size) for topic, (count, size) in list(self._topics.items())}
        for topic, (count, size) in self.fast_puts.topic_totals().items():
            more, larger = totals.get(topic, (0, 0))
            totals[topic] = count + more, size + larger
        return totals

    @property
    def put_message_times_total(self) -> int:
        return self._put_times + self.fast_puts.puts

    @property
    def put_message_size_total(self) -> int:
        return self._put_size + self.fast_puts.size

    @property
    def put_message_entire_time_max(self) -> int:
        return max(self._put_time_max, self.fast_puts.slowest_ms)

    def put_tps(self, seconds: int) -> float:
        """Messages put a second, over the last `seconds` (or as many as there are samples for)."""
        return self._tps(1, seconds)

    def get_found_tps(self, seconds: int) -> float:
        return self._tps(2, seconds)

    def get_miss_tps(self, seconds: int) -> float:
        return self._tps(3, seconds)

    def get_total_tps(self, seconds: int) -> float:
        return self._tps(2, seconds) + self._tps(3, seconds)

    def get_transferred_tps(self, seconds: int) -> float:
        return self._tps(4, seconds)

    def _tps(self, column: int, seconds: int) -> float:
        samples = self._samples
        first, last = samples[-min(seconds + 1, len(samples))], samples[-1]
        elapsed_ms = last[0] - first[0]
        return (last[column] - first[column]) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0

    def put_message_distribute_time(self) -> dict[str, int]:
        """Puts by RocketMQ's labels, of the last whole minute (of the time since boot within the first)."""
        histogram = self._window()
        counts, begin = {}, 0
        for label, end in PUT_MESSAGE_ENTIRE_TIME_RANGES:
            counts[label] = sum(histogram[begin:end])
            begin = end
        return counts

    def put_message_entire_time_px(self, px: float) -> float:
        """The time (ms) within which the share `px` (0..1) of the window's puts ended."""
        return percentile(self._window(), px)

    def _window(self) -> Sequence[int]:
        if self._last_histogram is not None:
            return self._last_histogram
        return self._window_so_far(self.fast_puts.histogram())

    def _window_so_far(self, fast: Sequence[int]) -> list[int]:
        return [
            own + now - before
            for own, now, before in zip(self._histogram, fast, self._fast_histogram, strict=True)
        ]

    def runtime_info(self) -> dict[str, str]:
        """All of it under RocketMQ's keys, as text."""
        average = self.put_message_size_total / max(self.put_message_times_total, 1)
        distribution = self.put_message_distribute_time()
        return {
            "bootTimestamp": str(self.boot_timestamp),
            "runtime": format_runtime(self._clock() - self.boot_timestamp),
            "putMessageEntireTimeMax": str(self.put_message_entire_time_max),
            "putMessageTimesTotal": str(self.put_message_times_total),
            "putMessageFailedTimes": str(self.put_message_failed_times),
            "putMessageSizeTotal": str(self.put_message_size_total),
            "putMessageDistributeTime": "".join(f"{label}:{n} " for label, n in distribution.items()),
            "putMessageAverageSize": str(average),
            "dispatchMaxBuffer": str(self.dispatch_max_buffer),
            "getMessageEntireTimeMax": str(self.get_message_entire_time_max),
            "putTps": _three_windows(self.put_tps),
            "getFoundTps": _three_windows(self.get_found_tps),
            "getMissTps": _three_windows(self.get_miss_tps),
            "getTotalTps": _three_windows(self.get_total_tps),
            "getTransferredTps": _three_windows(self.get_transferred_tps),
            "putLatency99": f"{self.put_message_entire_time_px(0.99):.2f}",
            "putLatency999": f"{self.put_message_entire_time_px(0.999):.2f}",
        }


def percentile(histogram: Sequence[int], px: float) -> float:
    """The smallest slot number at or below which the share `px` of all counts lies; 0 without counts."""
    wanted = sum(histogram) * px
    passed = 0
    for slot, count in enumerate(histogram):
        passed += count
        if count and passed >= wanted:
            return float(slot)
    return 0.0


def format_runtime(elapsed_ms: int) -> str:
    """`[ 1 days, 2 hours, 3 minutes, 4 seconds ]`"""
    seconds = max(elapsed_ms, 0) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _three_windows(tps: Callable[[int], float]) -> str:
    return " ".join(str(tps(seconds)) for seconds in (10, 60, 600))
