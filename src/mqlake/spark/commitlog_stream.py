# mypy: disable-error-code="misc"
"""`commitlog` as a stream: an offset is, for each store directory, the physical offset up to which it was read.

    checkpoint   {"/data/a": 7340032, "/data/b": 0}
    a batch      the records that begin in [start, end) of each log: the same whenever it is read again

An offset need not be where a record begins; that of the log's end always is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mqlake.errors import ConfigError, OffsetOutOfRangeError
from mqlake.spark.known_ends import known_end, remember
from mqlake.spark.log_partition import LogPartition, check_in_log, grouped, lost_parts, read_partition
from mqlake.spark.offsets import PositionKind
from mqlake.spark.options import LogOptions, Mode
from mqlake.spark.reasons import tells_reasons
from mqlake.spark.skipping import CLOCK_BACK_MS, first_timestamp
from mqlake.spark.splits import VERIFY_NONE, Damage, LogFile, Split, cut, log_files, open_window, walk
from mqlake.spark.storage import Storage

log = logging.getLogger(__name__)

Offsets = dict[str, int]


@tells_reasons
class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: LogOptions, columns: list[str]) -> None:
        if options.end.kind is not PositionKind.LATEST:
            raise ConfigError(f"option {options.end.option!r} is for a batch; a stream has no end")
        self._options = options
        self._columns = columns
        self._target: Offsets | None = None

    # ------------------------------------------------------------------ offsets, in one process of the driver

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's names, here and below
        return {storage.root: self._first_offset(storage) for storage in self._options.stores}

    def _first_offset(self, storage: Storage) -> int:
        files, position = self._files(storage), self._options.start
        check_in_log(storage, files, position)
        if not files:
            return 0
        if position.kind is PositionKind.LATEST:
            return files[-1].end_offset
        if position.kind is PositionKind.PHYSICAL:
            return position.value
        first = files[0].base_offset
        if position.kind is PositionKind.TIMESTAMP:
            for file in files:
                begins = first_timestamp(storage, file)
                if begins is not None and begins < position.value - CLOCK_BACK_MS:
                    first = file.base_offset
        return first

    def _files(self, storage: Storage) -> list[LogFile]:
        files = log_files(storage, known_end(storage), must_be_whole=self._options.mode is Mode.FAIL_FAST)
        remember(storage, files)
        return files

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        ends = {}
        for storage in self._options.stores:
            files = self._files(storage)
            ends[storage.root] = files[-1].end_offset if files else 0
        return ends

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        ends = self.reportLatestOffset() if self._target is None else self._target
        left = sum(max(0, end - start.get(store, 0)) for store, end in ends.items())
        return {
            storage.root: self._up_to(storage, start.get(storage.root, 0), ends[storage.root], limit, left)
            for storage in self._options.stores
        }

    def _up_to(self, storage: Storage, start: int, end: int, limit: ReadLimit, left: int) -> int:
        """Where the next batch ends in one store, which has its share of the limit by what is left to read."""
        if end <= start:
            return end
        share: float = (end - start) / left
        if isinstance(limit, ReadMaxBytes):
            return min(end, start + int(max(1, limit.max_bytes * share)))
        if isinstance(limit, ReadMaxRows):
            return self._behind(storage, start, end, max(1, round(limit.max_rows * share)))
        return end

    def _behind(self, storage: Storage, start: int, end: int, records: int) -> int:
        """Physical offset behind the first so many records from `start` on, at most `end`."""
        for split in cut(storage, self._files(storage), self._options.split_size, [(start, end)]):
            for found in walk(split, open_window(split), verify=VERIFY_NONE):
                if isinstance(found, Damage):
                    continue
                if len(found) > records:
                    return int(found.physical_offset[records])
                records -= len(found)
        return end

    # ------------------------------------------------------------------ batches

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[LogPartition]:
        found: list[LogPartition] = []
        for storage in self._options.stores:
            found += self._partitions(storage, start.get(storage.root, 0), end.get(storage.root, 0))
        return found

    def _partitions(self, storage: Storage, start: int, end: int) -> list[LogPartition]:
        if start == end:
            return []
        files = self._files(storage)
        first = files[0].base_offset if files else end
        lost = None
        if start > end:
            lost = self._lost(
                storage, end, f"the log ends at {end}, before {start}, up to which it had been read"
            )
        elif start < first:
            gone = min(first, end)
            lost = self._lost(storage, start, f"physical offsets {start} to {gone} have been deleted")
        splits: list[Split] = cut(storage, files, self._options.split_size, [(max(start, first), end)])
        partitions = [*lost_parts(storage, files, start, end), *grouped(splits, self._options.split_size)]
        return [LogPartition((), lost), *partitions] if lost else partitions

    def _lost(self, storage: Storage, offset: int, what: str) -> tuple[Storage, int, str]:
        text = f"{storage.root}: {what}"
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text} (failOnDataLoss=false reads on with what is there)")
        log.warning("%s; reading goes on with what is there", text)
        return storage, offset, text

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogPartition):
            yield from read_partition(partition, self._options, (), self._columns)
