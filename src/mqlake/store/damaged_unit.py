"""The message of a damaged consume queue unit, found in the log between the messages beside it in its queue.

    consume queue    [ 6 ][ ?? ][ ?? ][ 9 ]
                       │                │
    commit log      ─[ 6 ]─▒─[ 7 ]─▒▒─[ 8 ]─▒─[ 9 ]─      ▒ messages of other queues
                           └── scanned ────────┘

Queue offsets are in the records, so a unit is a shortcut and not the truth. Bounded: SCAN_MAX bytes of the log, and
UNITS_MAX units to either side for one that still leads to its message.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mqlake.errors import StoreCorruptError
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.formats.record import RecordPlace
from mqlake.message import UNSEEN_FLAG
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import LogReader
from mqlake.store.queues.consume_queue import ConsumeQueue
from mqlake.store.queues.leads_to import whole_record_of

SCAN_MAX = 4 << 20
UNITS_MAX = 1024


def find_message(log_files: MappedFileQueue, queue: ConsumeQueue, queue_offset: int) -> RecordPlace | None:
    """Returns the place of message `queue_offset`; None when it is not between its neighbours, or they are too far
    apart."""
    low, high = queue.min_offset_in_queue, queue.max_offset_in_queue
    before = _first_whole(
        log_files, queue, range(queue_offset - 1, max(low, queue_offset - UNITS_MAX) - 1, -1)
    )
    after = _first_whole(log_files, queue, range(queue_offset + 1, min(high, queue_offset + UNITS_MAX)))
    start = log_files.min_offset if before is None else before.physical_offset + before.size
    end = log_files.max_offset if after is None else after.physical_offset
    if not 0 < end - start <= SCAN_MAX:
        return None
    topic = queue.topic.encode()
    for chunk in LogReader(log_files, check_crc=False).scan(start, end):
        scan = chunk.scan
        # a prepared or rolled-back message has a queue offset of no queue
        counted = scan.sys_flag & UNSEEN_FLAG == 0
        found = (scan.queue_offset == queue_offset) & (scan.queue_id == queue.queue_id) & counted
        for row in np.flatnonzero(found).tolist():
            if scan.topics[scan.topic_id[row]] == topic:
                place = int(scan.size[row]), int(scan.physical_offset[row])
                return RecordPlace(*place, queue.queue_id, queue_offset, topic)
    return None


def unit_error(queue: ConsumeQueue, queue_offset: int, reason: str) -> StoreCorruptError:
    """The damage, with the file and the byte of the unit."""
    offset = queue_offset * CQ_STORE_UNIT_SIZE
    file = queue.files.file_at(offset)
    path, start = (queue.files.directory, 0) if file is None else (file.path, file.file_from_offset)
    return StoreCorruptError(
        path,
        offset - start,
        f"the unit of message {queue_offset} of {queue.topic}-{queue.queue_id} does not lead to it: {reason}",
        hint="`mqlake store rebuild` makes the queues again from the log",
    )


def _first_whole(
    log_files: MappedFileQueue, queue: ConsumeQueue, queue_offsets: Iterable[int]
) -> RecordPlace | None:
    for queue_offset in queue_offsets:
        unit = queue.get(queue_offset)
        if unit is None:
            return None
        if place := whole_record_of(log_files, queue, unit):
            return place
    return None
