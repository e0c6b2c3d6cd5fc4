"""Tables that follow their logs: a step when there is enough to commit, or when what is there has waited long enough.

every second   how much log is there that the tables lack?
commit         commit_bytes of it, or some of it for interval_s
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mqlake.lake.tables.step import Engine, StepReport
from mqlake.lake.tables.topic import TopicTable, groups_of, one_step

POLL_S = 1.0
COMMIT_BYTES = 128 << 20
INTERVAL_S = 300.0


def follow(
    tables: Sequence[TopicTable],
    engine: Engine,
    stop: threading.Event,
    done: Callable[[StepReport], None],
    *,
    commit_bytes: int = COMMIT_BYTES,
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until `stop` is set; the first step is made at once. Raises what run_step() raises."""
    groups = groups_of(tables)
    due = [0.0] * len(groups)
    while not stop.is_set():
        for number, group in enumerate(groups):
            lags = [table.source.lag(table.topic.topic, table.table.head().state) for table in group]
            if not any(lag.messages for lag in lags):
                continue
            if clock() >= due[number] or max(lag.bytes for lag in lags) >= commit_bytes:
                done(one_step(group, engine))
                due[number] = clock() + interval_s
        stop.wait(POLL_S)
