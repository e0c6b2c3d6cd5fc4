"""Recovery: finds where the commit log ends, and brings everything derived from it up to that end.

    ... valid records ...[valid]│ P                              three answers for what lies at P:
                                │ zeros                          clean end
                                │ torn record, maybe leftovers   torn tail: dropped, nobody was told it is safe
                                │ damage, then records that      corruption: StoreCorruptError, nothing changed;
                                │ the checkpoint says were       `mqlake store repair` is for that
                                │ flushed

After a clean exit the scan starts at the file up to which the consume queues reach; after a crash at the newest
file whose first message is older than the checkpoint. Every record's sizes, magic, CRC and physical offset are
checked, and the records go through the same dispatch as ever; queues and index drop what they have already.

More careful than RocketMQ 5.3.3 in five ways: the physical offset must be the record's own place, so leftovers of
an earlier life are not taken for messages; damage in the middle of flushed data is an error and not the new end;
what a torn tail is cut off is zeroed, so it cannot come back, and kept aside when it holds whole records; index
entries that a crash took are dispatched again; and what was recovered is synced before it is shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Callable

import numpy as np

from mqlake.base.durable import fsync_dir
from mqlake.errors import ForeignFormatError, StoreCorruptError
from mqlake.formats.columns import Scan, ScanStop, find_record, scan_records
from mqlake.formats.names import offset_to_file_name
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.dispatch import CommitLogDispatcher, dispatch_chunk
from mqlake.store.files.mapped_file import MappedFile, U8Array
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.index.index_service import IndexService
from mqlake.store.log.log_scan import LogChunk, end_of_whole, one_ahead, scan_log
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) now and then."""

Leftover = tuple[MappedFile, int, int]
"""Bytes behind the end of the log that are not zeros: file, position of the end in it, one past the last of them."""

SECTOR = 512
"""Bytes: what a disk writes as a whole."""

DROPPED_DIR = "dropped"
"""Under the store's root: records that a torn tail was cut off with, one file `<physical offset>` each."""


@dataclasses.dataclass(slots=True)
class RecoveryReport:
    """What recovery found. Offsets are physical, in bytes."""

    clean_exit: bool
    scanned_from: int = 0
    end_offset: int = 0
    records_scanned: int = 0
    records_indexed_again_from: int | None = None
    torn_bytes: int = 0
    torn_reason: str = ""
    queues_reached: int = 0
    dropped_records: int = 0
    dropped_copies: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def describe(self) -> str:
        text = (
            f"{'clean exit' if self.clean_exit else 'no clean exit'}: {self.records_scanned} records checked "
            f"from offset {self.scanned_from}, the log ends at {self.end_offset}"
        )
        if self.torn_bytes:
            text += f"; a torn tail of {self.torn_bytes} bytes was cut off ({self.torn_reason})"
        if self.queues_reached > self.end_offset:
            text += (
                f"; the consume queues knew of messages up to offset {self.queues_reached}, which are gone"
            )
        if self.dropped_records:
            text += (
                f"; {self.dropped_records} unflushed records behind it are kept in {self.dropped_copies[0]}"
            )
        if self.records_indexed_again_from is not None:
            text += f"; the index was rebuilt from offset {self.records_indexed_again_from}"
        return text


