"""Verifies that a table has every message once: proven from the queue offsets, which are dense (but for the gaps of
static topics), and from the log itself.

    queue 3   rows   0 1 2 3 4 5 7 7 8          6 is missing, 7 is there twice
              log          3 4 5 6 7 8 9        the table must go on without a gap into what the log has
    sample    rows of the table beside the same records of the log, column by column (verify_sample)

Only the columns that say where a row comes from are read of the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import OffsetOutOfRangeError, TableError
from mqlake.lake.offsets import Span, outside
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Source
from mqlake.lake.tables.state import TableState, queue_name
from mqlake.lake.tables.table import Table
from mqlake.lake.tables.verify_sample import PLACE, Kept, RowSample, pairs_of

SAMPLE = 100
FINDINGS_MAX = 100
SOUND, COUNTED = "each message once", "each message once, counted only"
NOT_COMPARED, NOT_SOUND = "NOT COMPARED", "NOT SOUND"


@dataclass(frozen=True)
class QueueReport:
    """One queue of the table: its first and last queue offset, its rows; `missing` and `repeated`: how many."""

    queue: str
    first: int
    last: int
    rows: int
    missing: int
    repeated: int


@dataclass
class TableVerification:
    """`compared`: rows that were compared with the log, of `sample` that were asked for; `deleted`: rows that the log
    no longer has."""

    topic: str
    table: str
    rows: int = 0
    compared: int = 0
    deleted: int = 0
    sample: int = 0
    queues: list[QueueReport] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """COUNTED where no comparison was asked for, NOT_COMPARED where the log had nothing to compare with."""
        if self.findings:
            return NOT_SOUND
        if self.compared or not self.rows:
            return SOUND
        return NOT_COMPARED if self.sample else COUNTED

    @property
    def is_sound(self) -> bool:
        return self.verdict in (SOUND, COUNTED)


def verify_table(
    table: Table,
    rows: TableRows,
    source: Source,
    topic: str,
    *,
    sample: int = SAMPLE,
    report: Progress = no_progress,
) -> TableVerification:
    """`sample` 0: no row is compared. `report` gets rows. Raises TableError, OSError, what the source raises."""
    head = table.head()
    found = TableVerification(topic, table.name, sample=sample)
    total = table.files(head.version).rows
    gaps = source.gaps(topic)
    runs, chosen = Runs(), RowSample(sample, Kept.of(source, topic))
    for batch in table.scan(head.version, PLACE, None):
        runs.add(batch)
        chosen.add(batch)
        found.rows += batch.num_rows
        report(found.rows, total)
    state = head.state or TableState()
    for name in sorted(runs.queues()):
        queue, lines = runs.judge(name, gaps.get(name, ()))
        found.queues.append(queue)
        found.findings += lines
        following = state.queues.get(name)
        if following != queue.last + 1:
            found.findings.append(
                f"queue {name}: the rows end at {queue.last}, its position says {following}"
            )
    for name in sorted(state.queues.keys() - runs.queues()):
        found.findings.append(f"queue {name}: has no rows, its position says {state.queues[name]}")
    _against_log(found, source, topic, state, gaps)
    found.deleted = chosen.deleted
    found.compared, findings = chosen.compare(table, head.version, rows, source, topic)
    found.findings += findings
    del found.findings[FINDINGS_MAX:]
    return found


def _against_log(
    found: TableVerification,
    source: Source,
    topic: str,
    state: TableState,
    gaps: Mapping[str, Sequence[Span]],
) -> None:
    """Messages that are lost between the table's end and the log's beginning, rows beyond the log's end, and a log that
    is not the one that the table comes from."""
    for name, (first, following) in sorted(source.bounds(topic).items()):
        known = state.queues.get(name)
        if known is not None:
            for lost, until in outside(gaps.get(name, ()), known, first):
                found.findings.append(f"queue {name}: {lost} to {until} is in neither the table nor the log")
        if known is not None and known > following:
            found.findings.append(
                f"queue {name}: the table has {known} messages, the log ends at {following}"
            )
    try:
        source.tail(topic, state)
    except TableError as error:
        found.findings.append(str(error))
    except OffsetOutOfRangeError:  # said above
        pass


class Runs:
    """Queue offsets, kept as runs without a gap: memory grows with the gaps, not with the rows."""

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[int, int]]] = {}
        self._rows: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        for broker, queue_id in pairs_of(table):
            mask = pc.and_(pc.equal(table["brokerName"], broker), pc.equal(table["queueId"], queue_id))
            offsets = np.sort(np.asarray(table["queueOffset"].filter(mask)))
            name = queue_name(broker, queue_id)
            self._rows[name] = self._rows.get(name, 0) + len(offsets)
            self._runs.setdefault(name, []).extend(_runs(offsets))
            if len(self._runs[name]) > 1 << 16:
                self._runs[name] = _joined(self._runs[name])

    def queues(self) -> set[str]:
        return set(self._rows)

    def judge(self, name: str, gaps: Sequence[Span] = ()) -> tuple[QueueReport, list[str]]:
        """`gaps`: offsets that no message ever had."""
        runs = sorted(self._runs[name])
        missing = repeated = 0
        lines = []
        following = runs[0][0]
        for first, end in runs:
            if first > following:
                for lost, until in outside(gaps, following, first):
                    missing += until - lost
                    lines.append(f"queue {name}: {_span(lost, until)} missing")
            elif first < following:
                twice = min(end, following)
                repeated += twice - first
                lines.append(f"queue {name}: {_span(first, twice)} there twice")
            following = max(following, end)
        return QueueReport(name, runs[0][0], following - 1, self._rows[name], missing, repeated), lines


def _span(first: int, end: int) -> str:
    return f"offset {first} is" if end == first + 1 else f"offsets {first} to {end - 1} are"


def _runs(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """[first, end) of sorted offsets; one that is there twice begins another run."""
    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = offsets[np.concatenate([[0], cuts]).astype(np.int64)]
    lasts = offsets[np.concatenate([cuts, [len(offsets)]]).astype(np.int64) - 1]
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs that follow each other as one; those that overlap stay apart."""
    found: list[tuple[int, int]] = []
    for run in sorted(runs):
        if found and found[-1][1] == run[0]:
            found[-1] = (found[-1][0], run[1])
        else:
            found.append(run)
    return found
