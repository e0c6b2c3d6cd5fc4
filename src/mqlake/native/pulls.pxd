"""What other modules of native code use of pulls.pyx."""

from mqlake.native.prim cimport *
from mqlake.native.pull_layout cimport PLAN_SIZE, PULL_SIZE

ctypedef i64 Plan[PLAN_SIZE]
ctypedef i64 Pull[PULL_SIZE]

cdef struct Given:
    # how many pulls, the bytes of their answers, how many of these were sent
    i64 pulls
    i64 size
    i64 sent

cdef i64 take(Bytes received, i64 start, i64 stop, int fd, i64 *numbers, Room octets) noexcept nogil
