"""What a task of Spark does with a log, without Spark: counts by queue, and Arrow batches of all columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.measure import first_of

_splits = first_of("mqlake.lake.log.splits", "mqlake.spark.log.splits", "mqlake.spark.splits")
Damage, open_window, walk = _splits.Damage, _splits.open_window, _splits.walk
plan = getattr(_splits, "splits_of_store", None) or _splits.plan  # its name in older checkouts
CommitLogCountsDataSource = first_of(
    "mqlake.spark.log.counts", "mqlake.spark.counts"
).CommitLogCountsDataSource
keep_freed_memory = first_of(
    "mqlake.lake.arrow.memory", "mqlake.spark.arrow.memory", "mqlake.spark.memory"
).keep_freed_memory
RowBuilder = first_of("mqlake.lake.arrow.rows", "mqlake.spark.arrow.rows", "mqlake.spark.rows").RowBuilder
COLUMNS = first_of("mqlake.lake.arrow.schema", "mqlake.spark.arrow.schema", "mqlake.spark.schema").COLUMNS


def count_columns(root: Path) -> dict[object, object]:
    """Records by topic and queue, CRCs checked."""
    source = CommitLogCountsDataSource({"path": str(root), "by": "topic,queueId"})
    reader = source.reader(source.schema())
    found: Counter[object] = Counter()
    for part in reader.partitions():
        for batch in reader.read(part):
            for row in batch.to_pylist():
                found[row["topic"], row["queueId"]] += row["records"]
    return dict(found)


def parse_columns(root: Path) -> int:
    """Every column of every record, CRCs checked, as Arrow batches."""
    keep_freed_memory()  # as a task does
    rows = 0
    for split in plan(str(root)):
        window, builder = open_window(split), RowBuilder(tuple(COLUMNS), str(root))
        for scan in walk(split, window):
            assert not isinstance(scan, Damage)
            rows += sum(batch.num_rows for batch in builder.batches(window.array, scan))
    return rows
