# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The walk over records compiled by numba; `scan` calls it where there is enough to walk over."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import crc32, load32, load64
from mqlake.metaq.formats.record import HEADER_SIZE

LIMIT, MAX_RECORDS, TRUNCATED, INVALID = range(4)


@compiled
def scan(buf, start, limit, check_crc, position, length, message_id, flag):
    """Fills the four columns; (records, where the walk stopped, why)."""
    n = 0
    at = start
    capacity = len(position)
    while True:
        if at == limit:
            return n, at, LIMIT
        if n == capacity:
            return n, at, MAX_RECORDS
        if limit - at < HEADER_SIZE:
            return n, at, TRUNCATED
        size = np.int64(load32(buf, at))
        if size < 0:
            return n, at, INVALID
        if size > limit - at - HEADER_SIZE:
            return n, at, TRUNCATED
        if check_crc:
            crc = crc32(buf, at + HEADER_SIZE, size) if size else np.int32(0)
            if crc != load32(buf, at + 4):
                return n, at, INVALID
        position[n] = at
        length[n] = size
        message_id[n] = load64(buf, at + 8)
        flag[n] = load32(buf, at + 16)
        n += 1
        at += HEADER_SIZE + size
