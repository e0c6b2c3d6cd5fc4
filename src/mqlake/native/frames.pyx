# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
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


from cpython.bytes cimport PyBytes_AS_STRING

from mqlake.native.frame_layout cimport *
from mqlake.native.text cimport *

from mqlake.native.frame_layout import LONG_NAMES as _LONG_NAMES

cdef enum:
    QUOTE = 34
    BACKSLASH = 92
    SLASH = 47
    COMMA = 44
    COLON = 58
    MINUS = 45
    OPEN = 123
    CLOSE = 125
    SMALL_A = 97
    ZERO = 48
    INT32_MIN = -0x80000000
    INT32_MAX = 0x7FFFFFFF
    NAMES = 20

cdef Bytes ESCAPE = <Bytes>b"\\u000"
cdef u64 U000 = 0x303030755C, U000_MASK = 0xFFFFFFFFFF
"""The same as a word, and the bytes of it that count."""
cdef bytes NAMES_TEXT = "".join(_LONG_NAMES).encode()
cdef Bytes LONG_NAMES_TEXT = <Bytes>PyBytes_AS_STRING(NAMES_TEXT)
cdef i64 LONG_NAMES_END[NAMES]
cdef i64 name_number, names_end = 0
if len(_LONG_NAMES) != NAMES:
    raise ImportError(f"there are {len(_LONG_NAMES)} long names of fields, not {NAMES}")
for name_number in range(NAMES):
    names_end += len(_LONG_NAMES[name_number])
    LONG_NAMES_END[name_number] = names_end


cdef (i64, i64) read_number(Bytes buf, i64 position, i64 end) noexcept nogil:
    """(value, position after it) of a number as JSON writes it; position -1 when there is none, or one too large."""
    cdef i64 value, digits
    cdef bint negative
    if position + 8 <= end:
        value = few_digits(load_word(buf, position), &digits)
        if 0 < digits < 8 and (digits == 1 or buf[position] != ZERO):
            return value, position + digits
    first = position
    negative = position < end and buf[position] == MINUS
    if negative:
        first = position = position + 1
    position = read_digits(buf, position, end, &value)
    digits = position - first
    # JSON has no leading zeros, and -0 is no number that is sent
    if digits <= 0 or (buf[first] == ZERO and (digits > 1 or negative)):
        return 0, CODEC_ONLY
    return -value if negative else value, position


cdef (bint, i64) whole_number(Room text, i64 start, i64 length, i64 low, i64 high) noexcept nogil:
    """(whether the text is a number in [low, high], and nothing else; the number)."""
    if length == 1:
        digit = text[start] - ZERO
        return 0 <= digit <= 9 and low <= digit <= high, digit
    value, position = read_number(text, start, start + length)
    return position == start + length and low <= value <= high, value


cdef i64 hex_digit(i64 code) noexcept nogil:
    if ZERO <= code <= 57:
        return code - ZERO
    if 97 <= code <= 102:
        return code - 87
    if 65 <= code <= 70:
        return code - 55
    return -1


cdef (i64, i64) escaped(Bytes buf, i64 position, i64 end) noexcept nogil:
    """(character, position after it) of what a backslash at `position` introduces; -1 for half of a pair, too."""
    if position + 2 > end:
        return CODEC_ONLY, CODEC_ONLY
    kind = buf[position + 1]
    if kind == 117:  # u
        if position + 6 > end:
            return CODEC_ONLY, CODEC_ONLY
        code = 0
        for i in range(position + 2, position + 6):
            digit = hex_digit(buf[i])
            if digit < 0:
                return CODEC_ONLY, CODEC_ONLY
            code = code << 4 | digit
        if 0xD800 <= code <= 0xDFFF:
            return CODEC_ONLY, CODEC_ONLY
        return code, position + 6
    if kind in (QUOTE, BACKSLASH, SLASH):
        code = kind
    elif kind == 98:  # b
        code = 8
    elif kind == 102:  # f
        code = 12
    elif kind == 110:  # n
        code = 10
    elif kind == 114:  # r
        code = 13
    elif kind == 116:  # t
        code = 9
    else:
        return CODEC_ONLY, CODEC_ONLY
    return code, position + 2


