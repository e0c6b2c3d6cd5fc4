"""What other modules of native code use of frames.pyx."""

from mqlake.native.text cimport *

ctypedef i64 Pair[2]

cdef void place_fields(i64 *head, Pair *fields, i64 at) noexcept nogil
cdef (bint, i64) whole_number(Room text, i64 start, i64 length, i64 low, i64 high) noexcept nogil
cdef (i64, i64) read_frame(
    Bytes buf, i64 start, i64 end, i64 *head, Pair *fields, Room text, i64 text_size, i64 at, Room shapes,
) noexcept nogil
