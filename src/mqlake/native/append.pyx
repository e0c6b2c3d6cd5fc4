# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Batches to records of the log, by the functions of append.pxd.

`formats.columns.append_batch` makes the arguments; `formats.columns.plain` is the same in Python.
"""

from mqlake.native cimport layout
from mqlake.native.constants cimport *
from mqlake.native.prim cimport *

from mqlake.native.checksums import crc32_address

cdef extern from *:
    """
    static inline void mq_keep_order(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
    """
    void mq_keep_order() noexcept nogil

use_crc32(crc32_address())


def keep_order():
    """What was written before this call is written before what comes after it, for other threads and processes: for
    Python, which writes a record and then its size."""
    mq_keep_order()


cdef (i64, i64, i64) read_item(Bytes blob, i64 position, i64 end) noexcept nogil:
    """(size, body length, properties length) of the message of a batch (`formats.batch`) at `position`; size 0 when its
    lengths do not add up within `end`, so that nothing of it may be read."""
    if end - position < ITEM_SIZE_MIN:
        return 0, 0, 0
    size = load32(blob, position)
    body_length = load32(blob, position + 16)
    if size < ITEM_SIZE_MIN or size > end - position or not 0 <= body_length <= size - ITEM_SIZE_MIN:
        return 0, 0, 0
    properties_length = load16(blob, position + ITEM_SIZE_MIN - 2 + body_length)
    if properties_length != size - ITEM_SIZE_MIN - body_length:
        return 0, 0, 0
    return size, body_length, properties_length


cdef (i64, i64) append_items(
    Room log, i64 position, i64 max_blank, Bytes data, i64 length, Record *record, Bytes extra, i64 extra_length,
    i64 queue_offset, i64 base_offset, i64 max_record_size, i64 *offsets, i32 *sizes,
) noexcept nogil:
    """Writes a record of each message of a blob of `length` bytes, as append_batch() says; `record` has what they
    share, offsets and sizes have room for as many as the blob can have messages."""
    cdef i64 count = 0, problem = 0, total = 0, item = 0, at
    while item < length:
        item_size, body_length, own_length = read_item(data, item, length)
        if item_size == 0:
            return layout.BAD_BLOB, 0
        item += item_size
        properties_length = own_length + extra_length
        if extra_length > 0:
            properties_length = ended_length(data, item - own_length, own_length) + extra_length
        record.body_length, record.properties_length = body_length, properties_length
        size = size_of(record)
        # A batch with damage in a later message is BAD_BLOB, so the walk goes on to its end.
        if problem == 0 and properties_length > PROPERTIES_LENGTH_MAX:
            problem = layout.PROPERTIES_TOO_LARGE
        elif problem == 0 and size > max_record_size:
            problem = layout.RECORD_TOO_LARGE
        offsets[count] = base_offset + position + total
        sizes[count] = size
        total += size
        count += 1
    if problem != 0:
        return problem, 0
    if total + END_FILE_MIN_BLANK_LENGTH > max_blank:  # each file ends with a blank
        return layout.NO_ROOM, 0

    item = 0
    for n in range(count):
        item_size, body_length, own_length = read_item(data, item, length)
        record.flag = load32(data, item + 12)
        record.body, record.body_length = data + item + ITEM_SIZE_MIN - 2, body_length
        record.body_crc = crc32(record.body, 0, body_length)
        item += item_size
        record.properties_length = own_length
        if extra_length > 0:
            record.properties_length = ended_length(data, item - own_length, own_length) + extra_length
        at = write_record(log, position, record, queue_offset + n, offsets[n])
        if extra_length > 0:
            at = put_ended(log, at, data, item - own_length, own_length)
            copy(log, at, extra, 0, extra_length)
        else:  # as they came: the last property needs no separator
            copy(log, at, data, item - own_length, own_length)
        if n > 0:
            publish(log, position, sizes[n])
        position += sizes[n]
    if count > 0:
        terminate(log, position)
    return count, total


cdef Record record_like(Bytes head, i64 topic_start, i64 topic_length) noexcept nogil:
    """What a record's head says, of which the topic is at head[topic_start:]."""
    cdef Record record
    record.magic, record.queue_id = load32(head, 4), load32(head, QUEUE_ID_POSITION)
    record.flag, record.sys_flag = load32(head, FLAG_POSITION), load32(head, SYS_FLAG_POSITION)
    record.born_timestamp = load64(head, BORN_TIMESTAMP_POSITION)
    record.born_host, record.born_host_length = head + BORN_HOST_POSITION, HOST_LENGTH_V4
    if record.sys_flag & BORNHOST_V6_FLAG:
        record.born_host_length += layout.IPV6_EXTRA
    at = BORN_HOST_POSITION + record.born_host_length
    record.store_timestamp = load64(head, at)
    record.store_host, record.store_host_length = head + at + 8, HOST_LENGTH_V4
    if record.sys_flag & STOREHOSTADDRESS_V6_FLAG:
        record.store_host_length += layout.IPV6_EXTRA
    at += 8 + record.store_host_length
    record.reconsume_times, record.prepared_offset = load32(head, at), load64(head, at + 4)
    record.topic, record.topic_length = head + topic_start, topic_length
    return record


def append_batch(
    u8[::1] out, i64 position, i64 max_blank, const u8[::1] blob, const u8[::1] template, i64 head_length,
    i64 extra_start, i64 queue_offset, i64 base_offset, i64 max_record_size, i64[::1] offsets, i32[::1] sizes,
):
    """Turns the messages of `blob` into records at out[position:]; (records or a code < 0, bytes).

    `template` is what all records share: a head up to the body (head_length bytes), the topic length and the topic (up
    to extra_start), the batch's own properties. Nothing is written unless everything can be, and the first record's
    TOTALSIZE not at all.
    """
    cdef Room log = room_of(out)
    cdef Bytes data = bytes_of(blob), head = bytes_of(template)
    cdef i64 length = blob.shape[0], extra_length = template.shape[0] - extra_start
    cdef i64 *record_offsets = i64s_of(offsets)
    cdef i32 *record_sizes = i32s_of(sizes)
    cdef Record record
    if not HEAD_SIZE_V4 <= head_length <= extra_start <= template.shape[0]:
        raise ValueError(f"a template of {template.shape[0]} bytes, {head_length} and {extra_start}")
    with nogil:
        record = record_like(head, head_length, extra_start - head_length)
        found = append_items(
            log, position, max_blank, data, length, &record, head + extra_start, extra_length, queue_offset,
            base_offset, max_record_size, record_offsets, record_sizes,
        )
    return found
