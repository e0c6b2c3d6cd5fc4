"""What a task of Spark does with a log, without Spark: counts by queue, and Arrow batches of all columns."""

from __future__ import annotations

from pathlib import Path

from bench.measure import first_of

_splits = first_of("mqlake.lake.log.splits", "mqlake.spark.log.splits", "mqlake.spark.splits")
Damage, open_window, plan, walk = _splits.Damage, _splits.open_window, _splits.plan, _splits.walk
_counts = first_of("mqlake.spark.log.counts", "mqlake.spark.counts")
Groups, Key = _counts.Groups, _counts.Key
keep_freed_memory = first_of(
    "mqlake.lake.arrow.memory", "mqlake.spark.arrow.memory", "mqlake.spark.memory"
).keep_freed_memory
RowBuilder = first_of("mqlake.lake.arrow.rows", "mqlake.spark.arrow.rows", "mqlake.spark.rows").RowBuilder
COLUMNS = first_of("mqlake.lake.arrow.schema", "mqlake.spark.arrow.schema", "mqlake.spark.schema").COLUMNS


def count_columns(root: Path) -> dict[object, object]:
    """Records by topic and queue, CRCs checked."""
    groups = Groups([Key("topic"), Key("queueId")])
    for split in plan(str(root)):
        window = open_window(split)
        for scan in walk(split, window):
            assert not isinstance(scan, Damage)
            groups.add((window.array, scan, None))
    found = groups.batch().to_pydict()
    return dict(zip(zip(found["topic"], found["queueId"], strict=True), found["records"], strict=True))


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
