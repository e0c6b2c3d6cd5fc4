# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Records of the commit log: checked, scanned to columns, and found.

`formats.columns` says what each function does and makes its arguments; `formats.columns.plain` is the same in Python.
Every length is compared with what is left before it is used, so no bytes can lead a read or a write out of the buffer.
"""

import cython

from mqlake.native.checksums import crc32_address

if cython.compiled:
    from cython.cimports.mqlake.native import layout
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.formats.columns import layout
    from mqlake.native.constants import *
    from mqlake.native.prim import *

FETCHED_AHEAD = cython.declare(cython.longlong, 8192)
"""Bytes from a record's beginning on that are fetched before its CRC reads them: the processor does not fetch ahead
over the end of a page."""

use_crc32(crc32_address())


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_prop_crc(data: Bytes, tail: i64) -> cython.bint:
    """True if the 20 bytes at `tail` are a property CRC, right or not; one byte of its name may be damaged."""
    wrong = 0
    for i in range(PROP_CRC_NAME_LENGTH):
        if data[tail + i] != PROP_CRC_NAME[i]:
            wrong += 1
            if wrong > 1:
                return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def prop_crc_matches(data: Bytes, position: i64, tail: i64) -> cython.bint:
    """True if the 20 bytes at `tail` are the property CRC of the record bytes from `position` to there."""
    for i in range(PROP_CRC_NAME_LENGTH):
        if data[tail + i] != PROP_CRC_NAME[i]:
            return False
    rest = crc32(data, position, tail - position)
    for i in range(tail + PROP_CRC_NAME_LENGTH, tail + CRC32_TAIL_LENGTH - 1):
        if data[i] != ord("0") + rest % 10:
            return False
        rest //= 10
    return data[tail + CRC32_TAIL_LENGTH - 1] == PROPERTY_SEPARATOR


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def has_prop_crc(data: Bytes, position: i64, limit: i64) -> cython.bint:
    """True if a record with the right property CRC lies at `position`: then they are written here."""
    if limit - position < RECORD_SIZE_MIN:
        return False
    size, magic = acquire32(data, position), load32(data, position + 4)
    if (magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2) or not (
        RECORD_SIZE_MIN + CRC32_TAIL_LENGTH <= size <= limit - position
    ):
        return False
    return prop_crc_matches(data, position, position + size - CRC32_TAIL_LENGTH)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def has_right_crc(
    data: Bytes,
    position: i64,
    size: i64,
    limit: i64,
    body_start: i64,
    body_length: i64,
    properties_start: i64,
    force_prop_crc: cython.bint,
) -> cython.bint:
    """True if a record that is whole otherwise, of `size` bytes, is what was written there."""
    end = position + size
    tail = end - CRC32_TAIL_LENGTH
    has_tail: cython.bint = tail >= properties_start and is_prop_crc(data, tail)
    # A property CRC covers body and head. A client may have sent a property of that name to a store that writes none,
    # so a wrong one counts only where the next record has a right one, or where the caller says so.
    if has_tail and prop_crc_matches(data, position, tail):
        return True
    if body_length > 0 and crc32(data, body_start, body_length) != load32(data, position + BODY_CRC_POSITION):
        return False
    return not (has_tail and (force_prop_crc or has_prop_crc(data, end, limit)))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check(
    data: Bytes,
    position: i64,
    limit: i64,
    base_offset: i64,
    check_crc: cython.bint,
    force_prop_crc: cython.bint,
) -> tuple[i64, i64, i64, i64, i64, i64]:
    """Classifies the bytes at `position`: (kind, size, body length, topic start, topic length, properties length).

    The size is 0 unless the kind is MESSAGE or BLANK, the rest 0 unless it is MESSAGE. This is
    record.check_record, which also says why.
    """
    available = limit - position
    # Too few bytes for a size and a magic: nothing a writer makes, unless they are zeros.
    if available < END_FILE_MIN_BLANK_LENGTH:
        for i in range(position, limit):
            if data[i] != 0:
                return layout.TRUNCATED, 0, 0, 0, 0, 0
        return layout.END, 0, 0, 0, 0, 0
    size = acquire32(data, position)
    magic = load32(data, position + 4)
    if size == 0:  # the size is written last: nothing was finished here
        return layout.END, 0, 0, 0, 0, 0
    if magic == BLANK_MAGIC_CODE:
        if size < END_FILE_MIN_BLANK_LENGTH:  # a blank counts its own size and magic
            return layout.INVALID, 0, 0, 0, 0, 0
        if size > available:
            return layout.TRUNCATED, 0, 0, 0, 0, 0
        return layout.BLANK, size, 0, 0, 0, 0
    if magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2:
        return layout.INVALID, 0, 0, 0, 0, 0
    if size < RECORD_SIZE_MIN:  # the head would be read beyond the record
        return layout.INVALID, 0, 0, 0, 0, 0
    if size > available:  # torn, or the rest lies beyond the limit
        return layout.TRUNCATED, 0, 0, 0, 0, 0
    end = position + size

    sys_flag = load32(data, position + SYS_FLAG_POSITION)
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORNHOST_V6_FLAG:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STOREHOSTADDRESS_V6_FLAG:
        body_start += layout.IPV6_EXTRA
    topic_length_size = 1 if magic == MESSAGE_MAGIC_CODE else 2
    # RECORD_SIZE_MIN is that of IPv4 hosts and a one-byte topic length.
    if body_start + topic_length_size + 2 > end:
        return layout.INVALID, 0, 0, 0, 0, 0
    body_length = load32(data, body_start - 4)
    if body_length < 0 or body_length > end - body_start - topic_length_size - 2:
        return layout.INVALID, 0, 0, 0, 0, 0
    topic_start = body_start + body_length + topic_length_size
    if topic_length_size == 1:
        topic_length = signed_byte(data[topic_start - 1])
    else:
        topic_length = load16(data, topic_start - 2)
    if topic_length < 0 or topic_length > end - topic_start - 2:
        return layout.INVALID, 0, 0, 0, 0, 0
    properties_start = topic_start + topic_length + 2
    properties_length = load16(data, properties_start - 2)
    if properties_length < 0 or properties_start + properties_length != end:
        return layout.INVALID, 0, 0, 0, 0, 0
    # An image of a record (in a body, or from before a file was reused) says another offset than where it lies.
    if load64(data, position + PHYSICAL_OFFSET_POSITION) != base_offset + position:
        return layout.INVALID, 0, 0, 0, 0, 0
    if check_crc and not has_right_crc(
        data, position, size, limit, body_start, body_length, properties_start, force_prop_crc
    ):
        return layout.INVALID, 0, 0, 0, 0, 0
    return layout.MESSAGE, size, body_length, topic_start, topic_length, properties_length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fetch_ahead(data: Bytes, fetched: i64, end: i64) -> i64:
    """Begins to fetch what is left up to `end`; how far that is."""
    while fetched < end:
        prefetch(data, fetched)
        fetched += CACHE_LINE
    return fetched


def scan(
    buf: cython.const_uchar[::1],
    start: i64,
    limit: i64,
    base_offset: i64,
    check_crc: cython.bint,
    force_prop_crc: cython.bint,
    wide: cython.longlong[:, ::1],
    narrow: cython.int[:, ::1],
    slots: cython.int[::1],
    topic_record: cython.int[::1],
):
    """Fills the blocks with the records of buf[start:limit]; (records, topics, end, stop).

    As many as `topic_record` has room for. `slots` is zeroed, its length a power of two at least twice that;
    `topic_record[t]` becomes the first record of topic t.
    """
    if not cython.compiled:
        wide, narrow, slots, topic_record = views(wide, narrow, slots, topic_record)
    data = bytes_of(buf)
    with cython.nogil:
        found = scan_into(
            data, start, limit, base_offset, check_crc, force_prop_crc, wide, narrow, slots, topic_record
        )
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def scan_into(
    data: Bytes,
    start: i64,
    limit: i64,
    base_offset: i64,
    check_crc: cython.bint,
    force_prop_crc: cython.bint,
    wide: cython.longlong[:, ::1],
    narrow: cython.int[:, ::1],
    slots: cython.int[::1],
    topic_record: cython.int[::1],
) -> tuple[i64, i64, i64, i64]:
    """As scan()."""
    capacity = topic_record.shape[0]
    n: i64 = 0
    topics: i64 = 0
    topic: i64 = -1
    position = fetched = start
    while n < capacity:
        if position == limit:
            return n, topics, position, layout.LIMIT
        if check_crc:
            fetched = fetch_ahead(data, max(fetched, position), min(position + FETCHED_AHEAD, limit))
        kind, size, body_length, topic_start, topic_length, properties_length = check(
            data, position, limit, base_offset, check_crc, force_prop_crc
        )
        if kind != layout.MESSAGE:
            return n, topics, position + size, kind
        sys_flag = load32(data, position + SYS_FLAG_POSITION)
        store_host_start = position + BORN_HOST_POSITION + 16
        if sys_flag & BORNHOST_V6_FLAG:
            store_host_start += layout.IPV6_EXTRA
        after_hosts = store_host_start + 8
        if sys_flag & STOREHOSTADDRESS_V6_FLAG:
            after_hosts += layout.IPV6_EXTRA
        wide[layout.POSITION, n] = position
        wide[layout.PHYSICAL_OFFSET, n] = base_offset + position
        wide[layout.QUEUE_OFFSET, n] = load64(data, position + QUEUE_OFFSET_POSITION)
        wide[layout.BORN_TIMESTAMP, n] = load64(data, position + BORN_TIMESTAMP_POSITION)
        wide[layout.STORE_TIMESTAMP, n] = load64(data, store_host_start - 8)
        wide[layout.PREPARED_TRANSACTION_OFFSET, n] = load64(data, after_hosts + 4)
        wide[layout.BODY_START, n] = after_hosts + 16
        wide[layout.TOPIC_START, n] = topic_start
        wide[layout.PROPERTIES_START, n] = topic_start + topic_length + 2
        wide[layout.BORN_HOST_START, n] = position + BORN_HOST_POSITION
        wide[layout.STORE_HOST_START, n] = store_host_start
        narrow[layout.SIZE, n] = size
        narrow[layout.QUEUE_ID, n] = load32(data, position + QUEUE_ID_POSITION)
        narrow[layout.SYS_FLAG, n] = sys_flag
        narrow[layout.FLAG, n] = load32(data, position + FLAG_POSITION)
        narrow[layout.BODY_CRC, n] = load32(data, position + BODY_CRC_POSITION)
        narrow[layout.RECONSUME_TIMES, n] = load32(data, after_hosts)
        narrow[layout.BODY_LENGTH, n] = body_length
        narrow[layout.TOPIC_LENGTH, n] = topic_length
        narrow[layout.PROPERTIES_LENGTH, n] = properties_length
        # most records have the topic of the one before: no hash for those
        if n == 0 or not (
            topic_length == narrow[layout.TOPIC_LENGTH, n - 1]
            and same_bytes(data, topic_start, data, wide[layout.TOPIC_START, n - 1], topic_length)
        ):
            topic, slot = find_topic(data, topic_start, topic_length, wide, narrow, slots, topic_record)
            if topic < 0:
                topic = topics
                topics += 1
                slots[slot] = topics
                topic_record[topic] = n
        narrow[layout.TOPIC_ID, n] = topic
        n += 1
        position += size
    return n, topics, position, layout.LIMIT if position == limit else layout.MAX_RECORDS


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_topic(
    data: Bytes,
    start: i64,
    length: i64,
    wide: cython.longlong[:, ::1],
    narrow: cython.int[:, ::1],
    slots: cython.int[::1],
    topic_record: cython.int[::1],
) -> tuple[i64, i64]:
    """(number, slot) of the topic data[start:start + length]; (-1, the slot where it belongs) of a new one."""
    mask = slots.shape[0] - 1
    slot = slot_of(hash_bytes(data, start, length), mask)
    while slots[slot] != 0:
        record = topic_record[slots[slot] - 1]
        if narrow[layout.TOPIC_LENGTH, record] == length and same_bytes(
            data, wide[layout.TOPIC_START, record], data, start, length
        ):
            return slots[slot] - 1, slot
        slot = (slot + 1) & mask
    return -1, slot


def walk(buf: cython.const_uchar[::1], start: i64, limit: i64, base_offset: i64, check_crc: cython.bint):
    """As scan(), without columns: (records, store timestamp of the last, end, stop)."""
    data = bytes_of(buf)
    with cython.nogil:
        found = walk_over(data, start, limit, base_offset, check_crc)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_over(
    data: Bytes, start: i64, limit: i64, base_offset: i64, check_crc: cython.bint
) -> tuple[i64, i64, i64, i64]:
    """As walk()."""
    n: i64 = 0
    timestamp: i64 = 0
    position = start
    while position < limit:
        kind, size, _, _, _, _ = check(data, position, limit, base_offset, check_crc, False)
        if kind != layout.MESSAGE:
            return n, timestamp, position + size, kind
        timestamp_at = position + BORN_HOST_POSITION + 8
        if load32(data, position + SYS_FLAG_POSITION) & BORNHOST_V6_FLAG:
            timestamp_at += layout.IPV6_EXTRA
        timestamp = load64(data, timestamp_at)
        n += 1
        position += size
    return n, timestamp, position, layout.LIMIT


def find_record(buf: cython.const_uchar[::1], start: i64, limit: i64, base_offset: i64):
    """First position in [start, limit) where a whole valid record begins, -1 if there is none."""
    data = bytes_of(buf)
    found: i64 = -1
    with cython.nogil:
        for position in range(start, limit - RECORD_SIZE_MIN + 1):
            if data[position + 4] == 0xDA and is_record(data, position, limit, base_offset):
                found = position
                break
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_record(data: Bytes, position: i64, limit: i64, base_offset: i64) -> cython.bint:
    """True if a whole record lies there."""
    kind, _, _, _, _, _ = check(data, position, limit, base_offset, True, False)
    return kind == layout.MESSAGE
