"""Prometheus metrics of tables that follow their logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily

from mqlake.errors import MqlakeError
from mqlake.lake.tables.append_run import StepReport
from mqlake.lake.tables.topic import TopicTable

PREFIX = "mqlake_lake"


class TableMetrics:
    """Lags are asked for when they are scraped; the rest is counted."""

    def __init__(self, tables: Sequence[TopicTable]) -> None:
        self._tables = tables
        self.registry = CollectorRegistry()
        labels = ["table"]
        self._counters = {
            name: Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)
            for name, text in (
                ("rows", "Rows that were appended."),
                ("undecoded", "Of these, rows whose body could not be decoded."),
                ("files", "Data files that were written."),
                ("bytes", "Bytes of these files."),
                ("commits", "Commits."),
                ("conflicts", "Commits that another one came before."),
            )
        }
        self._seconds = Histogram(f"{PREFIX}_step_seconds", "Seconds of a step.", registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterable[Any]:
        gauges = [
            GaugeMetricFamily(f"{PREFIX}_lag_{unit}", text, labels=["table"])
            for unit, text in (
                ("messages", "Messages that the log has and the table lacks."),
                ("bytes", "Bytes of log after the table's position; 0 when it lacks nothing."),
                ("seconds", "Age of the latest message in a table that lacks some."),
            )
        ]
        for table in self._tables:
            try:
                lag = table.source.lag(table.topic.topic, table.table.head().state)
            except (MqlakeError, OSError):
                continue  # the run itself reports it
            for gauge, value in zip(gauges, (lag.messages, lag.bytes, lag.seconds), strict=True):
                gauge.add_metric([table.table.name], value)
        return gauges

    def add(self, step: StepReport) -> None:
        for each in step.tables:
            for name, counter in self._counters.items():
                counter.labels(each.table).inc(getattr(each, name))
        self._seconds.observe(step.seconds)

    def serve(self, port: int, host: str = "127.0.0.1") -> None:
        """OSError when the port is taken."""
        start_http_server(port, host, self.registry)
