# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Properties of scanned records, compiled: to what consume queues and the index need."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.blocks import SPAN, byte_end, found_in_span, unlike_model
from mqlake.compiled.kernels.primitives import (
    CACHE_LINE,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    U1,
    element,
    load16,
    load32,
    load64,
    pointer,
    prefetch,
    read_character,
    read_digits,
    touch,
    trailing_zeros,
)
from mqlake.formats.columns import layout

NAME_TAGS = int.from_bytes(b"TAGS", "big")
NAME_KEYS = int.from_bytes(b"KEYS", "big")
NAME_DELA = int.from_bytes(b"DELA", "big")
NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
NAME_INNER_NU = int.from_bytes(b"INNER_NU", "big")
NAME_INNER_BA = int.from_bytes(b"INNER_BA", "big")
NAME_SE = int.from_bytes(b"SE", "big")


SPACE = 32
STEP = 32
"""Characters that are hashed at once."""
NOT_ASCII = -1
PREFETCHED, PREFETCHED_LINES = 8, 4
"""So many records ahead: a scan of thousands has left the nearest cache when it comes to their properties."""
POWERS = np.array([31**n & 0xFFFFFFFF for n in range(STEP + 1)], np.uint32)

# The shapes of properties that are known: a row for each, by their length, and one for those without. In a row:
# where values begin and end, from the position of the properties on, and, of a shape, its model's length and
# position, the last length that there was, and a bit for each byte that is no value
TAGS, KEYS, UNIQ_KEY, DELAY, INNER_NUM, INNER_BASE = range(0, 12, 2)
PLACES = 12
LENGTH, MODEL, SEEN, FIXED = range(PLACES, PLACES + 4)
SHAPE_SIZE = layout.SHAPE_SIZE
SHAPE_MAX = (SHAPE_SIZE - FIXED) * SPAN
SHAPES = layout.SHAPES
UNKNOWN = SHAPES * SHAPE_SIZE
HITS, LEARNED = PLACES, PLACES + 1
"""In the row UNKNOWN."""
HITS_A_SHAPE = 8
"""So many records that have a shape save more than it costs to learn one."""


@intrinsic
def hash_of_last(_context, items, _end, _length):
    """The hash of the `length` (1 to STEP) characters before items[end] in the lowest 32 bits; NOT_ASCII when one of
    them is none. The STEP bytes before items[end] are read."""

    def generate(context, builder, signature, arguments):
        items, end, length = arguments
        i8, i32, i64 = (ir.IntType(bits) for bits in (8, 32, 64))
        vector, numbers = ir.VectorType(i8, STEP), ir.VectorType(i32, STEP)
        start = builder.sub(end, ir.Constant(i64, STEP))
        at = builder.bitcast(element(context, builder, signature, [items, start]), vector.as_pointer())
        before = builder.trunc(builder.sub(ir.Constant(i64, STEP), length), i32)
        inside = builder.bitcast(
            builder.shl(ir.Constant(i32, -1), before), ir.VectorType(ir.IntType(1), STEP)
        )
        none = ir.Constant(vector, [0] * STEP)
        text = builder.select(inside, builder.load(at, align=1), none)
        other = builder.bitcast(builder.icmp_signed("<", text, none), i32)
        powers = ir.Constant(numbers, [31 ** (STEP - 1 - n) & 0xFFFFFFFF for n in range(STEP)])
        products = builder.mul(builder.zext(text, numbers), powers)
        kind = ir.FunctionType(i32, [numbers])
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.add.v{STEP}i32")
        code = builder.zext(builder.call(add, [products]), i64)
        is_ascii = builder.icmp_signed("==", other, ir.Constant(i32, 0))
        return builder.select(is_ascii, code, ir.Constant(i64, NOT_ASCII))

    return types.int64(items, types.int64, types.int64), generate


@compiled
def hash_text(buf, start, end, code):
    """Java's String.hashCode of the UTF-8 text buf[start:end], going on from `code`, in [0, 2^32).

    Malformed bytes count as U+FFFD, as bytes.decode("utf-8", "replace") makes of them. What is before the text may be
    read with it.
    """
    if start < STEP:
        return hash_characters(buf, start, end, code)
    if start < end:
        length = (end - start - 1) % STEP + 1
        for stop in range(start + length, end + 1, STEP):
            touch(buf, stop - STEP, stop - 1)
            found = hash_of_last(buf, stop, length)
            if found == NOT_ASCII:
                return hash_characters(buf, stop - length, end, code)
            code = code * POWERS[length] + np.uint32(found)
            length = np.int64(STEP)
    return code


