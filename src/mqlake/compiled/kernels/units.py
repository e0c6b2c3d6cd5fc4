# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Consume queue units followed to their records, and stretches of a buffer gathered, compiled."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    CACHE_LINE,
    copy,
    load16,
    load32,
    load64,
    pointer,
    prefetch,
    put,
    same_bytes,
)
from mqlake.compiled.kernels.records import BORN_V6, STORE_V6, check, has_right_crc
from mqlake.formats.columns import layout
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.formats.record import (
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
)

TAIL_MIN = 3
"""Bytes of a record after its body, at least: the lengths of topic and properties."""


@compiled
def follow_units(
    buf, end, base_offset, units, topic, queue_id, queue_offset, queue_offsets, bytes_max, check_crc, runs
):
    """As follow(), of records in buf[:end] and all units of an array."""
    if end > len(buf):
        return np.int64(-1), np.int64(0), np.int64(0)
    count = np.int64(len(units) // CQ_STORE_UNIT_SIZE)
    return follow(
        pointer(buf),
        end,
        base_offset,
        pointer(units),
        np.int64(0),
        count,
        pointer(topic),
        np.int64(0),
        np.int64(len(topic)),
        queue_id,
        queue_offset,
        queue_offsets,
        bytes_max,
        check_crc,
        runs,
    )


@compiled
def place(units, units_at, n, base_offset):
    """Position and size of the record of unit n."""
    unit = units_at + n * CQ_STORE_UNIT_SIZE
    return load64(units, unit) - base_offset, np.int64(load32(units, unit + 8))


@compiled
def begins(data, position, size, base_offset, queue_id, queue_offset):
    """True if a record of `size` bytes begins there that is this message of a queue. Reads its first bytes only."""
    magic = load32(data, position + 4)
    return (
        load32(data, position) == size
        and magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
        and load32(data, position + QUEUE_ID_POSITION) == queue_id
        and load64(data, position + QUEUE_OFFSET_POSITION) == queue_offset
        and load64(data, position + PHYSICAL_OFFSET_POSITION) == base_offset + position
    )


@compiled
def body_of(data, position, size):
    """Where the body begins and ends of a record that `begins` there, if what follows it may fit into the record; else
    -1."""
    nowhere = np.int64(-1), np.int64(-1)
    sys_flag, end = load32(data, position + SYS_FLAG_POSITION), position + size
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORN_V6:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STORE_V6:
        body_start += layout.IPV6_EXTRA
    if body_start > end - TAIL_MIN:
        return nowhere
    body_length = np.int64(load32(data, body_start - 4))
    if not 0 <= body_length <= end - TAIL_MIN - body_start:
        return nowhere
    return body_start, body_start + body_length


@compiled
def properties_of(data, position, size, at, topic, topic_at, own_topic_length):
    """Where the properties begin of the record whose body ends `at`, if it has this topic before them and they go to
    its end; else -1."""
    end = position + size
    if load32(data, position + 4) == MESSAGE_MAGIC_CODE:
        topic_length = np.int64(np.int8(data[np.uint64(at)]))
        at += 1
    else:
        topic_length = np.int64(load16(data, at))
        at += 2
    start = at + topic_length + 2
    is_own = (
        topic_length == own_topic_length
        and start <= end
        and load16(data, start - 2) == end - start
        and same_bytes(data, at, topic, topic_at, topic_length)
    )
    return start if is_own else np.int64(-1)


@compiled
def is_whole(data, position, size, limit, topic, topic_at, own_topic_length, check_crc):
    """True if a record that `begins` there goes on to its end as it has to, and has this topic."""
    start, at = body_of(data, position, size)
    if at < 0:
        return False
    properties_at = properties_of(data, position, size, at, topic, topic_at, own_topic_length)
    if properties_at < 0:
        return False
    return not check_crc or has_right_crc(
        data, position, size, limit, start, at - start, properties_at, False
    )


@compiled
def follow(
    data,
    end,
    base_offset,
    units,
    units_at,
    unit_count,
    topic,
    topic_at,
    own_topic_length,
    queue_id,
    queue_offset,
    queue_offsets,
    bytes_max,
    check_crc,
    runs,
):
    """(how many leading consume queue units have records of no more than `bytes_max` together, the first of them in any
    case; the bytes of those; the runs that they lie in). -1 units when one of them leads to anything but its own record
    in data[:end], and that a whole one. Messages have `queue_offsets`, or, without those, `queue_offset` and following.
    """
    total, count = np.int64(0), np.int64(0)
    run, run_end = np.int64(-1), np.int64(-1)
    nowhere = np.int64(-1), np.int64(0), np.int64(0)
    for n in range(unit_count):
        position, size = place(units, units_at, n, base_offset)
        if n > 0 and total + size > bytes_max:
            break
        if size < RECORD_SIZE_MIN or position < 0 or position > end - size:
            return nowhere
        # a check reads where a record begins, where its body does and its end, of all records at the same time
        prefetch(data, position)
        prefetch(data, position + layout.BODY_START_V4 - 1)
        prefetch(data, position + size - CACHE_LINE)
        total += size
        count += 1
    for n in range(count):
        position, size = place(units, units_at, n, base_offset)
        own_offset = queue_offsets[n] if len(queue_offsets) > 0 else queue_offset + n
        # else a stale unit, of a record that was cut off and written over
        if not begins(data, position, size, base_offset, queue_id, own_offset):
            return nowhere
        if not is_whole(data, position, size, end, topic, topic_at, own_topic_length, check_crc):
            return nowhere
        if position != run_end:
            run += 1
            runs[run, 0] = position
        run_end = position + size
        runs[run, 1] = run_end
    return count, total, run + 1


@compiled
def whole_records(buf, places):
    """Fills `places` with the start and end of the body, and the end, of each of the records that lie back to back in
    `buf`, wherever in a log they were, as long as they are whole; how many those are."""
    data = pointer(buf)
    position, count = np.int64(0), np.int64(0)
    while count < len(places) and len(buf) - position >= RECORD_SIZE_MIN:
        base_offset = load64(data, position + PHYSICAL_OFFSET_POSITION) - position
        kind, size, body_length, topic_start, _, _ = check(data, position, len(buf), base_offset, True, False)
        if kind != layout.MESSAGE:
            break
        body_end = topic_start - (1 if load32(data, position + 4) == MESSAGE_MAGIC_CODE else 2)
        position += size
        places[count, 0] = body_end - body_length
        places[count, 1] = body_end
        places[count, 2] = position
        count += 1
    return count


@compiled
def gather(buf, starts, offsets, data):
    """Copies from starts[i] on to data[offsets[i]:offsets[i + 1]]; False when a slice lies outside buf."""
    source, target = pointer(buf), pointer(data)
    for i in range(len(starts)):
        length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        if starts[i] < 0 or starts[i] > len(buf) - length:
            return False
        copy(target, offsets[i], source, starts[i], length)
    return True


@compiled
def gather_runs(buf, runs, data):
    """Fills `data` with the bytes of each buf[runs[i, 0]:runs[i, 1]], one after the other; False when one lies outside,
    or when they are not as many."""
    size = np.int64(0)
    for i in range(len(runs)):
        start, length = runs[i, 0], runs[i, 1] - runs[i, 0]
        if start < 0 or start > len(buf) or not 0 <= length <= len(buf) - start or length > len(data) - size:
            return False
        size += length
    if size != len(data):
        return False
    put_runs(pointer(data), np.int64(0), pointer(buf), runs, len(runs))
    return True


@compiled
def put_runs(out, at, data, runs, count):
    """Copies data[runs[i, 0]:runs[i, 1]] of the first `count` runs one after the other. Each is fetched while the one
    before it is copied."""
    for run in range(count):
        if run + 1 < count:
            for line in range(runs[run + 1, 0], runs[run + 1, 1], CACHE_LINE):
                prefetch(data, line)
        at = put(out, at, data, runs[run, 0], runs[run, 1] - runs[run, 0])
