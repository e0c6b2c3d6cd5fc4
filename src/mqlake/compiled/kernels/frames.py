# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Frames read by compiled code: the headers of sends, and replies.

    buf   ┌ length │ type, header length │ header …………………… │ body ┐
    text    unescaped field values, back to back ◀──┘
    head    code, flag, opaque, where the body begins        fields[a…z]  (start, length) in `text`

A send's fields have names of one letter (SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE), or long ones that stand for the same
(SEND_MESSAGE), and END_TRANSACTION's are long; `head` says which were seen.

This is `codec.decode_frame` for headers as clients write them: JSON in any order and with any spaces, numbers and
booleans beside texts, every field known and there once; or ROCKETMQ; both without a remark. Whatever looks otherwise is
CODEC_ONLY: codec may be able to read it, and says what is wrong with it if not. Every position is compared with its
limit before it is used.
"""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.blocks import BLOCK, BLOCK_MASK, move, plain_length, put_blocks, unlike
from mqlake.compiled.kernels.primitives import (
    EACH,
    MILLION,
    NO_DIGITS,
    TEN_THOUSAND,
    TOPS,
    U3,
    ZERO,
    ZEROS,
    copy,
    load16,
    load32,
    load_word,
    pointer,
    read_character,
    read_digits,
    same_bytes,
    store32,
    store64,
    store_word,
    trailing_zeros,
)
from mqlake.compiled.kernels.primitives import PAIRS as PAIRS_OF_NUMBERS
from mqlake.remoting.codec import FRAME_SIZE_MAX

CODEC_ONLY = -1
"""A frame that `codec.decode_frame` may be able to read, and this cannot."""
NEED_MORE = 0

SHORT_LETTERS = 26
ACCESS_KEY, ONS_CHANNEL, SECURITY_TOKEN, SIGNATURE = range(SHORT_LETTERS, SHORT_LETTERS + 4)
"""Of the fields that sign a request, in whatever names the others are; in the order of their names."""
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
"""Of a value: a letter (UNQUOTED + letter: a number without quotes), or one of the below; where it is, counted from
where the header and its text begin; whether it varies (NEVER: it is not read by a shape)."""
VALUE_SIZE = 6
UNQUOTED = 64
NEVER = -1
THE_CODE, THE_FLAG, THE_OPAQUE, SOME_NUMBER, SOME_TEXT = range(-5, 0)
"""A value that is no field's; SOME are not needed."""
BEGIN, STOP, UNIQ_KEY, TELLING, PROPERTY = range(-10, -5)
"""Where the properties begin and stop, which are a value each: UNIQ_KEY's, one that decides about a send, another."""
GAP_AT, GAP_LENGTH, PIECE_AT, PIECE_LENGTH = range(1, 5)
"""Of a step, one for each value that varies and a last one, after WHOSE: what is before it, in the header and in its
text, counted from the value that varies before."""
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
"""Of a shape: how many values (0: it is none), how many steps, the head of its header, the letters that vary as bits,
and beside them whether a TELLING value does and whether there is no UNIQ_KEY. SHAPE_KEPT: room for what a reader of the
fields knows of the values that do not vary, zeros at first."""
A_TELLING, NO_UNIQ_KEY = 1 << 61, 1 << 62
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

QUOTE, BACKSLASH, SLASH, COMMA, COLON, MINUS, OPEN, CLOSE, SMALL_A = (ord(c) for c in '"\\/,:-{}a')


def _word(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).copy()


CODE_NAME, FLAG_NAME, OPAQUE_NAME = _word("code"), _word("flag"), _word("opaque")
VERSION_NAME, LANGUAGE_NAME, REMARK_NAME = _word("version"), _word("language"), _word("remark")
ACCESS_KEY_NAME, ONS_CHANNEL_NAME, SECURITY_TOKEN_NAME, SIGNATURE_NAME = (
    _word("AccessKey"),
    _word("OnsChannel"),
    _word("SecurityToken"),
    _word("Signature"),
)
NULL, TRUE, FALSE = _word("null"), _word("true"), _word("false")
ESCAPE, UNIQ_KEY_NAME, WAIT_NAME, TRAN_MSG_NAME = (
    _word("\\u000"),
    _word("UNIQ_KEY"),
    _word("WAIT"),
    _word("TRAN_MSG"),
)
FIELDS_NAME, TYPE_NAME = _word("extFields"), _word("serializeTypeCurrentRPC")

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
LONG_NAMES_TEXT = _word("".join(LONG_NAMES))
LONG_NAMES_END = np.cumsum([len(name) for name in LONG_NAMES])
BNAME = LONG_NAMES.index("bname")
"""A letter that SendMessageRequestHeaderV2 does not use; Rust's clients send the name beside those of one letter."""
BNAME_NAME = _word("bname")

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@compiled
def byte(buf, position):
    return np.int64(buf[np.uint64(position)])


