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
from mqlake.compiled.kernels.primitives import (
    EACH,
    U1,
    U2,
    U3,
    U4,
    U5,
    U6,
    U7,
    ZERO,
    copy,
    load16,
    load32,
    load_word,
    pointer,
    read_character,
    read_digits,
    same_bytes,
    store32,
    trailing_zeros,
)
from mqlake.remoting.codec import FRAME_SIZE_MAX

CODEC_ONLY = -1
"""A frame that `codec.decode_frame` may be able to read, and this cannot."""
NEED_MORE = 0

SHORT_LETTERS = 26
ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = range(SHORT_LETTERS, SHORT_LETTERS + 3)
"""Of the fields that sign a request, in whatever names the others are."""
LETTERS = SHORT_LETTERS + 3
HEAD_CODE, HEAD_FLAG, HEAD_OPAQUE, HEAD_BODY_START, HEAD_NAMES = range(5)
SHORT, LONG = 1, 2
"""The bits of head[HEAD_NAMES]: names of one letter were seen, and long ones."""
SHAPE_VALUES, SHAPE_NAMES, SHAPE_NOTED, SHAPE_GAP, SHAPE_AT = range(5, 10)
"""The shape of the last header that read_json has read, which a client's next one has as well: how many values (0: none
is known), its HEAD_NAMES, and a gap before each value and after the last one: whose value follows, how many bytes it
has, and these as words. While it is noted: how many gaps so far (-1: it can have no shape), and where the last value
ended."""
WHOSE, GAP_LENGTH, GAP = range(3)
GAP_WORDS = 5
GAP_SIZE = 2 + GAP_WORDS
SHAPE_VALUES_MAX = 40
HEAD_ROOM = SHAPE_AT + GAP_SIZE * (SHAPE_VALUES_MAX + 1)
THE_CODE, THE_FLAG, THE_OPAQUE, SOME_NUMBER, SOME_TEXT = range(-5, 0)
"""A value that is no field's; SOME are not needed."""
JSON, ROCKETMQ = 0, 1

QUOTE, BACKSLASH, SLASH, COMMA, COLON, MINUS, OPEN, CLOSE, SMALL_A = (ord(c) for c in '"\\/,:-{}a')


def _word(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).copy()


CODE_NAME, FLAG_NAME, OPAQUE_NAME = _word("code"), _word("flag"), _word("opaque")
VERSION_NAME, LANGUAGE_NAME, REMARK_NAME = _word("version"), _word("language"), _word("remark")
ACCESS_KEY_NAME, SECURITY_TOKEN_NAME, SIGNATURE_NAME = (
    _word("AccessKey"),
    _word("SecurityToken"),
    _word("Signature"),
)
NULL, TRUE, FALSE = _word("null"), _word("true"), _word("false")
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

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@compiled
def byte(buf, position):
    return np.int64(buf[np.uint64(position)])


@compiled
def equals(buf, start, length, word):
    return length == len(word) and same_bytes(buf, start, word, 0, length)


@compiled
def read_number(buf, position, end):
    """(value, position after it) of a number as JSON writes it; position -1 when there is none, or one too large."""
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


TOP = np.uint64(0x8080808080808080)
SPACES, QUOTES, BACKSLASHES = (EACH * np.uint64(code) for code in (0x20, QUOTE, BACKSLASH))


@compiled
def store_word(out, at, word):
    p = np.uint64(at)
    out[p] = np.uint8(word)
    out[p + U1] = np.uint8(word >> np.uint64(8))
    out[p + U2] = np.uint8(word >> np.uint64(16))
    out[p + U3] = np.uint8(word >> np.uint64(24))
    out[p + U4] = np.uint8(word >> np.uint64(32))
    out[p + U5] = np.uint8(word >> np.uint64(40))
    out[p + U6] = np.uint8(word >> np.uint64(48))
    out[p + U7] = np.uint8(word >> np.uint64(56))