cdef i64 put_character(Room text, i64 at, i64 code) noexcept nogil:
    """Writes a character below 65536 as UTF-8, in no more bytes than its escape has; the position after it."""
    if code > 0x7FF:
        text[at] = <u8>(0xE0 | code >> 12)
        text[at + 1] = <u8>(0x80 | code >> 6 & 0x3F)
        at += 2
    elif code > 0x7F:
        text[at] = <u8>(0xC0 | code >> 6)
        at += 1
    text[at] = <u8>(0x80 | code & 0x3F if code > 0x7F else code)
    return at + 1


cdef (i64, i64) read_plain(Bytes buf, i64 position, i64 end, Room text, i64 at) noexcept nogil:
    """(where the characters stop that stand for themselves in a JSON text, end in `text`), which has room for
    buf[position:end]."""
    cdef i64 length
    while position < end:
        if position + BLOCK <= end:
            move(text, at, buf, position)
            plain = plain_length(buf, position)
            position += plain
            at += plain
            if plain == BLOCK:
                continue
        code = buf[position]
        if code > 0x7F:
            point = read_character(buf, position, end, &length)
            if point < 0:
                break
            copy(text, at, buf, position, length)
            position += length
            at += length
        elif code >= 0x20 and code != QUOTE and code != BACKSLASH:
            position += 1
            text[at] = <u8>code
            at += 1
        else:
            break
    return position, at


cdef (i64, i64) read_text(Bytes buf, i64 position, i64 end, Room text, i64 at) noexcept nogil:
    """(position after the closing quote, end in `text`) of the JSON text that begins at `position`, after its
    opening quote; position -1 for bytes and escapes that are not for here. `text` has room for buf[position:end]."""
    while True:
        position, at = read_plain(buf, position, end, text, at)
        if position >= end:
            break
        code = buf[position]
        if code == QUOTE:
            return position + 1, at
        if code != BACKSLASH:
            break
        if position + 8 <= end:  # mostly \\u0001 and \\u0002, which are in properties
            word = load_word(buf, position)
            digit = <i64>(word >> 40 & 0xFF) - ZERO
            if word & U000_MASK == U000 and 0 <= digit <= 9:
                text[at] = <u8>digit
                at += 1
                position += 6
                continue
        code, position = escaped(buf, position, end)
        if position < 0:
            break
        at = put_character(text, at, code)
    return CODEC_ONLY, at


cdef i64 field_letter(Bytes buf, i64 start, i64 length, i64 *head) noexcept nogil:
    """The letter (0 to 25) of the field whose name this is; -1 for names that are not known here."""
    if length == 1:
        head[HEAD_NAMES] |= SHORT
        letter = buf[start] - SMALL_A
        return letter if 0 <= letter < SHORT_LETTERS and letter != BNAME else -1
    if equals(buf, start, length, b"AccessKey"):
        return ACCESS_KEY
    if equals(buf, start, length, b"Signature"):
        return SIGNATURE
    if equals(buf, start, length, b"SecurityToken"):
        return SECURITY_TOKEN
    if equals(buf, start, length, b"OnsChannel"):  # C++ clients send it, signed or not
        return ONS_CHANNEL
    if equals(buf, start, length, b"bname"):
        return BNAME
    head[HEAD_NAMES] |= LONG
    first = 0
    for letter in range(NAMES):
        stop = LONG_NAMES_END[letter]
        if stop - first == length and same_bytes(buf, start, LONG_NAMES_TEXT, first, length):
            return letter
        first = stop
    return -1


