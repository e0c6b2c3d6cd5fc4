# mypy: disable-error-code="misc"
"""`commitlog` as a stream: an offset is, for each store directory, the physical offset up to which it was read.

    checkpoint   log_offsets
    a batch      the records that begin in [start, end) of each log: the same whenever it is read again

An offset need not be where a record begins; that of the log's end always is. A store without a known offset is read
from its beginning. Bytes that are gone, a store that is no longer asked for, topics that were not asked for
before, and other bytes before an offset than there were, are data loss: the checkpoint may be another stream's.

What the store no longer has comes from the archive, where there is one: it is listed only when a batch goes back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes

from mqlake.errors import ConfigError
from mqlake.lake.arrow.filters import RowFilter
from mqlake.lake.log.archive import WholeLog
from mqlake.lake.log.log_ends import known_end, remember
from mqlake.lake.log.log_offsets import Json, LogOffsets, Mark
from mqlake.lake.log.splits import VERIFY_NONE, Damage, LogFile, log_files, open_window, walk
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.tasks import LogTask, check_in_log, lost_tasks, read_task, tasks_of
from mqlake.lake.log.topics import check_topics
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import LogOptions, Mode
from mqlake.lake.plan import splits_of
from mqlake.spark.error_messages import short_errors
from mqlake.spark.partitions import TaskPartition, as_partitions
from mqlake.spark.stream_readers import LimitedStreamReader

Logs = list[WholeLog]

NOTHING = Mark(0)


@short_errors
class CommitLogStreamReader(LimitedStreamReader[str]):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        super().__init__(options)
        if options.end.kind is not PositionKind.LATEST:
            raise ConfigError(f"{options.end.name} is for a batch; a stream has no end")
        self._options = options
        self._columns = columns

    # ------------------------------------------------------------------ offsets, in one process of the driver

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names, here and below
        check_topics(self._options)
        logs = self._logs()
        if self._options.start.kind is not PositionKind.LATEST:
            logs = [log.back_to(0) for log in logs]
        first = {log.storage.root: self._first_offset(log) for log in logs}
        for log in logs:
            offset = first[log.storage.root]
            if loss := log.deleted(offset, offset):
                self._options.data_loss(f"{log.storage.root}: {loss}")
        return self._marked(logs, first)

    def _logs(self, before: LogOffsets | None = None) -> Logs:
        """Returns the logs of the stores; with their archives where `before`, or a store without an offset there,
        goes back to them."""
        logs = [
            WholeLog(storage, self._files(storage), self._options.archive) for storage in self._options.stores
        ]
        if before is None:
            return [log if log.files else log.back_to(0) for log in logs]
        return [log.back_to(before.marks.get(log.storage.root, NOTHING).offset) for log in logs]

    def _files(self, storage: Storage) -> list[LogFile]:
        files = log_files(storage, known_end(storage), must_be_whole=self._options.mode is Mode.FAIL_FAST)
        remember(storage, files)
        return files

    def _marked(self, logs: Logs, offsets: Mapping[str, int]) -> Json:
        marks = {log.storage.root: log.mark(offsets[log.storage.root]) for log in logs}
        return LogOffsets(marks, self._options.topics).to_json()

    def _first_offset(self, log: WholeLog) -> int:
        position = self._options.start
        check_in_log(log.storage, log.all_files, position)
        if position.kind is PositionKind.LATEST:
            return log.end
        if position.kind is PositionKind.PHYSICAL:
            return position.value
        if position.kind is PositionKind.TIMESTAMP:
            wanted = RowFilter(self._options)
            for storage, files in log.parts:
                first = splits_of(storage, files, wanted)[:1]
                if first:
                    return first[0].base_offset + first[0].start
            return log.end
        return log.begin

    def _ends(self) -> Mapping[str, int]:
        return {log.storage.root: log.end for log in self._logs()}

    def reportLatestOffset(self) -> Json:  # noqa: N802
        logs = self._logs()
        return self._marked(logs, {log.storage.root: log.end for log in logs})

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        before = LogOffsets.from_json(start)
        logs = self._logs(before)
        if self._options.fail_on_data_loss:  # now, before the checkpoint has an end that is another log's
            self._compare(before, self._options.topics)
            for log in logs:
                mark = before.marks.get(log.storage.root)
                if mark is not None and (loss := _loss(log, mark, Mark(log.end))):
                    self._options.data_loss(f"{log.storage.root}: {loss[1]}")
        starts = {
            log.storage.root: max(log.begin, before.marks.get(log.storage.root, NOTHING).offset)
            for log in logs
        }
        ends = {log.storage.root: log.end for log in logs} if self._target is None else self._target
        shares = self._shares({root: max(0, end - starts[root]) for root, end in ends.items()}, limit)
        found = dict(ends)
        for log in logs:
            root = log.storage.root
            first, end = starts[root], ends[root]
            if shares is not None and first < end:
                found[root] = (
                    min(end, first + shares[root])
                    if isinstance(limit, ReadMaxBytes)
                    else self._after(log, first, end, shares[root])
                )
        return self._marked(logs, found)

    def _after(self, log: WholeLog, start: int, end: int, records: int) -> int:
        """Physical offset after the first `records` records from `start` on, at most `end`."""
        for split in log.cut(self._options.split_size, start, end):
            for found in walk(split, open_window(split), verify=VERIFY_NONE):
                if isinstance(found, Damage):
                    continue
                if len(found) > records:
                    return int(found.physical_offset[records])
                records -= len(found)
        return end

    # ------------------------------------------------------------------ batches

    def partitions(self, start: Json, end: Json) -> list[TaskPartition[LogTask]]:
        before, upto = LogOffsets.from_json(start), LogOffsets.from_json(end)
        self._compare(before, upto.topics)
        found: list[LogTask] = []
        for log in self._logs(before):
            root = log.storage.root
            if root in upto.marks:
                found += self._tasks(log, before.marks.get(root), upto.marks[root])
        return as_partitions(found)

    def _compare(self, before: LogOffsets, topics: frozenset[str] | None) -> None:
        """Data loss unless the stores and topics that are read now are those that were read before."""
        for root in sorted(before.marks.keys() - {storage.root for storage in self._options.stores}):
            self._options.data_loss(
                f"{root}: the checkpoint has this store, option 'path' no longer names it"
            )
        if before.topics is not None and (topics is None or topics - before.topics):
            added = "all" if topics is None else ", ".join(sorted(topics - before.topics))
            self._options.data_loss(
                f"option 'topics': {added} had not been asked for when the checkpoint was made"
            )

    def _tasks(self, log: WholeLog, start: Mark | None, end: Mark) -> list[LogTask]:
        storage = log.storage
        start = Mark(log.begin) if start is None else start
        if start.offset == end.offset:
            return []
        tasks = []
        if loss := _loss(log, start, end):
            offset, what = loss
            self._options.data_loss(f"{storage.root}: {what}")
            tasks.append(LogTask((), (storage, offset, f"{storage.root}: {what}")))
        for place, files in log.parts:
            tasks += lost_tasks(place, files, start.offset, end.offset)
        splits = log.cut(self._options.split_size, max(start.offset, log.begin), end.offset)
        return [*tasks, *tasks_of(splits, self._options.split_size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            yield from read_task(partition.task, self._options, (), self._columns)


def _loss(log: WholeLog, start: Mark, end: Mark) -> tuple[int, str] | None:
    """From which physical offset on the log is not, or may not be, what the stream reads, and why."""
    last = min(log.end, end.offset)
    read = max(start.offset, end.offset)
    if read > last:
        return end.offset, f"the log ends at {last}, before {read}, up to which it had been read"
    if gone := log.deleted(start.offset, end.offset):
        return start.offset, gone
    for mark in (start, end):
        if not log.fits(mark):
            return mark.offset, (
                f"before physical offset {mark.offset} are other bytes than were read: it is another store, or the end "
                "of the log was truncated and written again"
            )
    return None
