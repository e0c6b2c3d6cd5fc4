"""Tables that follow a log, and their metrics."""

from __future__ import annotations

import threading
from pathlib import Path

import prometheus_client
import pytest

from mqlake.lake.tables import follow as module
from mqlake.lake.tables.follow import follow
from mqlake.lake.tables.metrics import TableMetrics
from mqlake.lake.tables.step import LocalEngine, StepReport
from tests.lake.tables.lakes import expected, open_topic, put, rows_in


def test_commits_by_time_and_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    put(store, 20)
    orders = open_topic(tmp_path, store, "delta")
    metrics = TableMetrics([orders])
    stop, now, reports = threading.Event(), [0.0], list[StepReport]()
    monkeypatch.setattr(module, "POLL_S", 0.0)

    class Rounds(threading.Event):
        """Each wait is a round: what happens in it, and how many steps there must have been before."""

        rounds = iter([(1, 4, 0.0), (1, 0, 100.0), (2, 200, 0.0), (3, 2, 0.0), (3, 0, 0.0), (3, 0, 0.0)])

        def wait(self, timeout: float | None = None) -> bool:
            steps, count, seconds = next(self.rounds, (3, 0, 0.0))
            assert len(reports) == steps
            put(store, count, 20 + sum(self.put_already))
            self.put_already.append(count)
            now[0] += seconds
            if len(self.put_already) == 6:
                self.set()
            return self.is_set()

        put_already: list[int] = []  # noqa: RUF012 - one instance

    del stop

    def done(step: StepReport) -> None:
        reports.append(step)
        metrics.add(step)

    follow([orders], LocalEngine(), Rounds(), done, commit_bytes=8000, interval_s=60, clock=lambda: now[0])
    assert [step.tables[0].rows for step in reports] == [10, 2, 100]
    assert rows_in(orders.table) == expected(store)[:112]
    text = prometheus_client.generate_latest(metrics.registry).decode()
    assert 'mqlake_lake_rows_total{table="mqlake.Orders"} 112.0' in text
    assert 'mqlake_lake_lag_messages{table="mqlake.Orders"} 1.0' in text
    assert "mqlake_lake_step_seconds_count 3.0" in text