@compiled
def equals(buf, start, length, word):
    return length == len(word) and same_bytes(buf, start, word, 0, length)


@compiled
def few_digits(word):
    """(the number that the first of eight bytes are in decimal, how many of them)."""
    others = (word - ZEROS | word + NO_DIGITS) & TOPS  # after the first one it may be wrong
    digits = np.uint64(8) if others == 0 else trailing_zeros(others) >> U3
    if digits == 0:
        return np.int64(0), np.int64(0)
    word = (word - ZEROS) << (np.uint64(64) - (digits << U3))
    word = word * np.uint64(10) + (word >> np.uint64(8))  # pairs, then fours, then all eight
    word = (word & PAIRS_OF_NUMBERS) * MILLION + (word >> np.uint64(16) & PAIRS_OF_NUMBERS) * TEN_THOUSAND
    return np.int64(word >> np.uint64(32)), np.int64(digits)


@compiled
def read_number(buf, position, end):
    """(value, position after it) of a number as JSON writes it; position -1 when there is none, or one too large."""
    if position + 8 <= end:
        value, digits = few_digits(load_word(buf, position))
        if 0 < digits < 8 and (digits == 1 or byte(buf, position) != ZERO):
            return value, np.int64(position + digits)
    first = position
    negative = position < end and byte(buf, position) == MINUS
    if negative:
        first = position = position + 1
    value, position = read_digits(buf, position, end)
    digits = position - first
    # JSON has no leading zeros, and -0 is no number that is sent
    if digits <= 0 or (byte(buf, first) == ZERO and (digits > 1 or negative)):
        return np.int64(0), np.int64(CODEC_ONLY)
    return -value if negative else value, np.int64(position)


@compiled
def whole_number(text, start, length, low, high):
    """(whether the text is a number in [low, high], and nothing else; the number)."""
    if length == 1:
        digit = byte(text, start) - ZERO
        return 0 <= digit <= 9 and low <= digit <= high, digit
    value, position = read_number(text, start, start + length)
    return position == start + length and low <= value <= high, value


@compiled
def hex_digit(code):
    if ZERO <= code <= 57:
        return code - ZERO
    if 97 <= code <= 102:
        return code - 87
    if 65 <= code <= 70:
        return code - 55
    return np.int64(-1)


@compiled
def escaped(buf, position, end):
    """(character, position after it) of what a backslash at `position` introduces; -1 for half of a pair, too."""
    none = np.int64(CODEC_ONLY), np.int64(CODEC_ONLY)
    if position + 2 > end:
        return none
    kind = byte(buf, position + 1)
    if kind == 117:  # u
        if position + 6 > end:
            return none
        code = np.int64(0)
        for i in range(position + 2, position + 6):
            digit = hex_digit(byte(buf, i))
            if digit < 0:
                return none
            code = code << 4 | digit
        return none if 0xD800 <= code <= 0xDFFF else (code, np.int64(position + 6))
    if kind in (QUOTE, BACKSLASH, SLASH):
        code = kind
    elif kind == 98:  # b
        code = np.int64(8)
    elif kind == 102:  # f
        code = np.int64(12)
    elif kind == 110:  # n
        code = np.int64(10)
    elif kind == 114:  # r
        code = np.int64(13)
    elif kind == 116:  # t
        code = np.int64(9)
    else:
        return none
    return code, np.int64(position + 2)


U000, U000_MASK = np.uint64(int.from_bytes(b"\\u000", "little")), np.uint64(0xFFFFFFFFFF)


@compiled
def put_character(text, at, code):
    """Writes a character below 65536 as UTF-8, in no more bytes than its escape has; the position after it."""
    if code > 0x7FF:
        text[np.uint64(at)] = np.uint8(0xE0 | code >> 12)
        text[np.uint64(at + 1)] = np.uint8(0x80 | code >> 6 & 0x3F)
        at += 2
    elif code > 0x7F:
        text[np.uint64(at)] = np.uint8(0xC0 | code >> 6)
        at += 1
    text[np.uint64(at)] = np.uint8(0x80 | code & 0x3F if code > 0x7F else code)
    return at + 1


