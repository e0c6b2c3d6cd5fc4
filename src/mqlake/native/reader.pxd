"""What takers of a connection's reads have in common."""

from mqlake.native.prim cimport Bytes, i64

cdef class Taker:
    cdef i64 take(self, connection, Bytes data, i64 start, i64 size, i64 began) except -1
