"""What other native modules call of `records`."""

from mqlake.native.prim cimport Bytes, i64

cdef bint has_right_crc(
    Bytes data, i64 position, i64 size, i64 limit, i64 body_start, i64 body_length, i64 properties_start,
    bint force_prop_crc,
) noexcept nogil
cdef (i64, i64, i64, i64, i64, i64) check(
    Bytes data, i64 position, i64 limit, i64 base_offset, bint check_crc, bint force_prop_crc
) noexcept nogil