@compiled
def read_plain(buf, position, end, text, at):
    """(where the characters stop that stand for themselves in a JSON text, end in `text`), which has room for
    buf[position:end]."""
    while position < end:
        if position + BLOCK <= end:
            move(text, at, buf, position)
            plain = plain_length(buf, position)
            position += plain
            at += plain
            if plain == BLOCK:
                continue
        code = byte(buf, position)
        if code > 0x7F:
            point, length = read_character(buf, position, end)
            if point < 0:
                break
            copy(text, at, buf, position, length)
            position += length
            at += length
        elif code >= 0x20 and code != QUOTE and code != BACKSLASH:
            position += 1
            text[np.uint64(at)] = np.uint8(code)
            at += 1
        else:
            break
    return np.int64(position), np.int64(at)


@compiled
def read_text(buf, position, end, text, at):
    """(position after the closing quote, end in `text`) of the JSON text that begins at `position`, after its
    opening quote; position -1 for bytes and escapes that are not for here. `text` has room for buf[position:end]."""
    while True:
        position, at = read_plain(buf, position, end, text, at)
        if position >= end:
            break
        code = byte(buf, position)
        if code == QUOTE:
            return np.int64(position + 1), np.int64(at)
        if code != BACKSLASH:
            break
        if position + 8 <= end:  # mostly \\u0001 and \\u0002, which are in properties
            word = load_word(buf, position)
            digit = np.int64(word >> np.uint64(40) & np.uint64(0xFF)) - ZERO
            if word & U000_MASK == U000 and 0 <= digit <= 9:
                text[np.uint64(at)] = np.uint8(digit)
                at += 1
                position += 6
                continue
        code, position = escaped(buf, position, end)
        if position < 0:
            break
        at = put_character(text, at, code)
    return np.int64(CODEC_ONLY), np.int64(at)


@compiled
def field_letter(buf, start, length, head):
    """The letter (0 to 25) of the field whose name this is; -1 for names that are not known here."""
    if length == 1:
        head[HEAD_NAMES] |= SHORT
        letter = byte(buf, start) - SMALL_A
        return letter if 0 <= letter < SHORT_LETTERS and letter != BNAME else np.int64(-1)
    if equals(buf, start, length, ACCESS_KEY_NAME):
        return np.int64(ACCESS_KEY)
    if equals(buf, start, length, SIGNATURE_NAME):
        return np.int64(SIGNATURE)
    if equals(buf, start, length, SECURITY_TOKEN_NAME):
        return np.int64(SECURITY_TOKEN)
    if equals(buf, start, length, ONS_CHANNEL_NAME):  # C++ clients send it, signed or not
        return np.int64(ONS_CHANNEL)
    if equals(buf, start, length, BNAME_NAME):
        return np.int64(BNAME)
    head[HEAD_NAMES] |= LONG
    first = np.int64(0)
    for letter in range(len(LONG_NAMES_END)):
        stop = LONG_NAMES_END[letter]
        if stop - first == length and same_bytes(buf, start, LONG_NAMES_TEXT, first, length):
            return np.int64(letter)
        first = stop
    return np.int64(-1)


@compiled
def skip_spaces(buf, position, end):
    while position < end and byte(buf, position) in (0x20, 0x0A, 0x0D, 0x09):
        position += 1
    return position


@compiled
def read_name(buf, position, end):
    """(where the name in quotes at `position` ends, where its value begins); -1 when there is none as clients write
    them: printable, without escapes."""
    none = np.int64(CODEC_ONLY), np.int64(CODEC_ONLY)
    if position >= end or byte(buf, position) != QUOTE:
        return none
    position += 1
    while position < end and byte(buf, position) != QUOTE:
        code = byte(buf, position)
        if code < 0x20 or code > 0x7E or code == BACKSLASH:
            return none
        position += 1
    name_stop = position
    position = skip_spaces(buf, position + 1, end)
    if position >= end or byte(buf, position) != COLON:
        return none
    position = skip_spaces(buf, position + 1, end)
    return (np.int64(name_stop), np.int64(position)) if position < end else none


@compiled
def after_value(buf, position, end):
    """(what comes after a value that ends at `position`: a comma or the brace that closes the object, where the next
    name begins or what is after the brace); -1 for anything else."""
    position = skip_spaces(buf, position, end)
    if position < 0 or position >= end:
        return np.int64(CODEC_ONLY), np.int64(CODEC_ONLY)
    closing = byte(buf, position)
    if closing == COMMA:
        return closing, np.int64(skip_spaces(buf, position + 1, end))
    return closing if closing == CLOSE else np.int64(CODEC_ONLY), np.int64(position + 1)


@compiled
def starts_with(buf, position, end, word):
    return position + len(word) <= end and same_bytes(buf, position, word, 0, len(word))