@compiled
def plain_length(word):
    """How many of eight bytes, from the first on, are ASCII from the space on, and neither quote nor backslash."""
    quotes, backslashes = word ^ QUOTES, word ^ BACKSLASHES
    # a borrow makes a byte after the first one that is found look like one of these
    found = (word | (word - SPACES) | (quotes - EACH) | (backslashes - EACH)) & TOP
    return np.int64(8) if found == 0 else np.int64(trailing_zeros(found) >> np.uint64(3))


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
def read_text(buf, position, end, text, at):
    """(position after the closing quote, end in `text`) of the JSON text that begins at `position`, after its
    opening quote; position -1 for bytes and escapes that are not for here. `text` has room for buf[position:end]."""
    while position < end:
        if position + 8 <= end:
            word = load_word(buf, position)
            store_word(text, at, word)
            plain = plain_length(word)
            position += plain
            at += plain
            if plain == 8:
                continue
        code = byte(buf, position)
        if code == QUOTE:
            return np.int64(position + 1), np.int64(at)
        if code < 0x20:
            break
        if code > 0x7F:
            point, length = read_character(buf, position, end)
            if point < 0:
                break
            copy(text, at, buf, position, length)
            position += length
            at += length
            continue
        if code == BACKSLASH:
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
        else:
            position += 1
            text[np.uint64(at)] = np.uint8(code)
            at += 1
    return np.int64(CODEC_ONLY), np.int64(at)


@compiled
def field_letter(buf, start, length, head):
    """The letter (0 to 25) of the field whose name this is; -1 for names that are not known here."""
    if length == 1:
        head[HEAD_NAMES] |= SHORT
        letter = byte(buf, start) - SMALL_A
        return letter if 0 <= letter < SHORT_LETTERS else np.int64(-1)
    if equals(buf, start, length, ACCESS_KEY_NAME):
        return np.int64(ACCESS_KEY)
    if equals(buf, start, length, SIGNATURE_NAME):
        return np.int64(SIGNATURE)
    if equals(buf, start, length, SECURITY_TOKEN_NAME):
        return np.int64(SECURITY_TOKEN)
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
def some_bytes(buf, position, count):
    """Up to eight bytes as `load_word` has them, and zeros."""
    word = np.uint64(0)
    for i in range(position + count - 1, position - 1, -1):
        word = word << np.uint64(8) | np.uint64(buf[np.uint64(i)])
    return word


@compiled
def note_value(buf, value, head, whose):
    """Adds a value that begins at `value` to the shape."""
    values, gap = head[SHAPE_NOTED], head[SHAPE_GAP]
    if values < 0 or values > SHAPE_VALUES_MAX or value - gap > 8 * GAP_WORDS:
        head[SHAPE_NOTED] = -1
        return
    at = SHAPE_AT + GAP_SIZE * values
    head[at + WHOSE] = whose
    head[at + GAP_LENGTH] = value - gap
    for n in range(GAP_WORDS):
        word = some_bytes(buf, gap + 8 * n, min(max(value - gap - 8 * n, np.int64(0)), np.int64(8)))
        head[at + GAP + n] = np.int64(word)
    head[SHAPE_NOTED] = values + 1


