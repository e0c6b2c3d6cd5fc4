# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Properties of scanned records, compiled: to what consume queues and the index need."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    CACHE_LINE,
    load16,
    load32,
    load64,
    name_end,
    pointer,
    prefetch,
    read_character,
    read_digits,
    value_end,
)
from mqlake.formats.columns import layout

NAME_TAGS = int.from_bytes(b"TAGS", "big")
NAME_KEYS = int.from_bytes(b"KEYS", "big")
NAME_DELA = int.from_bytes(b"DELA", "big")
NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
NAME_INNER_NU = int.from_bytes(b"INNER_NU", "big")
NAME_INNER_BA = int.from_bytes(b"INNER_BA", "big")
NAME_SE = int.from_bytes(b"SE", "big")


NOT_ASCII = np.uint64(0x8080808080808080)
EVEN_BYTES, EVEN_PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
U8, U16, U32 = np.uint64(8), np.uint64(16), np.uint64(32)
PREFETCHED = 8
"""So many records ahead: a scan of thousands has left the nearest cache when it comes to their properties."""
FACTOR_8 = np.int64(31**8 & 0xFFFFFFFF)


@compiled
def hash_text(buf, start, end, code):
    """Java's String.hashCode of the UTF-8 text buf[start:end], going on from `code`, in [0, 2^32).

    Malformed bytes count as U+FFFD, as bytes.decode("utf-8", "replace") makes of them.
    """
    code = np.int64(code)
    position = start
    while position < end:
        # eight ASCII characters a step, in pairs, then pairs of pairs
        while position + 8 <= end:
            word = np.uint64(load64(buf, position))
            if word & NOT_ASCII:
                break
            word = (word >> U8 & EVEN_BYTES) * np.uint64(31) + (word & EVEN_BYTES)
            word = (word >> U16 & EVEN_PAIRS) * np.uint64(31**2) + (word & EVEN_PAIRS)
            word = (word >> U32) * np.uint64(31**4) + (word & np.uint64(0xFFFFFFFF))
            code = (code * FACTOR_8 + np.int64(word & np.uint64(0xFFFFFFFF))) & 0xFFFFFFFF
            position += 8
        if position == end:
            break
        character = np.int64(buf[np.uint64(position)])
        if character < 0x80:
            code = (code * 31 + character) & 0xFFFFFFFF
            position += 1
            continue
        point, length = read_character(buf, position, end)
        position += length
        if point < 0:
            point = np.int64(0xFFFD)
        elif point > 0xFFFF:  # Java hashes UTF-16: two surrogates
            point -= 0x10000
            code = (code * 31 + (0xD800 | point >> 10)) & 0xFFFFFFFF
            point = 0xDC00 | point & 0x3FF
        code = (code * 31 + point) & 0xFFFFFFFF
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
):
    """Dispatch columns of the records from `first` on; (next record, keys).

    It stops short of the last record when `key_hash` has no room for the keys of the next one.

    `delays[level]` is the milliseconds of a delay level; `topic_code` is room for a hash of each topic.
    """
    data = pointer(buf)
    for t in range(len(topic_record)):
        start = wide[layout.TOPIC_START, topic_record[t]]
        code = hash_text(data, start, start + narrow[layout.TOPIC_LENGTH, topic_record[t]], 0)
        topic_code[t] = (code * 31 + 35) & 0xFFFFFFFF  # the # between topic and key
    records = len(tags_code)
    keys = 0
    for n in range(first, records):
        position = wide[layout.PROPERTIES_START, n]
        later = wide[layout.PROPERTIES_START, min(n + PREFETCHED, records - 1)]
        prefetch(data, later)
        prefetch(data, later + CACHE_LINE)
        end = position + narrow[layout.PROPERTIES_LENGTH, n]
        tags = tags_end = names = names_end = uniq = uniq_end = np.int64(0)
        delay = delay_end = num = num_end = base = base_end = np.int64(0)
        while position < end:
            parting = name_end(data, position, end)
            stop = value_end(data, parting, end)
            if position < parting and parting + 1 < stop:
                length = parting - position
                value = parting + 1
                if length == 4:
                    name = load32(data, position)
                    if name == NAME_TAGS:
                        tags, tags_end = value, stop
                    elif name == NAME_KEYS:
                        names, names_end = value, stop
                elif length == 5:
                    if load32(data, position) == NAME_DELA and data[position + 4] == 89:
                        delay, delay_end = value, stop
                elif length == 8:
                    if load64(data, position) == NAME_UNIQ_KEY:
                        uniq, uniq_end = value, stop
                elif length == 9:
                    if load64(data, position) == NAME_INNER_NU and data[position + 8] == 77:
                        num, num_end = value, stop
                elif (
                    length == 10
                    and load64(data, position) == NAME_INNER_BA
                    and load16(data, position + 8) == NAME_SE
                ):
                    base, base_end = value, stop
            position = stop + 1

        topic = narrow[layout.TOPIC_ID, n]
        code = signed(hash_text(data, tags, tags_end, 0))
        if topic == schedule_topic and delay > 0:
            ok, level = parse_number(data, delay, delay_end, -0x80000000, 0x7FFFFFFF)
            level = min(level, np.int64(len(delays) - 1))
            if ok and level > 0:
                code = wide[layout.STORE_TIMESTAMP, n] + delays[level]
        tags_code[n] = code

        inner_num[n] = 1
        inner_base[n] = wide[layout.QUEUE_OFFSET, n]
        if num > 0 and base > 0:
            num_ok, number = parse_number(data, num, num_end, -0x8000, 0x7FFF)
            base_ok, offset = parse_number(data, base, base_end, -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
            if num_ok and base_ok:
                inner_num[n] = number
                inner_base[n] = offset

        has_keys[n] = False
        if narrow[layout.SYS_FLAG, n] & 0xC == 0xC:
            continue
        before = keys
        if uniq > 0:
            if keys == len(key_hash):
                return n, before
            key_hash[keys] = key_hash_of(hash_text(data, uniq, uniq_end, topic_code[topic]))
            key_record[keys] = n
            keys += 1
        while names < names_end:
            stop = names
            while stop < names_end and data[np.uint64(stop)] != 32:
                stop += 1
            if stop > names:
                if keys == len(key_hash):
                    return n, before
                key_hash[keys] = key_hash_of(hash_text(data, names, stop, topic_code[topic]))
                key_record[keys] = n
                keys += 1
            names = stop + 1
        has_keys[n] = keys > before
    return records, keys