@compiled
def read_value(buf, position, end, text, at):
    """(position after the value that begins at `position`, end in `text`, whether it is more than null): a text, or a
    whole number, a boolean as the text of it. Position -1 for anything else."""
    if byte(buf, position) == QUOTE:
        position, at = read_text(buf, position + 1, end, text, at)
        return position, at, True
    start = position
    if starts_with(buf, position, end, NULL):
        return np.int64(position + len(NULL)), np.int64(at), False
    if starts_with(buf, position, end, TRUE):
        position += len(TRUE)
    elif starts_with(buf, position, end, FALSE):
        position += len(FALSE)
    else:
        _, position = read_number(buf, position, end)
        if position < 0:
            return np.int64(CODEC_ONLY), np.int64(at), False
    copy(text, at, buf, start, position - start)
    return np.int64(position), np.int64(at + position - start), True


@compiled
def note_value(head, whose, varies, start, stop, text_start, text_stop):
    """Notes a value of the header that read_json reads, by its positions."""
    count = head[HEAD_NOTED]
    if count < 0 or count == VALUES_MAX:
        head[HEAD_NOTED] = -1
        return
    at = NOTES_AT + VALUE_SIZE * count
    head[at + WHOSE] = whose
    head[at + RAW_AT] = start
    head[at + RAW_LENGTH] = stop - start
    head[at + TEXT_AT] = text_start
    head[at + TEXT_LENGTH] = text_stop - text_start
    head[at + VARIES] = varies
    head[HEAD_NOTED] = count + 1


@compiled
def backslash(buf, position, end):
    while position < end and byte(buf, position) != BACKSLASH:
        position += 1
    return position


@compiled
def is_escape(buf, position, end, digit):
    return (
        position + 6 <= end
        and byte(buf, position + 5) == ZERO + digit
        and same_bytes(buf, position, ESCAPE, 0, len(ESCAPE))
    )


@compiled
def note_properties(buf, start, stop, head, text_start, text_stop):
    """True if each property of the text buf[start:stop] was noted, which clients write with escapes of \\1 and \\2
    alone."""
    count = head[HEAD_NOTED]
    note_value(head, BEGIN, 1, start, start, text_start, text_start)
    position, at = start, text_start
    while position < stop:
        value = backslash(buf, position, stop)
        length = value - position
        whose = PROPERTY
        if equals(buf, position, length, UNIQ_KEY_NAME):
            whose = UNIQ_KEY
        elif equals(buf, position, length, WAIT_NAME) or equals(buf, position, length, TRAN_MSG_NAME):
            whose = TELLING
        if length == 0 or not is_escape(buf, value, stop, 1):
            break
        value += 6
        at += length + 1
        position = backslash(buf, value, stop)
        length = position - value
        if length == 0 or (position < stop and not is_escape(buf, position, stop, 2)):
            break
        note_value(head, whose, np.int64(whose == UNIQ_KEY), value, position, at, at + length)
        at += length
        if position == stop:
            break
        position += 6
        at += 1
    if position != stop or at != text_stop:
        head[HEAD_NOTED] = count
        return False
    note_value(head, STOP, 1, stop, stop, text_stop, text_stop)
    return True


@compiled
def has_values(head, shape):
    """True if a shape has the values that were noted, whatever is in them, and is of the same command."""
    if head[shape + SHAPE_VALUES] != head[HEAD_NOTED] or head[shape + SHAPE_CODE] != head[HEAD_CODE]:
        return False
    for n in range(head[HEAD_NOTED]):
        at = VALUE_SIZE * n + WHOSE
        if head[shape + VALUES_AT + at] != head[NOTES_AT + at]:
            return False
    return True


