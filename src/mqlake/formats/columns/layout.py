"""Shared by the compiled and the plain twin: the rows of the column blocks and the outcome codes.

A scan fills two blocks, one row per column and one column per record: `wide` holds the 64-bit columns,
`narrow` the 32-bit ones. A row is contiguous, so it is a column without a copy.
"""

from __future__ import annotations

WIDE = (
    "position",
    "physical_offset",
    "queue_offset",
    "born_timestamp",
    "store_timestamp",
    "prepared_transaction_offset",
    "body_start",
    "topic_start",
    "properties_start",
    "born_host_start",
    "store_host_start",
)
(
    POSITION,
    PHYSICAL_OFFSET,
    QUEUE_OFFSET,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    PREPARED_TRANSACTION_OFFSET,
    BODY_START,
    TOPIC_START,
    PROPERTIES_START,
    BORN_HOST_START,
    STORE_HOST_START,
) = range(len(WIDE))

NARROW = (
    "size",
    "queue_id",
    "sys_flag",
    "flag",
    "body_crc",
    "reconsume_times",
    "body_length",
    "topic_length",
    "topic_id",
    "properties_length",
)
(
    SIZE,
    QUEUE_ID,
    SYS_FLAG,
    FLAG,
    BODY_CRC,
    RECONSUME_TIMES,
    BODY_LENGTH,
    TOPIC_LENGTH,
    TOPIC_ID,
    PROPERTIES_LENGTH,
) = range(len(NARROW))

# What begins at a position, and why a walk stopped. The first five are record.RecordKind's values, all but
# MESSAGE are ScanStop's.
MESSAGE, BLANK, END, TRUNCATED, INVALID, LIMIT, MAX_RECORDS = range(7)

# What append_batch answers instead of a count.
BAD_BLOB, NO_ROOM, RECORD_TOO_LARGE, PROPERTIES_TOO_LARGE = -1, -2, -3, -4

BODY_START_V4 = 88
"""From the start of a record whose hosts are both IPv4; each IPv6 host adds IPV6_EXTRA bytes before it."""
IPV6_EXTRA = 12

SHAPES, SHAPE_SIZE = 16, 24
"""Shapes of properties that compiled dispatch knows at a time, and the numbers of each."""
