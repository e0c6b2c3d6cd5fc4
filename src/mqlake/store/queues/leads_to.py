"""Does a unit lead to this record, and which one does? For one record, or all of one queue in a scan."""

from __future__ import annotations

import numpy as np

from mqlake.formats.columns import Bools, Int64s, Scan
from mqlake.formats.record import RecordPlace, why_not_at
from mqlake.message import UNSEEN_FLAG
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.queues.batch_consume_queue import BatchConsumeQueue
from mqlake.store.queues.consume_queue import CqUnit
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore, Queue
from mqlake.store.queues.unit_queue import Units


def points_to(queue: Queue | None, queue_offset: int, physical_offset: int) -> bool:
    """True if the unit of message `queue_offset` has this physical offset."""
    unit = queue.get(queue_offset) if queue is not None and queue_offset >= 0 else None
    return unit is not None and unit.physical_offset == physical_offset


def is_known(queues: ConsumeQueueStore, scan: Scan, record: int) -> bool:
    """True if a queue points to this record."""
    if int(scan.sys_flag[record]) & UNSEEN_FLAG:
        return False
    topic = scan.topics[scan.topic_id[record]].decode("utf-8", "replace")
    queue = queues.get(topic, int(scan.queue_id[record]))
    return points_to(queue, int(scan.queue_offset[record]), int(scan.physical_offset[record]))


def leads_to(queue: Queue | None, scan: Scan, rows: Int64s) -> Bools:
    """Which rows of one queue, in the order of the log, have a unit at the place that they say."""
    found = np.zeros(len(rows), np.bool_)
    if queue is None or not len(rows):
        return found
    offsets, physical = scan.queue_offset[rows], scan.physical_offset[rows]
    if isinstance(queue, BatchConsumeQueue):
        units = read_units(queue, queue.first_from(int(physical[0])), len(rows))
        count = len(units)
        found[:count] = (units["offset"] == physical[:count]) & (units["msg_base_offset"] == offsets[:count])
        for at in np.flatnonzero(~found).tolist():
            found[at] = points_to(queue, int(offsets[at]), int(physical[at]))
        return found
    borders = np.flatnonzero(np.diff(offsets) != 1) + 1
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(rows)], strict=True):
        if offsets[start] >= 0:
            units = read_units(queue, int(offsets[start]), end - start)
            found[start : start + len(units)] = units["offset"] == physical[start : start + len(units)]
    return found


def offset_of(queue: Queue, physical_offset: int) -> int | None:
    """Queue offset at which the queue leads to the record at this physical offset, None when it does not."""
    number = queue.first_from(physical_offset)
    units = read_units(queue, number, 1)
    if (
        not len(units)
        or units["offset"][0] != physical_offset
        or number < queue.min_logic_offset // queue.unit_size
    ):
        return None
    return int(units["msg_base_offset"][0]) if isinstance(queue, BatchConsumeQueue) else number


def whole_record_of(log_files: MappedFileQueue, queue: Queue, unit: CqUnit) -> RecordPlace | None:
    """The place to which the unit leads, None unless its record is there, and whole."""
    place = RecordPlace(
        unit.size, unit.physical_offset, queue.queue_id, unit.queue_offset, queue.topic.encode()
    )
    record = log_files.select(unit.physical_offset, unit.size)
    return None if record is None or why_not_at(record, 0, unit.size, place) else place


def read_units(queue: Queue, first: int, count: int) -> Units:
    """Up to `count` units from number `first` on, over the borders of files; none that is not there."""
    parts, size = [], queue.unit_size
    at, end = first * size, (first + count) * size
    while at < end:
        data = queue.files.read(at, end - at)
        if not data:
            break
        parts.append(data)
        at += len(data)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return np.frombuffer(data, queue.dtype, len(data) // size)
