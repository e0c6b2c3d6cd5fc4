"""Finds records: where a time begins, what follows an offset, which messages match.

    by key          index ─▶ candidates ─▶ the record's own keys; what the index does not cover is scanned
    by topic + tag  consume queue ─▶ units with the tag's hash ─▶ the record's own tag
    otherwise       log, a chunk at a time: topic, time and tag's hash as columns ─▶ the records that are left

Everything here gives records as they lie in the log (a memoryview each), in the order of the log.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import FormatError, MessageError, OffsetOutOfRangeError
from mqlake.formats.columns import Bools, DispatchColumns, dispatch_columns
from mqlake.formats.consume_queue import PRE_BLANK_SIZE
from mqlake.formats.consume_queue_ext import MAX_ADDRESS
from mqlake.formats.index import build_key, index_key_hash
from mqlake.formats.record import RecordKind, check_record, decode_record, store_timestamp
from mqlake.message import (
    KEY_SEPARATOR,
    SCHEDULE_TOPIC,
    MessageExt,
    decode_message_id,
    parse_delay_levels,
    tags_code,
)
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import LogChunk, LogReader, LogWalk, first_timestamp
from mqlake.store.queues.leads_to import is_known
from mqlake.store.results import BoundaryType
from mqlake.store.store_view import StoreView

I64_MAX = (1 << 63) - 1
UNITS_A_READ = 4096
CANDIDATES_ASKED = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """The criteria of a search; None matches all. Store times in ms, both ends included."""

    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    begin: int = 0
    end: int = I64_MAX

    def matches(self, message: MessageExt) -> bool:
        if self.topic is not None and message.topic != self.topic:
            return False
        if self.tag is not None and message.tags != self.tag:
            return False
        if self.key is not None and not (
            message.uniq_key == self.key or self.key in (message.keys or "").split(KEY_SEPARATOR)
        ):
            return False
        return self.begin <= message.store_timestamp <= self.end


def check_begins_record(log: MappedFileQueue, offset: int) -> None:
    """Raises OffsetOutOfRangeError unless a record, a blank or the end of the data is at a physical offset."""
    mapped_file = log.find_mapped_file_by_offset(offset)
    if mapped_file is not None:
        position = offset - mapped_file.file_from_offset
        found = check_record(mapped_file.view, position, mapped_file.file_size, offset, check_crc=False)
        if found.kind in (RecordKind.MESSAGE, RecordKind.BLANK, RecordKind.END):
            return
        raise OffsetOutOfRangeError(
            f"{mapped_file.path}: byte {position}: no record begins there ({found.reason})"
        )
    last = log.mapped_files[-1].file_from_offset + log.file_size if log.mapped_files else 0
    raise OffsetOutOfRangeError(
        f"offset {offset} is not in the log: its files hold {log.min_offset} to {last}"
    )


def file_at_time(log: MappedFileQueue, timestamp: int) -> int:
    """Physical offset of the start of the last file whose first record is older than `timestamp` (ms)."""
    start = log.min_offset
    for mapped_file in log.mapped_files:
        if 0 <= first_timestamp(mapped_file) < timestamp:
            start = mapped_file.file_from_offset
    return start


def records_of_log(walk: LogWalk, *, topic: str | None = None, begin: int = 0) -> Iterator[memoryview]:
    """Every record of the walk, of one topic and from a store time (ms) on when asked for."""
    for chunk in walk.chunks():
        chosen = chunk.scan.store_timestamp >= begin
        if topic is not None:
            chosen &= _of_topic(chunk, topic)
        yield from _slices(chunk, chosen)


def records_of_queue(
    store: StoreView, topic: str, queue_id: int, offset: int, *, code: int | None = None
) -> Iterator[memoryview]:
    """Records of a queue from a queue offset on, with `code` only those whose unit has that tags code.

    What the queue points to and the log does not hold any more is passed over.
    """
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None:
        return
    offset = max(offset, queue.min_offset_in_queue)
    while offset < queue.max_offset_in_queue:
        units = queue.get_range(offset, UNITS_A_READ)
        if not len(units):
            offset = max(offset + 1, queue.roll_next_file(offset))
            continue
        batch = "batch_size" in (units.dtype.names or ())
        offset = int(units["msg_base_offset"][-1] + units["batch_size"][-1]) if batch else offset + len(units)
        chosen = units["size"] != PRE_BLANK_SIZE
        if code is not None:  # an address in the extension may stand for any code
            chosen &= (units["tags_code"] == code) | (units["tags_code"] <= MAX_ADDRESS)
        places = zip(units["offset"][chosen].tolist(), units["size"][chosen].tolist(), strict=True)
        for physical_offset, size in places:
            record = store.commit_log_files.select(physical_offset, size)
            if record is not None:
                yield record


def search(
    store: StoreView,
    log: MappedFileQueue,
    query: Query,
    *,
    scan: bool = False,
    progress: Progress = no_progress,
) -> Iterator[tuple[memoryview, MessageExt]]:
    """The records that match, in the order of the log (by topic and tag: queue after queue).

    `log` is walked where index and queues do not help, or always with `scan`.
    """
    if query.key is not None and store.index is not None and not scan:
        records = _by_key(store, log, query, progress)
    elif query.topic is not None and query.key is None and not scan:
        records = _by_queue(store, query)
    else:
        records = _by_scan(store, log, query, log.min_offset, None, progress)
    for record in records:
        try:
            message = decode_record(record)
        except FormatError:
            continue
        if query.matches(message):
            yield record, message


def find_by_id(
    store: StoreView,
    log: MappedFileQueue,
    message_id: str,
    topic: str | None,
    progress: Progress = no_progress,
) -> Iterator[tuple[memoryview, MessageExt]]:
    """The message with an offset message id, else those whose UNIQ_KEY it is. MessageError: neither form."""
    _, physical_offset = decode_message_id(message_id)
    record = store.select_one_message_by_offset(physical_offset) if physical_offset >= 0 else None
    if record is not None:
        try:
            message = decode_record(record)
            if message.msg_id == message_id.upper() and message.physical_offset == physical_offset:
                yield record, message
                return
        except (FormatError, MessageError):
            pass  # no record begins there: the digits are a producer's
    found = search(store, log, Query(topic=topic, key=message_id), progress=progress)
    yield from ((record, message) for record, message in found if message.uniq_key == message_id)


# ---------------------------------------------------------------------- ways to candidates


def _by_key(store: StoreView, log: MappedFileQueue, query: Query, progress: Progress) -> Iterator[memoryview]:
    index, key = store.index, query.key
    assert index is not None and key is not None
    files = [file for file in index.files if file.index_count > 1]
    covered_from = files[0].header.begin_phy_offset if files else log.min_offset
    covered_to = files[-1].header.end_phy_offset if files else log.min_offset
    if covered_from > log.min_offset:
        yield from _by_scan(store, log, query, log.min_offset, covered_from, progress)
    topics = [query.topic] if query.topic is not None else store.consume_queues.topics()
    offsets: set[int] = set()
    for topic in topics:
        # an entry knows its time to the second
        begin, end = max(0, query.begin - 1000), min(I64_MAX, query.end + 1000)
        asked = CANDIDATES_ASKED
        while len(found := index.query_offset(topic, key, asked, begin, end)) >= asked:
            asked *= 16
        offsets.update(found)
    for offset in sorted(offsets):
        record = store.select_one_message_by_offset(offset)
        if record is not None:
            yield record
    yield from _by_scan(store, log, query, covered_to, None, progress, skip_first=bool(files))


def _by_queue(store: StoreView, query: Query) -> Iterator[memoryview]:
    assert query.topic is not None
    by_tag = query.tag is not None and query.topic != SCHEDULE_TOPIC
    code = tags_code(query.tag) if by_tag else None
    for queue_id in sorted(store.consume_queues.queues(query.topic)):
        offset = 0
        if query.begin > 0:
            offset = store.get_offset_in_queue_by_time(query.topic, queue_id, query.begin, BoundaryType.LOWER)
        records = records_of_queue(store, query.topic, queue_id, offset, code=code)
        if query.end < I64_MAX:
            records = itertools.takewhile(lambda record: store_timestamp(record) <= query.end, records)
        yield from records


def _by_scan(
    store: StoreView,
    log: MappedFileQueue,
    query: Query,
    start: int,
    end: int | None,
    progress: Progress,
    *,
    skip_first: bool = False,
) -> Iterator[memoryview]:
    """Records of [start, end) that may match."""
    if query.begin > 0:
        start = max(start, file_at_time(log, query.begin))
        skip_first = False
    delay_levels = parse_delay_levels(store.config.message_delay_level)
    code = tags_code(query.tag) if query.tag is not None else None
    known = functools.partial(is_known, store.consume_queues)
    for chunk in LogReader(log, check_crc=False).walk(start, is_known=known, progress=progress).chunks():
        scan = chunk.scan
        chosen = (scan.store_timestamp >= query.begin) & (scan.store_timestamp <= query.end)
        if end is not None:
            chosen &= scan.physical_offset < end
        if skip_first and chunk.start == start:
            chosen[:1] = False
        if query.topic is not None:
            chosen &= _of_topic(chunk, query.topic)
        if chosen.any() and (code is not None or query.key is not None):
            columns = dispatch_columns(chunk.mapped_file.array, scan, delay_levels=delay_levels)
            if code is not None:  # a delayed message has the time it is due in that place
                chosen &= (columns.tags_code == code) | _of_topic(chunk, SCHEDULE_TOPIC)
            if query.key is not None:
                chosen &= _may_have_key(chunk, columns, query.key)
        yield from _slices(chunk, chosen)
        if end is not None and chunk.end >= end:
            return


def _may_have_key(chunk: LogChunk, columns: DispatchColumns, key: str) -> Bools:
    """Marks the records one of whose keys has the hash that `key` has in the record's topic."""
    topics = [topic.decode("utf-8", "replace") for topic in chunk.scan.topics]
    wanted = np.array([index_key_hash(build_key(topic, key)) for topic in topics], np.int32)
    record = columns.key_record
    chosen = np.zeros(chunk.count, np.bool_)
    chosen[record[columns.key_hash == wanted[chunk.scan.topic_id[record]]]] = True
    return chosen


def _of_topic(chunk: LogChunk, topic: str) -> Bools:
    ids = [number for number, name in enumerate(chunk.scan.topics) if name == topic.encode()]
    found: Bools = np.isin(chunk.scan.topic_id, ids)
    return found


def _slices(chunk: LogChunk, chosen: Bools) -> Iterator[memoryview]:
    view, scan = chunk.mapped_file.view, chunk.scan
    for position, size in zip(scan.position[chosen].tolist(), scan.size[chosen].tolist(), strict=True):
        yield view[position : position + size]