@compiled
def learn(buf, start, end, head, text, text_start, text_end, shapes):
    """Makes a shape of the header buf[start:end], of which the values were noted."""
    count = head[HEAD_NOTED]
    if count < 1 or end - start > SHAPE_BYTES or text_end - text_start > SHAPE_BYTES:
        return
    pair = head[HEAD_PAIR]
    way = head[LATEST_AT + pair]
    shape = SHAPES_AT + SHAPE_SIZE * (2 * pair + way)
    is_known = has_values(head, shape)
    if not is_known:
        way = head[LATEST_AT + pair] = 1 - way
        shape = SHAPES_AT + SHAPE_SIZE * (2 * pair + way)
        is_known = has_values(head, shape)
    raw = SHAPE_ROOM * (2 * pair + way)
    rest = raw + SHAPE_BYTES + BLOCK
    step, varying = shape + STEPS_AT, np.int64(NO_UNIQ_KEY)
    done, text_done = np.int64(0), np.int64(0)
    for n in range(count):
        value, note = shape + VALUES_AT + VALUE_SIZE * n, NOTES_AT + VALUE_SIZE * n
        whose, at, length = head[note + WHOSE], head[note + RAW_AT] - start, head[note + RAW_LENGTH]
        varies, text_at = head[note + VARIES], head[note + TEXT_AT] - text_start
        if varies == 0 and is_known:
            varies = head[value + VARIES]
            was_at, was_length = head[value + RAW_AT], head[value + RAW_LENGTH]
            if length != was_length or not same_bytes(shapes, raw + was_at, buf, start + at, length):
                varies = np.int64(1)
        head[value + WHOSE] = whose
        head[value + RAW_AT] = at
        head[value + RAW_LENGTH] = length
        head[value + TEXT_AT] = text_at
        head[value + TEXT_LENGTH] = head[note + TEXT_LENGTH]
        head[value + VARIES] = varies
        if varies == 1:
            step = add_step(head, step, whose, raw + done, at - done, rest + text_done, text_at - text_done)
            done, text_done = at + length, text_at + head[note + TEXT_LENGTH]
            if whose >= 0:
                varying |= np.int64(1) << (whose & (UNQUOTED - 1))
            elif whose == TELLING:
                varying |= A_TELLING
            elif whose == UNIQ_KEY:
                varying &= ~np.int64(NO_UNIQ_KEY)
    text_length = text_end - text_start
    step = add_step(
        head, step, np.int64(0), raw + done, end - start - done, rest + text_done, text_length - text_done
    )
    copy(shapes, raw, buf, start, end - start)
    copy(shapes, rest, text, text_start, text_length)
    head[shape + SHAPE_VALUES] = count
    head[shape + SHAPE_STEPS] = (step - shape - STEPS_AT) // STEP_SIZE - 1
    head[shape + SHAPE_NAMES] = head[HEAD_NAMES]
    head[shape + SHAPE_CODE] = head[HEAD_CODE]
    head[shape + SHAPE_FLAG] = head[HEAD_FLAG]
    head[shape + SHAPE_OPAQUE] = head[HEAD_OPAQUE]
    head[shape + SHAPE_VARYING] = varying
    for n in range(KEPT_SIZE):
        head[shape + SHAPE_KEPT + n] = 0
    head[HEAD_SHAPE] = shape


@compiled
def add_step(head, step, whose, gap, gap_length, piece, piece_length):
    head[step + WHOSE] = whose
    head[step + GAP_AT] = gap
    head[step + GAP_LENGTH] = gap_length
    head[step + PIECE_AT] = piece
    head[step + PIECE_LENGTH] = piece_length
    return step + STEP_SIZE


@compiled
def after_gap(buf, position, end, head, step, shapes):
    """The position after what comes before the value of a step, if this is it; else -1."""
    at, length = head[step + GAP_AT], head[step + GAP_LENGTH]
    if length > end - position:
        return np.int64(CODEC_ONLY)
    done = np.int64(0)
    while done < length:
        if position + done + BLOCK <= end:
            rest = np.uint64(max(np.int64(0), done + BLOCK - length))
            if unlike(buf, position + done, shapes, at + done) & (BLOCK_MASK >> rest):
                return np.int64(CODEC_ONLY)
        elif length >= BLOCK:  # the last block, some of it again
            if unlike(buf, position + length - BLOCK, shapes, at + length - BLOCK):
                return np.int64(CODEC_ONLY)
        elif not same_bytes(buf, position, shapes, at, length):
            return np.int64(CODEC_ONLY)
        done += BLOCK
    return position + length


@compiled
def put_piece(text, at, shapes, head, step):
    """Writes what comes before the value of a step, and up to a block less one byte more; the end of it."""
    return put_blocks(text, at, shapes, head[step + PIECE_AT], head[step + PIECE_LENGTH])


