from __future__ import annotations

from mqlake.broker.metrics.broker_stats import BrokerStats
from mqlake.store.broker_stats import BrokerStatsManager

DAY_MS = 86_400_000


def test_totals_of_the_mornings():
    now = [1_700_000_000_000]
    manager = BrokerStatsManager("c", clock=lambda: now[0])
    stats = BrokerStats(manager, lambda: now[0])
    assert set(stats.runtime_info().values()) == {"0"}
    for day, count in enumerate((3, 4)):
        manager.put("T", 0, count, 10, 0)
        manager.put("SCHEDULE_TOPIC_XXXX", 0, 100, 10, 0)
        manager.get("G", "T", 0, day + 1, 10, 0)
        now[0] += DAY_MS
        stats.record()
        stats.record()
    manager.put("T", 0, 5, 10, 0)
    assert stats.runtime_info() == {
        "msgPutTotalYesterdayMorning": "3",
        "msgPutTotalTodayMorning": "7",
        "msgPutTotalTodayNow": "12",
        "msgGetTotalYesterdayMorning": "1",
        "msgGetTotalTodayMorning": "3",
        "msgGetTotalTodayNow": "3",
    }
