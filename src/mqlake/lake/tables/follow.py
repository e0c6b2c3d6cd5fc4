"""Tables that follow their logs: a step when there is enough to commit, or when what is there has waited long enough.

every second      where do the logs end? (how many messages have the brokers?)
as that moves     are there messages that the tables lack? Asked of the queues, once a commit may be due
commit            of commit_bytes, or of some that waited interval_s
catalogs          are asked after and in a commit, and once an interval_s: somebody else may have written
no answer         of a catalog, a storage or a broker: a warning, and the next second the same again
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import (
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
    TableUnavailableError,
)
from mqlake.lake.tables.append_run import Engine, StepReport
from mqlake.lake.tables.source import States
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.topic import TopicTable, groups_of, one_step

logger = logging.getLogger(__name__)

POLL_S = 1.0
SETTLED_S = 10.0
"""A message is in the log before it is in its queue: after so long without another, it is there."""
COMMIT_BYTES = 128 << 20
INTERVAL_S = 300.0
TRANSIENT = (
    OSError,
    NoNameServerError,
    RemotingConnectError,
    RemotingTimeoutError,
    TableUnavailableError,
)
"""Errors that may be over in a while. A table knows how far it is, so a step that failed is made again."""


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
    groups = [_Group(each, commit_bytes, interval_s) for each in groups_of(tables)]
    while not stop.is_set():
        for group in groups:
            try:
                step = group.look(engine, clock())
            except TRANSIENT as error:
                group.trouble.failed(f"{_names(group.tables)}: {error}; trying again")
                continue
            group.trouble.worked(f"{_names(group.tables)}: following again")
            if step is not None:
                done(step)
                group.due = clock() + interval_s
        stop.wait(POLL_S)


class _Group:
    """Tables of one source, and what was seen of them and of it."""

    def __init__(self, tables: Sequence[TopicTable], commit_bytes: int, interval_s: float) -> None:
        self.tables = tables
        self.trouble = ThrottledLog(logger, logging.WARNING)
        self.due = 0.0
        self._source = tables[0].source
        self._commit_bytes, self._interval_s = commit_bytes, interval_s
        self._states: States = {}
        self._states_until = 0.0
        self._ends: Mapping[str, tuple[int, int]] | None = None
        self._moved_at = 0.0
        self._idle: tuple[bool, Mapping[str, tuple[int, int]]] | None = None
        """Ends of the logs at which nothing was to be done, when a commit was due or was not."""

    def look(self, engine: Engine, now: float) -> StepReport | None:
        """A step, if one is to be made. Raises what run_step() raises."""
        if not self._states or now >= self._states_until:
            self._states = {each.topic.topic: each.table.head().state for each in self.tables}
            self._states_until = now + self._interval_s
            self._idle = None
        is_due, ends = now >= self.due, self._source.ends()
        if ends != self._ends:
            self._ends, self._moved_at = ends, now
        if ends is not None and (self._idle == (is_due, ends) or not (is_due or self._may_be_enough(ends))):
            return None
        lags = [self._source.lag(topic, state) for topic, state in self._states.items()]
        if any(lag.messages for lag in lags) and (
            is_due or max(lag.bytes for lag in lags) >= self._commit_bytes
        ):
            step = one_step(self.tables, engine)
            self._states = {}
            return step
        if ends is not None and now - self._moved_at >= SETTLED_S:
            self._idle = is_due, ends
        return None

    def _may_be_enough(self, ends: Mapping[str, tuple[int, int]]) -> bool:
        """True if a table may lack commit_bytes of the logs."""

        def behind(state: TableState | None) -> int:
            known = {} if state is None else state.stores
            return sum(
                end - max(first, known[name].offset if name in known else first)
                for name, (first, end) in ends.items()
            )

        return any(behind(state) >= self._commit_bytes for state in self._states.values())


def _names(group: Sequence[TopicTable]) -> str:
    return ", ".join(each.table.name for each in group)