@compiled
def read_alike(buf, position, end, head, shape, fields, text, at, shapes):
    """As `read_json`, of a header that has this shape; CODEC_ONLY when it has another. Of `fields` it writes those that
    vary: see place_fields."""
    head[HEAD_CODE] = head[shape + SHAPE_CODE]
    head[HEAD_FLAG] = head[shape + SHAPE_FLAG]
    head[HEAD_OPAQUE] = head[shape + SHAPE_OPAQUE]
    step = shape + STEPS_AT
    begin = np.int64(at)
    for _ in range(head[shape + SHAPE_STEPS]):
        whose = head[step + WHOSE]
        position = after_gap(buf, position, end, head, step, shapes)
        if position < 0:
            return np.int64(CODEC_ONLY)
        at = put_piece(text, at, shapes, head, step)
        step += STEP_SIZE
        if whose == BEGIN:
            begin = at
        elif whose == STOP:
            fields[PROPERTIES, 0] = begin
            fields[PROPERTIES, 1] = at - begin
        elif whose < THE_CODE:
            position, after = read_plain(buf, position, end, text, at)
            if after == at:
                return np.int64(CODEC_ONLY)
            if whose == UNIQ_KEY:
                head[HEAD_UNIQ_KEY] = at
                head[HEAD_UNIQ_KEY_LENGTH] = after - at
            at = after
        elif SOME_TEXT <= whose < UNQUOTED:
            position, after = read_text(buf, position, end, text, at)
            if position < 0:
                return np.int64(CODEC_ONLY)
            position -= 1  # the closing quote is the gap's
            if whose >= 0:
                fields[whose, 0] = at
                fields[whose, 1] = after - at
                at = after
        else:
            first = position
            value, position = read_number(buf, position, end)
            if position < 0:
                return np.int64(CODEC_ONLY)
            if whose >= UNQUOTED:
                copy(text, at, buf, first, position - first)
                fields[whose - UNQUOTED, 0] = at
                fields[whose - UNQUOTED, 1] = position - first
                at += position - first
            elif value < INT32_MIN or value > INT32_MAX:
                return np.int64(CODEC_ONLY)
            elif whose == THE_CODE:
                head[HEAD_CODE] = value
            elif whose == THE_FLAG:
                head[HEAD_FLAG] = value
            elif whose == THE_OPAQUE:
                head[HEAD_OPAQUE] = value
    if after_gap(buf, position, end, head, step, shapes) != end:
        return np.int64(CODEC_ONLY)
    return put_piece(text, at, shapes, head, step)


@compiled
def place_fields(head, fields, at):
    """Writes those of `fields` that read_alike has not written; `at` is where the header's text begins. Nothing changes
    after a header that was not read by its shape."""
    shape = head[HEAD_SHAPE]
    if shape == 0:
        return
    value = shape + VALUES_AT
    for _ in range(head[shape + SHAPE_VALUES]):
        whose = head[value + WHOSE]
        if whose >= 0:
            letter = whose & (UNQUOTED - 1)
            if head[value + VARIES] == 1:  # what comes after it moves
                at += fields[letter, 1] - head[value + TEXT_LENGTH]
            else:
                fields[letter, 0] = at + head[value + TEXT_AT]
                fields[letter, 1] = head[value + TEXT_LENGTH]
        elif whose == STOP:
            at = fields[PROPERTIES, 0] + fields[PROPERTIES, 1] - head[value + TEXT_AT]
        value += VALUE_SIZE


@compiled
def read_fields(buf, position, end, head, fields, text, at):
    """(position after the object, end in `text`) of extFields whose opening brace is before `position`."""
    codec_only = np.int64(CODEC_ONLY), np.int64(at)
    position = skip_spaces(buf, position, end)
    while True:
        name = position + 1
        name_stop, position = read_name(buf, position, end)
        if position < 0:
            return codec_only
        letter = field_letter(buf, name, name_stop - name, head)
        if letter < 0 or fields[letter, 1] >= 0:
            return codec_only
        start, first, kind = at, position, byte(buf, position)
        position, at, is_there = read_value(buf, position, end, text, at)
        if position < 0:
            return codec_only
        if kind == QUOTE:
            if letter != PROPERTIES or not note_properties(buf, first + 1, position - 1, head, start, at):
                note_value(head, letter, 0, first + 1, position - 1, start, at)
        elif is_there:
            is_number = kind == MINUS or ZERO <= kind <= ZERO + 9
            varies = np.int64(0 if is_number else NEVER)
            note_value(head, letter + UNQUOTED, varies, first, position, start, at)
        if is_there:
            fields[letter, 0] = start
            fields[letter, 1] = at - start
        closing, position = after_value(buf, position, end)
        if closing == CLOSE:
            return np.int64(position), np.int64(at)
        if closing != COMMA:
            return codec_only


