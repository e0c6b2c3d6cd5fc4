"""StoreView: everything that can be asked of a store, whether it is being written or only looked at.

    get_message             group, topic, queue, offset ─▶ consume queue ─▶ slices of the commit log
    look_message_*          physical offset or message id ─▶ commit log
    query_message           topic, key, time range ─▶ index ─▶ commit log, the key checked against the record
    offset by time          topic, queue, timestamp ─▶ binary search in the consume queue

DefaultMessageStore adds writing to it, ReadOnlyStore opens it beside a running writer.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import numpy as np

from mqlake.errors import (
    ArchiveUnavailableError,
    BadCrcError,
    FormatError,
    OffsetOutOfRangeError,
    StoreClosedError,
    StoreCorruptError,
)
from mqlake.formats.columns import Bools, Int64s, follow_units, gather_runs
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.formats.record import (
    RECORD_SIZE_MIN,
    RecordKind,
    RecordPlace,
    check_record,
    decode_record,
    store_timestamp,
    why_not_at,
)
from mqlake.message import (
    KEY_SEPARATOR,
    LMQ_PREFIX,
    PROPERTY_CRC32,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    MessageExt,
    decode_message_id,
)
from mqlake.store.archive.reader import ArchiveReader, CheckedRecords, NotCachedError, Window
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.damage import PULL, QUERY, DamageLog
from mqlake.store.damaged_unit import find_message, unit_error
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.filter import MessageFilter, TagFilter
from mqlake.store.index.index_service import IndexService
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, Queue
from mqlake.store.queues.unit_queue import Units
from mqlake.store.results import BoundaryType, GetMessageResult, GetMessageStatus, QueryMessageResult

CQ_UNIT_SIZE = 20
RUNS_MAX = 8
"""Records that lie in more stretches than this, between those of other queues, are copied together by compiled code,
which takes less time than to make a slice of each and have them joined for the socket."""

_FOUND = GetMessageStatus.FOUND  # an enum's member costs 0.1 us when it is read from the class
_PLACE = struct.Struct(">qi").unpack_from
"""A unit's physical offset and size."""


