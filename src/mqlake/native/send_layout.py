"""The two arrays that fast_send shares with its kernels, one of numbers (int64) and one of bytes.

    numbers  │ start, end of each part │ COLUMNS │ QUEUES │ ... │
    octets   │ TEXT │ TOPICS │ ... │ ANSWERS │

Each array handed to compiled code costs 0.1 µs, however small: two cost less than their many parts. `numbers` begins
with where each part starts and ends in its array. The kernels take a part with `part`, or as rows with `table`.
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
    KIND,
    REAL_QUEUE,
    HALF_QUEUE_OFFSET,
    HALF_PHYSICAL_OFFSET,
    HALF_SIZE,
    GROUP_START,
    GROUP_LENGTH,
    TOUCHED,
    NEXT_OFFSET,
    QUEUE_MESSAGES,
    QUEUE_BYTES,
    QUEUE_PUTS,
    BORN_HOST,
    ANSWER_END,
) = range(40)
"""The rows of a table with a column for each message. Up to QUEUE_OFFSET they are those of a send and stand in the
column of its first message, MESSAGES being how many it has (0 in the columns of the others), FRAME_SIZE the bytes of
their records; then come a record's, and those of a transaction: KIND (of any send), of a half message the number of the
queue where it belongs (QUEUE is the half queue), of a commit also where its half message is. GROUP is the producer's,
in TEXT. The next five rows have a column for each queue that is sent to. Of a send again are BORN_HOST, its client's
address and port in eight bytes, and ANSWER_END, where in ANSWERS its answer ends."""
ROWS = 40
SEND, HALF, COMMIT = range(3)
"""A KIND. A commit is an END_TRANSACTION, of which the columns are those of the message that consumers get."""
SENDS_MAX = 520
"""Messages that are taken in one step. A row of COLUMNS is no multiple of 4,096 bytes: all rows of a message would be
in the same few places of the processor's first cache."""

QUEUE_SIZE = 4
LAST_PLACE = 3
"""Numbers of each queue that is known: its id, its topic's start and length in TOPICS, its last PLACE."""
QUEUES_MAX = 16 * 1024
"""Queues that are known at once; with one more, all are forgotten and learnt again."""
NAMES_MAX = 32
HALF_QUEUE = 0
"""The number of the half queue, which is known from the beginning. It is known by an id that no client can name."""
HALF_QUEUE_ID = -1

(
    OF_PHYSICAL_OFFSET,
    OF_QUEUE_OFFSET,
    OF_SIZE,
    OF_BODY_LENGTH,
    OF_BORN_TIMESTAMP,
    OF_QUEUE,
    OF_GROUP_AT,
    OF_GROUP_LENGTH,
) = range(8)
"""Columns of HALVES: where a half message is in the log and in the half queue, the bytes of its record (0: of none) and
of its body, its age, the number of the queue where it belongs, and where in the record the group of its producer is."""
OF_COLUMNS = 8
HALVES_MAX = 4096
"""Half messages that are remembered, the latest ones: most end soon. It is a power of two."""

(
    COLUMNS,
    QUEUES,
    SLOTS,
    REFUSED,
    REFUSED_HALVES,
    HALVES,
    NAMES,
    HEAD,
    FIELDS,
    HOLES,
    END_HOLES,
    ACCESS,
    SIGNERS,
    SIGNER_SLOTS,
    ALLOWED,
    NEW_KEYS,
) = range(16)
TEXT, TOPICS, TEMPLATE, EXTRA, ANSWER, END_ANSWER, ANSWERS, SIGNER_NAMES, SHAPES, KEYS = range(16, 26)
PARTS = 26
"""In `numbers`, then in the bytes:

COLUMNS   the table above                              TEXT      unescaped fields of headers, back to back
QUEUES    the queues that are known                    TOPICS    their topics
SLOTS     hash table of their numbers + 1              TEMPLATE  a record's head
REFUSED   hashes of properties for the slow path        EXTRA     properties that the broker gives each record
          in a send                                    ANSWER    an answer without what differs
REFUSED_HALVES  the same, of half messages             END_ANSWER  the same, of a commit
HALVES    half messages by their queue offsets, the    ANSWERS   answers
          latest ones; of no rows: none are taken
NAMES     room for hashes of properties
HEAD      a frame's head, see frames
FIELDS    its fields, see frames
HOLES     where in ANSWER what belongs
END_HOLES the same, of END_ANSWER
ACCESS    of access control (see signatures):       SIGNER_NAMES  names of users, back to back
          whether requests are checked
SIGNERS   users whose secrets are known              SHAPES    headers, see frames
SIGNER_SLOTS  hash table of their numbers + 1
ALLOWED   hash table of which signer may send to which KEYS      for messages that come without a UNIQ_KEY
          queue, from where
NEW_KEYS  how many KEYS are left, and whether one was
          wanted
"""

CHECKED, STALE, SIGNERS_COUNT, NAMES_END, ALLOWED_COUNT, OLDEST, NEWEST, SIGNER_FOUND, RUNNING = range(9)
ACCESS_SIZE = RUNNING + 5
"""Numbers of ACCESS: whether requests are checked; whether users or acls have changed since SIGNERS and ALLOWED were
filled, so that nobody counts as known; how much is in these and SIGNER_NAMES; between which times a send must have been
made (NEWEST 0: any time); the signer of the last frame, and room for a state of SHA-1."""
INNER, OUTER, NAME_START, NAME_LENGTH = 0, 5, 10, 11
SIGNER_SIZE = 12
"""Numbers of a signer: SHA-1 after HMAC's two keys, and where in SIGNER_NAMES the name is."""
SIGNERS_MAX = 1024
SIGNER_SLOTS_MAX = 2 * SIGNERS_MAX
SIGNER_NAMES_SIZE = 64 * 1024
ALLOWED_MAX = 16 * 1024
ALLOWED_SLOTS = 2 * ALLOWED_MAX
"""Powers of two. What does not fit makes Python forget all of it, and learn again."""

NEED_MORE, SLOW_PATH, UNKNOWN_QUEUE, FULL, UNKNOWN_SIGNER, UNDECIDED = range(6)
"""Why read_sends stopped. UNDECIDED: not known to be allowed to SIGNER_FOUND; REAL_QUEUE of the column after the last
message says what."""

HOLE_OPAQUE, HOLE_QUEUE_ID, HOLE_QUEUE_OFFSET = OPAQUE, QUEUE_ID, QUEUE_OFFSET
HOLE_MSG_ID, HOLE_UNIQ_KEY = ROWS, ROWS + 1
"""Kinds of holes in an answer: a number of this row, or one of these texts."""

UNIQ_KEY_LENGTH_MAX = 128
NEW_KEY_SIZE = 32
NEW_KEYS_MAX = 512
"""KEYS: texts of this size, the last one of those that are left is the next."""
KEYS_LEFT, KEYS_WANTED = range(2)
HEAD_SIZE = 88
"""Bytes of a record before its body, between IPv4 hosts."""
NEW_ROOM = 256
"""Bytes of TEXT that a check of a signature needs after the values of a header."""
MSG_ID_HOST = 16
"""Hexadecimal digits of the host before the 16 of the offset in a message id."""
