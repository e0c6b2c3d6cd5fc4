"""BrokerStats: how many messages had been put and delivered when today and yesterday began.

The totals are those of BrokerStatsManager (without system topics); `record` is called at least once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mqlake.base.clock import now_ms
from mqlake.store.broker_stats import (
    BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC,
    BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC,
    BrokerStatsManager,
)


class BrokerStats:
    def __init__(self, manager: BrokerStatsManager, clock_ms: Callable[[], int] = now_ms) -> None:
        self._manager = manager
        self._clock_ms = clock_ms
        self._day = self._today()
        self.msg_put_total_yesterday_morning = 0
        self.msg_put_total_today_morning = 0
        self.msg_get_total_yesterday_morning = 0
        self.msg_get_total_today_morning = 0

    def _today(self) -> tuple[int, int]:
        """Local year and day of the year."""
        moment = time.localtime(self._clock_ms() / 1000)
        return moment.tm_year, moment.tm_yday

    def record(self) -> None:
        """Saves the totals when a new day has begun."""
        today = self._today()
        if today == self._day:
            return
        self._day = today
        self.msg_put_total_yesterday_morning = self.msg_put_total_today_morning
        self.msg_get_total_yesterday_morning = self.msg_get_total_today_morning
        self.msg_put_total_today_morning = self.msg_put_total_today_now
        self.msg_get_total_today_morning = self.msg_get_total_today_now

    @property
    def msg_put_total_today_now(self) -> int:
        return self._total(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC)

    @property
    def msg_get_total_today_now(self) -> int:
        return self._total(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC)

    def _total(self, name: str) -> int:
        item = self._manager.item(name, self._manager.cluster_name)
        return 0 if item is None else item.value

    def runtime_info(self) -> dict[str, str]:
        """The figures under RocketMQ's keys."""
        self.record()
        return {
            "msgPutTotalYesterdayMorning": str(self.msg_put_total_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.msg_put_total_today_morning),
            "msgPutTotalTodayNow": str(self.msg_put_total_today_now),
            "msgGetTotalYesterdayMorning": str(self.msg_get_total_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.msg_get_total_today_morning),
            "msgGetTotalTodayNow": str(self.msg_get_total_today_now),
        }
