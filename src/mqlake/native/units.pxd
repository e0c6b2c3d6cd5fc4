"""What other native modules call of `units`."""

from mqlake.native.prim cimport Bytes, Numbers, Room, i64

cdef (i64, i64, i64) follow(
    Bytes data, i64 end, i64 base_offset, Bytes units, i64 units_at, i64 unit_count, Bytes topic, i64 topic_at,
    i64 own_topic_length, i64 queue_id, i64 queue_offset, Numbers queue_offsets, i64 bytes_max, bint check_crc,
    i64 *runs,
) noexcept nogil
cdef void put_runs(Room out, i64 at, Bytes data, Numbers runs, i64 count) noexcept nogil