@compiled
def after_gap(buf, position, end, head, at):
    """The position after the gap of a shape, if this is it; else -1."""
    length = head[at + GAP_LENGTH]
    if length > end - position:
        return np.int64(CODEC_ONLY)
    n = np.int64(0)
    while n < length:
        left = length - n
        if position + n + 8 <= end:
            word = load_word(buf, position + n)
            if left < 8:
                word &= (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
        else:
            word = some_bytes(buf, position + n, min(left, np.int64(8)))
        if word != np.uint64(head[at + GAP + (n >> 3)]):
            return np.int64(CODEC_ONLY)
        n += 8
    return position + length


@compiled
def read_alike(buf, position, end, head, fields, text, at):
    """As `read_json`, of a header that has the shape of the last one; CODEC_ONLY when it has another."""
    head[HEAD_CODE] = head[HEAD_FLAG] = head[HEAD_OPAQUE] = 0
    head[HEAD_NAMES] = head[SHAPE_NAMES]
    shape = np.int64(SHAPE_AT)
    for _ in range(head[SHAPE_VALUES]):
        whose = head[shape + WHOSE]
        position = after_gap(buf, position, end, head, shape)
        shape += GAP_SIZE
        if position < 0:
            return np.int64(CODEC_ONLY)
        if whose >= 0 or whose == SOME_TEXT:
            position, after = read_text(buf, position, end, text, at)
            if position < 0:
                return np.int64(CODEC_ONLY)
            position -= 1  # the closing quote is the gap's
            if whose >= 0:
                fields[whose, 0] = at
                fields[whose, 1] = after - at
                at = after
            continue
        value, position = read_number(buf, position, end)
        if position < 0 or value < INT32_MIN or value > INT32_MAX:
            return np.int64(CODEC_ONLY)
        if whose == THE_CODE:
            head[HEAD_CODE] = value
        elif whose == THE_FLAG:
            head[HEAD_FLAG] = value
        elif whose == THE_OPAQUE:
            head[HEAD_OPAQUE] = value
    return np.int64(at) if after_gap(buf, position, end, head, shape) == end else np.int64(CODEC_ONLY)


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
        start = at
        is_text = byte(buf, position) == QUOTE
        note_value(buf, position + 1, head, letter)
        position, at, is_there = read_value(buf, position, end, text, at)
        if position < 0:
            return codec_only
        head[SHAPE_GAP] = position - 1
        if not is_text:
            head[SHAPE_NOTED] = -1
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
    head[HEAD_CODE] = head[HEAD_FLAG] = head[HEAD_OPAQUE] = 0
    head[SHAPE_VALUES] = head[SHAPE_NOTED] = 0
    head[SHAPE_GAP] = position
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
            is_text = byte(buf, position) == QUOTE
            note_value(buf, position + 1, head, np.int64(SOME_TEXT))
            position, _, _ = read_value(buf, position, end, text, at)
            head[SHAPE_GAP] = position - 1
            if not is_text:
                head[SHAPE_NOTED] = -1
        elif equals(buf, name, length, REMARK_NAME):
            head[SHAPE_NOTED] = -1
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
            note_value(buf, start, head, whose)
            head[SHAPE_GAP] = position
        if position < 0:
            return np.int64(CODEC_ONLY)
        closing, position = after_value(buf, position, end)
        if closing == CLOSE:
            if skip_spaces(buf, position, end) != end:
                return np.int64(CODEC_ONLY)
            note_value(buf, end, head, np.int64(0))
            head[SHAPE_VALUES] = max(head[SHAPE_NOTED] - 1, np.int64(0))
            head[SHAPE_NAMES] = head[HEAD_NAMES]
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
    head[HEAD_NAMES] = 0


@compiled
def read_frame(buf, start, end, head, fields, text, at):
    """(where the frame at `start` ends, end in `text`): NEED_MORE when it is not all there, CODEC_ONLY when it is
    none of those above, or has no room in `text`. An absent field has the length -1."""
    if end - start < 4:
        return np.int64(NEED_MORE), np.int64(at)
    size = np.int64(load32(buf, start)) + 4
    if size < 8 or size > FRAME_SIZE_MAX:
        return np.int64(CODEC_ONLY), np.int64(at)
    if size > end - start:
        return np.int64(NEED_MORE), np.int64(at)
    kind = byte(buf, start + 4)
    header_size = np.int64(load32(buf, start + 4)) & 0xFFFFFF
    if header_size > size - 8 or header_size > len(text) - at:
        return np.int64(CODEC_ONLY), np.int64(at)
    head[HEAD_BODY_START] = start + 8 + header_size
    at_end = np.int64(CODEC_ONLY)
    clear_fields(head, fields)
    if kind == JSON:
        header, out = start + 8, pointer(text)
        if head[SHAPE_VALUES]:
            at_end = read_alike(pointer(buf), header, header + header_size, head, fields, out, at)
            if at_end < 0:
                clear_fields(head, fields)
        if at_end < 0:
            at_end = read_json(pointer(buf), header, header + header_size, head, fields, out, at)
    elif kind == ROCKETMQ:
        at_end = read_rocketmq(
            pointer(buf), start + 8, start + 8 + header_size, head, fields, pointer(text), at
        )
    if at_end < 0:
        return np.int64(CODEC_ONLY), np.int64(at)
    return np.int64(start + size), at_end


# --- replies -------------------------------------------------------------------------------------------------


@compiled
def write_number(out, at, value):
    """Writes a number that is not negative in decimal; the position after it."""
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    for i in range(digits - 1, -1, -1):
        out[np.uint64(at + i)] = np.uint8(ZERO + value % 10)
        value //= 10
    return at + digits


@compiled
def write_hex(out, at, value):
    """Writes the 16 upper case hexadecimal digits of a 64-bit number; the position after them."""
    for i in range(16):
        digit = (value >> (60 - 4 * i)) & 15
        out[np.uint64(at + i)] = np.uint8(ZERO + digit if digit < 10 else 55 + digit)
    return at + 16


@compiled
def finish_frame(out, start, end, kind):
    """Writes the lengths of a frame without a body that fills out[start:end]."""
    store32(out, start, end - start - 4)
    store32(out, start + 4, kind << 24 | (end - start - 8))
