"""The columns that fast_send and its kernels share."""

from __future__ import annotations

(
    QUEUE,
    PLACE,
    QUEUE_ID,
    TOPIC_START,
    TOPIC_LENGTH,
    SIZE,
    OPAQUE,
    ONEWAY,
    SYS_FLAG,
    BORN_TIMESTAMP,
    FLAG,
    RECONSUME_TIMES,
    PROPERTIES_START,
    PROPERTIES_LENGTH,
    BODY_START,
    BODY_LENGTH,
    UNIQ_KEY_START,
    UNIQ_KEY_LENGTH,
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
) = range(20)
COLUMNS = 20

NEED_MORE, UNUSUAL, UNKNOWN_QUEUE, FULL = range(4)
"""Why parse_sends stopped."""

HOLE_OPAQUE, HOLE_QUEUE_ID, HOLE_QUEUE_OFFSET, HOLE_MSG_ID, HOLE_UNIQ_KEY = range(5)

UNIQ_KEY_LENGTH_MAX = 128
HEAD_SIZE = 88
"""Bytes of a record before its body, between IPv4 hosts."""
BORN_HOST = slice(48, 56)
"""Where in the head."""
