"""Whether a table has every message once: proven from the queue offsets, which are dense, and from the log itself.

    queue 3   rows   0 1 2 3 4 5 7 7 8          6 is missing, 7 is there twice
              log          3 4 5 6 7 8 9        the table must go on without a gap into what the log has
    sample    rows of the table beside the same records of the log, column by column

Only the three columns that say where a row comes from are read of the whole table.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import StoreError
from mqlake.lake.arrow.filters import Condition
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Source
from mqlake.lake.tables.state import TableState, queue_name
from mqlake.lake.tables.table import Table

SAMPLE = 100
FINDINGS_MAX = 100
PLACE = ("brokerName", "queueId", "queueOffset")


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
    """`compared`: rows that were compared with the log. Nothing in `findings`: the table is sound."""

    topic: str
    table: str
    rows: int = 0
    compared: int = 0
    queues: list[QueueReport] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


def verify_table(
    table: Table,
    rows: TableRows,
    source: Source | None,
    topic: str,
    *,
    sample: int = SAMPLE,
    report: Progress = no_progress,
) -> TableVerification:
    """`source` None: the log is not asked. `report` gets rows. Raises TableError, OSError, what the source raises."""
    head = table.head()
    found = TableVerification(topic, table.name)
    total = table.files(head.version).rows
    runs = Runs()
    for batch in table.scan(head.version, PLACE, None):
        runs.add(batch)
        found.rows += batch.num_rows
        report(found.rows, total)
    state = head.state or TableState()
    for name in sorted(runs.queues()):
        queue, lines = runs.judge(name)
        found.queues.append(queue)
        found.findings += lines
        following = state.queues.get(name)
        if following != queue.last + 1:
            found.findings.append(
                f"queue {name}: the rows end at {queue.last}, its position says {following}"
            )
    for name in sorted(state.queues.keys() - runs.queues()):
        found.findings.append(f"queue {name}: has no rows, its position says {state.queues[name]}")
    if source is not None:
        _against_log(found, source, topic, state)
        _sampled(found, table, rows, source, topic, head.version, sample)
    del found.findings[FINDINGS_MAX:]
    return found


def _against_log(found: TableVerification, source: Source, topic: str, state: TableState) -> None:
    """Messages that are lost between the table's end and the log's beginning, and rows beyond the log's end."""
    for name, (first, following) in sorted(source.bounds(topic).items()):
        known = state.queues.get(name)
        if known is not None and known < first:
            found.findings.append(f"queue {name}: {known} to {first} is in neither the table nor the log")
        if known is not None and known > following:
            found.findings.append(
                f"queue {name}: the table has {known} messages, the log ends at {following}"
            )


def _sampled(
    found: TableVerification,
    table: Table,
    rows: TableRows,
    source: Source,
    topic: str,
    version: int | None,
    sample: int,
) -> None:
    """Compares rows chosen at random with what the log has at their places."""
    tail = source.tail(topic, None)
    schema = table.schema
    for rows_of_table in _chosen(table, version, found.rows, sample):
        for row in rows_of_table.to_pylist(maps_as_pydicts="lossy"):
            names = ("physicalOffset", "queueId", "queueOffset")
            conditions = tuple(Condition(name, None, (row[name],)) for name in names)
            try:
                there = [
                    each
                    for piece in tail.pieces(conditions)
                    if piece.name in (row["brokerName"], "")
                    for _, batch in piece.read(rows.read_for(schema.names))
                    for each in rows.some_of(batch, piece.name, schema).to_pylist(maps_as_pydicts="lossy")
                    if all(each[name] == row[name] for name in (*PLACE, "physicalOffset"))
                ]
            except StoreError as error:
                found.findings.append(str(error))
                continue
            if not there:
                continue  # deleted from the log by now
            found.compared += 1
            differing = [name for name in rows.schema.names if there[0][name] != row[name]]
            if differing:
                queue = queue_name(row["brokerName"], row["queueId"])
                found.findings.append(
                    f"queue {queue}, offset {row['queueOffset']}: not as in the log: {', '.join(differing)}"
                )


def _chosen(table: Table, version: int | None, total: int, sample: int) -> Iterator[pa.RecordBatch]:
    numbers = sorted(random.sample(range(total), min(sample, total)))
    first = 0
    for batch in table.scan(version, None, None) if numbers else ():
        inside = [number - first for number in numbers if first <= number < first + batch.num_rows]
        first += batch.num_rows
        if inside:
            yield batch.take(pa.array(inside))


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

    def judge(self, name: str) -> tuple[QueueReport, list[str]]:
        runs = sorted(self._runs[name])
        missing = repeated = 0
        lines = []
        following = runs[0][0]
        for first, end in runs:
            if first > following:
                missing += first - following
                lines.append(f"queue {name}: {_span(following, first)} missing")
            elif first < following:
                twice = min(end, following)
                repeated += twice - first
                lines.append(f"queue {name}: {_span(first, twice)} there twice")
            following = max(following, end)
        return QueueReport(name, runs[0][0], following - 1, self._rows[name], missing, repeated), lines


def _span(first: int, end: int) -> str:
    return f"offset {first} is" if end == first + 1 else f"offsets {first} to {end - 1} are"


def pairs_of(table: pa.Table) -> Iterable[tuple[str, int]]:
    found = table.group_by(list(PLACE[:2])).aggregate([]).to_pydict()
    return zip(found["brokerName"], found["queueId"], strict=True)


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
