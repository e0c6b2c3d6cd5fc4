# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""The walk over MetaQ's records: `metaq.formats.scan` calls it where there is enough to walk over."""

import cython

from mqlake.native.checksums import crc32_address

if cython.compiled:
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.native.constants import *
    from mqlake.native.prim import *

use_crc32(crc32_address())

HEADER_SIZE = cython.declare(cython.longlong, 20)
"""Size of a record's header: its length, checksum, id and flag."""
LIMIT, MAX_RECORDS, TRUNCATED, INVALID = range(4)


def scan(
    buf: cython.const_uchar[::1],
    start: i64,
    limit: i64,
    check_crc: cython.bint,
    position: cython.longlong[::1],
    length: cython.int[::1],
    message_id: cython.longlong[::1],
    flag: cython.int[::1],
):
    """Fills the four columns; (records, where the walk stopped, why)."""
    data = bytes_of(buf)
    with cython.nogil:
        found = scan_into(data, start, limit, check_crc, position, length, message_id, flag)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def scan_into(
    data: Bytes,
    start: i64,
    limit: i64,
    check_crc: cython.bint,
    position: cython.longlong[::1],
    length: cython.int[::1],
    message_id: cython.longlong[::1],
    flag: cython.int[::1],
) -> tuple[i64, i64, i64]:
    """As scan()."""
    n: i64 = 0
    at = start
    while at < limit:
        if n == position.shape[0]:
            return n, at, 1
        if limit - at < HEADER_SIZE:
            return n, at, 2
        size = load32(data, at)
        if size < 0:
            return n, at, 3
        if size > limit - at - HEADER_SIZE:
            return n, at, 2
        if check_crc and crc32(data, at + HEADER_SIZE, size) != load32(data, at + 4):
            return n, at, 3
        position[n] = at
        length[n] = size
        message_id[n] = load64(data, at + 8)
        flag[n] = load32(data, at + 16)
        n += 1
        at += HEADER_SIZE + size
    return n, at, 0
