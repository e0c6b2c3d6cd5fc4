"""TransactionMetrics: how many half messages are open, by topic, kept in config/transactionMetrics.

{"dataVersion":{…},"transactionCount":{"T":{"count":3,"timeStamp":1700000000000}}}

A figure for people: it is written now and then, so after a crash it may be off by what came in between. What is known
of transactions that have ended (`finished`) begins at 0 with each start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mqlake.base.histogram import Histogram
from mqlake.broker.state.config_manager import ConfigManager
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import DataVersion


class Metric(JsonBody):
    count: int = 0
    time_stamp: int = 0
    """ms since 1970 of the last change."""


class TransactionMetricsSerializeWrapper(JsonBody):
    transaction_count: dict[str, Metric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


FINISH_BUCKETS_S = (5, 60, 600, 3600, 43_200, 86_400)


@dataclass(slots=True)
class Finished:
    """Finished transactions of one topic, since the start."""

    committed: int = 0
    rolled_back: int = 0
    ages: Histogram = field(default_factory=lambda: Histogram(FINISH_BUCKETS_S))
    """Messages committed, by their age in seconds then."""


class TransactionMetrics(ConfigManager):
    def __init__(self, path: str, clock_ms: Callable[[], int]) -> None:
        super().__init__(path)
        self.transaction_counts: dict[str, Metric] = {}
        self.finished_by_topic: dict[str, Finished] = {}
        self.data_version = DataVersion()
        self._clock_ms = clock_ms

    def add_and_get(self, topic: str, value: int) -> int:
        """Counts half messages that came (or, negative, ended); how many are open then."""
        metric = self.transaction_counts.get(topic)
        if metric is None:
            metric = self.transaction_counts[topic] = Metric()
        metric.count += value
        metric.time_stamp = now_ms = self._clock_ms()
        version = self.data_version
        version.timestamp = now_ms
        version.counter += 1
        self.dirty = True
        return metric.count

    def finished(self, topic: str, born_timestamp: int, *, committed: bool) -> None:
        """A half message has ended."""
        self.add_and_get(topic, -1)
        finished = self.finished_by_topic.get(topic)
        if finished is None:
            finished = self.finished_by_topic[topic] = Finished()
        if committed:
            age_s = max(self._clock_ms() - born_timestamp, 0) // 1000
            finished.committed += 1
            finished.ages.add(age_s, age_s)
        else:
            finished.rolled_back += 1

    def encode(self) -> dict[str, Any]:
        return TransactionMetricsSerializeWrapper(
            transaction_count=self.transaction_counts, data_version=self.data_version
        ).to_value()

    def decode(self, value: Any) -> None:
        loaded = TransactionMetricsSerializeWrapper.from_value(value)
        self.transaction_counts.update(loaded.transaction_count)
        self.data_version = loaded.data_version
