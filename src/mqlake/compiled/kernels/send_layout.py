"""How what fast_send and its kernels share lies in two arrays, one of numbers (int64) and one of bytes.

An array handed to compiled code costs 0.1 µs, be it ever so small: two cost less than the fifteen that they hold. Where
each part lies says PLACES, the first of `numbers`: (start, end) in its array, for each part in turn.
"""

from __future__ import annotations

(
    QUEUE,
    PLACE,
    QUEUE_ID,
    TOPIC_START,
    TOPIC_LENGTH,
    FRAME_START,
    FRAME_SIZE,
    MESSAGES,
    CODE,
    OPAQUE,
    ONEWAY,
    SYS_FLAG,
    BORN_TIMESTAMP,
    RECONSUME_TIMES,
    SHARED_START,
    SHARED_LENGTH,
    UNIQ_KEY_START,
    UNIQ_KEY_LENGTH,
    QUEUE_OFFSET,
    SIZE,
    FLAG,
    BODY_START,
    BODY_LENGTH,
    OWN_START,
    OWN_LENGTH,
    PHYSICAL_OFFSET,
    TOUCHED,
    NEXT_OFFSET,
    QUEUE_MESSAGES,
    QUEUE_BYTES,
    QUEUE_PUTS,
) = range(31)
"""The rows of a table with a column for each message. Up to QUEUE_OFFSET they are those of a send and stand in the
column of its first message, MESSAGES being how many it has (0 in the columns of the others), FRAME_SIZE the bytes of
their records; then come a record's. The last five rows have a column for each queue that is sent to."""
ROWS = 31
SENDS_MAX = 512
"""Messages that are taken in one step."""

QUEUE_SIZE = 4
"""Numbers of each queue that is known: its id, its topic's start and length in TOPICS, its last PLACE."""
QUEUES_MAX = 4096
"""Queues that are known at once; with one more, all are forgotten and learnt again."""
NAMES_MAX = 32

COLUMNS, QUEUES, SLOTS, REFUSED, NAMES, HEAD, FIELDS, HOLES = range(8)
TEXT, TOPICS, TEMPLATE, EXTRA, ANSWER, ANSWERS = range(8, 14)
PARTS = 14
"""In `numbers`, then in the bytes:

COLUMNS   the table above                              TEXT      unescaped fields of headers, back to back
QUEUES    the queues that are known                    TOPICS    their topics
SLOTS     hash table of their numbers + 1              TEMPLATE  a record's head
REFUSED   hashes of properties that are not usual      EXTRA     properties that the broker gives each record
NAMES     room for hashes of properties                ANSWER    an answer without what differs
HEAD      a frame's head, see frames         ANSWERS   answers
FIELDS    its fields, see frames
HOLES     where in ANSWER what belongs
"""

NEED_MORE, UNUSUAL, UNKNOWN_QUEUE, FULL = range(4)
"""Why parse_sends stopped."""

HOLE_OPAQUE, HOLE_QUEUE_ID, HOLE_QUEUE_OFFSET, HOLE_MSG_ID, HOLE_UNIQ_KEY = range(5)

UNIQ_KEY_LENGTH_MAX = 128
HEAD_SIZE = 88
"""Bytes of a record before its body, between IPv4 hosts."""
BORN_HOST = slice(48, 56)
"""Where in the head."""
MSG_ID_HOST = 16
"""Hexadecimal digits of the host before the 16 of the offset in a message id."""
