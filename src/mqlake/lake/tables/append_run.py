"""One step of a run: what the log has and the tables lack becomes files, and each table's commit.

    state ◀─ table            plan ◀─ source            files ◀─ engine
    check    each queue goes on where the table ended, dense: count = last - first + 1
    commit   files + new state, if the table is where the state came from
             conflict, state moved      another run was here: own files are deleted, begin again from what it left
             conflict, state as before  a compaction, say: commit again

Killed anywhere, a step leaves files that no table knows, or a commit with rows and position. Never one without the
other.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import OffsetOutOfRangeError, TableConflictError, TableError
from mqlake.lake.bodies.decoder import BODY
from mqlake.lake.log.log_offsets import Mark
from mqlake.lake.offsets import Span, outside
from mqlake.lake.tables.files import TableWriter, WriteSpec, Written, delete_files
from mqlake.lake.tables.latest import LatestWriter, upsert, with_deleted_flag
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Piece, Source
from mqlake.lake.tables.state import TableState
from mqlake.lake.tables.table import Head, Table

COMMIT_TRIES = 20
GATHERED_ROWS = 2048
GATHERED_BYTES = 64 << 20
"""Bytes of a topic, and of all, that are gathered before they are written."""


@dataclass(frozen=True)
class Target:
    """A topic's table in a step."""

    topic: str
    table: Table
    rows: TableRows
    latest: bool = False


@dataclass(frozen=True)
class WriteTarget:
    """The parts of a target that a task needs."""

    rows: TableRows
    spec: WriteSpec
    latest: bool = False


@dataclass
class TableReport:
    """The result of a run for one table. `rows`: one for each message that went in, though a table of latest rows keeps
    only the last of each key. `conflicts`: commits that another one came before. `unkeyed`: messages without a key,
    which a table of latest rows does not have."""

    topic: str
    table: str
    rows: int = 0
    undecoded: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    unkeyed: int = 0


@dataclass
class StepReport:
    """`bytes` of log that were read; `is_done`: the tables have all that was there when it began."""

    tables: list[TableReport] = field(default_factory=list)
    bytes: int = 0
    seconds: float = 0.0
    is_done: bool = False


class Engine(Protocol):
    """Turns pieces into files, by topic. On an error no file stays, as far as that can be."""

    def write(
        self, pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress
    ) -> dict[str, Written]: ...


class LocalEngine:
    """In this process, a piece after the other."""

    def write(
        self, pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress
    ) -> dict[str, Written]:
        return write_pieces(pieces, targets, report)


