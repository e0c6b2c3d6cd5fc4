"""The layout of a header that was read: the places in `head`, and in the shapes of headers (see frames), an int64
each."""

from __future__ import annotations

from mqlake.remoting.codec import FRAME_SIZE_MAX as FRAME_SIZE_MAX

BLOCK = 32
"""Bytes that are compared, looked through or copied at once (text.h)."""

CODEC_ONLY = -1
"""A frame that `codec.decode_frame` may be able to read, and this cannot."""
NEED_MORE = 0

SHORT_LETTERS = 26
ACCESS_KEY, ONS_CHANNEL, SECURITY_TOKEN, SIGNATURE = range(SHORT_LETTERS, SHORT_LETTERS + 4)
"""Letters of the fields that sign a request, in whatever names the others are; in the order of their names."""
LETTERS = SHORT_LETTERS + 4
PROPERTIES = 8
"""The letter i."""
HEAD_CODE, HEAD_FLAG, HEAD_OPAQUE, HEAD_BODY_START, HEAD_NAMES = range(5)
HEAD_PAIR, HEAD_SHAPE, HEAD_UNIQ_KEY, HEAD_UNIQ_KEY_LENGTH, HEAD_NOTED = range(5, 10)
"""HEAD_PAIR is given: in which pair of shapes (see below) this header's is looked for. HEAD_SHAPE: where in `head` it
is, 0: it has none. Of a header read by its shape: where in `text` the value of UNIQ_KEY is. HEAD_NOTED: how many values
read_json has noted so far, -1: more than a shape has."""
SHORT, LONG = 1, 2
"""The bits of head[HEAD_NAMES]: names of one letter were seen, and long ones."""

# --- shapes
# A client's next header differs from its last one in few values. So its last one is kept as it came, in `shapes` with
# its text after it, and of each value where it is and whether it has ever varied; of the next one what is between
# values that vary is compared, and only these are read. A pair has the last two shapes of the connections that share
# it: one of messages with keys, say, and one without.
PAIRS = 16
SHAPE_BYTES = 2048
"""A longer header has no shape."""
SHAPE_ROOM = 2 * (SHAPE_BYTES + BLOCK)
VALUES_MAX = 64
WHOSE, RAW_AT, RAW_LENGTH, TEXT_AT, TEXT_LENGTH, VARIES = range(6)
"""Fields of a value: a letter (UNQUOTED + letter: a number without quotes), or one of the below; its place, counted
from the beginning of the header and of its text; a flag if it varies (NEVER: it is not read by a shape)."""
VALUE_SIZE = 6
UNQUOTED = 64
NEVER = -1
THE_CODE, THE_FLAG, THE_OPAQUE, SOME_NUMBER, SOME_TEXT = range(-5, 0)
"""A value that is no field's; SOME are not needed."""
BEGIN, STOP, UNIQ_KEY, TELLING, PROPERTY = range(-10, -5)
"""Marks of the beginning and end of the properties, which are a value each: UNIQ_KEY's, one that decides about a
send, another."""
GAP_AT, GAP_LENGTH, PIECE_AT, PIECE_LENGTH = range(1, 5)
"""Fields of a step, one for each value that varies and a last one, after WHOSE: what is before it, in the header and
in its text, counted from the value that varies before."""
STEP_SIZE = 5
(
    SHAPE_VALUES,
    SHAPE_STEPS,
    SHAPE_NAMES,
    SHAPE_CODE,
    SHAPE_FLAG,
    SHAPE_OPAQUE,
    SHAPE_VARYING,
    SHAPE_KEPT,
) = range(8)
"""Fields of a shape: how many values (0: it is none), how many steps, the head of its header, the letters that vary
as bits, and in bits beside them whether a TELLING value does and whether there is no UNIQ_KEY. SHAPE_KEPT: room for
what a reader of the fields knows of the values that do not vary, zeros at first."""
TELLING_BIT, NO_UNIQ_KEY_BIT = 61, 62
KEPT_SIZE = 24
VALUES_AT = SHAPE_KEPT + KEPT_SIZE
STEPS_AT = VALUES_AT + VALUE_SIZE * VALUES_MAX
SHAPE_SIZE = STEPS_AT + STEP_SIZE * (VALUES_MAX + 1)
NOTES_AT = HEAD_NOTED + 1
LATEST_AT = NOTES_AT + VALUE_SIZE * VALUES_MAX
"""Which one of each pair the last header had, 0 or 1."""
SHAPES_AT = LATEST_AT + PAIRS
HEAD_ROOM = SHAPES_AT + 2 * PAIRS * SHAPE_SIZE
SHAPES_SIZE = 2 * PAIRS * SHAPE_ROOM
JSON, ROCKETMQ = 0, 1

LONG_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "tranStateTableOffset",
    "commitLogOffset",
    "commitOrRollback",
    "fromTransactionCheck",
    "msgId",
    "transactionId",
    "bname",
)
"""SendMessageRequestHeader's names of the fields that are a to m in SendMessageRequestHeaderV2; then those of
EndTransactionRequestHeader that it has besides, which have letters here only."""
BNAME = LONG_NAMES.index("bname")
"""A letter that SendMessageRequestHeaderV2 does not use; Rust's clients send the name beside those of one letter."""
