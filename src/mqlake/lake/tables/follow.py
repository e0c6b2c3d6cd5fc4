"""Tables that follow their logs: a step when there is enough to commit, or when what is there has waited long enough.

every second   how much log is there that the tables lack?
commit         commit_bytes of it, or some of it for interval_s
no answer      of a catalog, a storage or a broker: a warning, and the next second the same again
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import (
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
    TableUnavailableError,
)
from mqlake.lake.tables.append_run import Engine, StepReport
from mqlake.lake.tables.topic import TopicTable, groups_of, one_step

logger = logging.getLogger(__name__)

POLL_S = 1.0
COMMIT_BYTES = 128 << 20
INTERVAL_S = 300.0
TRANSIENT = (
    OSError,
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
    TableUnavailableError,
)
"""What may be over in a while. A table knows how far it is, so a step that failed is made again."""


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
    """Until `stop` is set; the first step is made at once. Raises what run_step() raises, but for what is
    TRANSIENT: that is logged and tried again."""
    groups = groups_of(tables)
    due = [0.0] * len(groups)
    troubles = [ThrottledLog(logger, logging.WARNING) for _ in groups]
    while not stop.is_set():
        for number, (group, trouble) in enumerate(zip(groups, troubles, strict=True)):
            try:
                lags = [table.source.lag(table.topic.topic, table.table.head().state) for table in group]
                is_due = clock() >= due[number] or max(lag.bytes for lag in lags) >= commit_bytes
                step = one_step(group, engine) if is_due and any(lag.messages for lag in lags) else None
            except TRANSIENT as error:
                trouble.failed(f"{_names(group)}: {error}; trying again")
                continue
            trouble.worked(f"{_names(group)}: following again")
            if step is not None:
                done(step)
                due[number] = clock() + interval_s
        stop.wait(POLL_S)


def _names(group: Sequence[TopicTable]) -> str:
    return ", ".join(each.table.name for each in group)