cdef i64 skip_spaces(Bytes buf, i64 position, i64 end) noexcept nogil:
    while position < end and buf[position] in (0x20, 0x0A, 0x0D, 0x09):
        position += 1
    return position


cdef (i64, i64) read_name(Bytes buf, i64 position, i64 end) noexcept nogil:
    """(where the name in quotes at `position` ends, where its value begins); -1 when there is none as clients write
    them: printable, without escapes."""
    if position >= end or buf[position] != QUOTE:
        return CODEC_ONLY, CODEC_ONLY
    position += 1
    while position < end and buf[position] != QUOTE:
        code = buf[position]
        if code < 0x20 or code > 0x7E or code == BACKSLASH:
            return CODEC_ONLY, CODEC_ONLY
        position += 1
    name_stop = position
    position = skip_spaces(buf, position + 1, end)
    if position >= end or buf[position] != COLON:
        return CODEC_ONLY, CODEC_ONLY
    position = skip_spaces(buf, position + 1, end)
    return name_stop, position if position < end else CODEC_ONLY


cdef (i64, i64) after_value(Bytes buf, i64 position, i64 end) noexcept nogil:
    """(what comes after a value that ends at `position`: a comma or the brace that closes the object, where the next
    name begins or what is after the brace); -1 for anything else."""
    position = skip_spaces(buf, position, end)
    if position < 0 or position >= end:
        return CODEC_ONLY, CODEC_ONLY
    closing = buf[position]
    if closing == COMMA:
        return closing, skip_spaces(buf, position + 1, end)
    return closing if closing == CLOSE else CODEC_ONLY, position + 1


cdef (i64, i64, bint) read_value(Bytes buf, i64 position, i64 end, Room text, i64 at) noexcept nogil:
    """(position after the value that begins at `position`, end in `text`, whether it is more than null): a text, or a
    whole number, a boolean as the text of it. Position -1 for anything else."""
    if buf[position] == QUOTE:
        position, at = read_text(buf, position + 1, end, text, at)
        return position, at, True
    start = position
    if equals(buf, position, min(end - position, 4), b"null"):
        return position + 4, at, False
    if equals(buf, position, min(end - position, 4), b"true"):
        position += 4
    elif equals(buf, position, min(end - position, 5), b"false"):
        position += 5
    else:
        _, position = read_number(buf, position, end)
        if position < 0:
            return CODEC_ONLY, at, False
    copy(text, at, buf, start, position - start)
    return position, (at + position - start), True


cdef void note_value(
    i64 *head, i64 whose, i64 varies, i64 start, i64 stop, i64 text_start, i64 text_stop,
) noexcept nogil:
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


cdef i64 backslash(Bytes buf, i64 position, i64 end) noexcept nogil:
    while position < end and buf[position] != BACKSLASH:
        position += 1
    return position


cdef bint is_escape(Bytes buf, i64 position, i64 end, i64 digit) noexcept nogil:
    return (
        position + 6 <= end
        and buf[position + 5] == ZERO + digit
        and same_bytes(buf, position, ESCAPE, 0, 5)
    )


cdef bint note_properties(Bytes buf, i64 start, i64 stop, i64 *head, i64 text_start, i64 text_stop) noexcept nogil:
    """True if each property of the text buf[start:stop] was noted, which clients write with escapes of \\1 and \\2
    alone."""
    count = head[HEAD_NOTED]
    note_value(head, BEGIN, 1, start, start, text_start, text_start)
    position, at = start, text_start
    while position < stop:
        value = backslash(buf, position, stop)
        length = value - position
        whose = PROPERTY
        if equals(buf, position, length, b"UNIQ_KEY"):
            whose = UNIQ_KEY
        elif equals(buf, position, length, b"WAIT") or equals(buf, position, length, b"TRAN_MSG"):
            whose = TELLING
        if length == 0 or not is_escape(buf, value, stop, 1):
            break
        value += 6
        at += length + 1
        position = backslash(buf, value, stop)
        length = position - value
        if length == 0 or (position < stop and not is_escape(buf, position, stop, 2)):
            break
        note_value(head, whose, (whose == UNIQ_KEY), value, position, at, at + length)
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


