# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Records of the commit log, compiled: checked, scanned to columns, found, and written.

`formats.columns` says what each function does and makes its arguments; `formats.columns.plain` is the same in Python.
Every length is compared with what is left before it is used, so no bytes can lead a read or a write out of the buffer.
"""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    U1,
    copy,
    crc32,
    load16,
    load32,
    load64,
    pointer,
    store16,
    store32,
    store64,
)
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.columns import layout
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
)
from mqlake.message import MessageSysFlag

BORN_V6 = MessageSysFlag.BORNHOST_V6_FLAG
STORE_V6 = MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
PROP_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)


@compiled
def is_prop_crc(data, tail):
    """Whether the 20 bytes at `tail` are a property CRC, right or not; one byte of its name may be damaged."""
    wrong = 0
    for i in range(len(PROP_CRC_NAME)):
        if data[np.uint64(tail + i)] != PROP_CRC_NAME[i]:
            wrong += 1
            if wrong > 1:
                return False
    return True


@compiled
def prop_crc_matches(data, position, tail):
    """Whether the 20 bytes at `tail` are the property CRC of the record bytes from `position` to there."""
    for i in range(len(PROP_CRC_NAME)):
        if data[tail + i] != PROP_CRC_NAME[i]:
            return False
    rest = crc32(data, position, tail - position)
    for i in range(tail + len(PROP_CRC_NAME), tail + CRC32_TAIL_LENGTH - 1):
        if data[i] != 48 + rest % 10:
            return False
        rest //= 10
    return data[tail + CRC32_TAIL_LENGTH - 1] == 2


@compiled
def has_prop_crc(data, position, limit):
    """Whether a record with the right property CRC lies at `position`: then they are written here."""
    if limit - position < RECORD_SIZE_MIN:
        return False
    size, magic = np.int64(load32(data, position)), load32(data, position + 4)
    if (magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2) or not (
        RECORD_SIZE_MIN + CRC32_TAIL_LENGTH <= size <= limit - position
    ):
        return False
    return prop_crc_matches(data, position, position + size - CRC32_TAIL_LENGTH)


@compiled
def check(data, position, limit, base_offset, check_crc, force_prop_crc):
    """What begins at `position`: (kind, size, body length, topic start, topic length, properties length).

    The size is 0 unless the kind is MESSAGE or BLANK, the rest 0 unless it is MESSAGE. This is
    record.check_record, which also says why.
    """
    none = np.int64(0)
    invalid = np.int64(layout.INVALID), none, none, none, none, none
    truncated = np.int64(layout.TRUNCATED), none, none, none, none, none
    clean_end = np.int64(layout.END), none, none, none, none, none

    available = limit - position
    if available < END_FILE_MIN_BLANK_LENGTH:
        for i in range(position, limit):
            if data[np.uint64(i)] != 0:
                return truncated
        return clean_end
    size = np.int64(load32(data, position))
    magic = load32(data, position + 4)
    if size == 0:
        return clean_end
    if magic == BLANK_MAGIC_CODE:
        if size < END_FILE_MIN_BLANK_LENGTH:
            return invalid
        if size > available:
            return truncated
        return np.int64(layout.BLANK), size, none, none, none, none
    if magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2:
        return invalid
    if size < RECORD_SIZE_MIN:
        return invalid
    if size > available:
        return truncated
    end = position + size

    sys_flag = load32(data, position + 36)
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORN_V6:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STORE_V6:
        body_start += layout.IPV6_EXTRA
    topic_length_size = 1 if magic == MESSAGE_MAGIC_CODE else 2
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
    if load64(data, position + 28) != base_offset + position:
        return invalid
    if check_crc:
        tail = end - CRC32_TAIL_LENGTH
        has_tail = properties_length >= CRC32_TAIL_LENGTH and is_prop_crc(data, tail)
        if not (has_tail and prop_crc_matches(data, position, tail)):
            if body_length > 0 and crc32(data, body_start, body_length) != load32(data, position + 8):
                return invalid
            if has_tail and (force_prop_crc or has_prop_crc(data, end, limit)):
                return invalid
    return np.int64(layout.MESSAGE), size, body_length, topic_start, topic_length, properties_length


@compiled
def topic_number(
    data, start, length, record, topic_count, topic_starts, topic_lengths, slots, mask, topic_record
):
    """Number of the topic at `start`; a new one gets `topic_count` and is remembered by its record."""
    code = np.uint64(14695981039346656037)
    for i in range(start, start + length):
        code = (code ^ np.uint64(data[np.uint64(i)])) * np.uint64(1099511628211)
    slot = (code ^ (code >> np.uint64(32))) & mask
    while slots[slot] != 0:
        number = slots[slot] - 1
        known = topic_record[number]
        if topic_lengths[known] == length:
            known_start = topic_starts[known]
            i = 0
            while i < length and data[np.uint64(known_start + i)] == data[np.uint64(start + i)]:
                i += 1
            if i == length:
                return number
        slot = (slot + U1) & mask
    slots[slot] = topic_count + 1
    topic_record[topic_count] = record
    return np.int32(topic_count)


@compiled
def scan(buf, start, limit, base_offset, check_crc, force_prop_crc, wide, narrow, slots, topic_record):
    """Fills the blocks with the records of buf[start:limit]; (records, topics, end, stop).

    `slots` is zeroed, its length a power of two at least twice the records that fit; `topic_record[t]`
    becomes the first record of topic t.
    """
    data, slot_at, first_of = pointer(buf), pointer(slots), pointer(topic_record)
    topic_starts, topic_lengths = pointer(wide[layout.TOPIC_START]), pointer(narrow[layout.TOPIC_LENGTH])
    mask = np.uint64(len(slots) - 1)
    capacity = wide.shape[1]
    n = 0
    topics = 0
    position = start
    while n < capacity:
        if position == limit:
            return n, topics, position, layout.LIMIT
        kind, size, body_length, topic_start, topic_length, properties_length = check(
            data, position, limit, base_offset, check_crc, force_prop_crc
        )
        if kind != layout.MESSAGE:
            return n, topics, position + size, kind
        sys_flag = load32(data, position + 36)
        store_host_start = position + 64
        if sys_flag & BORN_V6:
            store_host_start += layout.IPV6_EXTRA
        after_hosts = store_host_start + 8
        if sys_flag & STORE_V6:
            after_hosts += layout.IPV6_EXTRA
        wide[layout.POSITION, n] = position
        wide[layout.PHYSICAL_OFFSET, n] = base_offset + position
        wide[layout.QUEUE_OFFSET, n] = load64(data, position + 20)
        wide[layout.BORN_TIMESTAMP, n] = load64(data, position + 40)
        wide[layout.STORE_TIMESTAMP, n] = load64(data, store_host_start - 8)
        wide[layout.PREPARED_TRANSACTION_OFFSET, n] = load64(data, after_hosts + 4)
        wide[layout.BODY_START, n] = after_hosts + 16
        wide[layout.TOPIC_START, n] = topic_start
        wide[layout.PROPERTIES_START, n] = topic_start + topic_length + 2
        wide[layout.BORN_HOST_START, n] = position + 48
        wide[layout.STORE_HOST_START, n] = store_host_start
        narrow[layout.SIZE, n] = size
        narrow[layout.QUEUE_ID, n] = load32(data, position + 12)
        narrow[layout.SYS_FLAG, n] = sys_flag
        narrow[layout.FLAG, n] = load32(data, position + 16)
        narrow[layout.BODY_CRC, n] = load32(data, position + 8)
        narrow[layout.RECONSUME_TIMES, n] = load32(data, after_hosts)
        narrow[layout.BODY_LENGTH, n] = body_length
        narrow[layout.TOPIC_LENGTH, n] = topic_length
        narrow[layout.PROPERTIES_LENGTH, n] = properties_length
        topic = topic_number(
            data, topic_start, topic_length, n, topics, topic_starts, topic_lengths, slot_at, mask, first_of
        )
        narrow[layout.TOPIC_ID, n] = topic
        topics = max(topics, topic + 1)
        n += 1
        position += size
    return n, topics, position, layout.LIMIT if position == limit else layout.MAX_RECORDS


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


# --- append ------------------------------------------------------------------------------------------------


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
    extra_length = len(template) - extra_start
    tail_length = extra_start - head_length + 2
    count = 0
    problem = np.int64(0)
    total = np.int64(0)
    item = np.int64(0)
    while item < len(blob):
        available = len(blob) - item
        if available < ITEM_SIZE_MIN:
            return np.int64(layout.BAD_BLOB), np.int64(0)
        item_size = np.int64(load32(blob, item))
        body_length = np.int64(load32(blob, item + 16))
        if (
            item_size < ITEM_SIZE_MIN
            or item_size > available
            or body_length < 0
            or body_length > item_size - ITEM_SIZE_MIN
        ):
            return np.int64(layout.BAD_BLOB), np.int64(0)
        properties_start = item + ITEM_SIZE_MIN + body_length
        own_length = np.int64(load16(blob, properties_start - 2))
        item += item_size
        if own_length < 0 or properties_start + own_length != item:
            return np.int64(layout.BAD_BLOB), np.int64(0)
        properties_length = own_length + extra_length
        if own_length > 0 and extra_length > 0 and blob[np.uint64(item - 1)] != 2:
            properties_length += 1
        size = head_length + body_length + tail_length + properties_length
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
    if total + END_FILE_MIN_BLANK_LENGTH > max_blank:
        return np.int64(layout.NO_ROOM), np.int64(0)

    item = np.int64(0)
    for n in range(count):
        body_length = np.int64(load32(blob, item + 16))
        body_start = item + ITEM_SIZE_MIN - 2
        own_start = body_start + body_length + 2
        own_length = np.int64(load16(blob, own_start - 2))
        if n > 0:
            store32(out, position, sizes[n])
        copy(out, position + 4, template, 4, head_length - 4)
        store32(out, position + 8, crc32(blob, body_start, body_length))
        store32(out, position + 16, load32(blob, item + 12))
        store64(out, position + 20, queue_offset + n)
        store64(out, position + 28, offsets[n])
        store32(out, position + head_length - 4, body_length)
        at = position + head_length
        copy(out, at, blob, body_start, body_length)
        at += body_length
        copy(out, at, template, head_length, extra_start - head_length)
        at += extra_start - head_length
        store16(out, at, position + sizes[n] - at - 2)
        at += 2
        copy(out, at, blob, own_start, own_length)
        at += own_length
        if at + extra_length < position + sizes[n]:
            out[np.uint64(at)] = 2
            at += 1
        copy(out, at, template, extra_start, extra_length)
        item = own_start + own_length
        position += sizes[n]
    if count > 0:
        store32(out, position, 0)
    return np.int64(count), total