class Recovery:
    """One recovery of one store. `run()` leaves the positions of log, queues and index at the log's end."""

    def __init__(
        self,
        config: MessageStoreConfig,
        queue: MappedFileQueue,
        consume_queues: ConsumeQueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        delay_levels: dict[int, int],
        *,
        clean_exit: bool,
        progress: Progress | None = None,
    ) -> None:
        self._config = config
        self._queue = queue
        self._consume_queues = consume_queues
        self._index = index
        self._checkpoint = checkpoint
        self._delay_levels = delay_levels
        self._progress = progress
        self._report = RecoveryReport(clean_exit)

    def run(self) -> RecoveryReport:
        """Raises StoreCorruptError, ForeignFormatError (both before anything of the log is changed), OSError."""
        began = time.monotonic()
        report = self._report
        dispatched_to = self._consume_queues.recover(
            thorough=not report.clean_exit, flushed_until=self._checkpoint.min_timestamp
        )
        report.queues_reached = max(0, dispatched_to)
        if self._queue.mapped_files:
            start = self._start_file(dispatched_to)
            self._check_format(self._queue.mapped_files[0])
            self._rebuild_index_before(start.file_from_offset)
            end, last_timestamp = self._scan(start, dispatched_to)
            self._cut_at(end, last_timestamp, dispatched_to)
            self._fill_gaps()
        else:
            self._consume_queues.destroy()
            self._queue.set_end(0)
        if not report.clean_exit:
            # units that were made again are older than what the checkpoint says was flushed
            self._consume_queues.flush()
        self._consume_queues.recover_queue_offsets(self._queue.min_offset)
        report.end_offset = self._queue.max_offset
        report.seconds = time.monotonic() - began
        log.info("recovery: %s", report.describe())
        return report

    # ------------------------------------------------------------------ where to start

    def _start_file(self, dispatched_to: int) -> MappedFile:
        files = self._queue.mapped_files
        reached = self._queue.find_mapped_file_by_offset(dispatched_to) if dispatched_to > 0 else None
        if reached is None:  # the queues reach behind the log, or there are none
            reached = files[0] if dispatched_to <= files[0].file_from_offset else files[-1]
        if self._report.clean_exit:
            return reached
        safe = self._config.message_index_enable and self._config.message_index_safe
        checkpoint = self._checkpoint
        flushed_until = checkpoint.min_timestamp_index if safe else checkpoint.min_timestamp
        for mapped_file in reversed(files):
            first = self._first_timestamp(mapped_file)
            if 0 < first <= flushed_until:
                # queues that lost more than the checkpoint knows of are filled again from their own end
                return min(mapped_file, reached, key=lambda file: file.file_from_offset)
        return files[0]

    @staticmethod
    def _first_timestamp(mapped_file: MappedFile) -> int:
        scan = _one_record(mapped_file, 0)
        return int(scan.store_timestamp[0]) if len(scan.position) else 0

    @staticmethod
    def _check_format(first: MappedFile) -> None:
        scan = _one_record(first, 0)
        if scan.stop == ScanStop.INVALID and first.array[4:8].any():
            raise ForeignFormatError(
                f"{first.path}: the file does not begin with a RocketMQ record ({scan.stop_reason}); "
                "it is damaged, of another program, or of a newer version"
            )

    def _rebuild_index_before(self, start: int) -> None:
        """Index entries that went with a dropped index file, as far as the main scan will not meet them."""
        if self._index is None or self._index.rebuild_from is None:
            return
        again_from = max(self._index.rebuild_from, self._queue.min_offset)
        self._report.records_indexed_again_from = again_from
        if again_from < start:
            for chunk in scan_log(self._queue, again_from, start, check_crc=False):
                self._dispatch(chunk, [self._index])

    # ------------------------------------------------------------------ the scan

    def _scan(self, start: MappedFile, dispatched_to: int) -> tuple[int, int]:
        """Dispatches every record from `start` on; returns the end of the valid ones and the last store time."""
        report = self._report
        report.scanned_from = end = start.file_from_offset
        total = self._queue.mapped_files[-1].file_from_offset + self._queue.file_size - end
        dispatchers: list[CommitLogDispatcher] = [self._consume_queues]
        if self._index is not None:
            dispatchers.append(self._index)
        last_timestamp = 0
        chunk: LogChunk | None = None
        chunks = scan_log(
            self._queue,
            end,
            check_crc=self._config.check_crc_on_recover,
            force_prop_crc=self._config.writes_prop_crc,
        )
        for chunk in one_ahead(chunks):
            torn = -1 if report.clean_exit else _first_torn(chunk, self._checkpoint.physic_msg_timestamp)
            if torn >= 0:
                report.torn_reason = "a part of the record never reached the disk"
                end = chunk.mapped_file.file_from_offset + torn
                chunk = next(scan_log(self._queue, chunk.start, end, check_crc=False), None)
            if chunk is None:
                break
            report.records_scanned += chunk.count
            if chunk.count:
                last_timestamp = int(chunk.scan.store_timestamp[-1])
                self._dispatch(chunk, dispatchers)
            end = chunk.end
            if self._progress is not None:
                self._progress(end - report.scanned_from, total)
            if torn >= 0:
                break
        if chunk is not None and chunk.scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
            report.torn_reason = chunk.scan.stop_reason or "the record is cut short"
        return end, last_timestamp

    def _dispatch(self, chunk: LogChunk, dispatchers: list[CommitLogDispatcher]) -> None:
        if chunk.count:
            dispatch_chunk(chunk, dispatchers, self._delay_levels)
            # what was read is not needed again: a long log must not fill the process's memory
            base = chunk.mapped_file.file_from_offset
            chunk.mapped_file.evict(chunk.start - base, chunk.end - base)

    def _fill_gaps(self) -> None:
        """Queues that lack units in the middle (a file of theirs was lost) get them from the log."""
        if self._consume_queues.cut_gaps():
            log.warning("units of consume queues are missing: the whole log is dispatched again")
            for chunk in scan_log(
                self._queue, self._queue.min_offset, self._queue.max_offset, check_crc=False
            ):
                self._dispatch(chunk, [self._consume_queues])

    # ------------------------------------------------------------------ the end

    def _cut_at(self, end: int, last_timestamp: int, dispatched_to: int) -> None:
        report = self._report
        leftovers = []
        for mapped_file in self._queue.files_from(end):
            position = max(0, end - mapped_file.file_from_offset)
            last = mapped_file.last_data(position)
            if last > position:
                leftovers.append((mapped_file, position, last))
        self._refuse_corruption(end, last_timestamp, dispatched_to, leftovers)
        for mapped_file, position, last in leftovers:
            report.torn_bytes += last - position
            report.torn_reason = report.torn_reason or "bytes of a record that was never finished"
            self._keep_records(mapped_file, position, last)
            mapped_file.erase(position)
        self._queue.set_end(end)
        if self._index is not None and self._index.last_update_phyoffset >= max(1, end):
            self._index_again()
        self._queue.store_timestamp = last_timestamp
        if dispatched_to > end:
            self._consume_queues.truncate_dirty(end)
        active = self._queue.find_mapped_file_by_offset(end)
        if active is not None:
            active.store_timestamp = last_timestamp
            active.allocate()
        if not report.clean_exit:
            # the page cache outlived the process but not yet a power cut; from here on these bytes count
            for mapped_file in self._queue.files_from(report.scanned_from):
                mapped_file.sync()

    def _index_again(self) -> None:
        """The index knows records that the log has lost; entries cannot be taken out of it, so it is made anew."""
        assert self._index is not None
        log.warning("the index reaches behind the end of the log: it is made again from the whole log")
        self._index.destroy(self._checkpoint)
        self._report.records_indexed_again_from = self._queue.min_offset
        for chunk in scan_log(self._queue, self._queue.min_offset, check_crc=False):
            self._dispatch(chunk, [self._index])

    def _refuse_corruption(
        self, end: int, last_timestamp: int, dispatched_to: int, leftovers: list[Leftover]
    ) -> None:
        """Raises StoreCorruptError when what follows `end` had been flushed: cutting there would lose messages."""
        damage = self._report.torn_reason or "zeros where a record should be"
        if self._report.clean_exit and dispatched_to > end:
            self._corrupt(end, f"{damage}; the consume queues reach to offset {dispatched_to}")
        flushed_until = self._checkpoint.physic_msg_timestamp
        for mapped_file, position, _ in leftovers:
            found = self._next_record(mapped_file, position)
            if found is None:
                continue
            timestamp = int(found.store_timestamp[0])
            # Leftovers of an earlier life are older than what was written after them. Of messages stored in the
            # very millisecond that was flushed last, some may have come after the flush.
            if last_timestamp <= timestamp < flushed_until:
                at = mapped_file.file_from_offset + int(found.position[0])
                self._corrupt(end, f"{damage}; flushed messages follow at offset {at}")
            return

    def _corrupt(self, offset: int, reason: str) -> None:
        mapped_file = self._queue.find_mapped_file_by_offset(offset, first_if_not_found=True)
        assert mapped_file is not None
        raise StoreCorruptError(
            mapped_file.path,
            offset - mapped_file.file_from_offset,
            reason,
            hint="`mqlake store verify` shows how far the damage goes, `mqlake store repair` saves the rest",
        )

    @staticmethod
    def _next_record(mapped_file: MappedFile, position: int) -> Scan | None:
        for begin, stop in mapped_file.data_extents(position):
            at = find_record(
                mapped_file.array,
                max(begin, position),
                min(stop, mapped_file.file_size),
                mapped_file.file_from_offset,
            )
            if at >= 0:
                return _one_record(mapped_file, at)
        return None

    def _keep_records(self, mapped_file: MappedFile, position: int, last: int) -> None:
        """Copies what is cut off when whole records are in it, whatever they are worth."""
        found = self._next_record(mapped_file, position)
        if found is None:
            return
        directory = os.path.join(self._config.store_path_root_dir, DROPPED_DIR)
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, offset_to_file_name(mapped_file.file_from_offset + position))
        with open(path, "wb") as copy:
            copy.write(mapped_file.view[position:last])
            copy.flush()
            os.fsync(copy.fileno())
        fsync_dir(directory)
        self._report.dropped_copies.append(path)
        at = int(found.position[0])
        while at >= 0:
            scan = scan_records(mapped_file.array, at, last, mapped_file.file_from_offset)
            self._report.dropped_records += len(scan.position)
            if scan.end >= last or scan.stop == ScanStop.LIMIT:
                break
            at = find_record(mapped_file.array, max(scan.end, at + 1), last, mapped_file.file_from_offset)