class StoreView:
    """The read side over `commit_log_files`, `consume_queues` and `index` (None when the store keeps none)."""

    def __init__(
        self,
        config: MessageStoreConfig,
        commit_log_files: MappedFileQueue,
        consume_queues: ConsumeQueueStore,
        index: IndexService | None,
    ) -> None:
        self.config = config
        self.commit_log_files = commit_log_files
        self.consume_queues = consume_queues
        self.index = index
        self.archived: ArchiveReader | None = None
        """The archive with the part of the log before its beginning here. What has to be fetched from there is
        NotCachedError on an event loop, and is waited for on other threads; then ArchiveUnavailableError may be
        raised by what reads."""
        self.damage = DamageLog()
        """Damage that reads have found."""
        self._closed = False
        ratio = config.access_message_in_memory_max_ratio
        if config.broker_role is BrokerRole.SLAVE:
            ratio -= 10
        self._in_memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * ratio // 100

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the store {self.config.store_path_root_dir} was shut down")

    # ------------------------------------------------------------------ offsets

    @property
    def min_phy_offset(self) -> int:
        return self.commit_log_files.min_offset

    @property
    def max_phy_offset(self) -> int:
        return self.commit_log_files.max_offset

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The first queue offset still there; -1 for a queue that does not exist."""
        queue = self.consume_queues.get(topic, queue_id)
        return queue.min_offset_in_queue if queue is not None else -1

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset the next message will get (among those dispatched); 0 for no such queue."""
        queue = self.consume_queues.get(topic, queue_id)
        return queue.max_offset_in_queue if queue is not None else 0

    def get_offset_in_queue_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset at a store timestamp (ms): LOWER the first message not older, UPPER the last
        not newer; 0 for no such queue."""
        self._check_open()
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None:
            return 0
        log_begin, archived = self.commit_log_files.min_offset, self.archived

        def store_time_of(physical_offset: int, size: int) -> int:
            if archived is not None and physical_offset < log_begin:
                return archived.store_time(physical_offset, size, timestamp)
            return self.store_timestamp_at(physical_offset, size)

        begin = self.consume_queues.readable_from(log_begin)
        return queue.get_offset_in_queue_by_time(timestamp, boundary, store_time_of, commit_log_min=begin)

    def store_timestamp_at(self, physical_offset: int, size: int) -> int:
        """Store time (ms) of the record at an offset, -1 when it is not there; of one in the archive, that would
        have to be fetched, the time of a record near it."""
        if self.archived is not None and physical_offset < self.commit_log_files.min_offset:
            return self.archived.store_time_near(physical_offset, size)
        record = self.commit_log_files.select(physical_offset, size)
        if record is None or len(record) < RECORD_SIZE_MIN:
            return -1
        return store_timestamp(record)

    def _select(self, physical_offset: int, size: int) -> memoryview | None:
        """Bytes of the log, from here or from the archive. NotCachedError, ArchiveUnavailableError."""
        found = self.commit_log_files.select(physical_offset, size)
        if found is None and self.archived is not None and self._is_archived(physical_offset):
            return self.archived.select(physical_offset, size)
        return found

    def _is_archived(self, physical_offset: int) -> bool:
        """True if what is there has to be read from the archive."""
        return (
            self.archived is not None
            and physical_offset < self.commit_log_files.min_offset
            and self.archived.covers(physical_offset)
        )

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """Store time (ms) of the queue's first message, -1 when there is none."""
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None or queue.max_offset_in_queue <= queue.min_offset_in_queue:
            return -1
        return self.message_store_timestamp(topic, queue_id, queue.min_offset_in_queue)

    def message_store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time (ms) of one message of a queue, -1 when it is not there."""
        queue = self.consume_queues.get(topic, queue_id)
        unit = queue.get(queue_offset) if queue is not None else None
        return self.store_timestamp_at(unit.physical_offset, unit.size) if unit is not None else -1

    def check_in_mem_by_consume_offset(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """True if a queue has this message and it is young enough to be taken for in memory."""
        queue = self.consume_queues.get(topic, queue_id)
        unit = queue.get(queue_offset) if queue is not None else None
        return (
            unit is not None
            and self.commit_log_files.max_offset - unit.physical_offset <= self._in_memory_bytes
        )

    # ------------------------------------------------------------------ by queue

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
        *,
        may_wait: bool = True,
        check_crc: bool | None = None,
    ) -> GetMessageResult:
        """Up to `max_count` messages from a queue offset on, within RocketMQ's limits for one pull. An inner
        batch counts as all its messages; the first one comes whatever its size.

        `may_wait` False raises BlockingIOError when the messages have to be read from the disk: see read_ahead(). Those
        of the archive raise what reading `archived` does; after others there are fewer.

        `group` is for statistics only. Never raises for offsets: the status says what is wrong with one and
        `next_begin_offset` where to go on.

        A unit that leads to anything but its own message, and that a whole one, is reported to `damage`. Its message is
        looked for in the log; if it is not there, it is passed over, and `result.damaged` says which message is missing
        and where the damage is. `check_crc` checks the bodies too; None does as `pullCheckCrc` says.
        """
        if self._closed:
            self._check_open()
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset_in_queue, queue.max_offset_in_queue
        if low <= offset < high:
            if max_count < 1:
                max_count = 1  # as RocketMQ: a caller that asks for 0 gets 1
            if check_crc is None:
                check_crc = self.config.pull_check_crc
            found = self._get_fast(queue, offset, max_count, message_filter, low, high, may_wait, check_crc)
            return found or self._get_found(
                queue, offset, max_count, message_filter, low, high, may_wait, check_crc
            )
        if high == 0:
            status, following = GetMessageStatus.NO_MESSAGE_IN_QUEUE, self._corrected(offset, 0)
        elif offset < low:
            status, following = GetMessageStatus.OFFSET_TOO_SMALL, self._corrected(offset, low)
        elif offset == high:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
        else:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high)
        return GetMessageResult(status, following, low, high)

    def read_ahead(self, topic: str, queue_id: int, offset: int, max_count: int) -> None:
        """Reads from the disk what get_message() will look at first, for a thread that may wait for it."""
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None:
            return
        units = queue.get_range(offset, min(max_count, self.config.max_transfer_count_on_message_in_memory))
        left = self.config.max_transfer_bytes_on_message_in_memory
        for physical_offset, size in zip(units["offset"].tolist(), units["size"].tolist(), strict=True):
            if self.archived is not None and self._is_archived(physical_offset):
                self.archived.fetch(physical_offset, physical_offset + size)
                return
            mapped_file = self.commit_log_files.find_mapped_file_by_offset(physical_offset)
            if mapped_file is None or left <= 0:
                return
            left -= size
            try:
                mapped_file.read_ahead(physical_offset - mapped_file.file_from_offset, size)
            except (OSError, StoreClosedError):
                return  # it is being deleted; or the read itself says what is wrong

    def _is_resident(self, physical_offset: int) -> bool:
        mapped_file = self.commit_log_files.find_mapped_file_by_offset(physical_offset)
        return mapped_file is None or mapped_file.is_resident(physical_offset - mapped_file.file_from_offset)

    def _corrected(self, offset: int, correct: int) -> int:
        """A slave may lag its master, so it corrects no client unless configured to."""
        slave = self.config.broker_role is BrokerRole.SLAVE
        return correct if not slave or self.config.offset_check_in_slave else offset

    def _get_found(
        self,
        queue: Queue,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None,
        low: int,
        high: int,
        may_wait: bool,
        check_crc: bool,
    ) -> GetMessageResult:
        result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, low, high)
        units = queue.get_range(
            offset, max_count if message_filter is None else self.config.filter_span(max_count)
        )
        if len(units) == 0:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = queue.roll_next_file(offset)
        elif not may_wait and not self._is_resident(int(units["offset"][0])):
            raise BlockingIOError(f"{queue.topic}-{queue.queue_id}: message {offset} is not in memory")
        else:
            self._get_slowly(queue, units, offset, max_count, message_filter, result, check_crc)
        return result

    def _get_slowly(
        self,
        queue: Queue,
        units: Units,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None,
        result: GetMessageResult,
        check_crc: bool,
    ) -> None:
        """Fills `result` unit by unit: from any file, for any filter, past damage and what is missing."""
        begins, ends = _queue_offsets(queue, units, offset)
        log_start, log_end = self.commit_log_files.min_offset, self.commit_log_files.max_offset
        in_disk = False
        # the units of a light message queue point to records of other queues
        queue_id = None if queue.topic.startswith(LMQ_PREFIX) else queue.queue_id
        topic = queue.topic.encode()
        limits = self.config.transfer_limits
        buffers, messages, total = result.buffers, 0, 0
        result.queue_offsets = queue_offsets = []
        following = offset
        columns = (units["offset"].tolist(), units["size"].tolist(), units["tags_code"].tolist())
        for physical_offset, size, code, begin, end in zip(*columns, begins, ends, strict=True):
            is_archived = self.archived is not None and self._is_archived(physical_offset)
            in_disk = log_end - physical_offset > self._in_memory_bytes and not is_archived
            count_max, bytes_max = limits[in_disk]
            if messages and (
                messages + end - begin > max_count or messages >= count_max or total + size > bytes_max
            ):
                break
            following = end
            # with the address of an extension that cannot be read the consumer decides, who compares the tag, too
            asked = message_filter if code > MAX_ADDRESS else None
            if asked is not None and not asked.is_matched_by_consume_queue(code):
                continue
            try:
                record = self._select(physical_offset, size)
            except (NotCachedError, ArchiveUnavailableError):
                if begin == offset:
                    raise
                following = begin
                break
            # offsets ascend: what follows a message that is there was not removed
            if record is None and (
                size == PRE_BLANK_SIZE
                or (0 <= physical_offset < log_start and size >= RECORD_SIZE_MIN and not buffers)
            ):
                if not buffers:
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            place = RecordPlace(size, physical_offset, queue_id, begin, topic)
            if reason := why_not_at(record or b"", 0, size, place, check_crc=check_crc or is_archived):
                found = self._find_elsewhere(result, queue, place, record, reason, check_crc)
                if found is None:
                    continue
                physical_offset, size = found
                record = self._select(physical_offset, size)
            assert record is not None
            if message_filter is not None and not message_filter.is_matched_by_commit_log(record):
                continue
            buffers.append(record)
            queue_offsets.append(begin)
            result.last_place = (physical_offset, size)
            messages += end - begin
            total += size
        if buffers:
            result.status = GetMessageStatus.FOUND
            result.suggest_pulling_from_slave = in_disk
        result.next_begin_offset = following
        result.message_count = messages
        result.buffer_total_size = total

    def _get_fast(
        self,
        queue: Queue,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None,
        low: int,
        high: int,
        may_wait: bool,
        check_crc: bool,
    ) -> GetMessageResult | None:
        """Up to `max_count` messages, or those of a span that a filter by tags lets through, when none of them needs
        the slow path: one each, all in one file and in memory, each where its unit says. None otherwise."""
        if not isinstance(queue, ConsumeQueue) or queue.topic.startswith(LMQ_PREFIX):
            return None
        config = self.config
        count_max = config.max_transfer_count_on_message_in_memory
        if max_count < count_max:
            count_max = max_count
        queue_offsets: range | Int64s
        if message_filter is None:
            units = queue.get_range_bytes(offset, count_max)
            behind = offset + len(units) // CQ_UNIT_SIZE
            queue_offsets = range(offset, behind)
        elif type(message_filter) is TagFilter:
            chosen = _chosen(
                queue.get_range(offset, config.filter_span(max_count)), offset, message_filter, count_max
            )
            if chosen is None:
                return None
            units, queue_offsets, behind = chosen
        else:
            return None
        first = int.from_bytes(units[:8], "big")
        mapped_file: MappedFile | Window | None
        if self.archived is not None and self._is_archived(first):
            mapped_file = self.archived.window(first)
            check_crc = True  # it has been at another place
        else:
            mapped_file = self._file_in_memory(first, may_wait)
        if mapped_file is None:
            return None
        view, array, base = mapped_file.view, mapped_file.readable_array, mapped_file.file_from_offset
        found = follow_units(
            array,
            mapped_file.read_position,
            base,
            units,
            queue.topic,
            queue.queue_id,
            queue_offsets,
            config.max_transfer_bytes_on_message_in_memory,
            check_crc=check_crc,
        )
        if found is None or not found[0] or not view:  # no view: the file was closed meanwhile
            return None
        count, size, run_count, runs = found
        if count < len(queue_offsets):
            behind = int(queue_offsets[count])
            queue_offsets = queue_offsets[:count]
        result = GetMessageResult(_FOUND, behind, low, high)
        if run_count == 1:
            result.buffers.append(view[first - base : first - base + size])
        elif run_count <= RUNS_MAX:
            result.buffers = [view[start:end] for start, end in runs[:run_count].tolist()]
        else:
            result.buffers = [gather_runs(array, runs[:run_count], size).data]
        result.message_count = count
        result.queue_offsets = queue_offsets if isinstance(queue_offsets, range) else queue_offsets.tolist()
        result.buffer_total_size = size
        result.last_place = _PLACE(units, (count - 1) * CQ_UNIT_SIZE)
        return result

    def units_in_memory(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> tuple[ConsumeQueue, bytes, MappedFile | CheckedRecords] | None:
        """(the queue, units of up to `max_count` messages, the file of the first one, or what has come of it from the
        archive) for compiled code that answers pulls. None where get_message() has more to look at."""
        queue = self.consume_queues.get(topic, queue_id)
        if type(queue) is not ConsumeQueue or self.config.pull_check_crc or topic.startswith(LMQ_PREFIX):
            return None
        if queue.ext is not None:
            return None  # the tags codes are there
        if not queue.min_offset_in_queue <= offset < queue.max_offset_in_queue:
            return None
        units = queue.get_range_bytes(offset, max_count)
        first = int.from_bytes(units[:8], "big")
        found: MappedFile | CheckedRecords | None
        if self.archived is not None and self._is_archived(first):
            found = self.archived.checked(first)
        else:
            found = self._file_in_memory(first, may_wait=False)
        return None if found is None else (queue, units, found)

    @property
    def in_memory_from(self) -> int:
        """The physical offset from which on the log was written lately enough to be taken for in memory."""
        return self.commit_log_files.max_offset - self._in_memory_bytes

    def _file_in_memory(self, physical_offset: int, may_wait: bool) -> MappedFile | None:
        """The file of the record there; None when that is not, or not surely, in memory."""
        mapped_file = self.commit_log_files.find_mapped_file_by_offset(physical_offset)
        if mapped_file is None or self.commit_log_files.max_offset - physical_offset > self._in_memory_bytes:
            return None
        if not (may_wait or mapped_file.is_resident(physical_offset - mapped_file.file_from_offset)):
            return None
        return mapped_file

    def _find_elsewhere(
        self,
        result: GetMessageResult,
        queue: Queue,
        place: RecordPlace,
        record: memoryview | None,
        reason: str,
        check_crc: bool,
    ) -> tuple[int, int] | None:
        """(Physical offset, size) of a message whose unit does not lead to it, for `reason`, but to `record`. None when
        it is nowhere, which `result` says then unless it was lost before."""
        number, physical_offset = place.queue_offset, place.physical_offset
        if record is not None and self._bridges_a_gap(queue, number, physical_offset, record):
            return None
        found = self._find_beside(queue, place, reason, check_crc)
        if found is None:
            self._pass_over(result, queue, number, physical_offset, reason)
        return found

    @staticmethod
    def _bridges_a_gap(queue: Queue, queue_offset: int, physical_offset: int, record: memoryview) -> bool:
        """True if message `queue_offset` was lost and its unit leads to the one after it (see rebuild)."""
        if len(record) < RECORD_SIZE_MIN:
            return False
        own_offset = int.from_bytes(record[20:28], "big", signed=True)
        place = RecordPlace(len(record), physical_offset, queue.queue_id, own_offset, queue.topic.encode())
        unit = queue.get(own_offset) if own_offset > queue_offset else None
        return (
            unit is not None
            and (unit.queue_offset, unit.physical_offset) == (own_offset, physical_offset)
            and not why_not_at(record, 0, len(record), place)
        )

    def _find_beside(
        self, queue: Queue, place: RecordPlace, reason: str, check_crc: bool
    ) -> tuple[int, int] | None:
        """(Physical offset, size) of a whole message whose unit is damaged, which is reported."""
        if not isinstance(queue, ConsumeQueue) or place.queue_id is None:
            return None
        if self._is_archived(place.physical_offset):
            return None
        found = find_message(self.commit_log_files, queue, place.queue_offset)
        record = None if found is None else self.commit_log_files.select(found.physical_offset, found.size)
        if found is None or record is None or why_not_at(record, 0, found.size, found, check_crc=check_crc):
            return None
        error = unit_error(queue, place.queue_offset, reason)
        self.damage.report(PULL, error, queue.topic, queue.queue_id, "the message was found in the log")
        return found.physical_offset, found.size

    def _pass_over(
        self, result: GetMessageResult, queue: Queue, queue_offset: int, physical_offset: int, reason: str
    ) -> None:
        """Message `queue_offset` cannot be given out: nobody is held up by it, and it is said which one is missing."""
        error = self._damage_at(
            physical_offset,
            f"message {queue_offset} of {queue.topic}-{queue.queue_id} should be here: {reason}",
        )
        result.damaged.append((queue_offset, error))
        self.damage.report(PULL, error, queue.topic, queue.queue_id, "consumers pass over it")

    def _damage_at(self, physical_offset: int, reason: str) -> StoreCorruptError:
        if self.archived is not None and self._is_archived(physical_offset):
            path, position = self.archived.describe(physical_offset)
            hint = "`mqlake store archive verify` tells whether the object is damaged"
            return StoreCorruptError(path, position, reason, hint=hint)
        mapped_file = self.commit_log_files.find_mapped_file_by_offset(
            physical_offset, first_if_not_found=True
        )
        if mapped_file is None:  # no file at all
            return StoreCorruptError(self.config.commit_log_dir, physical_offset, reason)
        return StoreCorruptError(
            mapped_file.path,
            physical_offset - mapped_file.file_from_offset,
            reason,
            hint="`mqlake store verify` tells whether the log or the queue is damaged",
        )

    # ------------------------------------------------------------------ by place

    def select_one_message_by_offset(self, physical_offset: int, size: int = 0) -> memoryview | None:
        """The record's bytes at a physical offset (its size read from it when not given), or None."""
        self._check_open()
        if size <= 0:
            size = self._size_at(physical_offset)
        return self._select(physical_offset, size) if size > 0 else None

    def look_message_by_offset(self, physical_offset: int) -> MessageExt:
        """The message at a physical offset, all of it checked.

        Raises OffsetOutOfRangeError when no record lies there, FormatError when it is damaged (or when
        the offset is not where a record begins).
        """
        record = self.select_one_message_by_offset(physical_offset)
        if record is None:
            raise OffsetOutOfRangeError(
                f"no message at physical offset {physical_offset}: "
                f"the log holds {self.min_phy_offset} to {self.max_phy_offset}"
            )
        try:
            message = decode_record(record)
            if PROPERTY_CRC32 in message.properties and message.physical_offset == physical_offset:
                self._check_prop_crc(record, physical_offset)
        except BadCrcError as error:
            # a record does begin here: its lengths add up
            damage = self._damage_at(physical_offset, f"a message is here, but not whole: {error.reason}")
            self.damage.report(QUERY, damage, what="it was asked for by its place or id")
            raise
        if message.physical_offset != physical_offset:
            raise FormatError(physical_offset, "no record begins here")
        return message

    def _check_prop_crc(self, record: memoryview, physical_offset: int) -> None:
        """Raises BadCrcError. A property CRC may turn out to be the store's own at the next record only."""
        size = len(record) + max(0, self._size_at(physical_offset + len(record)))
        both = self._select(physical_offset, size)
        checked = check_record(
            record if both is None else both,
            0,
            size,
            physical_offset,
            force_prop_crc=self.config.writes_prop_crc,
        )
        if checked.kind is not RecordKind.MESSAGE:
            raise BadCrcError(physical_offset, checked.reason)

    def look_message_by_id(self, message_id: str) -> MessageExt:
        """The message with an offset message id. Raises MessageError for a malformed id, else as
        look_message_by_offset()."""
        _, physical_offset = decode_message_id(message_id)
        return self.look_message_by_offset(physical_offset)

    # ------------------------------------------------------------------ by key

    def query_message(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin: int = 0,
        end: int = 2**63 - 1,
        *,
        check_crc: bool | None = None,
    ) -> QueryMessageResult:
        """The newest `max_count` messages with `key` (one of its KEYS, or its UNIQ_KEY) stored in the time
        range [begin, end] (ms), oldest first.

        The index holds only hashes, so each candidate's own key is compared; wrong ones never come out. A damaged
        record is left out and `damage` told; with `check_crc` (None: as `pullCheckCrc` says) also one whose body does
        not have its CRC.
        """
        self._check_open()
        if check_crc is None:
            check_crc = self.config.pull_check_crc
        if self.index is None or max_count <= 0:
            return QueryMessageResult([], 0, 0)
        wanted = min(max_count, self.config.max_msgs_num_batch)
        asked, found = wanted, []
        while True:
            candidates = self.index.query_offset(topic, key, asked, begin, end)
            # a message comes twice when two of its keys have the same hash
            found = [
                o for o in dict.fromkeys(candidates) if self._has_key(o, topic, key, begin, end, check_crc)
            ][:wanted]
            if len(found) >= wanted or len(candidates) < asked:
                break
            asked *= 4  # hash collisions or doubles took places: look further back
        buffers = [self._select(offset, self._size_at(offset)) for offset in sorted(found)]
        return QueryMessageResult(
            [buffer for buffer in buffers if buffer is not None],
            self.index.last_update_timestamp,
            self.index.last_update_phyoffset,
        )

    def _size_at(self, physical_offset: int) -> int:
        head = self._select(physical_offset, 4)
        return int.from_bytes(head, "big", signed=True) if head is not None else 0

    def _has_key(
        self, physical_offset: int, topic: str, key: str, begin: int, end: int, check_crc: bool
    ) -> bool:
        size = self._size_at(physical_offset)
        record = self._select(physical_offset, size) if size > 0 else None
        if record is None:
            if self.commit_log_files.min_offset <= physical_offset < self.commit_log_files.max_offset:
                self._not_what_the_index_says(physical_offset, topic, f"a size of {size} bytes")
            return False
        try:
            message = decode_record(record, check_crc=check_crc, read_body=check_crc)
        except FormatError as error:
            self._not_what_the_index_says(physical_offset, topic, error.reason)
            return False
        if message.physical_offset != physical_offset:
            reason = f"the record says physical offset {message.physical_offset}"
            self._not_what_the_index_says(physical_offset, topic, reason)
            return False
        if message.topic != topic or not begin <= message.store_timestamp <= end:
            return False
        if message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == key:
            return True
        return key in message.properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR)

    def _not_what_the_index_says(self, physical_offset: int, topic: str, reason: str) -> None:
        error = self._damage_at(physical_offset, f"by the index a message of {topic} is here: {reason}")
        self.damage.report(QUERY, error, what="queries by key do not find it")


def _queue_offsets(queue: Queue, units: Units, offset: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns for each unit from `offset` on the queue offset of its message, and of what follows it. A unit of an
    inner batch has an offset for each message."""
    if isinstance(queue, BatchConsumeQueue):
        begins = units["msg_base_offset"]
        return begins.tolist(), (begins + units["batch_size"]).tolist()
    return range(offset, offset + len(units)), range(offset + 1, offset + 1 + len(units))


def _chosen(
    units: Units, offset: int, message_filter: TagFilter, count_max: int
) -> tuple[bytes, Int64s, int] | None:
    """Returns the units from `offset` on that the filter lets through, at most `count_max`, their queue offsets, and
    the offset after all that was looked at. None when there is none."""
    codes = units["tags_code"]
    matches: Bools = codes <= MAX_ADDRESS  # the extension cannot be read
    for code in message_filter.codes:
        matches |= codes == code
    rows = np.flatnonzero(matches)
    if not len(rows):
        return None
    behind = offset + (int(rows[count_max - 1]) + 1 if len(rows) >= count_max else len(units))
    rows = rows[:count_max]
    return units[rows].tobytes(), rows + offset, behind
