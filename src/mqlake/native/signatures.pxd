"""What other modules of native code use of signatures.pyx."""

from mqlake.native.frames cimport Pair
from mqlake.native.prim cimport *

cdef i64 find_signer(Bytes text, i64 start, i64 length, i64 *signers, i64 *slots, Bytes names) noexcept nogil
cdef bint is_signed(
    Room text, i64 at, Bytes data, i64 body, i64 stop, i64 *head, Pair *fields, i64 *signers, i64 signer, i64 *access,
) noexcept nogil
cdef i64 permit(i64 host, i64 signer, i64 queue) noexcept nogil
cdef i64 permit_slot(i64 *allowed, i64 number) noexcept nogil