def write_pieces(
    pieces: Sequence[Piece], targets: Mapping[str, WriteTarget], report: Progress = no_progress
) -> dict[str, Written]:
    """Reads pieces and writes the files of each topic. On an error the files are deleted."""
    columns = list(dict.fromkeys(name for each in targets.values() for name in each.rows.columns))
    writers: dict[str, TableWriter | LatestWriter] = {}
    total, done = sum(piece.bytes for piece in pieces), 0
    try:
        for piece in pieces:
            found = piece.read(columns)
            for topic, batch in found if len(targets) == 1 else gathered(found):
                target = targets[topic]
                if topic not in writers:
                    writers[topic] = LatestWriter() if target.latest else TableWriter(target.spec)
                rows = target.rows.of(batch, piece.name)
                writers[topic].write(with_deleted_flag(rows, batch.column(BODY)) if target.latest else rows)
            done += piece.bytes
            report(done, total)
        return {topic: writer.close() for topic, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise


def gathered(found: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The same rows in larger batches: where many topics are written in turn, a batch of the log has few of each, and
    what a batch costs by itself would be most of it."""
    waiting: dict[str, list[pa.RecordBatch]] = {}
    rows: Counter[str] = Counter()
    size = 0
    for topic, batch in found:
        if batch.num_rows >= GATHERED_ROWS and topic not in waiting:
            yield topic, batch
            continue
        waiting.setdefault(topic, []).append(batch)
        rows[topic] += batch.num_rows
        size += batch.nbytes
        if rows[topic] >= GATHERED_ROWS:
            del rows[topic]
            batches = waiting.pop(topic)
            size -= sum(each.nbytes for each in batches)
            yield topic, pa.concat_batches(batches)
        elif size >= GATHERED_BYTES:
            yield from ((name, pa.concat_batches(batches)) for name, batches in waiting.items())
            waiting, rows, size = {}, Counter(), 0
    yield from ((name, pa.concat_batches(batches)) for name, batches in waiting.items())


def run_step(
    source: Source,
    targets: Sequence[Target],
    engine: Engine,
    *,
    bytes_max: int,
    target_bytes: int,
    fail_on_data_loss: bool = True,
    report: Progress = no_progress,
) -> StepReport:
    """Brings the tables forward by at most `bytes_max` of log.

    Raises what the source raises while it plans and reads, OffsetOutOfRangeError for a gap in a queue, TableError when
    a table cannot be gone on with, OSError (disk full): no table has changed then, or its commit is whole.
    """
    began = time.monotonic()
    heads = {target.topic: target.table.head() for target in targets}
    plan = source.plan({topic: head.state for topic, head in heads.items()}, bytes_max)
    specs = {
        each.topic: WriteTarget(
            each.rows, each.table.write_spec(target_bytes, each.rows.schema.names), each.latest
        )
        for each in targets
    }
    written = engine.write(plan.pieces, specs, report) if plan.pieces else {}
    result = StepReport(bytes=plan.bytes)
    chosen = [each for each in targets if each.topic in plan.is_due or each.topic in written]

    def discard(topic: str) -> None:
        delete_files(specs[topic].spec, written.pop(topic, Written()).files)

    try:
        for each in chosen:
            found = written.get(each.topic, Written())
            gaps = plan.gaps.get(each.topic, {})
            check_dense(each, heads[each.topic].state, found, gaps, fail_on_data_loss=fail_on_data_loss)
    except BaseException:
        for topic in list(written):
            discard(topic)
        raise
    for each in chosen:
        head, found = heads[each.topic], written.get(each.topic, Written())
        state = next_state(head.state, found, plan.reached.get(each.topic, {}))
        made = _committed(each, found, state, head, target_bytes)
        if not made.commits:
            discard(each.topic)
        result.tables.append(made)
    result.is_done = plan.is_last and all(each.commits or not each.conflicts for each in result.tables)
    result.seconds = time.monotonic() - began
    return result


def check_dense(
    target: Target,
    state: TableState | None,
    written: Written,
    gaps: Mapping[str, Sequence[Span]],
    *,
    fail_on_data_loss: bool,
) -> None:
    """`gaps`: by queue, offsets that no message ever had. OffsetOutOfRangeError for messages that lie between
    what the table has and what was read, and are not there. TableError for offsets that the table has already."""
    known = state.queues if state is not None else {}
    for queue, found in written.queues.items():
        expected = known.get(queue, found.first)
        if found.first < expected:
            raise TableError(
                f"table {target.table.name}: queue {queue} of {target.topic} goes on at offset {found.first}, the "
                f"table has it up to {expected}: the topic was deleted and made again; make a new table (--table)"
            )
        spans = outside(gaps.get(queue, ()), expected, found.last + 1)
        missing = sum(end - first for first, end in spans) - found.count
        if missing and fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"table {target.table.name}: queue {queue} of {target.topic}: of the offsets {expected} to "
                f"{found.last} the log lacks {missing}; --allow-gaps goes on with what is there"
            )


def next_state(state: TableState | None, written: Written, reached: Mapping[str, Mark]) -> TableState:
    """The table's state after the commit."""
    before = state or TableState()
    following = {queue: found.last + 1 for queue, found in written.queues.items()}
    lasts = {queue: each for queue, each in before.lasts.items() if queue not in following}
    lasts |= {queue: found.message for queue, found in written.queues.items() if found.message is not None}
    return TableState(
        {**before.stores, **reached},
        {**before.queues, **following},
        uuid.uuid4().hex,
        written.rows,
        max(before.until, written.until),
        lasts,
    )


def _committed(
    target: Target, written: Written, state: TableState, head: Head, target_bytes: int
) -> TableReport:
    """Commits, again as long as only others than runs have moved the table. Without a commit: another run was here, and
    the files are in no table."""
    result = TableReport(target.topic, target.table.name)
    for _ in range(COMMIT_TRIES):
        try:
            if target.latest:
                made = upsert(target.table, written.changes, state, head, target_bytes)
            else:
                made = written
                target.table.commit(written.files, state, head)
        except TableConflictError:
            result.conflicts += 1
            now = target.table.head()
            if now.state != head.state:
                return result
            head = now
        else:
            result.rows, result.undecoded = written.rows, written.undecoded
            result.files, result.bytes, result.commits = len(made.files), made.bytes, 1
            result.unkeyed = written.unkeyed
            return result
    return result
