# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Consume queue units followed to their records, and stretches of a buffer gathered."""

import cython

if cython.compiled:
    from cython.cimports.mqlake.native import layout
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
    from cython.cimports.mqlake.native.records import check, has_right_crc
else:
    from mqlake.formats.columns import layout
    from mqlake.native.constants import *
    from mqlake.native.prim import *
    from mqlake.native.records import check, has_right_crc

TAIL_MIN = cython.declare(cython.longlong, 3)
"""Bytes of a record after its body, at least: the lengths of topic and properties."""


def follow_units(
    buf: cython.const_uchar[::1],
    end: i64,
    base_offset: i64,
    units: cython.const_uchar[::1],
    topic: cython.const_uchar[::1],
    queue_id: i64,
    queue_offset: i64,
    queue_offsets: cython.const_longlong[::1],
    bytes_max: i64,
    check_crc: cython.bint,
    runs: cython.longlong[:, ::1],
):
    """As follow(), of records in buf[:end] and all units of an array."""
    if end > buf.shape[0]:
        return -1, 0, 0
    data, unit_bytes, topic_bytes = bytes_of(buf), bytes_of(units), bytes_of(topic)
    count, topic_length = units.shape[0] // CQ_STORE_UNIT_SIZE, topic.shape[0]
    offsets, places = numbers_of(queue_offsets), pairs_of(runs)
    with cython.nogil:
        found = follow(
            data,
            end,
            base_offset,
            unit_bytes,
            0,
            count,
            topic_bytes,
            0,
            topic_length,
            queue_id,
            queue_offset,
            offsets,
            bytes_max,
            check_crc,
            places,
        )
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def place(units: Bytes, units_at: i64, n: i64, base_offset: i64) -> tuple[i64, i64]:
    """Position and size of the record of unit n."""
    unit = units_at + n * CQ_STORE_UNIT_SIZE
    return load64(units, unit) - base_offset, load32(units, unit + 8)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begins(
    data: Bytes, position: i64, size: i64, base_offset: i64, queue_id: i64, queue_offset: i64
) -> cython.bint:
    """True if a record of `size` bytes begins there that is this message of a queue. Reads its first bytes only."""
    total, magic = acquire32(data, position), load32(data, position + 4)
    return (
        total == size
        and magic in (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)
        and load32(data, position + QUEUE_ID_POSITION) == queue_id
        and load64(data, position + QUEUE_OFFSET_POSITION) == queue_offset
        and load64(data, position + PHYSICAL_OFFSET_POSITION) == base_offset + position
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def body_of(data: Bytes, position: i64, size: i64) -> tuple[i64, i64]:
    """Returns the beginning and end of the body of a record that `begins` there, if what follows it may fit into the
    record; else -1."""
    sys_flag, end = load32(data, position + SYS_FLAG_POSITION), position + size
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORNHOST_V6_FLAG:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STOREHOSTADDRESS_V6_FLAG:
        body_start += layout.IPV6_EXTRA
    if body_start > end - TAIL_MIN:
        return -1, -1
    body_length = load32(data, body_start - 4)
    if not 0 <= body_length <= end - TAIL_MIN - body_start:
        return -1, -1
    return body_start, body_start + body_length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def properties_of(
    data: Bytes, position: i64, size: i64, at: i64, topic: Bytes, topic_at: i64, own_topic_length: i64
) -> i64:
    """Returns the beginning of the properties of the record whose body ends `at`, if it has this topic before them
    and they go to its end; else -1."""
    end = position + size
    if load32(data, position + 4) == MESSAGE_MAGIC_CODE:
        topic_length = signed_byte(data[at])
        at += 1
    else:
        topic_length = load16(data, at)
        at += 2
    start = at + topic_length + 2
    is_own: cython.bint = (
        topic_length == own_topic_length
        and start <= end
        and load16(data, start - 2) == end - start
        and same_bytes(data, at, topic, topic_at, topic_length)
    )
    return start if is_own else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_whole(
    data: Bytes,
    position: i64,
    size: i64,
    limit: i64,
    topic: Bytes,
    topic_at: i64,
    own_topic_length: i64,
    check_crc: cython.bint,
) -> cython.bint:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def follow(
    data: Bytes,
    end: i64,
    base_offset: i64,
    units: Bytes,
    units_at: i64,
    unit_count: i64,
    topic: Bytes,
    topic_at: i64,
    own_topic_length: i64,
    queue_id: i64,
    queue_offset: i64,
    queue_offsets: Numbers,
    bytes_max: i64,
    check_crc: cython.bint,
    runs: cython.pointer(i64),
) -> tuple[i64, i64, i64]:
    """(how many leading consume queue units have records of no more than `bytes_max` together, the first of them in any
    case; the bytes of those; the runs that they lie in). -1 units when one of them leads to anything but its own record
    in data[:end], and that a whole one. Messages have `queue_offsets`, or, without those, `queue_offset` and following.
    """
    total: i64 = 0
    count: i64 = 0
    run: i64 = -1
    run_end: i64 = -1
    for n in range(unit_count):
        position, size = place(units, units_at, n, base_offset)
        if n > 0 and total + size > bytes_max:
            break
        if size < RECORD_SIZE_MIN or position < 0 or position > end - size:
            return -1, 0, 0
        # a check reads where a record begins, where its body does and its end, of all records at the same time
        prefetch(data, position)
        prefetch(data, position + layout.BODY_START_V4 - 1)
        prefetch(data, position + size - CACHE_LINE)
        total += size
        count += 1
    for n in range(count):
        position, size = place(units, units_at, n, base_offset)
        own_offset = queue_offsets[n] if queue_offsets else queue_offset + n
        # else a stale unit, of a record that was cut off and written over
        if not begins(data, position, size, base_offset, queue_id, own_offset):
            return -1, 0, 0
        if not is_whole(data, position, size, end, topic, topic_at, own_topic_length, check_crc):
            return -1, 0, 0
        if position != run_end:
            run += 1
            runs[2 * run] = position
        run_end = position + size
        runs[2 * run + 1] = run_end
    return count, total, run + 1


def whole_records(buf: cython.const_uchar[::1], places: cython.longlong[:, ::1]):
    """Fills `places` with the start and end of the body, and the end, of each of the records that lie back to back in
    `buf`, wherever in a log they were, as long as they are whole; how many those are."""
    data = bytes_of(buf)
    size = buf.shape[0]
    with cython.nogil:
        count = whole_into(data, size, places)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def whole_into(data: Bytes, length: i64, places: cython.longlong[:, ::1]) -> i64:
    """As whole_records()."""
    position: i64 = 0
    count: i64 = 0
    while count < places.shape[0] and length - position >= RECORD_SIZE_MIN:
        base_offset = load64(data, position + PHYSICAL_OFFSET_POSITION) - position
        kind, size, body_length, topic_start, _, _ = check(data, position, length, base_offset, True, False)
        if kind != layout.MESSAGE:
            break
        body_end = topic_start - (1 if load32(data, position + 4) == MESSAGE_MAGIC_CODE else 2)
        position += size
        places[count, 0] = body_end - body_length
        places[count, 1] = body_end
        places[count, 2] = position
        count += 1
    return count


def gather(
    buf: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    offsets: cython.const_longlong[::1],
    data: cython.uchar[::1],
):
    """Copies from starts[i] on to data[offsets[i]:offsets[i + 1]]; False when a slice lies outside buf."""
    source, target = bytes_of(buf), room_of(data)
    size = buf.shape[0]
    is_inside: cython.bint = True
    with cython.nogil:
        for i in range(starts.shape[0]):
            length = offsets[i + 1] - offsets[i]
            if starts[i] < 0 or starts[i] > size - length:
                is_inside = False
                break
            copy(target, offsets[i], source, starts[i], length)
    return is_inside


def gather_runs(buf: cython.const_uchar[::1], runs: cython.longlong[:, ::1], data: cython.uchar[::1]):
    """Fills `data` with the bytes of each buf[runs[i, 0]:runs[i, 1]], one after the other; False when one lies outside,
    or when they are not as many."""
    size: i64 = 0
    for i in range(runs.shape[0]):
        start, stop = runs[i, 0], runs[i, 1]
        if not 0 <= start <= stop <= buf.shape[0] or stop - start > data.shape[0] - size:
            return False
        size += stop - start
    if size != data.shape[0]:
        return False
    source, target, places, count = bytes_of(buf), room_of(data), pairs_of(runs), runs.shape[0]
    with cython.nogil:
        put_runs(target, 0, source, places, count)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_runs(out: Room, at: i64, data: Bytes, runs: Numbers, count: i64) -> cython.void:
    """Copies data[runs[2 * i]:runs[2 * i + 1]] of the first `count` runs one after the other. Each is fetched while the
    one before it is copied."""
    for run in range(count):
        if run + 1 < count:
            line = runs[2 * run + 2]
            while line < runs[2 * run + 3]:
                prefetch(data, line)
                line += CACHE_LINE
        at = put(out, at, data, runs[2 * run], runs[2 * run + 1] - runs[2 * run])