cdef bint has_values(i64 *head, i64 shape) noexcept nogil:
    """True if a shape has the values that were noted, whatever is in them, and is of the same command."""
    if head[shape + SHAPE_VALUES] != head[HEAD_NOTED] or head[shape + SHAPE_CODE] != head[HEAD_CODE]:
        return False
    for n in range(head[HEAD_NOTED]):
        at = VALUE_SIZE * n + WHOSE
        if head[shape + VALUES_AT + at] != head[NOTES_AT + at]:
            return False
    return True


cdef void learn(
    Bytes buf, i64 start, i64 end, i64 *head, Room text, i64 text_start, i64 text_end, Room shapes,
) noexcept nogil:
    """Makes a shape of the header buf[start:end], of which the values were noted."""
    cdef bint is_known
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
    step, varying = shape + STEPS_AT, (<i64>1 << NO_UNIQ_KEY_BIT)
    done, text_done = 0, 0
    for n in range(count):
        value, note = shape + VALUES_AT + VALUE_SIZE * n, NOTES_AT + VALUE_SIZE * n
        whose, at, length = head[note + WHOSE], head[note + RAW_AT] - start, head[note + RAW_LENGTH]
        varies, text_at = head[note + VARIES], head[note + TEXT_AT] - text_start
        if varies == 0 and is_known:
            varies = head[value + VARIES]
            was_at, was_length = head[value + RAW_AT], head[value + RAW_LENGTH]
            if length != was_length or not same_bytes(shapes, raw + was_at, buf, start + at, length):
                varies = 1
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
                varying |= <i64>1 << (whose & (UNQUOTED - 1))
            elif whose == TELLING:
                varying |= <i64>1 << TELLING_BIT
            elif whose == UNIQ_KEY:
                varying &= ~(<i64>1 << NO_UNIQ_KEY_BIT)
    text_length = text_end - text_start
    step = add_step(
        head, step, 0, raw + done, end - start - done, rest + text_done, text_length - text_done
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


cdef i64 add_step(
    i64 *head, i64 step, i64 whose, i64 gap, i64 gap_length, i64 piece, i64 piece_length,
) noexcept nogil:
    head[step + WHOSE] = whose
    head[step + GAP_AT] = gap
    head[step + GAP_LENGTH] = gap_length
    head[step + PIECE_AT] = piece
    head[step + PIECE_LENGTH] = piece_length
    return step + STEP_SIZE


cdef i64 after_gap(Bytes buf, i64 position, i64 end, i64 *head, i64 step, Room shapes) noexcept nogil:
    """The position after what comes before the value of a step, if this is it; else -1."""
    at, length = head[step + GAP_AT], head[step + GAP_LENGTH]
    if length > end - position:
        return CODEC_ONLY
    done = 0
    while done < length:
        if position + done + BLOCK <= end:
            rest = max(<i64>0, done + BLOCK - length)
            if unlike(buf, position + done, shapes, at + done) & (<u64>0xFFFFFFFF >> rest):
                return CODEC_ONLY
        elif length >= BLOCK:  # the last block, some of it again
            if unlike(buf, position + length - BLOCK, shapes, at + length - BLOCK):
                return CODEC_ONLY
        elif not same_bytes(buf, position, shapes, at, length):
            return CODEC_ONLY
        done += BLOCK
    return position + length


cdef i64 put_piece(Room text, i64 at, Room shapes, i64 *head, i64 step) noexcept nogil:
    """Writes what comes before the value of a step, and up to a block less one byte more; the end of it."""
    return put_blocks(text, at, shapes, head[step + PIECE_AT], head[step + PIECE_LENGTH])


cdef i64 read_alike(
    Bytes buf, i64 position, i64 end, i64 *head, i64 shape, Pair *fields, Room text, i64 at, Room shapes,
) noexcept nogil:
    """As `read_json`, of a header that has this shape; CODEC_ONLY when it has another. Of `fields` it writes those that
    vary: see place_fields."""
    head[HEAD_CODE] = head[shape + SHAPE_CODE]
    head[HEAD_FLAG] = head[shape + SHAPE_FLAG]
    head[HEAD_OPAQUE] = head[shape + SHAPE_OPAQUE]
    step = shape + STEPS_AT
    begin = at
    for _ in range(head[shape + SHAPE_STEPS]):
        whose = head[step + WHOSE]
        position = after_gap(buf, position, end, head, step, shapes)
        if position < 0:
            return CODEC_ONLY
        at = put_piece(text, at, shapes, head, step)
        step += STEP_SIZE
        if whose == BEGIN:
            begin = at
        elif whose == STOP:
            fields[PROPERTIES][0] = begin
            fields[PROPERTIES][1] = at - begin
        elif whose < THE_CODE:
            position, after = read_plain(buf, position, end, text, at)
            if after == at:
                return CODEC_ONLY
            if whose == UNIQ_KEY:
                head[HEAD_UNIQ_KEY] = at
                head[HEAD_UNIQ_KEY_LENGTH] = after - at
            at = after
        elif SOME_TEXT <= whose < UNQUOTED:
            position, after = read_text(buf, position, end, text, at)
            if position < 0:
                return CODEC_ONLY
            position -= 1  # the closing quote is the gap's
            if whose >= 0:
                fields[whose][0] = at
                fields[whose][1] = after - at
                at = after
        else:
            first = position
            value, position = read_number(buf, position, end)
            if position < 0:
                return CODEC_ONLY
            if whose >= UNQUOTED:
                copy(text, at, buf, first, position - first)
                fields[whose - UNQUOTED][0] = at
                fields[whose - UNQUOTED][1] = position - first
                at += position - first
            elif value < INT32_MIN or value > INT32_MAX:
                return CODEC_ONLY
            elif whose == THE_CODE:
                head[HEAD_CODE] = value
            elif whose == THE_FLAG:
                head[HEAD_FLAG] = value
            elif whose == THE_OPAQUE:
                head[HEAD_OPAQUE] = value
    if after_gap(buf, position, end, head, step, shapes) != end:
        return CODEC_ONLY
    return put_piece(text, at, shapes, head, step)


cdef void place_fields(i64 *head, Pair *fields, i64 at) noexcept nogil:
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
                at += fields[letter][1] - head[value + TEXT_LENGTH]
            else:
                fields[letter][0] = at + head[value + TEXT_AT]
                fields[letter][1] = head[value + TEXT_LENGTH]
        elif whose == STOP:
            at = fields[PROPERTIES][0] + fields[PROPERTIES][1] - head[value + TEXT_AT]
        value += VALUE_SIZE


cdef (i64, i64) read_fields(
    Bytes buf, i64 position, i64 end, i64 *head, Pair *fields, Room text, i64 at,
) noexcept nogil:
    """(position after the object, end in `text`) of extFields whose opening brace is before `position`."""
    cdef bint is_there, is_number
    position = skip_spaces(buf, position, end)
    while True:
        name = position + 1
        name_stop, position = read_name(buf, position, end)
        if position < 0:
            return CODEC_ONLY, at
        letter = field_letter(buf, name, name_stop - name, head)
        if letter < 0 or fields[letter][1] >= 0:
            return CODEC_ONLY, at
        start, first, kind = at, position, buf[position]
        position, at, is_there = read_value(buf, position, end, text, at)
        if position < 0:
            return CODEC_ONLY, at
        if kind == QUOTE:
            if letter != PROPERTIES or not note_properties(buf, first + 1, position - 1, head, start, at):
                note_value(head, letter, 0, first + 1, position - 1, start, at)
        elif is_there:
            is_number = kind == MINUS or ZERO <= kind <= ZERO + 9
            varies = (0 if is_number else NEVER)
            note_value(head, letter + UNQUOTED, varies, first, position, start, at)
        if is_there:
            fields[letter][0] = start
            fields[letter][1] = at - start
        closing, position = after_value(buf, position, end)
        if closing == CLOSE:
            return position, at
        if closing != COMMA:
            return CODEC_ONLY, at


cdef i64 read_json(Bytes buf, i64 position, i64 end, i64 *head, Pair *fields, Room text, i64 at) noexcept nogil:
    """The end in `text`, or CODEC_ONLY; fills `head` and `fields` from the JSON header buf[position:end]."""
    cdef bint has_fields, is_text, is_there
    cdef i64 after
    head[HEAD_CODE] = head[HEAD_FLAG] = head[HEAD_OPAQUE] = head[HEAD_NOTED] = 0
    position = skip_spaces(buf, position, end)
    if position >= end or buf[position] != OPEN:
        return CODEC_ONLY
    position = skip_spaces(buf, position + 1, end)
    has_fields = False
    while True:
        name = position + 1
        name_stop, position = read_name(buf, position, end)
        if position < 0:
            return CODEC_ONLY
        length = name_stop - name
        if equals(buf, name, length, b"extFields"):
            if has_fields or buf[position] != OPEN:
                return CODEC_ONLY
            has_fields = True
            position, at = read_fields(buf, position + 1, end, head, fields, text, at)
        elif equals(buf, name, length, b"language") or equals(buf, name, length, b"serializeTypeCurrentRPC"):
            start = position + 1
            is_text = buf[position] == QUOTE
            position, after, is_there = read_value(buf, position, end, text, at)
            if is_text and position > 0:
                note_value(head, SOME_TEXT, 0, start, position - 1, at, at)
        elif equals(buf, name, length, b"remark"):
            position, after, is_there = read_value(buf, position, end, text, at)
            if after > at:
                return CODEC_ONLY
        else:
            start, whose = position, SOME_NUMBER
            value, position = read_number(buf, position, end)
            if position < 0 or value < INT32_MIN or value > INT32_MAX:
                return CODEC_ONLY
            if equals(buf, name, length, b"code"):
                whose, head[HEAD_CODE] = THE_CODE, value
            elif equals(buf, name, length, b"flag"):
                whose, head[HEAD_FLAG] = THE_FLAG, value
            elif equals(buf, name, length, b"opaque"):
                whose, head[HEAD_OPAQUE] = THE_OPAQUE, value
            elif not equals(buf, name, length, b"version"):
                return CODEC_ONLY
            note_value(head, whose, 0, start, position, at, at)
        if position < 0:
            return CODEC_ONLY
        closing, position = after_value(buf, position, end)
        if closing == CLOSE:
            if skip_spaces(buf, position, end) != end:
                return CODEC_ONLY
            return at
        if closing != COMMA:
            return CODEC_ONLY


cdef i64 read_rocketmq(Bytes buf, i64 position, i64 end, i64 *head, Pair *fields, Room text, i64 at) noexcept nogil:
    """As `read_json`, of a ROCKETMQ header."""
    cdef i64 step
    if position + 21 > end or load32(buf, position + 13) != 0:
        return CODEC_ONLY
    head[HEAD_CODE] = load16(buf, position)
    head[HEAD_OPAQUE] = load32(buf, position + 5)
    head[HEAD_FLAG] = load32(buf, position + 9)
    if load32(buf, position + 17) != end - position - 21:
        return CODEC_ONLY
    position += 21
    while position < end:
        if position + 2 > end:
            return CODEC_ONLY
        name, name_length = position + 2, load16(buf, position)
        position = name + name_length + 4
        if name_length < 1 or position > end:
            return CODEC_ONLY
        letter = field_letter(buf, name, name_length, head)
        length = load32(buf, position - 4)
        if letter < 0 or fields[letter][1] >= 0 or not 0 < length <= end - position:
            return CODEC_ONLY
        i = position
        while i < position + length:
            point = read_character(buf, i, position + length, &step)
            if point < 0:
                return CODEC_ONLY
            i += step
        copy(text, at, buf, position, length)
        fields[letter][0] = at
        fields[letter][1] = length
        at += length
        position += length
    return at


cdef void clear_fields(i64 *head, Pair *fields) noexcept nogil:
    for letter in range(LETTERS):
        fields[letter][1] = -1
    head[HEAD_NAMES] = head[HEAD_SHAPE] = 0


cdef i64 read_known(
    Bytes buf, i64 position, i64 end, i64 *head, Pair *fields, Room text, i64 at, Room shapes,
) noexcept nogil:
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
    return CODEC_ONLY


cdef (i64, i64) read_frame(
    Bytes buf, i64 start, i64 end, i64 *head, Pair *fields, Room text, i64 text_size, i64 at, Room shapes,
) noexcept nogil:
    """(where the frame at `start` ends, end in `text`): NEED_MORE when it is not all there, CODEC_ONLY when it is
    none of those above, or has no room in `text`. An absent field has the length -1. After a header that was read by
    its shape not all of `fields` is right before place_fields."""
    if end - start < 4:
        return NEED_MORE, at
    cdef i64 size = load32(buf, start)
    size += 4
    if size < 8 or size > FRAME_SIZE_MAX:
        return CODEC_ONLY, at
    if size > end - start:
        return NEED_MORE, at
    cdef i64 header_size = load32(buf, start + 4) & 0xFFFFFF
    # put_piece may write a block less one byte more
    if header_size > size - 8 or header_size + BLOCK > text_size - at:
        return CODEC_ONLY, at
    header = start + 8
    header_end = header + header_size
    head[HEAD_BODY_START] = header_end
    cdef i64 at_end = CODEC_ONLY
    if buf[start + 4] == JSON:
        at_end = read_known(buf, header, header_end, head, fields, text, at, shapes)
        if at_end < 0:
            clear_fields(head, fields)
            at_end = read_json(buf, header, header_end, head, fields, text, at)
            if at_end >= 0:
                learn(buf, header, header_end, head, text, at, at_end, shapes)
    elif buf[start + 4] == ROCKETMQ:
        clear_fields(head, fields)
        at_end = read_rocketmq(buf, header, header_end, head, fields, text, at)
    if at_end < 0:
        return CODEC_ONLY, at
    return start + size, at_end


# --- for tests -----------------------------------------------------------------------------------------------


def read(const u8[::1] buf, i64[::1] head, i64[:, ::1] fields, u8[::1] text, u8[::1] shapes):
    """read_frame of `buf` from its beginning, into the beginning of `text`, and place_fields."""
    if head.shape[0] != HEAD_ROOM or fields.shape[0] != LETTERS or fields.shape[1] != 2:
        raise ValueError("head and fields have sizes of their own")
    if shapes.shape[0] != SHAPES_SIZE:
        raise ValueError("so have shapes")
    cdef Bytes data = bytes_of(buf)
    cdef Room out = room_of(text)
    stop, end = read_frame(
        data, 0, buf.shape[0], &head[0], <Pair *>&fields[0, 0], out, text.shape[0], 0, &shapes[0]
    )
    place_fields(&head[0], <Pair *>&fields[0, 0], 0)
    return stop, end


def write(u8[::1] out, i64 at, i64 value, bint hexadecimal=False):
    """write_number and write_hex, which write up to 27 bytes."""
    if not 0 <= at <= out.shape[0] - 27:
        raise ValueError(f"there is no room at {at}")
    return write_hex(&out[0], at, value) if hexadecimal else write_number(&out[0], at, value)