@compiled
def hash_characters(buf, position, end, code):
    """As hash_text(), a character at a time."""
    while position < end:
        point, length = read_character(buf, position, end)
        position += length
        if point < 0:
            point = np.int64(0xFFFD)
        elif point > 0xFFFF:  # Java hashes UTF-16: two surrogates
            point -= 0x10000
            code = code * POWERS[1] + np.uint32(0xD800 | point >> 10)
            point = 0xDC00 | point & 0x3FF
        code = code * POWERS[1] + np.uint32(point)
    return code


@compiled
def signed(code):
    """The 32-bit pattern `code` as Java's int."""
    return np.int64(np.int32(np.uint32(code)))


@compiled
def key_hash_of(code):
    return np.int32(abs(signed(code)) & 0x7FFFFFFF)


@compiled
def parse_number(buf, start, end, low, high):
    """(True, n) if buf[start:end] is [+-]digits within [low, high]."""
    position = start
    negative = False
    if position < end and (buf[position] == 43 or buf[position] == 45):
        negative = buf[position] == 45
        position += 1
    value, stop = read_digits(buf, position, end)
    if stop == position or stop != end:  # no digits, or something else, or more than 63 bits
        return False, np.int64(0)
    if negative:
        value = -value
    return low <= value <= high, value


@compiled
def find_values(data, position, end, size, shapes):
    """Sets the row UNKNOWN: where, from `position` on, the values begin and end of those properties in
    data[position:end] that dispatch needs; 0 for one that is not there."""
    for place in range(PLACES):
        shapes[UNKNOWN + place] = 0
    start = position
    parting = np.int64(-1)  # where the first \\1 after `position` is
    for span in range(position, end + 1, SPAN):
        ones = found_in_span(data, span, end, size, NAME_VALUE_SEPARATOR)
        twos = found_in_span(data, span, end, size, PROPERTY_SEPARATOR)
        if end - span < SPAN:  # the last separator may be missing
            twos |= U1 << np.uint64(end - span)
        while twos:
            last = twos & (np.uint64(0) - twos)
            stop = span + np.int64(trailing_zeros(twos))
            if parting < 0 and ones & (last - U1):
                parting = span + np.int64(trailing_zeros(ones))
            if position < parting < stop - 1:
                place = -1
                length = parting - position
                if length == 4:
                    name = load32(data, position)
                    if name == NAME_TAGS:
                        place = TAGS
                    elif name == NAME_KEYS:
                        place = KEYS
                elif length == 5:
                    if load32(data, position) == NAME_DELA and data[position + 4] == 89:
                        place = DELAY
                elif length == 8:
                    if load64(data, position) == NAME_UNIQ_KEY:
                        place = UNIQ_KEY
                elif length == 9:
                    if load64(data, position) == NAME_INNER_NU and data[position + 8] == 77:
                        place = INNER_NUM
                elif (
                    length == 10
                    and load64(data, position) == NAME_INNER_BA
                    and load16(data, position + 8) == NAME_SE
                ):
                    place = INNER_BASE
                if place >= 0:
                    shapes[UNKNOWN + place] = parting + 1 - start
                    shapes[UNKNOWN + place + 1] = stop - start
            position = stop + 1
            parting = np.int64(-1)
            ones &= np.uint64(0) - (last << U1)
            twos ^= last
        if parting < 0 and ones:
            parting = span + np.int64(trailing_zeros(ones))


@compiled
def has_shape(data, position, model, length, shapes, at):
    """True if the properties at `position` are those at `model`, as many bytes, but for values: then each of these
    begins and ends where the model's does."""
    for done in range(0, length, SPAN):
        unlike, twos = unlike_model(data, position + done, model + done, PROPERTY_SEPARATOR)
        if length - done < SPAN:
            unlike &= (U1 << np.uint64(length - done)) - U1
        if unlike & (np.uint64(shapes[at]) | twos):
            return False
        at += 1
    return True


