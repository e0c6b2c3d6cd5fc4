"""read_digits() of text.h as a pair, for pure mode."""

from mqlake.native.prim cimport Bytes, i64
from mqlake.native.text cimport read_digits


cdef inline (i64, i64) digits(Bytes p, i64 at, i64 end) noexcept nogil:
    """(number, position after it); position -1 when 63 bits do not hold it."""
    cdef i64 number
    cdef i64 after = read_digits(p, at, end, &number)
    return number, after