@compiled
def read_json(buf, position, end, head, fields, text, at):
    """The end in `text`, or CODEC_ONLY; fills `head` and `fields` from the JSON header buf[position:end]."""
    head[HEAD_CODE] = head[HEAD_FLAG] = head[HEAD_OPAQUE] = head[HEAD_NOTED] = 0
    position = skip_spaces(buf, position, end)
    if position >= end or byte(buf, position) != OPEN:
        return np.int64(CODEC_ONLY)
    position = skip_spaces(buf, position + 1, end)
    has_fields = False
    while True:
        name = position + 1
        name_stop, position = read_name(buf, position, end)
        if position < 0:
            return np.int64(CODEC_ONLY)
        length = name_stop - name
        if equals(buf, name, length, FIELDS_NAME):
            if has_fields or byte(buf, position) != OPEN:
                return np.int64(CODEC_ONLY)
            has_fields = True
            position, at = read_fields(buf, position + 1, end, head, fields, text, at)
        elif equals(buf, name, length, LANGUAGE_NAME) or equals(buf, name, length, TYPE_NAME):
            start = position + 1
            is_text = byte(buf, position) == QUOTE
            position, _, _ = read_value(buf, position, end, text, at)
            if is_text and position > 0:
                note_value(head, SOME_TEXT, 0, start, position - 1, at, at)
        elif equals(buf, name, length, REMARK_NAME):
            position, after, _ = read_value(buf, position, end, text, at)
            if after > at:
                return np.int64(CODEC_ONLY)
        else:
            start, whose = position, np.int64(SOME_NUMBER)
            value, position = read_number(buf, position, end)
            if position < 0 or value < INT32_MIN or value > INT32_MAX:
                return np.int64(CODEC_ONLY)
            if equals(buf, name, length, CODE_NAME):
                whose, head[HEAD_CODE] = np.int64(THE_CODE), value
            elif equals(buf, name, length, FLAG_NAME):
                whose, head[HEAD_FLAG] = np.int64(THE_FLAG), value
            elif equals(buf, name, length, OPAQUE_NAME):
                whose, head[HEAD_OPAQUE] = np.int64(THE_OPAQUE), value
            elif not equals(buf, name, length, VERSION_NAME):
                return np.int64(CODEC_ONLY)
            note_value(head, whose, 0, start, position, at, at)
        if position < 0:
            return np.int64(CODEC_ONLY)
        closing, position = after_value(buf, position, end)
        if closing == CLOSE:
            if skip_spaces(buf, position, end) != end:
                return np.int64(CODEC_ONLY)
            return np.int64(at)
        if closing != COMMA:
            return np.int64(CODEC_ONLY)


@compiled
def read_rocketmq(buf, position, end, head, fields, text, at):
    """As `read_json`, of a ROCKETMQ header."""
    if position + 21 > end or load32(buf, position + 13) != 0:
        return np.int64(CODEC_ONLY)
    head[HEAD_CODE] = load16(buf, position)
    head[HEAD_OPAQUE] = load32(buf, position + 5)
    head[HEAD_FLAG] = load32(buf, position + 9)
    if load32(buf, position + 17) != end - position - 21:
        return np.int64(CODEC_ONLY)
    position += 21
    while position < end:
        if position + 2 > end:
            return np.int64(CODEC_ONLY)
        name, name_length = position + 2, np.int64(load16(buf, position))
        position = name + name_length + 4
        if name_length < 1 or position > end:
            return np.int64(CODEC_ONLY)
        letter = field_letter(buf, name, name_length, head)
        length = np.int64(load32(buf, position - 4))
        if letter < 0 or fields[letter, 1] >= 0 or not 0 < length <= end - position:
            return np.int64(CODEC_ONLY)
        i = position
        while i < position + length:
            point, step = read_character(buf, i, position + length)
            if point < 0:
                return np.int64(CODEC_ONLY)
            i += step
        copy(text, at, buf, position, length)
        fields[letter, 0] = at
        fields[letter, 1] = length
        at += length
        position += length
    return np.int64(at)


@compiled
def clear_fields(head, fields):
    for letter in range(LETTERS):
        fields[letter, 1] = -1
    head[HEAD_NAMES] = head[HEAD_SHAPE] = 0


@compiled
def read_known(buf, position, end, head, fields, text, at, shapes):
    """As `read_alike`, of either shape of the pair, the latest one first."""
    pair = head[HEAD_PAIR]
    for other in range(2):
        way = head[LATEST_AT + pair] ^ other
        shape = SHAPES_AT + SHAPE_SIZE * (2 * pair + way)
        if head[shape + SHAPE_VALUES]:
            if head[HEAD_SHAPE] != shape:
                clear_fields(head, fields)
                head[HEAD_SHAPE] = shape
                head[HEAD_NAMES] = head[shape + SHAPE_NAMES]
            at_end = read_alike(buf, position, end, head, shape, fields, text, at, shapes)
            if at_end >= 0:
                head[LATEST_AT + pair] = way
                return at_end
    return np.int64(CODEC_ONLY)


