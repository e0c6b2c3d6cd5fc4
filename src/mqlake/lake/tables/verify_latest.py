"""Verifies that a table of latest rows has what it should: compares it with the latest rows that the log itself gives.

    log up to the table's position ─▶ the last of each key ─┬─ live     the table must have just this row
                                                            └─ deleted  the table must not have the key
    keys that the log no longer has                             older than its beginning

The keys of the log and of the table are held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mqlake.base.progress import Progress, no_progress
from mqlake.lake.bodies.decoder import BODY
from mqlake.lake.tables.latest import DELETED, KEY, NEEDED, LatestWriter, with_deleted_flag
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.source import Source
from mqlake.lake.tables.state import TableState, queue_name
from mqlake.lake.tables.table import Table
from mqlake.lake.tables.verify import FINDINGS_MAX, QueueReport, TableVerification
from mqlake.lake.tables.verify_sample import PLACE, pairs_of

COLUMNS = (KEY, *PLACE)


def verify_latest(
    table: Table, rows: TableRows, source: Source, topic: str, *, sample: int, report: Progress = no_progress
) -> TableVerification:
    """`sample` 0: the log is not asked. `report` gets rows. Raises as verify_table() does."""
    head = table.head()
    state = head.state or TableState()
    found = TableVerification(topic, table.name, sample=sample)
    total = table.files(head.version).rows
    batches = []
    for batch in table.scan(head.version, COLUMNS, None):
        batches.append(batch)
        found.rows += batch.num_rows
        report(found.rows, total)
    schema = pa.schema([table.schema.field(name) for name in COLUMNS])
    there = pa.Table.from_batches(batches, schema)
    _alone(found, there, state)
    if sample:
        _against_log(found, there, rows, source, topic, state)
    del found.findings[FINDINGS_MAX:]
    return found


def _alone(found: TableVerification, there: pa.Table, state: TableState) -> None:
    """Keys that are there twice or missing, and rows beyond the position."""
    counted = there.group_by([KEY]).aggregate([([], "count_all")])
    for row in counted.filter(pc.greater(counted["count_all"], 1)).slice(0, FINDINGS_MAX).to_pylist():
        found.findings.append(f"key {row[KEY]!r} is there {row['count_all']} times")
    if there[KEY].null_count:
        found.findings.append(f"{there[KEY].null_count} rows have no key")
    by_queue = there.group_by(list(PLACE[:2])).aggregate(
        [("queueOffset", "min"), ("queueOffset", "max"), ("queueOffset", "count")]
    )
    for row in by_queue.to_pylist():
        name = queue_name(row["brokerName"], row["queueId"])
        first, last = row["queueOffset_min"], row["queueOffset_max"]
        found.queues.append(QueueReport(name, first, last, row["queueOffset_count"], 0, 0))
        if last >= state.queues.get(name, 0):
            found.findings.append(
                f"queue {name}: the rows end at {last}, its position says {state.queues.get(name)}"
            )


def _against_log(
    found: TableVerification, there: pa.Table, rows: TableRows, source: Source, topic: str, state: TableState
) -> None:
    expected = _of_log(rows, source, topic, state, there.schema)
    first = {name: begin for name, (begin, _) in source.bounds(topic).items()}
    if expected is None:
        expected = there.schema.append(pa.field(DELETED, pa.bool_())).empty_table()
    found.compared = expected.num_rows
    both = there.join(expected, KEY, join_type="full outer", right_suffix="_log")
    same = pc.and_(
        pc.equal(both["brokerName"], both["brokerName_log"]),
        pc.equal(both["physicalOffset"], both["physicalOffset_log"]),
    )
    same = pc.and_(pc.fill_null(same, False), pc.invert(pc.fill_null(both[DELETED], False)))
    gone = pc.and_(pc.fill_null(both[DELETED], False), pc.is_null(both["queueOffset"]))
    differing = both.filter(pc.invert(pc.or_(same, gone)))
    old = pc.and_(pc.is_null(differing["queueOffset_log"]), _below(differing, first))
    for row in differing.filter(pc.invert(old)).slice(0, FINDINGS_MAX).to_pylist():
        where = f"{row['brokerName']}:{row['queueId']} offset {row['queueOffset']}"
        wanted = f"{row.get('brokerName_log')}:{row.get('queueId_log')} offset {row.get('queueOffset_log')}"
        if row["queueOffset_log"] is None:
            found.findings.append(
                f"key {row[KEY]!r}: the table has {where}, the log does not have the key there"
            )
        elif row[DELETED]:
            found.findings.append(f"key {row[KEY]!r}: deleted at {wanted}, the table has {where}")
        elif row["queueOffset"] is None:
            found.findings.append(f"key {row[KEY]!r}: missing, the log has {wanted}")
        elif where != wanted:
            found.findings.append(f"key {row[KEY]!r}: the table has {where}, the latest is {wanted}")
        else:  # as after a topic was deleted and made again
            found.findings.append(
                f"key {row[KEY]!r}: {where} is another message: the table has its physical offset as "
                f"{row['physicalOffset']}, the log as {row['physicalOffset_log']}"
            )


def _of_log(
    rows: TableRows, source: Source, topic: str, state: TableState, schema: pa.Schema
) -> pa.Table | None:
    """The latest row of each key that the log has up to the table's position."""
    writer = LatestWriter()
    names = [*dict.fromkeys((*NEEDED, *PLACE))]
    fields = pa.schema([rows.schema.field(name) for name in names])
    for piece in source.tail(topic, None).pieces(()):
        for _, batch in piece.read([*dict.fromkeys((*names, "topic", BODY))]):
            known = with_deleted_flag(rows.some_of(batch, piece.name, fields), batch.column(BODY))
            writer.add(known.filter(_below(pa.Table.from_batches([known]), state.queues)))
    changes = writer.changes()
    return None if changes is None else changes.select([*schema.names, DELETED])


def _below(rows: pa.Table, ends: Mapping[str, int]) -> pa.Array:
    """True for rows below the offset of their queue; false for other queues."""
    found = pa.repeat(False, rows.num_rows)
    for broker, queue_id in pairs_of(rows.filter(pc.is_valid(rows["queueId"]))):
        end = ends.get(queue_name(broker, queue_id), 0)
        mine = pc.and_(pc.equal(rows["brokerName"], broker), pc.equal(rows["queueId"], queue_id))
        below = pc.fill_null(pc.and_(mine, pc.less(rows["queueOffset"], end)), False)
        found = pc.or_(found, below.combine_chunks())
    return found