@compiled
def learn_shape(data, position, length, shapes, at):
    """Sets the bits of what is no value."""
    in_name, word = True, np.uint64(0)
    for i in range(length):
        byte = data[np.uint64(position + i)]
        if in_name or byte == PROPERTY_SEPARATOR:
            word |= U1 << np.uint64(i % SPAN)
        if byte == NAME_VALUE_SEPARATOR:
            in_name = False
        elif byte == PROPERTY_SEPARATOR:
            in_name = True
        if i % SPAN == SPAN - 1 or i == length - 1:
            shapes[at + i // SPAN] = np.int64(word)
            word = np.uint64(0)


@compiled
def shape_of(data, position, length, size, shapes):
    """The row of `shapes` that says where values are in data[position:position + length]: that of a shape which other
    records have had, or UNKNOWN, which is filled then. A length that comes twice gives a shape, as long as those that
    are known save more than they cost."""
    row = length % SHAPES * SHAPE_SIZE
    fits = 0 < length <= SHAPE_MAX and position + length + SPAN <= size
    is_known = fits and shapes[row + LENGTH] == length
    if is_known and has_shape(data, position, shapes[row + MODEL], length, shapes, row + FIXED):
        shapes[UNKNOWN + HITS] += 1
        return row
    find_values(data, position, position + length, size, shapes)
    if fits and shapes[UNKNOWN + LEARNED] <= SHAPES + shapes[UNKNOWN + HITS] // HITS_A_SHAPE:
        if shapes[row + SEEN] == length:
            learn_shape(data, position, length, shapes, row + FIXED)
            for place in range(PLACES):
                shapes[row + place] = shapes[UNKNOWN + place]
            shapes[row + LENGTH] = length
            shapes[row + MODEL] = position
            shapes[UNKNOWN + LEARNED] += 1
        shapes[row + SEEN] = length
    return np.int64(UNKNOWN)


@compiled
def dispatch(
    buf,
    first,
    wide,
    narrow,
    topic_record,
    topic_code,
    schedule_topic,
    delays,
    tags_code,
    has_keys,
    inner_num,
    inner_base,
    key_hash,
    key_record,
    room,
):
    """Dispatch columns of the records from `first` on; (next record, keys).

    It stops short of the last record when `key_hash` has no room for the keys of the next one.

    `room` is zeroed, for the shapes of properties.
    `delays[level]` is the milliseconds of a delay level; `topic_code` is room for a hash of each topic.
    """
    data = pointer(buf)
    for t in range(len(topic_record)):
        start = wide[layout.TOPIC_START, topic_record[t]]
        code = hash_text(data, start, start + narrow[layout.TOPIC_LENGTH, topic_record[t]], np.uint32(0))
        topic_code[t] = code * POWERS[1] + np.uint32(35)  # the # between topic and key
    size = len(buf)
    records = len(tags_code)
    keys = 0
    shapes = pointer(room)
    for n in range(first, records):
        position = wide[layout.PROPERTIES_START, n]
        later = wide[layout.PROPERTIES_START, min(n + PREFETCHED, records - 1)]
        for line in range(PREFETCHED_LINES):
            prefetch(data, later + line * CACHE_LINE)
        length = np.int64(narrow[layout.PROPERTIES_LENGTH, n])
        row = shape_of(data, position, length, size, shapes)
        tags, tags_end = position + shapes[row + TAGS], position + shapes[row + TAGS + 1]
        names, names_end = position + shapes[row + KEYS], position + shapes[row + KEYS + 1]
        uniq, uniq_end = position + shapes[row + UNIQ_KEY], position + shapes[row + UNIQ_KEY + 1]
        delay, delay_end = position + shapes[row + DELAY], position + shapes[row + DELAY + 1]
        num, num_end = position + shapes[row + INNER_NUM], position + shapes[row + INNER_NUM + 1]
        base, base_end = position + shapes[row + INNER_BASE], position + shapes[row + INNER_BASE + 1]

        topic = narrow[layout.TOPIC_ID, n]
        code = signed(hash_text(data, tags, tags_end, np.uint32(0)))
        if topic == schedule_topic and delay > position:
            ok, level = parse_number(data, delay, delay_end, -0x80000000, 0x7FFFFFFF)
            level = min(level, np.int64(len(delays) - 1))
            if ok and level > 0:
                code = wide[layout.STORE_TIMESTAMP, n] + delays[level]
        tags_code[n] = code

        inner_num[n] = 1
        inner_base[n] = wide[layout.QUEUE_OFFSET, n]
        if num > position and base > position:
            num_ok, number = parse_number(data, num, num_end, -0x8000, 0x7FFF)
            base_ok, offset = parse_number(data, base, base_end, -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
            if num_ok and base_ok:
                inner_num[n] = number
                inner_base[n] = offset

        has_keys[n] = False
        if narrow[layout.SYS_FLAG, n] & 0xC == 0xC:
            continue
        before = keys
        if uniq > position:
            if keys == len(key_hash):
                return n, before
            key_hash[keys] = key_hash_of(hash_text(data, uniq, uniq_end, np.uint32(topic_code[topic])))
            key_record[keys] = n
            keys += 1
        while names < names_end:
            stop = byte_end(data, names, names_end, size, SPACE)
            if stop > names:
                if keys == len(key_hash):
                    return n, before
                key_hash[keys] = key_hash_of(hash_text(data, names, stop, np.uint32(topic_code[topic])))
                key_record[keys] = n
                keys += 1
            names = stop + 1
        has_keys[n] = keys > before
    return records, keys
