"""Rows of a stream into a table's files, and the commit of a batch: the sinks without Spark.

task     rows ─▶ those above the floors ─▶ Parquet files, and of each queue the first and last offset
commit   the table's state ─▶ decide() ─▶ files + state, if the table is still where the state came from
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqlake.errors import TableConflictError, TableError
from mqlake.lake.tables.files import (
    QueueRange,
    TableWriter,
    WriteSpec,
    Written,
    WrittenFile,
    add_ranges,
    delete_files,
    file_system_of,
    queue_ranges_by,
)
from mqlake.lake.tables.sink import Batch, SinkState, decide
from mqlake.lake.tables.table import Table

PLACE = ("topic", "queueId", "queueOffset")
"""Columns by which rows are known again; `brokerName` as well, where it is there."""
BROKER = "brokerName"
COMMIT_TRIES = 20


def sink_queue(topic: str, broker: str | None, queue_id: int) -> str:
    """How a queue is named in the state: `Orders@broker-a:3`."""
    return f"{topic}@{broker or ''}:{queue_id}"


def has_place(schema: pa.Schema) -> bool:
    """Returns True if rows say which message they come from."""
    found = [schema.get_field_index(name) for name in PLACE]
    if -1 in found:
        return False
    topic, *numbers = (schema.field(number).type for number in found)
    return pa.types.is_string(topic) and all(pa.types.is_integer(each) for each in numbers)


class SinkWriter(TableWriter):
    """Writes a task's rows, whatever their columns, and notes the queues they come from."""

    def _count(self, batch: pa.RecordBatch) -> None:
        self._written.rows += batch.num_rows
        if has_place(batch.schema):
            add_ranges(self._written.queues, places(batch))


def places(batch: pa.RecordBatch) -> dict[str, QueueRange]:
    """Returns the first and last offset of each queue. TableError for a row that does not say where it comes from."""
    if any(batch.column(name).null_count for name in PLACE):
        raise TableError(
            "a row has no topic, queueId or queueOffset: fill them in, or leave these columns out of the stream"
        )
    by = ["topic", BROKER, "queueId"] if BROKER in batch.schema.names else ["topic", "queueId"]
    return {
        sink_queue(key["topic"], key.get(BROKER), key["queueId"]): each
        for key, each in queue_ranges_by(batch, by)
    }


def above(batch: pa.RecordBatch, floors: Mapping[str, int]) -> pa.RecordBatch:
    """The rows that do not lie below the floors."""
    if not floors or not batch.num_rows:
        return batch
    names = [name for name in ("topic", BROKER, "queueId") if name in batch.schema.names]
    pairs = pa.Table.from_batches([batch.select(names)]).group_by(names).aggregate([]).to_pylist()
    keep = np.ones(batch.num_rows, bool)
    offsets = np.asarray(batch.column("queueOffset"))
    for key in pairs:
        floor = floors.get(sink_queue(key["topic"], key.get(BROKER), key["queueId"]))
        if floor is not None:
            mask = pa.array(np.ones(batch.num_rows, bool))
            for name in names:
                column = batch.column(name)
                same = (
                    pc.is_null(column)
                    if key[name] is None
                    else pc.fill_null(pc.equal(column, key[name]), False)
                )
                mask = pc.and_(mask, same)
            keep &= ~(np.asarray(mask) & (offsets < floor))
    return batch.filter(pa.array(keep))


def commit_batch(
    table: Table, batch: Batch, parts: Sequence[Written], on_replay: str, spec: WriteSpec
) -> bool:
    """Commits what tasks wrote of a batch; False if the table has it already, and the files are deleted then.

    Raises TableError for what decide() refuses (the files are deleted), and when the outcome is unknown (they stay).
    """
    files = [file for part in parts for file in part.files]
    rows = sum(part.rows for part in parts)
    for _ in range(COMMIT_TRIES):
        head = table.head()
        try:
            state = decide(table.last(SinkState, head.version), batch, on_replay, table.name)
        except TableError:
            _delete_unless_there(table, head.version, spec, files)
            raise
        if state is None:
            _delete_unless_there(table, head.version, spec, files)
            return False
        try:
            table.commit(files, replace(state, commit_id=uuid.uuid4().hex, rows=rows), head)
        except TableConflictError:  # another stream, or a compaction, was here: look again
            continue
        return True
    raise TableConflictError(
        f"table {table.name}: {COMMIT_TRIES} other commits came first; start the stream again, maybe with a longer "
        "trigger"
    )


def _delete_unless_there(
    table: Table, version: int | None, spec: WriteSpec, files: Sequence[WrittenFile]
) -> None:
    """Spark may hand over files of a commit that landed: those stay."""
    there = table.paths(version)
    if there is not None:
        known = {file_system_of(path)[1] for path in there}
        delete_files(spec, [file for file in files if file_system_of(file.path)[1] not in known])
