# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Properties of scanned records: to what consume queues and the index need."""

import cython

if cython.compiled:
    from cython.cimports.mqlake.native import layout
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.digits import digits
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.formats.columns import layout
    from mqlake.native.constants import *
    from mqlake.native.prim import *

SPACE = cython.declare(cython.longlong, 32)
PREFETCHED = cython.declare(cython.longlong, 8)
"""So many records ahead: a scan of thousands has left the nearest cache when it comes to their properties."""
PREFETCHED_LINES = cython.declare(cython.longlong, 4)

use_hash_text()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def key_hash_of(code: i64) -> i64:
    """Math.abs of the hash as Java's int, and 0 for the one that has none."""
    return abs(int32_of(code)) & 0x7FFFFFFF


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def parse_number(buf: Bytes, start: i64, end: i64, low: i64, high: i64) -> tuple[i64, i64]:
    """(1, n) if buf[start:end] is [+-]digits within [low, high]; else (0, any)."""
    position = start
    negative: cython.bint = False
    if position < end and (buf[position] == 43 or buf[position] == 45):
        negative = buf[position] == 45
        position += 1
    value, stop = digits(buf, position, end)
    if stop == position or stop != end:  # no digits, or something else, or more than 63 bits
        return 0, 0
    if negative:
        value = -value
    return low <= value <= high, value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_values(data: Bytes, position: i64, end: i64, size: i64, shapes: cython.pointer(i64)) -> cython.void:
    """Sets the row UNKNOWN_SHAPE: where, from `position` on, the values begin and end of those properties in
    data[position:end] that dispatch needs; 0 for one that is not there."""
    for place in range(PLACES):
        shapes[UNKNOWN_SHAPE + place] = 0
    start = position
    parting: i64 = -1  # where the first \\1 after `position` is
    span = position
    while span <= end:
        ones = found_in_span(data, span, end, size, NAME_VALUE_SEPARATOR)
        twos = found_in_span(data, span, end, size, PROPERTY_SEPARATOR)
        if end - span < SPAN:  # the last separator may be missing
            twos |= word(1) << word(end - span)
        while twos:
            last = twos & (0 - twos)
            stop = span + trailing_zeros(twos)
            if parting < 0 and ones & (last - 1):
                parting = span + trailing_zeros(ones)
            if position < parting < stop - 1:
                place: i64 = -1
                length = parting - position
                if length == 4:
                    name = load32(data, position)
                    if name == NAME_TAGS:
                        place = AT_TAGS
                    elif name == NAME_KEYS:
                        place = AT_KEYS
                elif length == 5:
                    if load32(data, position) == NAME_DELA and data[position + 4] == 89:
                        place = AT_DELAY
                elif length == 8:
                    if load64(data, position) == NAME_UNIQ_KEY:
                        place = AT_UNIQ_KEY
                elif length == 9:
                    if load64(data, position) == NAME_INNER_NU and data[position + 8] == 77:
                        place = AT_INNER_NUM
                elif (
                    length == 10
                    and load64(data, position) == NAME_INNER_BA
                    and load16(data, position + 8) == NAME_SE
                ):
                    place = AT_INNER_BASE
                if place >= 0:
                    shapes[UNKNOWN_SHAPE + place] = parting + 1 - start
                    shapes[UNKNOWN_SHAPE + place + 1] = stop - start
            position = stop + 1
            parting = -1
            ones &= 0 - (last << 1)
            twos ^= last
        if parting < 0 and ones:
            parting = span + trailing_zeros(ones)
        span += SPAN


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def has_shape(
    data: Bytes, position: i64, model: i64, length: i64, shapes: cython.pointer(i64), at: i64
) -> cython.bint:
    """True if the properties at `position` are those at `model`, as many bytes, but for values: then each of these
    begins and ends where the model's does."""
    done: i64 = 0
    while done < length:
        differ = unlike_span(data, position + done, model + done)
        if length - done < SPAN:
            differ &= (word(1) << word(length - done)) - 1
        if differ & (word(shapes[at]) | equal_in_span(data, position + done, PROPERTY_SEPARATOR)):
            return False
        at += 1
        done += SPAN
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def learn_shape(data: Bytes, position: i64, length: i64, shapes: cython.pointer(i64), at: i64) -> cython.void:
    """Sets the bits of what is no value."""
    in_name: cython.bint = True
    bits: u64 = 0
    for i in range(length):
        byte = data[position + i]
        if in_name or byte == PROPERTY_SEPARATOR:
            bits |= word(1) << word(i % SPAN)
        if byte == NAME_VALUE_SEPARATOR:
            in_name = False
        elif byte == PROPERTY_SEPARATOR:
            in_name = True
        if i % SPAN == SPAN - 1 or i == length - 1:
            shapes[at + i // SPAN] = int64_of(bits)
            bits = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def shape_of(data: Bytes, position: i64, length: i64, size: i64, shapes: cython.pointer(i64)) -> i64:
    """The row of `shapes` that says where values are in data[position:position + length]: that of a shape which other
    records have had, or UNKNOWN_SHAPE, which is filled then. A length that comes twice gives a shape, as long as those
    that are known save more than they cost."""
    row = length % layout.SHAPES * layout.SHAPE_SIZE
    fits: cython.bint = 0 < length <= SHAPE_MAX and position + length + SPAN <= size
    is_known: cython.bint = fits and shapes[row + SHAPE_LENGTH] == length
    if is_known and has_shape(data, position, shapes[row + SHAPE_MODEL], length, shapes, row + SHAPE_FIXED):
        shapes[UNKNOWN_SHAPE + SHAPE_HITS] += 1
        return row
    find_values(data, position, position + length, size, shapes)
    if (
        fits
        and shapes[UNKNOWN_SHAPE + SHAPES_LEARNED]
        <= layout.SHAPES + shapes[UNKNOWN_SHAPE + SHAPE_HITS] // HITS_A_SHAPE
    ):
        if shapes[row + SHAPE_SEEN] == length:
            learn_shape(data, position, length, shapes, row + SHAPE_FIXED)
            for place in range(PLACES):
                shapes[row + place] = shapes[UNKNOWN_SHAPE + place]
            shapes[row + SHAPE_LENGTH] = length
            shapes[row + SHAPE_MODEL] = position
            shapes[UNKNOWN_SHAPE + SHAPES_LEARNED] += 1
        shapes[row + SHAPE_SEEN] = length
    return UNKNOWN_SHAPE


def dispatch(
    buf: cython.const_uchar[::1],
    first: i64,
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    topic_record: cython.const_int[::1],
    topic_code: cython.longlong[::1],
    schedule_topic: i64,
    delays: cython.const_longlong[::1],
    tags_code: cython.longlong[::1],
    has_keys: cython.uchar[::1],
    inner_num: cython.short[::1],
    inner_base: cython.longlong[::1],
    key_hash: cython.int[::1],
    key_record: cython.int[::1],
    room: cython.longlong[::1],
):
    """Dispatch columns of the records from `first` on; (next record, keys).

    It stops short of the last record when `key_hash` has no room for the keys of the next one.

    `room` is zeroed, for the shapes of properties.
    `delays[level]` is the milliseconds of a delay level; `topic_code` is room for a hash of each topic.
    """
    if not cython.compiled:
        wide, narrow, topic_record, topic_code, delays = views(wide, narrow, topic_record, topic_code, delays)
    data, size, shapes = bytes_of(buf), buf.shape[0], i64s_of(room)
    with cython.nogil:
        for t in range(topic_record.shape[0]):
            record: i64 = topic_record[t]
            start = wide[layout.TOPIC_START, record]
            code = hash_text(data, start, start + narrow[layout.TOPIC_LENGTH, record], 0)
            topic_code[t] = hash_after(code, 35)  # the # between topic and key
        found = dispatch_into(
            data,
            size,
            first,
            wide,
            narrow,
            topic_code,
            schedule_topic,
            delays,
            tags_code,
            has_keys,
            inner_num,
            inner_base,
            key_hash,
            key_record,
            shapes,
        )
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def dispatch_into(
    data: Bytes,
    size: i64,
    first: i64,
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    topic_code: cython.longlong[::1],
    schedule_topic: i64,
    delays: cython.const_longlong[::1],
    tags_code: cython.longlong[::1],
    has_keys: cython.uchar[::1],
    inner_num: cython.short[::1],
    inner_base: cython.longlong[::1],
    key_hash: cython.int[::1],
    key_record: cython.int[::1],
    shapes: cython.pointer(i64),
) -> tuple[i64, i64]:
    """As dispatch()."""
    records = tags_code.shape[0]
    keys: i64 = 0
    for n in range(first, records):
        position = wide[layout.PROPERTIES_START, n]
        later = wide[layout.PROPERTIES_START, min(n + PREFETCHED, records - 1)]
        for line in range(PREFETCHED_LINES):
            prefetch(data, later + line * CACHE_LINE)
        row = shape_of(data, position, narrow[layout.PROPERTIES_LENGTH, n], size, shapes)
        topic: i64 = narrow[layout.TOPIC_ID, n]
        tags_code[n] = int32_of(
            hash_text(data, position + shapes[row + AT_TAGS], position + shapes[row + AT_TAGS + 1], 0)
        )
        if topic == schedule_topic and shapes[row + AT_DELAY] > 0:
            level = level_of(
                data, position + shapes[row + AT_DELAY], position + shapes[row + AT_DELAY + 1], delays
            )
            if level > 0:
                tags_code[n] = wide[layout.STORE_TIMESTAMP, n] + delays[level]

        inner_num[n] = 1
        inner_base[n] = wide[layout.QUEUE_OFFSET, n]
        if shapes[row + AT_INNER_NUM] > 0 and shapes[row + AT_INNER_BASE] > 0:
            num, num_end = position + shapes[row + AT_INNER_NUM], position + shapes[row + AT_INNER_NUM + 1]
            base, base_end = (
                position + shapes[row + AT_INNER_BASE],
                position + shapes[row + AT_INNER_BASE + 1],
            )
            num_ok, number = parse_number(data, num, num_end, -0x8000, 0x7FFF)
            base_ok, offset = parse_number(data, base, base_end, -INT64_MAX, INT64_MAX)
            if num_ok and base_ok:
                inner_num[n] = number
                inner_base[n] = offset

        has_keys[n] = False
        if narrow[layout.SYS_FLAG, n] & 0xC == 0xC:
            continue
        before = keys
        uniq, uniq_end = position + shapes[row + AT_UNIQ_KEY], position + shapes[row + AT_UNIQ_KEY + 1]
        if uniq > position:
            if keys == key_hash.shape[0]:
                return n, before
            key_hash[keys] = key_hash_of(hash_text(data, uniq, uniq_end, topic_code[topic]))
            key_record[keys] = n
            keys += 1
        names, names_end = position + shapes[row + AT_KEYS], position + shapes[row + AT_KEYS + 1]
        while names < names_end:
            stop = byte_end(data, names, names_end, size, SPACE)
            if stop > names:
                if keys == key_hash.shape[0]:
                    return n, before
                key_hash[keys] = key_hash_of(hash_text(data, names, stop, topic_code[topic]))
                key_record[keys] = n
                keys += 1
            names = stop + 1
        has_keys[n] = keys > before
    return records, keys


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def level_of(data: Bytes, start: i64, end: i64, delays: cython.const_longlong[::1]) -> i64:
    """The delay level that data[start:end] says, the last one for any above it; 0 or less for none."""
    ok, level = parse_number(data, start, end, -0x80000000, 0x7FFFFFFF)
    return min(level, delays.shape[0] - 1) if ok else 0