def _first_torn(chunk: LogChunk, flushed_until: int) -> int:
    """Position of the first record that lacks a sector of its topic or properties, or is the last one and lacks
    its end; -1 when there is none.

    A power cut takes whole sectors of what was not flushed, and where nothing had been before, zeros are left.
    The body has a CRC and the fields of fixed place contradict a body of no length, but topic and properties have
    no guard of their own. The end is what a RocketMQ had not written yet that was killed within an append.
    """
    scan, array = chunk.scan, chunk.mapped_file.array
    found = []
    whole = end_of_whole(chunk.mapped_file, scan)
    if whole < scan.end and scan.store_timestamp[-1] >= flushed_until:
        found.append(whole)
    for starts, lengths in (
        (scan.topic_start, scan.topic_length),
        (scan.properties_start, scan.properties_length),
    ):
        records = np.flatnonzero((lengths > 0) & (scan.store_timestamp >= flushed_until))
        start, end = starts[records], starts[records] + lengths[records]
        doubtful = (array[start] == 0) | (array[end - 1] == 0) | (end - start > SECTOR)
        for record, a, b in zip(
            *(column[doubtful].tolist() for column in (records, start, end)), strict=True
        ):
            if _lacks_sector(array, a, b):
                found.append(int(scan.position[record]))
                break
    return min(found, default=-1)


def _lacks_sector(array: U8Array, start: int, end: int) -> bool:
    borders = [start, *range(start - start % SECTOR + SECTOR, end, SECTOR), end]
    return any(not array[a:b].any() for a, b in itertools.pairwise(borders))


def _one_record(mapped_file: MappedFile, position: int) -> Scan:
    return scan_records(
        mapped_file.array,
        position,
        mapped_file.file_size,
        mapped_file.file_from_offset,
        max_records=1,
        check_crc=False,
    )
