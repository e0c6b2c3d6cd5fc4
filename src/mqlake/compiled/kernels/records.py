# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Records of the commit log, compiled: checked, scanned to columns, found, and written.

`formats.columns` says what each function does and makes its arguments; `formats.columns.plain` is the same in Python.
Every length is compared with what is left before it is used, so no bytes can lead a read or a write out of the buffer.
"""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    CACHE_LINE,
    PROPERTY_SEPARATOR,
    ZERO,
    copy,
    crc32,
    find,
    hash_bytes,
    keep_order,
    load16,
    load32,
    load64,
    pointer,
    prefetch,
    put,
    same_bytes,
    store16,
    store32,
    store64,
)
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.columns import layout
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    BODY_CRC_POSITION,
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    FLAG_POSITION,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PHYSICAL_OFFSET_POSITION,
    PROPERTIES_LENGTH_MAX,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    RECORD_SIZE_MIN,
    SYS_FLAG_POSITION,
)
from mqlake.message import MessageSysFlag

BORN_V6 = MessageSysFlag.BORNHOST_V6_FLAG
STORE_V6 = MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
PROP_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)

FETCHED_AHEAD = 8192
"""Bytes from a record's beginning on that are fetched before its CRC reads them: the processor does not fetch ahead
over the end of a page."""


@compiled
def is_prop_crc(data, tail):
    """True if the 20 bytes at `tail` are a property CRC, right or not; one byte of its name may be damaged."""
    wrong = 0
    for i in range(len(PROP_CRC_NAME)):
        if data[np.uint64(tail + i)] != PROP_CRC_NAME[i]:
            wrong += 1
            if wrong > 1:
                return False
    return True


@compiled
def prop_crc_matches(data, position, tail):
    """True if the 20 bytes at `tail` are the property CRC of the record bytes from `position` to there."""
    for i in range(len(PROP_CRC_NAME)):
        if data[tail + i] != PROP_CRC_NAME[i]:
            return False
    rest = crc32(data, position, tail - position)
    for i in range(tail + len(PROP_CRC_NAME), tail + CRC32_TAIL_LENGTH - 1):
        if data[i] != ZERO + rest % 10:
            return False
        rest //= 10
    return data[tail + CRC32_TAIL_LENGTH - 1] == PROPERTY_SEPARATOR


@compiled
def has_prop_crc(data, position, limit):
    """True if a record with the right property CRC lies at `position`: then they are written here."""
    if limit - position < RECORD_SIZE_MIN:
        return False
    size, magic = np.int64(load32(data, position)), load32(data, position + 4)
    if (magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2) or not (
        RECORD_SIZE_MIN + CRC32_TAIL_LENGTH <= size <= limit - position
    ):
        return False
    return prop_crc_matches(data, position, position + size - CRC32_TAIL_LENGTH)


@compiled
def has_right_crc(data, position, size, limit, body_start, body_length, properties_start, force_prop_crc):
    """True if a record that is whole otherwise, of `size` bytes, is what was written there."""
    end = position + size
    tail = end - CRC32_TAIL_LENGTH
    has_tail = tail >= properties_start and is_prop_crc(data, tail)
    # A property CRC covers body and head. A client may have sent a property of that name to a store that writes none,
    # so a wrong one counts only where the next record has a right one, or where the caller says so.
    if has_tail and prop_crc_matches(data, position, tail):
        return True
    if body_length > 0 and crc32(data, body_start, body_length) != load32(data, position + BODY_CRC_POSITION):
        return False
    return not (has_tail and (force_prop_crc or has_prop_crc(data, end, limit)))


@compiled
def check(data, position, limit, base_offset, check_crc, force_prop_crc):
    """Classifies the bytes at `position`: (kind, size, body length, topic start, topic length, properties length).

    The size is 0 unless the kind is MESSAGE or BLANK, the rest 0 unless it is MESSAGE. This is
    record.check_record, which also says why.
    """
    none = np.int64(0)
    invalid = np.int64(layout.INVALID), none, none, none, none, none
    truncated = np.int64(layout.TRUNCATED), none, none, none, none, none
    clean_end = np.int64(layout.END), none, none, none, none, none

    available = limit - position
    # Too few bytes for a size and a magic: nothing a writer makes, unless they are zeros.
    if available < END_FILE_MIN_BLANK_LENGTH:
        for i in range(position, limit):
            if data[np.uint64(i)] != 0:
                return truncated
        return clean_end
    size = np.int64(load32(data, position))
    magic = load32(data, position + 4)
    if size == 0:  # the size is written last: nothing was finished here
        return clean_end
    if magic == BLANK_MAGIC_CODE:
        if size < END_FILE_MIN_BLANK_LENGTH:  # a blank counts its own size and magic
            return invalid
        if size > available:
            return truncated
        return np.int64(layout.BLANK), size, none, none, none, none
    if magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2:
        return invalid
    if size < RECORD_SIZE_MIN:  # the head would be read beyond the record
        return invalid
    if size > available:  # torn, or the rest lies beyond the limit
        return truncated
    end = position + size

    sys_flag = load32(data, position + SYS_FLAG_POSITION)
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORN_V6:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STORE_V6:
        body_start += layout.IPV6_EXTRA
    topic_length_size = 1 if magic == MESSAGE_MAGIC_CODE else 2
    # RECORD_SIZE_MIN is that of IPv4 hosts and a one-byte topic length.
    if body_start + topic_length_size + 2 > end:
        return invalid
    body_length = np.int64(load32(data, body_start - 4))
    if body_length < 0 or body_length > end - body_start - topic_length_size - 2:
        return invalid
    topic_start = body_start + body_length + topic_length_size
    if topic_length_size == 1:
        topic_length = np.int64(np.int8(data[np.uint64(topic_start - 1)]))
    else:
        topic_length = np.int64(load16(data, topic_start - 2))
    if topic_length < 0 or topic_length > end - topic_start - 2:
        return invalid
    properties_start = topic_start + topic_length + 2
    properties_length = np.int64(load16(data, properties_start - 2))
    if properties_length < 0 or properties_start + properties_length != end:
        return invalid
    # An image of a record (in a body, or from before a file was reused) says another offset than where it lies.
    if load64(data, position + PHYSICAL_OFFSET_POSITION) != base_offset + position:
        return invalid
    if check_crc and not has_right_crc(
        data, position, size, limit, body_start, body_length, properties_start, force_prop_crc
    ):
        return invalid
    return np.int64(layout.MESSAGE), size, body_length, topic_start, topic_length, properties_length


@compiled
def is_topic(number, key):
    data, start, length, first_of, starts, lengths = key
    record = first_of[number]
    return lengths[record] == length and same_bytes(data, starts[record], data, start, length)


@compiled
def fetch_ahead(data, fetched, end):
    """Begins to fetch what is left up to `end`; how far that is."""
    while fetched < end:
        prefetch(data, fetched)
        fetched += CACHE_LINE
    return fetched


@compiled
def scan(buf, start, limit, base_offset, check_crc, force_prop_crc, wide, narrow, slots, topic_record):
    """Fills the blocks with the records of buf[start:limit]; (records, topics, end, stop).

    As many as `topic_record` has room for. `slots` is zeroed, its length a power of two at least twice that;
    `topic_record[t]` becomes the first record of topic t.
    """
    data, slot_at, first_of = pointer(buf), pointer(slots), pointer(topic_record)
    topic_starts, topic_lengths = pointer(wide[layout.TOPIC_START]), pointer(narrow[layout.TOPIC_LENGTH])
    mask = np.uint64(len(slots) - 1)
    capacity = len(topic_record)
    n = 0
    topics = 0
    topic = np.int64(-1)
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
        if sys_flag & BORN_V6:
            store_host_start += layout.IPV6_EXTRA
        after_hosts = store_host_start + 8
        if sys_flag & STORE_V6:
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
            topic_length == topic_lengths[n - 1]
            and same_bytes(data, topic_start, data, topic_starts[n - 1], topic_length)
        ):
            key = data, topic_start, topic_length, first_of, topic_starts, topic_lengths
            topic, slot = find(slot_at, mask, hash_bytes(data, topic_start, topic_length), is_topic, key)
            if topic < 0:
                topic = np.int64(topics)
                topics += 1
                slot_at[slot] = topics
                first_of[topic] = n
        narrow[layout.TOPIC_ID, n] = topic
        n += 1
        position += size
    return n, topics, position, layout.LIMIT if position == limit else layout.MAX_RECORDS


@compiled
def walk(buf, start, limit, base_offset, check_crc):
    """As scan(), without columns: (records, store timestamp of the last, end, stop)."""
    data = pointer(buf)
    n = 0
    timestamp = np.int64(0)
    position = start
    while position < limit:
        kind, size, _, _, _, _ = check(data, position, limit, base_offset, check_crc, False)
        if kind != layout.MESSAGE:
            return n, timestamp, position + size, kind
        timestamp_at = position + BORN_HOST_POSITION + 8
        if load32(data, position + SYS_FLAG_POSITION) & BORN_V6:
            timestamp_at += layout.IPV6_EXTRA
        timestamp = load64(data, timestamp_at)
        n += 1
        position += size
    return n, timestamp, position, np.int64(layout.LIMIT)


@compiled
def find_record(buf, start, limit, base_offset):
    """First position in [start, limit) where a whole valid record begins, -1 if there is none."""
    data = pointer(buf)
    for position in range(start, limit - RECORD_SIZE_MIN + 1):
        if data[np.uint64(position + 4)] != 0xDA:
            continue
        if check(data, position, limit, base_offset, True, False)[0] == layout.MESSAGE:
            return position
    return -1


# --- write ---------------------------------------------------------------------------------------------------


@compiled
def write_record(
    out,
    position,
    size,
    head,
    head_length,
    flag,
    queue_offset,
    physical_offset,
    data,
    body_start,
    body_length,
    topic,
    topic_start,
    topic_length,
):
    """Writes the record at out[position:position + size] up to its properties, without its TOTALSIZE; where those
    begin.

    `head` has the fields that the records of an append share, topic[topic_start:] the topic with its length before it
    (`topic_length` bytes together).
    """
    copy(out, position + 4, head, 4, head_length - 4)
    store32(out, position + BODY_CRC_POSITION, crc32(data, body_start, body_length))
    store32(out, position + FLAG_POSITION, flag)
    store64(out, position + QUEUE_OFFSET_POSITION, queue_offset)
    store64(out, position + PHYSICAL_OFFSET_POSITION, physical_offset)
    store32(out, position + head_length - 4, body_length)
    at = put(out, position + head_length, data, body_start, body_length)
    at = put(out, at, topic, topic_start, topic_length)
    store16(out, at, position + size - at - 2)
    return at + 2


@compiled
def finish_record(out, position, is_first, size):
    """Writes the TOTALSIZE of a record that is there but for it: a process that is killed before leaves no record that
    seems to be whole. That of the first record of an append is left to the publisher: a reader sees none of them, and
    then all."""
    if not is_first:
        keep_order()
        store32(out, position, size)


@compiled
def put_ended(out, at, properties, start, length):
    """Copies properties, and the separator after the last one if it is missing; the position after them."""
    at = put(out, at, properties, start, length)
    # what was just written is not read: the processor would wait until the log's line is in its cache
    if ended_length(properties, start, length) > length:
        out[np.uint64(at)] = PROPERTY_SEPARATOR
        at += 1
    return at


@compiled
def ended_length(properties, start, length):
    """The bytes that put_ended writes."""
    return length + (length > 0 and properties[np.uint64(start + length - 1)] != PROPERTY_SEPARATOR)


@compiled
def terminate(out, end):
    """Ends the log after the last record with a size of zero, over whatever the file held there before. The caller has
    kept room for a blank, which is longer."""
    store32(out, end, 0)


@compiled
def read_item(blob, position, end):
    """(size, body length, properties length) of the message of a batch (`formats.batch`) at `position`; size 0 when its
    lengths do not add up within `end`, so that nothing of it may be read."""
    none = np.int64(0), np.int64(0), np.int64(0)
    if end - position < ITEM_SIZE_MIN:
        return none
    size = np.int64(load32(blob, position))
    body_length = np.int64(load32(blob, position + 16))
    if size < ITEM_SIZE_MIN or size > end - position or not 0 <= body_length <= size - ITEM_SIZE_MIN:
        return none
    properties_length = np.int64(load16(blob, position + ITEM_SIZE_MIN - 2 + body_length))
    if properties_length != size - ITEM_SIZE_MIN - body_length:
        return none
    return size, body_length, properties_length


@compiled
def append_batch(
    out,
    position,
    max_blank,
    blob,
    template,
    head_length,
    extra_start,
    queue_offset,
    base_offset,
    max_record_size,
    offsets,
    sizes,
):
    """Turns the messages of `blob` into records at out[position:]; (records or a code < 0, bytes).

    `template` is what all records share: a head up to the body (head_length bytes), the topic length and the
    topic (up to extra_start), the batch's own properties. Nothing is written unless everything can be.
    """
    shared = pointer(template)
    return append_items(
        pointer(out),
        position,
        max_blank,
        pointer(blob),
        len(blob),
        shared,
        head_length,
        shared,
        head_length,
        extra_start - head_length,
        shared,
        extra_start,
        len(template) - extra_start,
        queue_offset,
        base_offset,
        max_record_size,
        pointer(offsets),
        pointer(sizes),
    )


@compiled
def append_items(
    log,
    position,
    max_blank,
    data,
    length,
    head,
    head_length,
    topic,
    topic_start,
    topic_length,
    extra,
    extra_start,
    extra_length,
    queue_offset,
    base_offset,
    max_record_size,
    offsets,
    sizes,
):
    """As append_batch, of a blob of `length` bytes: `head` as write_record takes it, and so the topic; the batch's own
    properties; room for the offsets and sizes of as many records as the blob can have messages."""
    count = 0
    problem = np.int64(0)
    total = np.int64(0)
    item = np.int64(0)
    while item < length:
        item_size, body_length, own_length = read_item(data, item, length)
        if item_size == 0:
            return np.int64(layout.BAD_BLOB), np.int64(0)
        item += item_size
        properties_length = own_length + extra_length
        if extra_length > 0:
            properties_length = ended_length(data, item - own_length, own_length) + extra_length
        size = head_length + body_length + topic_length + 2 + properties_length
        # A batch with damage in a later message is BAD_BLOB, so the walk goes on to its end.
        if problem == 0 and properties_length > PROPERTIES_LENGTH_MAX:
            problem = np.int64(layout.PROPERTIES_TOO_LARGE)
        elif problem == 0 and size > max_record_size:
            problem = np.int64(layout.RECORD_TOO_LARGE)
        offsets[count] = base_offset + position + total
        sizes[count] = size
        total += size
        count += 1
    if problem != 0:
        return problem, np.int64(0)
    if total + END_FILE_MIN_BLANK_LENGTH > max_blank:  # each file ends with a blank
        return np.int64(layout.NO_ROOM), np.int64(0)

    item = np.int64(0)
    for n in range(count):
        item_size, body_length, own_length = read_item(data, item, length)
        at = write_record(
            log,
            position,
            sizes[n],
            head,
            head_length,
            load32(data, item + 12),
            queue_offset + n,
            offsets[n],
            data,
            item + ITEM_SIZE_MIN - 2,
            body_length,
            topic,
            topic_start,
            topic_length,
        )
        item += item_size
        if extra_length > 0:
            at = put_ended(log, at, data, item - own_length, own_length)
            copy(log, at, extra, extra_start, extra_length)
        else:  # as they came: the last property needs no separator
            copy(log, at, data, item - own_length, own_length)
        finish_record(log, position, n == 0, sizes[n])
        position += sizes[n]
    if count > 0:
        terminate(log, position)
    return np.int64(count), total