@compiled
def read_frame(buf, start, end, head, fields, text, at, shapes):
    """(where the frame at `start` ends, end in `text`): NEED_MORE when it is not all there, CODEC_ONLY when it is
    none of those above, or has no room in `text`. An absent field has the length -1. After a header that was read by
    its shape not all of `fields` is right before place_fields."""
    if end - start < 4:
        return np.int64(NEED_MORE), np.int64(at)
    size = np.int64(load32(buf, start)) + 4
    if size < 8 or size > FRAME_SIZE_MAX:
        return np.int64(CODEC_ONLY), np.int64(at)
    if size > end - start:
        return np.int64(NEED_MORE), np.int64(at)
    kind = byte(buf, start + 4)
    header_size = np.int64(load32(buf, start + 4)) & 0xFFFFFF
    # put_piece may write a block less one byte more
    if header_size > size - 8 or header_size + BLOCK > len(text) - at:
        return np.int64(CODEC_ONLY), np.int64(at)
    head[HEAD_BODY_START] = start + 8 + header_size
    at_end = np.int64(CODEC_ONLY)
    data, header, header_end = pointer(buf), start + 8, start + 8 + header_size
    numbers, out = pointer(head), pointer(text)
    if kind == JSON:
        at_end = read_known(data, header, header_end, numbers, fields, out, at, shapes)
        if at_end < 0:
            clear_fields(numbers, fields)
            at_end = read_json(data, header, header_end, numbers, fields, out, at)
            if at_end >= 0:
                learn(data, header, header_end, numbers, out, at, at_end, shapes)
    elif kind == ROCKETMQ:
        clear_fields(numbers, fields)
        at_end = read_rocketmq(data, header, header_end, numbers, fields, out, at)
    if at_end < 0:
        return np.int64(CODEC_ONLY), np.int64(at)
    return np.int64(start + size), at_end


# --- replies -------------------------------------------------------------------------------------------------


GROUP, TEN_THOUSANDS = np.uint64(10**8), np.uint64(10**4)
HUNDRED, TEN, LOWEST = np.uint64(100), np.uint64(10), np.uint64(1 << 56)
HUNDREDTHS, TENTHS = np.uint64(10486), np.uint64(103)
"""Of 2 ** 20 and 2 ** 10, for numbers of four and of two digits."""
TWO_HUNDREDS, FOUR_TENS = np.uint64(0x0000007F0000007F), np.uint64(0x000F000F000F000F)


@compiled
def eight_digits(value):
    """The digits of a number below 10 ** 8, each in a byte, the first one lowest."""
    high = value // TEN_THOUSANDS
    halves = high | (value - high * TEN_THOUSANDS) << np.uint64(32)
    hundreds = halves * HUNDREDTHS >> np.uint64(20) & TWO_HUNDREDS
    pairs = hundreds | (halves - hundreds * HUNDRED) << np.uint64(16)
    tens = pairs * TENTHS >> np.uint64(10) & FOUR_TENS
    return tens | (pairs - tens * TEN) << np.uint64(8)


@compiled
def write_number(out, at, value):
    """Writes a number that is not negative in decimal, and up to seven zeros after it; the position after it."""
    first, groups = np.uint64(value), 0
    while first >= GROUP:
        first //= GROUP
        groups += 1
    digits = eight_digits(first)
    absent = trailing_zeros(digits | LOWEST) >> U3
    store_word(out, at, (digits + ZEROS) >> (absent << U3))
    end = np.int64(at + 8) - np.int64(absent)
    for group in range(groups - 1, -1, -1):
        rest = np.uint64(value) if group == 0 else np.uint64(value) // GROUP
        store_word(out, end, eight_digits(rest % GROUP) + ZEROS)
        end += 8
    return end


FOURS, PAIRS_OF_DIGITS, DIGITS = (
    np.uint64(mask) for mask in (0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF, 0x0F0F0F0F0F0F0F0F)
)
SIXES = EACH * np.uint64(6)


@compiled
def write_hex(out, at, value):
    """Writes the 16 upper case hexadecimal digits of a 64-bit number; the position after them."""
    for half in range(2):  # eight digits at once, each in a byte
        word = np.uint64(value >> (32 - 32 * half)) & np.uint64(0xFFFFFFFF)
        word = (word | word << np.uint64(16)) & FOURS
        word = (word | word << np.uint64(8)) & PAIRS_OF_DIGITS
        word = (word | word << np.uint64(4)) & DIGITS
        letters = (word + SIXES) >> np.uint64(4) & EACH
        store64(out, at + 8 * half, word + ZEROS + letters * np.uint64(7))
    return at + 16


@compiled
def finish_frame(out, start, end, kind):
    """Writes the lengths of a frame without a body that fills out[start:end]."""
    store32(out, start, end - start - 4)
    store32(out, start + 4, kind << 24 | (end - start - 8))
