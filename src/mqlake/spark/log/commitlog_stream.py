# mypy: disable-error-code="misc"
"""`commitlog` as a stream: an offset is, for each store directory, the physical offset up to which it was read.

    checkpoint   log_offsets
    a batch      the records that begin in [start, end) of each log: the same whenever it is read again

An offset need not be where a record begins; that of the log's end always is. A store without a known offset is read
from its beginning. Bytes that are gone, a store that is no longer asked for, topics that were not asked for
before, and other bytes before an offset than there were, are data loss: the checkpoint may be another stream's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from mqlake.errors import ConfigError
from mqlake.lake.log.log_ends import known_end, remember
from mqlake.lake.log.log_offsets import Json, LogOffsets, Mark
from mqlake.lake.log.splits import VERIFY_NONE, Damage, LogFile, cut, log_files, open_window, walk
from mqlake.lake.log.storage import Storage
from mqlake.lake.log.store_times import Heads, ranges_by_time
from mqlake.lake.log.tasks import LogTask, check_in_log, lost_tasks, read_task, tasks_of
from mqlake.lake.log.topics import check_topics
from mqlake.lake.offsets import PositionKind
from mqlake.lake.options import LogOptions, Mode
from mqlake.spark.error_messages import tells_reasons
from mqlake.spark.log.log_partition import LogPartition, as_partitions
from mqlake.spark.stream_readers import LimitedStreamReader

Logs = list[tuple[Storage, list[LogFile]]]

NOTHING = Mark(0)


@tells_reasons
class CommitLogStreamReader(LimitedStreamReader[str]):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        super().__init__(options)
        if options.end.kind is not PositionKind.LATEST:
            raise ConfigError(f"option {options.end.option!r} is for a batch; a stream has no end")
        self._options = options
        self._columns = columns

    # ------------------------------------------------------------------ offsets, in one process of the driver

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names, here and below
        check_topics(self._options)
        logs = self._logs()
        firsts = {storage.root: self._first_offset(storage, files) for storage, files in logs}
        return self._marked(logs, firsts)

    def _logs(self) -> Logs:
        return [(storage, self._files(storage)) for storage in self._options.stores]

    def _files(self, storage: Storage) -> list[LogFile]:
        files = log_files(storage, known_end(storage), must_be_whole=self._options.mode is Mode.FAIL_FAST)
        remember(storage, files)
        return files

    def _marked(self, logs: Logs, offsets: Mapping[str, int]) -> Json:
        marks = {storage.root: Mark.at(storage, files, offsets[storage.root]) for storage, files in logs}
        return LogOffsets(marks, self._options.topics).to_json()

    def _first_offset(self, storage: Storage, files: list[LogFile]) -> int:
        position = self._options.start
        check_in_log(storage, files, position)
        if position.kind is PositionKind.LATEST:
            return _end(files)
        if position.kind is PositionKind.PHYSICAL:
            return position.value
        first = _begin(files)
        if position.kind is PositionKind.TIMESTAMP:
            possible = ranges_by_time(Heads(storage, files), position.value, math.inf) if files else []
            first = possible[0][0] if possible else _end(files)
        return first

    def _ends(self) -> Mapping[str, int]:
        return {storage.root: _end(files) for storage, files in self._logs()}

    def reportLatestOffset(self) -> Json:  # noqa: N802
        logs = self._logs()
        return self._marked(logs, {storage.root: _end(files) for storage, files in logs})

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        before, logs = LogOffsets.from_json(start), self._logs()
        if self._options.fail_on_data_loss:  # now, before the checkpoint has an end that is another log's
            self._compare(before, self._options.topics)
            for storage, files in logs:
                mark = before.marks.get(storage.root)
                if mark is not None and (loss := _loss(storage, files, mark, Mark(_end(files)))):
                    self._options.data_loss(f"{storage.root}: {loss[1]}")
        starts = {
            storage.root: max(_begin(files), before.marks.get(storage.root, NOTHING).offset)
            for storage, files in logs
        }
        ends = (
            {storage.root: _end(files) for storage, files in logs} if self._target is None else self._target
        )
        left = sum(max(0, end - starts[root]) for root, end in ends.items())
        found = {}
        for storage, files in logs:
            first, last = starts[storage.root], ends[storage.root]
            found[storage.root] = self._up_to(storage, files, first, last, limit, left)
        return self._marked(logs, found)

    def _up_to(
        self, storage: Storage, files: list[LogFile], start: int, end: int, limit: ReadLimit, left: int
    ) -> int:
        """The end of the next batch in one store, whose share of the limit depends on what is left to read."""
        if end <= start:
            return end
        share: float = (end - start) / left
        if isinstance(limit, ReadMaxBytes):
            return min(end, start + int(max(1, limit.max_bytes * share)))
        if isinstance(limit, ReadMaxRows):
            return self._after(storage, files, start, end, max(1, round(limit.max_rows * share)))
        return end

    def _after(self, storage: Storage, files: list[LogFile], start: int, end: int, records: int) -> int:
        """Physical offset after the first `records` records from `start` on, at most `end`."""
        for split in cut(storage, files, self._options.split_size, [(start, end)]):
            for found in walk(split, open_window(split), verify=VERIFY_NONE):
                if isinstance(found, Damage):
                    continue
                if len(found) > records:
                    return int(found.physical_offset[records])
                records -= len(found)
        return end

    # ------------------------------------------------------------------ batches

    def partitions(self, start: Json, end: Json) -> list[LogPartition]:
        before, upto = LogOffsets.from_json(start), LogOffsets.from_json(end)
        self._compare(before, upto.topics)
        found: list[LogTask] = []
        for storage in self._options.stores:
            if storage.root in upto.marks:
                found += self._tasks(storage, before.marks.get(storage.root), upto.marks[storage.root])
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

    def _tasks(self, storage: Storage, start: Mark | None, end: Mark) -> list[LogTask]:
        files = self._files(storage)
        start = Mark(_begin(files)) if start is None else start
        if start.offset == end.offset:
            return []
        tasks = []
        if loss := _loss(storage, files, start, end):
            offset, what = loss
            self._options.data_loss(f"{storage.root}: {what}")
            tasks.append(LogTask((), (storage, offset, f"{storage.root}: {what}")))
        tasks += lost_tasks(storage, files, start.offset, end.offset)
        inside = max(start.offset, _begin(files)), end.offset
        splits = cut(storage, files, self._options.split_size, [inside])
        return [*tasks, *tasks_of(splits, self._options.split_size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):
            yield from read_task(partition.task, self._options, (), self._columns)


def _begin(files: Sequence[LogFile]) -> int:
    return files[0].base_offset if files else 0


def _end(files: Sequence[LogFile]) -> int:
    return files[-1].end_offset if files else 0


def _loss(storage: Storage, files: Sequence[LogFile], start: Mark, end: Mark) -> tuple[int, str] | None:
    """From which physical offset on the log is not, or may not be, what the stream reads, and why."""
    first, last = _begin(files), min(_end(files), end.offset)
    read = max(start.offset, end.offset)
    if read > last:
        return end.offset, f"the log ends at {last}, before {read}, up to which it had been read"
    if start.offset < first:
        gone = min(first, end.offset)
        return start.offset, f"physical offsets {start.offset} to {gone} have been deleted"
    for mark in (start, end):
        if not mark.fits(storage, files):
            return mark.offset, (
                f"before physical offset {mark.offset} are other bytes than were read: it is another store, or the end "
                "of the log was truncated and written again"
            )
    return None
