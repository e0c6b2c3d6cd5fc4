"""The one way of bytes into the commit log: a record written but for its size, and its size, which makes it visible.

    Record ─ write_record ─▶ 0000 │ MAGIC │ CRC │ ... │ body │ topic │ length of the properties │   the caller's
                             publish ─▶ TOTALSIZE, after all of it

Whoever appends compiled (a put of one message, a batch, a broker's sends, the commit of a half message, a lease) fills a
Record, puts the properties after it, ends the log (`terminate`) and publishes; nothing else of native code writes a size
to the log. Functions in line: where a field is a constant there is nothing left of it.
"""

from mqlake.native.constants cimport *
from mqlake.native.prim cimport *

cdef enum:
    HOST_LENGTH_V4 = 8
    HEAD_SIZE_V4 = RECORD_SIZE_MIN - 3  # bytes of a record before its body, between IPv4 hosts

cdef struct Record:
    # what a record says, but for where it is: its numbers, its hosts as it has them, its body with the CRC-32, its
    # topic with the length before it, and how many bytes of properties follow
    i64 magic, queue_id, flag, sys_flag, born_timestamp, store_timestamp, reconsume_times, prepared_offset
    Bytes born_host
    i64 born_host_length
    Bytes store_host
    i64 store_host_length
    Bytes body
    i64 body_length
    i64 body_crc
    Bytes topic
    i64 topic_length
    i64 properties_length


cdef inline i64 size_of(Record *r) noexcept nogil:
    """TOTALSIZE."""
    cdef i64 hosts = r.born_host_length + r.store_host_length
    return HEAD_SIZE_V4 - 2 * HOST_LENGTH_V4 + hosts + r.body_length + r.topic_length + 2 + r.properties_length


cdef inline i64 put_host(Room out, i64 at, Bytes host, i64 length) noexcept nogil:
    if length == HOST_LENGTH_V4:
        store_word(out, at, load_word(host, 0))
        return at + HOST_LENGTH_V4
    return put(out, at, host, 0, length)


cdef inline i64 write_record(Room out, i64 position, Record *r, i64 queue_offset, i64 physical_offset) noexcept nogil:
    """Writes the record at out[position:] up to its properties, without its TOTALSIZE; where those begin."""
    store32(out, position + 4, r.magic)
    store32(out, position + BODY_CRC_POSITION, r.body_crc)
    store32(out, position + QUEUE_ID_POSITION, r.queue_id)
    store32(out, position + FLAG_POSITION, r.flag)
    store64(out, position + QUEUE_OFFSET_POSITION, queue_offset)
    store64(out, position + PHYSICAL_OFFSET_POSITION, physical_offset)
    store32(out, position + SYS_FLAG_POSITION, r.sys_flag)
    store64(out, position + BORN_TIMESTAMP_POSITION, r.born_timestamp)
    cdef i64 at = put_host(out, position + BORN_HOST_POSITION, r.born_host, r.born_host_length)
    store64(out, at, r.store_timestamp)
    at = put_host(out, at + 8, r.store_host, r.store_host_length)
    store32(out, at, r.reconsume_times)
    store64(out, at + 4, r.prepared_offset)
    store32(out, at + 12, r.body_length)
    at = put(out, at + 16, r.body, 0, r.body_length)
    at = put(out, at, r.topic, 0, r.topic_length)
    store16(out, at, r.properties_length)
    return at + 2


cdef inline i64 ended_length(Bytes properties, i64 start, i64 length) noexcept nogil:
    """The bytes that put_ended writes."""
    return length + (length > 0 and properties[start + length - 1] != PROPERTY_SEPARATOR)


cdef inline i64 put_ended(Room out, i64 at, Bytes properties, i64 start, i64 length) noexcept nogil:
    """Copies properties, and the separator after the last one if it is missing; the position after them."""
    at = put(out, at, properties, start, length)
    # what was just written is not read: the processor would wait until the log's line is in its cache
    if ended_length(properties, start, length) > length:
        out[at] = PROPERTY_SEPARATOR
        at += 1
    return at


cdef inline void terminate(Room out, i64 end) noexcept nogil:
    """Ends the log after the last record with a size of zero, over whatever the file held there before. The caller has
    kept room for a blank, which is longer."""
    store32(out, end, 0)


cdef inline void publish(Room out, i64 position, i64 size) noexcept nogil:
    """Writes the TOTALSIZE of a record that is there but for it. Of records that are appended together that of the first
    one comes last: a reader sees none of them, and then all, and a process that is killed before leaves none that seems
    to be whole."""
    release32(out, position, size)


cdef (i64, i64, i64) read_item(Bytes blob, i64 position, i64 end) noexcept nogil
cdef (i64, i64) append_items(
    Room log, i64 position, i64 max_blank, Bytes data, i64 length, Record *record, Bytes extra, i64 extra_length,
    i64 queue_offset, i64 base_offset, i64 max_record_size, i64 *offsets, i32 *sizes,
) noexcept nogil
