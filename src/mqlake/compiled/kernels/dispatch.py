# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Properties of scanned records, compiled: to what consume queues and the index need."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import load16, load32, load64
from mqlake.formats.columns import layout

NAME_TAGS = int.from_bytes(b"TAGS", "big")
NAME_KEYS = int.from_bytes(b"KEYS", "big")
NAME_DELA = int.from_bytes(b"DELA", "big")
NAME_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")
NAME_INNER_NU = int.from_bytes(b"INNER_NU", "big")
NAME_INNER_BA = int.from_bytes(b"INNER_BA", "big")
NAME_SE = int.from_bytes(b"SE", "big")


@compiled
def continues(buf, position, end, low, high):
    """Whether buf[position] exists before `end` and lies in [low, high]."""
    return position < end and low <= buf[np.uint64(position)] <= high


@compiled
def hash_text(buf, start, end, code):
    """Java's String.hashCode of the UTF-8 text buf[start:end], going on from `code`, in [0, 2^32).

    Malformed bytes count as U+FFFD, one for each maximal run that could have begun a character: what
    bytes.decode("utf-8", "replace") makes of them.
    """
    code = np.int64(code)
    position = start
    while position < end:
        lead = np.int64(buf[np.uint64(position)])
        if lead < 0x80:
            code = (code * 31 + lead) & 0xFFFFFFFF
            position += 1
            continue
        unit = np.int64(0xFFFD)
        if 0xC2 <= lead <= 0xDF:
            if continues(buf, position + 1, end, 0x80, 0xBF):
                unit = (lead & 0x1F) << 6 | np.int64(buf[np.uint64(position + 1)]) & 0x3F
                position += 1
        elif 0xE0 <= lead <= 0xEF:
            low = 0xA0 if lead == 0xE0 else 0x80
            high = 0x9F if lead == 0xED else 0xBF
            if continues(buf, position + 1, end, low, high):
                position += 1
                if continues(buf, position + 1, end, 0x80, 0xBF):
                    unit = (
                        (lead & 0x0F) << 12
                        | (np.int64(buf[np.uint64(position)]) & 0x3F) << 6
                        | np.int64(buf[np.uint64(position + 1)]) & 0x3F
                    )
                    position += 1
        elif 0xF0 <= lead <= 0xF4:
            low = 0x90 if lead == 0xF0 else 0x80
            high = 0x8F if lead == 0xF4 else 0xBF
            if continues(buf, position + 1, end, low, high):
                position += 1
                if continues(buf, position + 1, end, 0x80, 0xBF):
                    position += 1
                    if continues(buf, position + 1, end, 0x80, 0xBF):
                        point = (
                            (lead & 0x07) << 18
                            | (np.int64(buf[np.uint64(position - 1)]) & 0x3F) << 12
                            | (np.int64(buf[np.uint64(position)]) & 0x3F) << 6
                            | np.int64(buf[np.uint64(position + 1)]) & 0x3F
                        ) - 0x10000
                        code = (code * 31 + (0xD800 | point >> 10)) & 0xFFFFFFFF
                        unit = 0xDC00 | point & 0x3FF
                        position += 1
        code = (code * 31 + unit) & 0xFFFFFFFF
        position += 1
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
    if position == end:
        return False, np.int64(0)
    value = np.int64(0)
    while position < end:
        digit = np.int64(buf[position]) - 48
        if digit < 0 or digit > 9 or value > (np.int64(0x7FFFFFFFFFFFFFFF) - digit) // 10:
            return False, np.int64(0)
        value = value * 10 + digit
        position += 1
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
    for t in range(len(topic_record)):
        start = wide[layout.TOPIC_START, topic_record[t]]
        code = hash_text(buf, start, start + narrow[layout.TOPIC_LENGTH, topic_record[t]], 0)
        topic_code[t] = (code * 31 + 35) & 0xFFFFFFFF  # the # between topic and key
    records = len(tags_code)
    keys = 0
    for n in range(first, records):
        position = wide[layout.PROPERTIES_START, n]
        end = position + narrow[layout.PROPERTIES_LENGTH, n]
        tags = tags_end = names = names_end = uniq = uniq_end = np.int64(0)
        delay = delay_end = num = num_end = base = base_end = np.int64(0)
        while position < end:
            separator = np.int64(-1)
            stop = position
            while stop < end and buf[np.uint64(stop)] != 2:
                if buf[np.uint64(stop)] == 1 and separator < 0:
                    separator = stop
                stop += 1
            if separator > position and separator < stop - 1:
                length = separator - position
                value = separator + 1
                if length == 4:
                    name = load32(buf, position)
                    if name == NAME_TAGS:
                        tags, tags_end = value, stop
                    elif name == NAME_KEYS:
                        names, names_end = value, stop
                elif length == 5:
                    if load32(buf, position) == NAME_DELA and buf[position + 4] == 89:
                        delay, delay_end = value, stop
                elif length == 8:
                    if load64(buf, position) == NAME_UNIQ_KEY:
                        uniq, uniq_end = value, stop
                elif length == 9:
                    if load64(buf, position) == NAME_INNER_NU and buf[position + 8] == 77:
                        num, num_end = value, stop
                elif (
                    length == 10
                    and load64(buf, position) == NAME_INNER_BA
                    and load16(buf, position + 8) == NAME_SE
                ):
                    base, base_end = value, stop
            position = stop + 1

        topic = narrow[layout.TOPIC_ID, n]
        code = signed(hash_text(buf, tags, tags_end, 0))
        if topic == schedule_topic and delay > 0:
            ok, level = parse_number(buf, delay, delay_end, -0x80000000, 0x7FFFFFFF)
            level = min(level, np.int64(len(delays) - 1))
            if ok and level > 0:
                code = wide[layout.STORE_TIMESTAMP, n] + delays[level]
        tags_code[n] = code

        inner_num[n] = 1
        inner_base[n] = wide[layout.QUEUE_OFFSET, n]
        if num > 0 and base > 0:
            num_ok, number = parse_number(buf, num, num_end, -0x8000, 0x7FFF)
            base_ok, offset = parse_number(buf, base, base_end, -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
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
            key_hash[keys] = key_hash_of(hash_text(buf, uniq, uniq_end, topic_code[topic]))
            key_record[keys] = n
            keys += 1
        while names < names_end:
            stop = names
            while stop < names_end and buf[np.uint64(stop)] != 32:
                stop += 1
            if stop > names:
                if keys == len(key_hash):
                    return n, before
                key_hash[keys] = key_hash_of(hash_text(buf, names, stop, topic_code[topic]))
                key_record[keys] = n
                keys += 1
            names = stop + 1
        has_keys[n] = keys > before
    return records, keys
