"""TransactionMetrics: how many half messages are open, by topic, kept in config/transactionMetrics.

{"dataVersion":{…},"transactionCount":{"T":{"count":3,"timeStamp":1700000000000}}}

A figure for people: it is written now and then, so after a crash it may be off by what came in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mqlake.broker.config_manager import ConfigManager
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import DataVersion


@dataclass(slots=True, kw_only=True)
class Metric(JsonBody):
    count: int = 0
    time_stamp: int = 0
    """ms since 1970 of the last change."""


@dataclass(slots=True, kw_only=True)
class TransactionMetricsSerializeWrapper(JsonBody):
    transaction_count: dict[str, Metric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TransactionMetrics(ConfigManager):
    def __init__(self, path: str, clock_ms: Callable[[], int]) -> None:
        super().__init__(path)
        self.transaction_counts: dict[str, Metric] = {}
        self.data_version = DataVersion()
        self._clock_ms = clock_ms

    def add_and_get(self, topic: str, value: int) -> int:
        """Counts half messages that came (or, negative, ended); how many are open then."""
        metric = self.transaction_counts.setdefault(topic, Metric())
        metric.count += value
        metric.time_stamp = self._clock_ms()
        self.data_version.next_version()
        self.dirty = True
        return metric.count

    def get_transaction_count(self, topic: str) -> int:
        metric = self.transaction_counts.get(topic)
        return metric.count if metric is not None else 0

    def encode(self) -> dict[str, Any]:
        return TransactionMetricsSerializeWrapper(
            transaction_count=self.transaction_counts, data_version=self.data_version
        ).to_value()

    def decode(self, value: Any) -> None:
        loaded = TransactionMetricsSerializeWrapper.from_value(value)
        self.transaction_counts.update(loaded.transaction_count)
        self.data_version = loaded.data_version
