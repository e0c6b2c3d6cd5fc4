# mypy: disable-error-code="misc"
"""Every record of a log checked in parallel; what crosses to the JVM is a row per split and queue, not the records.

    task     split ─▶ walk (sizes, magic, CRC, physical offsets) ─▶ per queue: records, bytes, first and next
             queue offset, breaks inside         + a row for each damage and one for the bytes walked
    driver   rows in the order of the log ─▶ does each queue go on where the split before left it?

A queue's offsets are continuous when each message that consumers see follows the one before it; half and
rolled back messages have none, a message of a batch queue takes as many as it holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mqlake.formats.arrow import Bytes
from mqlake.formats.columns import Scan, dispatch_columns
from mqlake.message import DEFAULT_MESSAGE_DELAY_LEVEL, MessageSysFlag, parse_delay_levels
from mqlake.spark.arrow.arrays import batch_of
from mqlake.spark.arrow.schema import check_same, table_schemas
from mqlake.spark.error_messages import tells_reasons
from mqlake.spark.log.splits import VERIFY_CRC, Damage, Split, open_window, plan, walk
from mqlake.spark.options import PLACE_OPTIONS, LogOptions, option_texts

AUDIT_OPTIONS = (*PLACE_OPTIONS, "verify", "splitSize")
KIND_SPLIT, KIND_QUEUE, KIND_DAMAGE = "split", "queue", "damage"

_COLUMNS = {
    "kind": "string",
    "path": "string",
    "file": "string",
    "splitOffset": "long",
    "bytes": "long",
    "records": "long",
    "topic": "string",
    "queueId": "int",
    "messages": "long",
    "firstQueueOffset": "long",
    "nextQueueOffset": "long",
    "breaks": "long",
    "breakOffset": "long",
    "breakExpected": "long",
    "breakFound": "long",
    "reason": "string",
}
"""splitOffset: physical, of the split's first byte. breakOffset: physical, of the first message out of order
or, in a row of kind damage, of the damage."""

_SPARK, _ARROW = table_schemas(_COLUMNS)

# inner batches say how many messages they hold whatever the delay levels are
_DELAY_LEVELS = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)


@dataclass
class AuditPartition(InputPartition):
    split: Split


@tells_reasons
class CommitLogAuditDataSource(DataSource):
    """`commitlogaudit`: the partial results, for whoever wants to go on with them in SQL. Options as `commitlog`."""

    @classmethod
    def name(cls) -> str:
        return "commitlogaudit"

    def schema(self) -> StructType:
        for storage in LogOptions.parse(self.options).stores:
            storage.check()
        return _SPARK

    def reader(self, schema: StructType) -> DataSourceReader:
        check_same(schema, _SPARK)
        return _AuditReader(LogOptions.parse(self.options))


@tells_reasons
class _AuditReader(DataSourceReader):
    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> list[AuditPartition]:
        stores = self._options.stores
        return [AuditPartition(split) for store in stores for split in plan(store, self._options.split_size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, AuditPartition):
            yield audit_split(partition.split, verify=self._options.verify)


# ---------------------------------------------------------------------- in a task


@dataclass(slots=True)
class _Queue:
    records: int = 0
    bytes: int = 0
    messages: int = 0
    first: int | None = None
    next: int | None = None
    breaks: int = 0
    first_break: tuple[int, int, int] | None = None


def audit_split(split: Split, *, verify: str = VERIFY_CRC) -> pa.RecordBatch:
    """The partial results of one split, rows as _COLUMNS says."""
    window = open_window(split)
    queues: dict[tuple[str, int], _Queue] = {}
    rows: list[dict[str, object]] = []
    records = size = 0
    for found in walk(split, window, verify=verify):
        if isinstance(found, Damage):
            rows.append(
                {
                    "kind": KIND_DAMAGE,
                    "file": found.file,
                    "breakOffset": found.physical_offset,
                    "bytes": found.until - found.position,
                    "reason": str(found.error()),
                }
            )
        else:
            records += len(found)
            size += int(found.size.sum(dtype=np.int64))
            _add(queues, window.array, found)
    rows.append({"kind": KIND_SPLIT, "file": split.file, "bytes": size, "records": records})
    for (topic, queue_id), queue in queues.items():
        at, expected, seen = queue.first_break or (None, None, None)
        rows.append(
            {
                "kind": KIND_QUEUE,
                "topic": topic,
                "queueId": queue_id,
                "records": queue.records,
                "bytes": queue.bytes,
                "messages": queue.messages,
                "firstQueueOffset": queue.first,
                "nextQueueOffset": queue.next,
                "breaks": queue.breaks,
                "breakOffset": at,
                "breakExpected": expected,
                "breakFound": seen,
            }
        )
    common = {"path": split.store, "splitOffset": split.base_offset + split.start}
    return batch_of([{**row, **common} for row in rows], _ARROW)


def _add(queues: dict[tuple[str, int], _Queue], buf: Bytes, scan: Scan) -> None:
    """One pass of sorting for all queues of a scan, then a step per queue."""
    dispatched = dispatch_columns(buf, scan, delay_levels=_DELAY_LEVELS)
    order = np.lexsort((scan.queue_id, scan.topic_id))
    topic_id, queue_id = scan.topic_id[order], scan.queue_id[order]
    borders = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(queue_id) != 0)) + 1
    transaction = scan.sys_flag[order] & MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
    visible = (transaction == MessageSysFlag.TRANSACTION_NOT_TYPE) | (
        transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE
    )
    base, count = dispatched.inner_base[order], dispatched.inner_num[order].astype(np.int64)
    size, physical_offset = scan.size[order], scan.physical_offset[order]
    for first, last in zip([0, *borders], [*borders, len(order)], strict=True):
        topic = scan.topics[topic_id[first]].decode("utf-8", "replace")
        queue = queues.setdefault((topic, int(queue_id[first])), _Queue())
        queue.records += last - first
        queue.bytes += int(size[first:last].sum(dtype=np.int64))
        shown = np.arange(first, last)[visible[first:last]]
        if len(shown) == 0:
            continue
        starts, following = base[shown], base[shown] + count[shown]
        queue.messages += int(count[shown].sum())
        before = np.concatenate([[starts[0] if queue.next is None else queue.next], following[:-1]])
        broken = np.flatnonzero(starts != before)
        if len(broken) and queue.first_break is None:
            at = broken[0]
            queue.first_break = (int(physical_offset[shown[at]]), int(before[at]), int(starts[at]))
        queue.breaks += len(broken)
        queue.first = int(starts[0]) if queue.first is None else queue.first
        queue.next = int(following[-1])


# ---------------------------------------------------------------------- on the driver


@dataclass
class QueueReport:
    """One queue of one store. Offsets are queue offsets; `min_offset` None when no consumer sees any of it."""

    path: str
    topic: str
    queue_id: int
    records: int = 0
    messages: int = 0
    bytes: int = 0
    min_offset: int | None = None
    max_offset: int | None = None


@dataclass
class VerifyReport:
    """What verify_log() found. `problems` says each damage and each break in a queue, with its place."""

    paths: tuple[str, ...]
    records: int = 0
    messages: int = 0
    bytes: int = 0
    files: int = 0
    splits: int = 0
    queues: list[QueueReport] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return self.damages + self.breaks

    @property
    def ok(self) -> bool:
        return not self.problems

    def describe(self) -> str:
        text = (
            f"{self.records:,} records, {self.bytes:,} bytes in {self.files} {'file' if self.files == 1 else 'files'}, "
            f"{len({queue.topic for queue in self.queues})} topics, {len(self.queues)} queues: "
        )
        return text + ("all sound" if self.ok else f"{len(self.damages)} damages, {len(self.breaks)} breaks")


def audit_frame(
    spark: SparkSession, *paths: str, split_size: int | None = None, **options: object
) -> DataFrame:
    """The partial results as a DataFrame; arguments as of verify_log()."""
    if split_size is not None:
        options["splitSize"] = split_size
    given = option_texts(paths, options)
    for storage in LogOptions.parse(given, AUDIT_OPTIONS).stores:
        storage.check()
    return spark.read.format("commitlogaudit").options(**given).load()


def verify_log(
    spark: SparkSession, *paths: str, split_size: int | None = None, **options: object
) -> VerifyReport:
    """Checks sizes, magic, physical offsets, CRCs (as `verify` says) and the continuity of every queue's offsets.

    `options` are those of the source `commitlog` named in AUDIT_OPTIONS; `split_size` is `splitSize`. Damage is
    reported, not raised. Raises what planning raises: NotAStoreError, WrongFileSizeError (within Spark's exception),
    ConfigError, UnknownKeyError.
    """
    frame = audit_frame(spark, *paths, split_size=split_size, **options)
    return report_of(paths, frame.collect())


def report_of(paths: tuple[str, ...], partial: list[Any]) -> VerifyReport:
    """Joins the rows of the partial results, which may come in any order."""
    report = VerifyReport(paths)
    files: set[str] = set()
    queues: dict[tuple[str, str, int], QueueReport] = {}
    for row in sorted(partial, key=lambda row: (row.path, row.splitOffset)):
        if row.kind == KIND_DAMAGE:
            report.damages.append(row.reason)
        elif row.kind == KIND_SPLIT:
            files.add(row.file)
            report.splits += 1
            report.records += row.records
            report.bytes += row.bytes
        else:
            queue = queues.setdefault(
                (row.path, row.topic, row.queueId), QueueReport(row.path, row.topic, row.queueId)
            )
            _join(report, queue, row)
    report.files = len(files)
    report.queues = [queues[key] for key in sorted(queues)]
    report.messages = sum(queue.messages for queue in report.queues)
    return report


def _join(report: VerifyReport, queue: QueueReport, row: Any) -> None:
    """Adds a split's part of a queue to what the splits before it have of it."""
    first, following = row.firstQueueOffset, row.nextQueueOffset
    queue.records += row.records
    queue.messages += row.messages
    queue.bytes += row.bytes
    if first is None:
        return
    name = f"{os.path.basename(os.path.normpath(queue.path))}: {queue.topic}, queue {queue.queue_id}"
    if queue.max_offset is not None and first != queue.max_offset:
        report.breaks.append(
            f"{name}: offset {first} follows where {queue.max_offset} was expected, "
            f"in the split at physical offset {row.splitOffset}"
        )
    if row.breaks:
        report.breaks.append(
            f"{name}: offset {row.breakFound} follows where {row.breakExpected} was expected, "
            f"at physical offset {row.breakOffset} (the first of {row.breaks})"
        )
    queue.min_offset = first if queue.min_offset is None else queue.min_offset
    queue.max_offset = following
