"""Recovery: finds where the commit log ends, and brings everything derived from it up to that end.

    ... valid records ...[valid]│ P                what lies at P (LogEnd decides, by evidence):
                                │ zeros            clean end
                                │ torn tail, stale cut off: nobody was promised what is not whole
                                │ a hole, records  where a power cut may have left it: fenced off, the records stay
                                │ damage, records  StoreCorruptError, nothing changed; `mqlake store repair` is for that

It looks before it writes: the log is read, and its end judged, before a byte of the store changes; so a start that is
refused leaves every file as it was.

After a clean exit the scan starts at the file up to which the consume queues reach; after a crash at the newest
file whose first message is older than the checkpoint. Every record's sizes, magic, CRC and physical offset are
checked; then they go through the same dispatch as ever; queues and index drop what they have already.

More careful than RocketMQ 5.3.3 in six ways: the physical offset must be the record's own place, so leftovers of
an earlier life are not taken for messages; damage is an error and not the new end; whole records after a hole stay;
a torn tail is zeroed, so it cannot come back, and kept in `dropped/` when it holds whole records; index
entries that a crash took are dispatched again; and what the killed process left in the page cache is synced first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from mqlake.base.clock import now_ms
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ForeignFormatError, StoreCorruptError
from mqlake.formats.columns import Scan, ScanStop, find_record
from mqlake.formats.names import offset_to_file_name
from mqlake.store.checkpoint import StoreCheckpoint
from mqlake.store.config import MessageStoreConfig
from mqlake.store.dispatch import CommitLogDispatcher, columns_of
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.index.index_service import IndexService
from mqlake.store.kept_copies import keep, whole_records
from mqlake.store.log.filler import fence_off
from mqlake.store.log.log_end import HINT, TORN, Fence, LastExit, LogEnd, LogEndFinder
from mqlake.store.log.log_reader import ZEROS, LogChunk, LogReader, first_timestamp
from mqlake.store.log.misnamed import own_offset, record_of_another_file
from mqlake.store.lost_end import HINT as HINT_LOST
from mqlake.store.lost_end import LostEnd, newest_in
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, PreparedUnits
from mqlake.store.queues.leads_to import is_known, whole_record_of
from mqlake.store.queues.lost_ends import QueueEnd
from mqlake.store.queues.queue_ends import DoubtfulEnds, RestorableQueues, topics_of_config, write_ends

if TYPE_CHECKING:
    from mqlake.store.check.cross_check import Misplaced

logger = logging.getLogger(__name__)

HINT_MISNAMED = "`mqlake store repair` gives each file the name that its records say"
HINT_WRONG_FIELD = "`mqlake store repair` corrects the record"
NAMED = 10
"""Queues that a warning names."""


FENCES_DESCRIBED = 10
KEPT_BYTES_MAX = 96 << 20
"""Bytes of units and keys, some 70 a record, that are kept from the survey of the log until they are put; what
belongs to more records is made again, which costs less than the memory."""
ZEROS_MAX = 1 << 16
"""Bytes that the properties of a record, and their length, take at most."""
NEVER_FINISHED = "bytes of a record that was never finished"


@dataclasses.dataclass(slots=True)
class RecoveryReport:
    """The findings of a recovery. Offsets are physical, in bytes."""

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
    fences: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)
    """Holes that a power cut left, which were fenced off: physical offset, size and reason of each."""
    salvaged_records: int = 0
    """Whole records after the first of these holes."""
    seconds: float = 0.0

    @property
    def lost_something(self) -> bool:
        """Bytes of the log are gone that may have been messages."""
        return bool(
            self.fences
            or self.dropped_records
            or self.queues_reached > self.end_offset
            or (self.torn_bytes and self.torn_reason != NEVER_FINISHED)
        )

    def describe(self) -> str:
        text = (
            f"{'clean exit' if self.clean_exit else 'no clean exit'}: {self.records_scanned} records checked "
            f"from offset {self.scanned_from}, the log ends at {self.end_offset}"
        )
        if self.torn_bytes:
            text += f"; a torn tail of {self.torn_bytes} bytes was cut off ({self.torn_reason})"
        if self.fences:
            places = ", ".join(
                f"{size} bytes at {start} ({why})" for start, size, why in self.fences[:FENCES_DESCRIBED]
            )
            more = len(self.fences) - FENCES_DESCRIBED
            text += (
                f"; {len(self.fences)} holes in what had not been flushed were fenced off: {places}"
                f"{f' and {more} more' if more > 0 else ''}; the {self.salvaged_records} whole records after the first "
                "were kept"
            )
        if self.queues_reached > self.end_offset:
            text += (
                f"; the consume queues knew of messages up to offset {self.queues_reached}, which are gone"
            )
        if self.dropped_records:
            text += (
                f"; {self.dropped_records} whole records in it, of an append that never finished or older than the "
                f"log's last, are kept in {self.dropped_copies[-1]}; `mqlake store dropped` lists them"
            )
        if self.records_indexed_again_from is not None:
            text += f"; the index was rebuilt from offset {self.records_indexed_again_from}"
        return text


@dataclasses.dataclass(frozen=True, slots=True)
class _LogSurvey:
    """Findings of the survey of the log. Offsets are physical."""

    start: int
    """The first record of which queues or index may lack something."""
    first_end: int
    """End of the valid records from there on: before the first hole, if there are any."""
    found: LogEnd
    only_zeros_follow: bool
    ends: DoubtfulEnds
    dispatched_to: int
    """End of the newest record in any queue when the store was opened, -1: there was none."""


class _QueueSequence:
    """Follows the queue offsets of a log's records, to notice one that stands in no row with the others of its queue.
    `reached`: the queues knew of the messages up to this physical offset."""

    def __init__(self, queues: ConsumeQueueStore, reached: int) -> None:
        self.reached = reached
        self._queues = queues
        self._next: dict[tuple[bytes, int], int] = {}

    def breaks(self, units: PreparedUnits) -> bool:
        """True if records of a chunk jump, or are of a queue that is not there."""
        doubtful = False
        for topic_id, queue_id, start, end, first_queue_offset, is_plain, _ in units.runs:
            topic = units.topics[topic_id]
            expected = self._next.get((topic, queue_id))
            if expected is None:
                doubtful |= self._queues.get(topic.decode("utf-8", "replace"), queue_id) is None
            elif is_plain:
                doubtful |= first_queue_offset != expected
            if is_plain:
                self._next[topic, queue_id] = first_queue_offset + end - start
            else:
                self._next.pop((topic, queue_id), None)
        return doubtful


class Recovery:
    """One recovery of one store. `run()` leaves the positions of log, queues and index at the log's end."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: MappedFileQueue,
        consume_queues: ConsumeQueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        delay_levels: dict[int, int],
        last_exit: LastExit,
        *,
        accept_loss: bool = False,
        progress: Progress = no_progress,
    ) -> None:
        """`accept_loss`: messages may be gone from the log's end that no crash can have taken."""
        self._config = config
        self._files = files
        self._reader = LogReader(files, check_crc=False)
        self._checking_reader = LogReader(
            files, check_crc=config.check_crc_on_recover, force_prop_crc=config.writes_prop_crc
        )
        self._consume_queues = consume_queues
        self._index = index
        self._checkpoint = checkpoint
        self._delay_levels = delay_levels
        self._progress = progress
        self._accepts_loss = accept_loss
        self._lost: list[QueueEnd] | None = None
        self._newest = 0
        self._flushed_queues = 0
        self._kept: list[list[Any]] = []
        self._kept_bytes = self._kept_to = 0
        self._keeps = True
        self._report = RecoveryReport(last_exit.clean)
        self._exit = last_exit
        self._finder = LogEndFinder(
            self._checking_reader,
            last_exit,
            flushed_until=checkpoint.physic_msg_timestamp,
            is_known=functools.partial(is_known, consume_queues),
            force_prop_crc=config.writes_prop_crc,
            progress=progress,
        )

    def run(self) -> RecoveryReport:
        """Raises StoreCorruptError, ForeignFormatError, WrongFileSizeError (all before anything changes on the disk),
        OSError."""
        began = time.monotonic()
        report = self._report
        dispatched_to = self._consume_queues.recover(
            thorough=not report.clean_exit, flushed_until=self._checkpoint.min_timestamp
        )
        report.queues_reached = max(0, dispatched_to)
        self._restorable = RestorableQueues(self._config, self._consume_queues)
        seen = self._survey_log(dispatched_to) if self._files.mapped_files else None
        if seen is None:
            self._refuse_lost_log(dispatched_to)
        self._begin_to_write()
        if seen is not None:
            self._write(seen)
        else:
            self._consume_queues.destroy()
            if self._index is not None:
                self._index.destroy(self._checkpoint)
            self._files.set_end(0)
        if not report.clean_exit:
            # units that were made again are older than what the checkpoint says was flushed
            self._consume_queues.flush()
            self._trust_checkpoint()
        if self._lost is not None:
            self._lower_checkpoint()
        self._consume_queues.recover_queue_offsets(self._files.min_offset)
        report.end_offset = self._files.max_offset
        report.seconds = time.monotonic() - began
        logger.log(
            logging.WARNING if report.lost_something else logging.INFO, "recovery: %s", report.describe()
        )
        return report

    def _survey_log(self, dispatched_to: int) -> _LogSurvey:
        """Reads the log and judges its end; nothing of the store changes. `dispatched_to`: where its queues end."""
        start = self._start_file(dispatched_to)
        ends = DoubtfulEnds(self._consume_queues, self._files, self._delay_levels, start.file_from_offset)
        if ends.again_from is not None:
            start = self._earlier(start, ends.again_from)
        self._refuse_misnamed(start)
        self._places = _QueueSequence(self._consume_queues, dispatched_to)
        self._check_format()
        end, last_timestamp, torn_size = self._scan(start)
        if self._report.clean_exit:
            self._refuse_lost_end(end, ends)  # before what lies there is judged
        found = self._judge_tail(end, last_timestamp, torn_size)
        only_zeros_follow = found is None
        found = found or LogEnd(end, last_timestamp)
        if not only_zeros_follow:
            self._refuse_records_of_other_files(found.end)
        if not self._report.clean_exit:
            self._newest = max(self._newest, found.last_timestamp)
            self._refuse_lost_end(found.end, ends)
        return _LogSurvey(start.file_from_offset, end, found, only_zeros_follow, ends, dispatched_to)

    def _begin_to_write(self) -> None:
        if self._lost:
            self._consume_queues.accept_loss(self._lost)  # before the queues lose what they know
        if self._index is not None:
            self._index.load(self._report.clean_exit, self._checkpoint)
        self._checkpoint.make()
        if self._flushed_queues:
            self._checkpoint.flush()
        self._consume_queues.pool.apply_deferred()

    def _write(self, seen: _LogSurvey) -> None:
        """Brings everything derived up to the log's end, and the log itself to its end."""
        seen.ends.warn()
        clean_exit = self._report.clean_exit
        if not clean_exit:
            # the page cache outlived the process but not yet a power cut; queues must not know what may still go
            for mapped_file in self._files.files_from(seen.start):
                mapped_file.sync()
        self._rebuild_index_before(seen.start)
        if clean_exit and seen.dispatched_to >= 0:
            self._consume_queues.may_create = self._restorable
        self._consume_queues.stop_at_gaps(True)
        self._dispatch_seen(seen)
        self._consume_queues.stop_at_gaps(False)
        self._consume_queues.may_create = None
        self._fill_gaps(seen.first_end)
        seen.ends.settle(seen.first_end)  # a unit after the first hole is the salvage's to make
        self._salvage(seen.first_end, seen.found)
        self._cut_at(seen)
        self._refill_lost(seen.found.end)

    def _dispatch_seen(self, seen: _LogSurvey) -> None:
        """Dispatches the records up to the first end: those whose columns were kept, and then the rest."""
        total, at = self._size_from(seen.start), seen.start
        if self._kept:
            self._put_kept()
            at = self._kept_to
            self._kept.clear()
        for chunk in self._dispatch(at, seen.first_end, self._dispatchers):
            self._progress(total + chunk.end - seen.start, 2 * total)

    def _put_kept(self) -> None:
        """Each dispatcher takes its time, on a processor of its own where there is one. OSError."""

        def all_to(number: int, dispatcher: CommitLogDispatcher) -> None:
            for prepared in self._kept:
                dispatcher.put(prepared[number])

        with ThreadPoolExecutor(len(self._dispatchers), "Dispatch") as dispatching:
            for _ in dispatching.map(all_to, itertools.count(), self._dispatchers):
                pass

    def _size_from(self, start: int) -> int:
        return self._files.mapped_files[-1].file_from_offset + self._files.file_size - start

    # ------------------------------------------------------------------ where to start

    def _start_file(self, dispatched_to: int) -> MappedFile:
        files = self._files.mapped_files
        reached = self._files.find_mapped_file_by_offset(dispatched_to) if dispatched_to > 0 else None
        if reached is None:  # the queues reach past the log, or there are none
            reached = files[0] if dispatched_to <= files[0].file_from_offset else files[-1]
        if self._report.clean_exit:
            return reached
        safe = self._config.message_index_enable and self._config.message_index_safe
        checkpoint = self._checkpoint
        flushed_until = checkpoint.min_timestamp_index if safe else checkpoint.min_timestamp
        for mapped_file in reversed(files):
            first = first_timestamp(mapped_file)
            if 0 < first <= flushed_until:
                if reached.file_from_offset >= mapped_file.file_from_offset:
                    return mapped_file
                # queues that lost more than the checkpoint knows of are filled again from their own end
                self._doubt_checkpoint()
                return reached
        return files[0]

    def _doubt_checkpoint(self) -> None:
        """Takes back what it says of the queues until they have again what they lack: another crash before that
        would leave some of them complete, and the next recovery would begin where those end."""
        if not self._report.clean_exit and self._checkpoint.logics_msg_timestamp:
            self._flushed_queues = self._checkpoint.logics_msg_timestamp
            self._checkpoint.logics_msg_timestamp = 0

    def _trust_checkpoint(self) -> None:
        if self._flushed_queues:
            self._checkpoint.logics_msg_timestamp = self._flushed_queues
            self._checkpoint.flush()

    def _earlier(self, start: MappedFile, physical_offset: int) -> MappedFile:
        found = self._files.find_mapped_file_by_offset(physical_offset, first_if_not_found=True)
        assert found is not None
        return min(start, found, key=lambda file: file.file_from_offset)

    def _one_record(self, mapped_file: MappedFile) -> Scan:
        return self._reader.scan_file(mapped_file, 0, mapped_file.file_size, 1)

    def _refuse_misnamed(self, start: MappedFile) -> None:
        """Raises StoreCorruptError when a file from `start` on begins with a record of another file: what it holds
        would be cut off as bytes of no record."""
        for mapped_file in self._files.files_from(start.file_from_offset):
            owner = own_offset(mapped_file.array, mapped_file.file_from_offset, mapped_file.file_size)
            if owner is not None:
                self._misnamed(mapped_file, 0, owner)

    def _refuse_records_of_other_files(self, end: int) -> None:
        """The same for any whole record in what is to be cut off at `end`."""
        for mapped_file, position, last in self._reader.leftovers(end):
            base, size = mapped_file.file_from_offset, mapped_file.file_size
            # a record may end with zeros
            found = record_of_another_file(mapped_file.array, position, min(size, last + 1), base, size)
            if found is not None:
                self._misnamed(mapped_file, *found)

    def _misnamed(self, mapped_file: MappedFile, position: int, owner: int) -> None:
        name = offset_to_file_name(owner)
        raise StoreCorruptError(
            mapped_file.path,
            position,
            f"the whole record here belongs to the file {name}: files of the log were renamed or copied",
            hint=HINT_MISNAMED,
        )

    def _check_format(self) -> None:
        first = self._files.mapped_files[0]
        scan = self._one_record(first)
        if scan.stop == ScanStop.INVALID and first.array[4:8].any():
            follows = self._record_after_the_first()
            if follows is not None:
                reason = f"{scan.stop_reason}; whole messages follow at offset {follows}"
                raise StoreCorruptError(first.path, 0, reason, hint=HINT)
            raise ForeignFormatError(
                f"{first.path}: the file does not begin with a RocketMQ record ({scan.stop_reason}); "
                "it is damaged, of another program, or of a newer version"
            )

    def _record_after_the_first(self) -> int | None:
        """Physical offset of a whole record after the first place of the log: in its first file, or at the start of
        a later one."""
        first, *later = self._files.mapped_files
        position = find_record(first.array, 4, first.file_size, first.file_from_offset)
        if position >= 0:
            return first.file_from_offset + position
        return next((file.file_from_offset for file in later if len(self._one_record(file).position)), None)

    def _rebuild_index_before(self, start: int) -> None:
        """Index entries that went with a dropped index file, as far as the main scan will not meet them."""
        if self._index is None or self._index.rebuild_from is None:
            return
        again_from = max(self._index.rebuild_from, self._files.min_offset)
        self._report.records_indexed_again_from = again_from
        if again_from < start:
            for _ in self._dispatch(again_from, start, [self._index]):
                pass

    # ------------------------------------------------------------------ the scan

    @property
    def _dispatchers(self) -> list[CommitLogDispatcher]:
        return [self._consume_queues] if self._index is None else [self._consume_queues, self._index]

    def _scan(self, start: MappedFile) -> tuple[int, int, int]:
        """Checks every record from `start` on; the end of the valid ones, the last one's store time, and the size of
        the torn record at the end (0: it is no such)."""
        report = self._report
        report.scanned_from = end = start.file_from_offset
        total = self._size_from(end)
        last_timestamp = torn_size = 0
        chunk: LogChunk | None = None
        for chunk, (prepared, torn) in self._checking_reader.scan_with(self._prepare_chunk, end):
            if torn:
                report.torn_reason, torn_size = TORN, int(chunk.scan.size[torn[0]])
                end = int(chunk.scan.physical_offset[torn[0]])
                chunk = next(self._reader.scan(chunk.start, end), None)
                prepared = None if chunk is None else self._prepare(chunk, self._dispatchers)
            if chunk is None:
                break
            report.records_scanned += chunk.count
            if chunk.count:
                last_timestamp = int(chunk.scan.store_timestamp[-1])
                self._newest = max(self._newest, int(chunk.scan.store_timestamp.max()))
                self._refuse_misplaced(chunk, prepared)
                self._keep_prepared(chunk, prepared)
            end = chunk.end
            self._progress(end - report.scanned_from, 2 * total)
            if torn:
                break
        if not torn_size and chunk is not None and chunk.scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED):
            report.torn_reason = chunk.scan.stop_reason or "the record is cut short"
        return end, last_timestamp, torn_size

    def _refuse_misplaced(self, chunk: LogChunk, prepared: list[Any] | None) -> None:
        """Raises StoreCorruptError for a record that says another place than the unit which leads to it: dispatch
        would put it into a queue that is not its own, or invent one."""
        if chunk.start >= self._places.reached:
            return
        columns = columns_of(chunk, self._delay_levels)
        units = self._consume_queues.prepare(chunk.scan, columns) if prepared is None else prepared[0]
        if not self._places.breaks(units):
            return
        from mqlake.store.check.cross_check import Witnesses

        scan = chunk.scan
        for found in Witnesses(self._consume_queues).all_misplaced(chunk.array, scan, columns):
            topic = scan.topics[scan.topic_id[found.row]].decode("utf-8", "replace")
            queue_id, offset = int(scan.queue_id[found.row]), int(scan.queue_offset[found.row])
            error = StoreCorruptError(
                chunk.path,
                int(scan.physical_offset[found.row]) - chunk.mapped_file.file_from_offset,
                f"{found.field} of the record is wrong: it says {topic}/{queue_id}, queue offset {offset}, but "
                + ", ".join(found.witnesses),
                hint=HINT_WRONG_FIELD,
            )
            if (
                self._exit.keeps_queues_behind
                or not self._is_queue(topic, queue_id)
                or self._is_followed(found)
            ):
                raise error
            # a power cut may have brought back a unit of messages that were lost before
            logger.warning("recovery: %s", error)

    def _is_followed(self, found: Misplaced) -> bool:
        """True if the message after it in the queue that it belongs to is in the log: so it was not lost itself."""
        topic = found.topic.decode("utf-8", "replace")
        queue = self._consume_queues.get(topic, found.queue_id)
        unit = None if queue is None else queue.get(found.queue_offset)
        if queue is None or unit is None:
            return False
        after = queue.get(found.queue_offset + unit.batch_num)
        return after is not None and whole_record_of(self._files, queue, after) is not None

    def _is_queue(self, topic: str, queue_id: int) -> bool:
        """True if the queue is there, and the table of topics has it, unless that is missing."""
        topics = topics_of_config(self._config)
        return self._consume_queues.get(topic, queue_id) is not None and (
            topics is None or queue_id < topics.get(topic, 0)
        )

    def _prepare_chunk(self, chunk: LogChunk) -> tuple[list[Any] | None, list[int]]:
        """The chunk for the dispatchers, as long as that is kept, and its torn records."""
        prepared = self._prepare(chunk, self._dispatchers) if self._keeps else None
        return prepared, self._finder.torn_records(chunk)

    def _keep_prepared(self, chunk: LogChunk, prepared: list[Any] | None) -> None:
        """Keeps what was made of the chunk, unless that of an earlier one was too much."""
        size = sum(field.nbytes for each in prepared or () for field in each if isinstance(field, np.ndarray))
        self._keeps &= prepared is not None and self._kept_bytes + size <= KEPT_BYTES_MAX
        if self._keeps and prepared is not None:
            self._kept.append(prepared)
            self._kept_bytes += size
            self._kept_to = chunk.end

    def _prepare(self, chunk: LogChunk, dispatchers: list[CommitLogDispatcher]) -> list[Any] | None:
        if not chunk.count:
            return None
        columns = columns_of(chunk, self._delay_levels)
        return [dispatcher.prepare(chunk.scan, columns) for dispatcher in dispatchers]

    def _dispatch(self, start: int, end: int, dispatchers: list[CommitLogDispatcher]) -> Iterator[LogChunk]:
        """The records of [start, end), a chunk at a time. OSError."""
        if start < end:
            work = functools.partial(self._prepare, dispatchers=dispatchers)
            for chunk, prepared in self._reader.scan_with(work, start, end):
                for dispatcher, its in zip(dispatchers, prepared or (), strict=False):
                    dispatcher.put(its)
                yield chunk

    def _fill_gaps(self, end: int) -> None:
        """Queues that lack units in the middle (a file of theirs was lost) get them from the log up to `end`."""
        if self._consume_queues.has_gaps:
            logger.warning("units of consume queues are missing: the whole log is dispatched again")
            self._doubt_checkpoint()
            if self._flushed_queues:
                self._checkpoint.flush()
            self._consume_queues.cut_gaps()
            self._dispatch_again(end)

    def _dispatch_again(self, end: int) -> None:
        """The log up to `end`, for all queues but those of deleted topics."""
        self._consume_queues.may_create = self._restorable
        try:
            first = self._files.min_offset
            for chunk in self._dispatch(first, end, [self._consume_queues]):
                self._progress(chunk.end - first, end - first)
        finally:
            self._consume_queues.may_create = None

    def _refill_lost(self, end: int) -> None:
        """Queues that ended further on when the store last ended cleanly get what the log has of them."""
        lost = self._restorable.lost()
        if not lost:
            return
        names = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in lost[:NAMED])
        logger.warning(
            "the files of %d consume queues are gone, or a part of them (%s%s): the whole log is dispatched again",
            len(lost),
            names,
            ", ..." if len(lost) > NAMED else "",
        )
        self._dispatch_again(end)
        self._consume_queues.flush()
        write_ends(self._config, self._consume_queues)

    # ------------------------------------------------------------------ the end

    def _refuse_lost_log(self, reached: int) -> None:
        """Raises StoreCorruptError if there is no log, and there was one. Without queues it was begun anew."""
        if reached <= 0:
            return
        lost = LostEnd(0, 0, reached, self._checkpoint.physic_msg_timestamp)
        if lost.is_proven(self._exit, now_ms()):
            if not self._accepts_loss:
                raise StoreCorruptError(self._config.commit_log_dir, 0, f"no log; {lost}", hint=HINT_LOST)
            ends = [QueueEnd(q.topic, q.queue_id, q.max_offset_in_queue) for q in self._consume_queues]
            self._accept(lost, ends)

    def _refuse_lost_end(self, end: int, ends: DoubtfulEnds) -> None:
        """Raises StoreCorruptError if messages are gone from the end of the log that no crash can have taken, unless
        whoever opens the store accepts that."""
        flushed_until = self._checkpoint.physic_msg_timestamp
        if flushed_until > self._newest:  # a clock may have been set back in an earlier file
            self._newest = max(self._newest, newest_in(self._reader, self._files.min_offset))
        reached = ends.reached_at(end, self._consume_queues)
        lost = LostEnd(end, self._newest, reached, flushed_until)
        if not lost.is_proven(self._exit, now_ms()):
            return
        if not self._accepts_loss:
            mapped_file = self._files.find_mapped_file_by_offset(end) or self._files.mapped_files[-1]
            damage = self._report.torn_reason or ZEROS
            position = end - mapped_file.file_from_offset
            raise StoreCorruptError(mapped_file.path, position, f"{damage}; {lost}", hint=HINT_LOST)
        self._accept(lost, ends.lost(end))

    def _accept(self, lost: LostEnd, ends: list[QueueEnd]) -> None:
        self._lost = ends
        logger.warning("recovery: %s; this was accepted", lost)

    def _lower_checkpoint(self) -> None:
        """Lowers the checkpoint: its flush times are no longer true of the log. OSError."""
        self._consume_queues.flush()
        checkpoint = self._checkpoint
        for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
            setattr(checkpoint, name, min(getattr(checkpoint, name), self._newest))
        checkpoint.flush()

    def _judge_tail(self, end: int, last_timestamp: int, torn_size: int) -> LogEnd | None:
        """Judges what follows the valid records (None: zeros). StoreCorruptError for damage: cutting there would lose
        messages."""
        if not self._reader.leftovers(end):
            return None
        reason = self._report.torn_reason or ZEROS
        return self._finder.find(end, last_timestamp, reason, torn_size)

    def _salvage(self, start: int, found: LogEnd) -> None:
        """Fences off the holes and brings queues and index what follows the first of them, at `start`."""
        if not found.fences:
            return
        report = self._report
        for fence in found.fences:
            self._fence_off(fence)
        for mapped_file in self._files.files_from(start):
            mapped_file.sync()
        report.salvaged_records = found.records
        report.torn_reason = ""
        # units may point into the holes
        self._consume_queues.truncate_dirty(start)
        if self._index is not None and self._index.last_update_phyoffset > start:
            self._index_again(found.end)
        for chunk in self._dispatch(start, found.end, self._dispatchers):
            report.records_scanned += chunk.count
        for queue in self._consume_queues.with_gaps():
            # after a unit: the log has a hole there
            if queue.first_gap:
                queue.bridge_gaps()
        self._fill_gaps(found.end)

    def _fence_off(self, fence: Fence) -> None:
        report, mapped_file = self._report, fence.mapped_file
        if fence.missing_size:
            mapped_file.write_at(fence.position, fence.missing_size.to_bytes(4, "big"))
            logger.warning("recovery: the record at offset %d lacked its size alone, and got it", fence.start)
            return
        last = mapped_file.last_data(fence.position, fence.end)
        if last > fence.position:
            why = f"a hole after a power cut, fenced off: {fence.reason}"
            path, _ = keep(
                self._config.store_path_root_dir, mapped_file.view[fence.position : last], fence.start, why
            )
            report.dropped_copies.append(path)
        at = fence.position
        for piece in fence_off(
            at, fence.end, mapped_file.file_from_offset, mapped_file.file_size, fence.store_timestamp
        ):
            mapped_file.write_at(at, piece)
            at += len(piece)
        report.fences.append((fence.start, fence.size, fence.reason))

    def _cut_at(self, seen: _LogSurvey) -> None:
        report, end, last_timestamp = self._report, seen.found.end, seen.found.last_timestamp
        for mapped_file, position, last in () if seen.only_zeros_follow else self._reader.leftovers(end):
            report.torn_bytes += last - position
            report.torn_reason = report.torn_reason or NEVER_FINISHED
            self._keep_records(mapped_file, position, last)
            mapped_file.erase(position)
        self._files.set_end(end)
        if self._index is not None and self._index.last_update_phyoffset >= max(1, end):
            self._index_again(end)
        self._files.store_timestamp = last_timestamp
        if seen.dispatched_to > end:
            self._consume_queues.truncate_dirty(end)
        active = self._files.find_mapped_file_by_offset(end)
        if active is not None:
            active.store_timestamp = last_timestamp
            active.allocate()

    def _index_again(self, end: int) -> None:
        """The index knows records that the log has lost; entries cannot be taken out of it, so it is made again."""
        assert self._index is not None
        logger.warning("the index reaches past the end of the log: it is rebuilt from the whole log")
        self._index.destroy(self._checkpoint)
        self._report.records_indexed_again_from = self._files.min_offset
        for _ in self._dispatch(self._files.min_offset, end, [self._index]):
            pass

    def _keep_records(self, mapped_file: MappedFile, position: int, last: int) -> None:
        """Copies what is cut off when whole records are in it, whatever they are worth, or flushed messages were."""
        start = mapped_file.file_from_offset + position
        # a record may end with zeros
        ends = [scan.end for scan in whole_records(mapped_file.view[position : last + ZEROS_MAX], start)]
        if not ends and self._lost is None:
            return
        data = mapped_file.view[position : max([last, *(position + end for end in ends[-1:])])]
        path, records = keep(
            self._config.store_path_root_dir, data, start, f"cut off: {self._report.torn_reason}"
        )
        self._report.dropped_copies.append(path)
        self._report.dropped_records += records
