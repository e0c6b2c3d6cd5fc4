from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.store.stats import StoreStatsService, format_runtime, percentile
from tests.clock import START_MS, Clock

RUNTIME_KEYS = {
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "putLatency99",
    "putLatency999",
}


@pytest.fixture
def clock():
    return Clock(START_MS)


@pytest.fixture
def stats(clock):
    return StoreStatsService(clock)


def test_counts_by_topic_and_together(stats):
    stats.put("A", 1, 100, 0)
    stats.put("A", 32, 3200, 7)
    stats.put("B", 1, 50, 0)
    stats.put_failed()
    assert stats.put_message_times_total == 34
    assert stats.put_message_size_total == 3350
    assert stats.put_message_failed_times == 1
    assert stats.put_message_entire_time_max == 7
    assert stats.topic_totals() == {"A": (33, 3300), "B": (1, 50)}
    stats.remove_topic("A")
    assert stats.topic_totals() == {"B": (1, 50)}
    assert stats.put_message_times_total == 34


class Others:
    """Puts that count themselves: two of A, 300 bytes, in 0 and 600 ms."""

    puts, size, slowest_ms = 2, 300, 600
    topics: ClassVar = {"A": (2, 300)}

    def histogram(self):
        return [1 if ms in (0, 600) else 0 for ms in range(10_001)]

    def topic_totals(self):
        return self.topics

    def forget(self, topic):
        self.topics = {}


def test_counts_others_in(stats, clock):
    stats.fast_puts = Others()
    stats.put("A", 1, 100, 700)
    stats.put("B", 1, 50, 0)
    assert (stats.put_message_times_total, stats.put_message_size_total) == (4, 450)
    assert stats.put_message_entire_time_max == 700
    assert stats.topic_totals() == {"A": (3, 400), "B": (1, 50)}
    counts = stats.put_message_distribute_time()
    assert (counts["[<=0ms]"], counts["[500ms~1s]"], sum(counts.values())) == (2, 2, 4)
    clock.now += 60_000
    stats.sample()  # what they counted until now is the last minute's
    assert sum(stats.put_message_distribute_time().values()) == 4
    clock.now += 60_000
    stats.sample()
    assert sum(stats.put_message_distribute_time().values()) == 0
    stats.remove_topic("A")
    assert stats.topic_totals() == {"B": (1, 50)}
    assert stats.put_message_times_total == 4


def test_gets(stats):
    stats.get_found(32, 3)
    stats.get_found(1, 2)
    stats.get_missed(9)
    assert stats.get_message_times_total_found == 2
    assert stats.get_message_transferred_msg_count == 33
    assert stats.get_message_times_total_miss == 1
    assert stats.get_message_entire_time_max == 9


@pytest.mark.parametrize(
    ("elapsed_ms", "label"),
    [
        (-5, "[<=0ms]"),
        (0, "[<=0ms]"),
        (1, "[0~10ms]"),
        (9, "[0~10ms]"),
        (10, "[10~50ms]"),
        (50, "[50~100ms]"),
        (199, "[100~200ms]"),
        (200, "[200~500ms]"),
        (999, "[500ms~1s]"),
        (1000, "[1~2s]"),
        (2000, "[2~3s]"),
        (3000, "[3~4s]"),
        (4999, "[4~5s]"),
        (5000, "[5~10s]"),
        (9999, "[5~10s]"),
        (10_000, "[10s~]"),
        (10_000_000, "[10s~]"),
    ],
)
def test_a_put_falls_into_one_range(stats, elapsed_ms, label):
    stats.put("T", 1, 1, elapsed_ms)
    ranges = stats.put_message_distribute_time()
    assert len(ranges) == 13
    assert {name: count for name, count in ranges.items() if count} == {label: 1}


def test_the_distribution_is_that_of_the_last_whole_minute(stats, clock):
    stats.put("T", 1, 1, 5)
    assert stats.put_message_distribute_time()["[0~10ms]"] == 1
    clock.now += 60_000
    stats.sample()
    stats.put("T", 1, 1, 20)
    assert stats.put_message_distribute_time()["[0~10ms]"] == 1
    assert stats.put_message_distribute_time()["[10~50ms]"] == 0
    clock.now += 60_000
    stats.sample()
    assert stats.put_message_distribute_time()["[10~50ms]"] == 1


def test_rates_over_three_windows(stats, clock):
    for second in range(700):
        for _ in range(2 if second >= 690 else 1):
            stats.put("T", 10, 1000, 0)
        stats.get_found(5, 0)
        stats.get_missed(0)
        clock.now += 1000
        stats.sample()
    assert stats.put_tps(10) == 20.0
    assert stats.put_tps(60) == pytest.approx((50 * 10 + 10 * 20) / 60)
    assert stats.put_tps(600) == pytest.approx((590 * 10 + 10 * 20) / 600)
    assert stats.get_found_tps(10) == stats.get_miss_tps(10) == 1.0
    assert stats.get_total_tps(600) == 2.0
    assert stats.get_transferred_tps(60) == 5.0
    assert len(stats.runtime_info()["putTps"].split()) == 3


def test_rates_before_there_is_a_window(stats, clock):
    assert stats.put_tps(10) == 0.0
    stats.put("T", 6, 1, 0)
    clock.now += 2000
    stats.sample()
    assert stats.put_tps(10) == stats.put_tps(600) == 3.0


def test_runtime_info_has_rocketmqs_keys(stats, clock):
    stats.put("T", 2, 300, 4)
    stats.dispatched(900)
    stats.dispatched(100)
    clock.now += 90_061_000
    info = stats.runtime_info()
    assert set(info) == RUNTIME_KEYS
    assert all(isinstance(value, str) for value in info.values())
    assert info["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert info["putMessageAverageSize"] == "150.0"
    assert info["dispatchMaxBuffer"] == "900"
    assert info["putLatency99"] == "4.00"
    assert info["putMessageDistributeTime"].startswith("[<=0ms]:0 [0~10ms]:1 ")


def test_runtime_of_a_clock_set_back():
    assert format_runtime(-5) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"


@given(st.lists(st.integers(0, 99), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentile_is_the_smallest_that_covers_the_share(times, px):
    histogram = [times.count(ms) for ms in range(100)]
    found = percentile(histogram, px)
    assert found in times
    assert sum(ms <= found for ms in times) >= px * len(times)
    assert sum(ms < found for ms in times) < px * len(times)


def test_percentile_of_nothing():
    assert percentile([0, 0], 0.99) == 0.0


def test_totals_by_topic():
    stats = StoreStatsService(Clock(START_MS))
    stats.put("T", 2, 100, 1)
    stats.put("T", 1, 50, 1)
    stats.put("U", 1, 10, 1)
    assert stats.topic_totals() == {"T": (3, 150), "U": (1, 10)}
    stats.remove_topic("T")
    assert stats.topic_totals() == {"U": (1, 10)}
