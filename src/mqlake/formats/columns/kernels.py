# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The column codecs compiled by numba: one pass over the bytes, no Python object per record.

Every length is compared with what is left before it is used, so hostile bytes cannot lead a read or a write
out of the buffer; positions are therefore used as unsigned indexes, which lets LLVM turn a big-endian field
into one load and one byte swap. `plain` has a twin of each function that the facade calls.

Input arrays arrive read-only and output arrays writable (the facade sees to it), so each function is compiled
for one signature. `mqlake.compiled.cache` keeps the machine code between processes.

The checksum is called through the symbol `mqlake_crc32`. A symbol, unlike a ctypes pointer, leaves the
callers cacheable, and what it names (ISA-L where its wheel is, else the tables below) may change without
compiling them anew.
"""

from __future__ import annotations

import ctypes

import numpy as np
from llvmlite import binding
from numba import carray, cfunc, config, types
from numba.core import imputils
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.columns import layout
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.formats.index import HASH_SLOT_SIZE, INDEX_HEADER_SIZE, INDEX_SIZE
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    CRC32_TAIL_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    PROPERTIES_LENGTH_MAX,
    RECORD_SIZE_MIN,
)
from mqlake.message import MessageSysFlag

CRC_MASK = 0x7FFFFFFF
CRC_SLICES = 16


def crc_tables() -> np.ndarray:
    """Table k maps a byte to its remainder after k more zero bytes (reflected polynomial 0xEDB88320)."""
    tables = np.zeros((CRC_SLICES, 256), np.uint32)
    remainder = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        remainder = np.where(remainder & 1, (remainder >> 1) ^ np.uint32(0xEDB88320), remainder >> 1)
    tables[0] = remainder
    for k in range(1, CRC_SLICES):
        tables[k] = (tables[k - 1] >> 8) ^ remainder[tables[k - 1] & 0xFF]
    return tables


def table_crc32():
    """Sixteen bytes a step through sixteen tables: what is used where ISA-L has no wheel."""
    tables = crc_tables()

    @cfunc(types.uint32(types.uint32, types.CPointer(types.uint8), types.uint64))
    def crc32(seed, pointer, length):
        data = carray(pointer, (length,))
        crc = np.uint32(~seed)
        i = np.uint64(0)
        while i + np.uint64(CRC_SLICES) <= length:
            step = np.uint32(0)
            for k in range(CRC_SLICES):
                byte = data[i + np.uint64(k)]
                if k < 4:
                    byte ^= np.uint8(crc >> np.uint32(8 * k))
                step ^= tables[CRC_SLICES - 1 - k, byte]
            crc = step
            i += np.uint64(CRC_SLICES)
        while i < length:
            crc = np.uint32(tables[0, np.uint8(crc) ^ data[i]] ^ (crc >> np.uint32(8)))
            i += np.uint64(1)
        return np.uint32(~crc)

    return crc32


def bind_crc32():
    """Names the fastest checksum at hand `mqlake_crc32`; returns what must stay alive while it is called."""
    try:
        import isal.isal_zlib

        library = ctypes.CDLL(isal.isal_zlib.__file__)
        address = ctypes.cast(library.crc32_gzip_refl, ctypes.c_void_p).value
        keep = library
    except (ImportError, OSError, AttributeError):
        keep = table_crc32()
        address = keep.address
    binding.add_symbol("mqlake_crc32", address)
    return keep


_crc32_owner = bind_crc32()
# Addresses as numbers: a pointer into an array is a slice to numba, which it counts references of, for 20 ns a call.
_crc32 = types.ExternalFunction("mqlake_crc32", types.uint32(types.uint32, types.uintp, types.uint64))
_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uint64))

U1, U2, U3, U4, U5, U6, U7 = (np.uint64(i) for i in range(1, 8))


# The helpers trust their callers: the bytes they touch have been found inside the buffer.


@compiled
def load16(buf, position):
    p = np.uint64(position)
    return np.int16((np.uint16(buf[p]) << np.uint16(8)) | np.uint16(buf[p + U1]))


@compiled
def load32(buf, position):
    p = np.uint64(position)
    return np.int32(
        (np.uint32(buf[p]) << np.uint32(24))
        | (np.uint32(buf[p + U1]) << np.uint32(16))
        | (np.uint32(buf[p + U2]) << np.uint32(8))
        | np.uint32(buf[p + U3])
    )


@compiled
def load64(buf, position):
    p = np.uint64(position)
    return np.int64(
        (np.uint64(buf[p]) << np.uint64(56))
        | (np.uint64(buf[p + U1]) << np.uint64(48))
        | (np.uint64(buf[p + U2]) << np.uint64(40))
        | (np.uint64(buf[p + U3]) << np.uint64(32))
        | (np.uint64(buf[p + U4]) << np.uint64(24))
        | (np.uint64(buf[p + U5]) << np.uint64(16))
        | (np.uint64(buf[p + U6]) << np.uint64(8))
        | np.uint64(buf[p + U7])
    )


@compiled
def store16(buf, position, value):
    p = np.uint64(position)
    buf[p] = np.uint8(value >> 8)
    buf[p + U1] = np.uint8(value)


@compiled
def store32(buf, position, value):
    p = np.uint64(position)
    buf[p] = np.uint8(value >> 24)
    buf[p + U1] = np.uint8(value >> 16)
    buf[p + U2] = np.uint8(value >> 8)
    buf[p + U3] = np.uint8(value)


@compiled
def store64(buf, position, value):
    p = np.uint64(position)
    buf[p] = np.uint8(value >> 56)
    buf[p + U1] = np.uint8(value >> 48)
    buf[p + U2] = np.uint8(value >> 40)
    buf[p + U3] = np.uint8(value >> 32)
    buf[p + U4] = np.uint8(value >> 24)
    buf[p + U5] = np.uint8(value >> 16)
    buf[p + U6] = np.uint8(value >> 8)
    buf[p + U7] = np.uint8(value)


@intrinsic
def pointer(_context, array):
    """The elements of an array, for functions that are called often: with an array they count its references, which
    takes longer than what they do. Good as long as the caller has the array. Where numba checks indexes it stays one.
    """
    if config.BOUNDSCHECK:
        return array(array), lambda context, builder, signature, arguments: imputils.impl_ret_borrowed(
            context, builder, array, arguments[0]
        )

    def generate(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def address(_context, items, _position):
    """Where items[position] lies, of bytes in an array or behind a pointer."""

    def generate(context, builder, signature, arguments):
        data = arguments[0]
        if isinstance(signature.args[0], types.Array):
            data = context.make_array(signature.args[0])(context, builder, data).data
        element = builder.gep(data, [arguments[1]])
        return builder.ptrtoint(element, context.get_value_type(types.uintp))

    return types.uintp(items, types.int64), generate


@compiled
def crc32(buf, start, length):
    return np.int32(_crc32(np.uint32(0), address(buf, start), np.uint64(length)) & np.uint32(CRC_MASK))


@compiled
def copy(out, at, buf, start, length):
    if length > 0:
        _memcpy(address(out, at), address(buf, start), np.uint64(length))


# --- scan ---------------------------------------------------------------------------------------------------

BORN_V6 = MessageSysFlag.BORNHOST_V6_FLAG
STORE_V6 = MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
PROP_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)


@compiled
def is_prop_crc(data, tail):
    """Whether the 20 bytes at `tail` are a property CRC, right or not; one byte of its name may be damaged."""
    wrong = 0
    for i in range(len(PROP_CRC_NAME)):
        if data[np.uint64(tail + i)] != PROP_CRC_NAME[i]:
            wrong += 1
            if wrong > 1:
                return False
    return True


@compiled
def prop_crc_matches(data, position, tail):
    """Whether the 20 bytes at `tail` are the property CRC of the record bytes from `position` to there."""
    for i in range(len(PROP_CRC_NAME)):
        if data[tail + i] != PROP_CRC_NAME[i]:
            return False
    rest = crc32(data, position, tail - position)
    for i in range(tail + len(PROP_CRC_NAME), tail + CRC32_TAIL_LENGTH - 1):
        if data[i] != 48 + rest % 10:
            return False
        rest //= 10
    return data[tail + CRC32_TAIL_LENGTH - 1] == 2


@compiled
def has_prop_crc(data, position, limit):
    """Whether a record with the right property CRC lies at `position`: then they are written here."""
    if limit - position < RECORD_SIZE_MIN:
        return False
    size, magic = np.int64(load32(data, position)), load32(data, position + 4)
    if (magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2) or not (
        RECORD_SIZE_MIN + CRC32_TAIL_LENGTH <= size <= limit - position
    ):
        return False
    return prop_crc_matches(data, position, position + size - CRC32_TAIL_LENGTH)


@compiled
def check(data, position, limit, base_offset, check_crc, force_prop_crc):
    """What begins at `position`: (kind, size, body length, topic start, topic length, properties length).

    The size is 0 unless the kind is MESSAGE or BLANK, the rest 0 unless it is MESSAGE. This is
    record.check_record, which also says why.
    """
    none = np.int64(0)
    invalid = np.int64(layout.INVALID), none, none, none, none, none
    truncated = np.int64(layout.TRUNCATED), none, none, none, none, none
    clean_end = np.int64(layout.END), none, none, none, none, none

    available = limit - position
    if available < END_FILE_MIN_BLANK_LENGTH:
        for i in range(position, limit):
            if data[np.uint64(i)] != 0:
                return truncated
        return clean_end
    size = np.int64(load32(data, position))
    magic = load32(data, position + 4)
    if size == 0:
        return clean_end
    if magic == BLANK_MAGIC_CODE:
        if size < END_FILE_MIN_BLANK_LENGTH:
            return invalid
        if size > available:
            return truncated
        return np.int64(layout.BLANK), size, none, none, none, none
    if magic != MESSAGE_MAGIC_CODE and magic != MESSAGE_MAGIC_CODE_V2:
        return invalid
    if size < RECORD_SIZE_MIN:
        return invalid
    if size > available:
        return truncated
    end = position + size

    sys_flag = load32(data, position + 36)
    body_start = position + layout.BODY_START_V4
    if sys_flag & BORN_V6:
        body_start += layout.IPV6_EXTRA
    if sys_flag & STORE_V6:
        body_start += layout.IPV6_EXTRA
    topic_length_size = 1 if magic == MESSAGE_MAGIC_CODE else 2
    if body_start + topic_length_size + 2 > end:
        return invalid
    body_length = np.int64(load32(data, body_start - 4))
    if body_length < 0 or body_length > end - body_start - topic_length_size - 2:
        return invalid
    topic_start = body_start + body_length + topic_length_size
    if topic_length_size == 1:
        topic_length = np.int64(np.int8(data[np.uint64(topic_start - 1)]))
    else:
        topic_length = np.int64(load16(data, topic_start - 2))
    if topic_length < 0 or topic_length > end - topic_start - 2:
        return invalid
    properties_start = topic_start + topic_length + 2
    properties_length = np.int64(load16(data, properties_start - 2))
    if properties_length < 0 or properties_start + properties_length != end:
        return invalid
    if load64(data, position + 28) != base_offset + position:
        return invalid
    if check_crc:
        tail = end - CRC32_TAIL_LENGTH
        has_tail = properties_length >= CRC32_TAIL_LENGTH and is_prop_crc(data, tail)
        if not (has_tail and prop_crc_matches(data, position, tail)):
            if body_length > 0 and crc32(data, body_start, body_length) != load32(data, position + 8):
                return invalid
            if has_tail and (force_prop_crc or has_prop_crc(data, end, limit)):
                return invalid
    return np.int64(layout.MESSAGE), size, body_length, topic_start, topic_length, properties_length


@compiled
def topic_number(
    data, start, length, record, topic_count, topic_starts, topic_lengths, slots, mask, topic_record
):
    """Number of the topic at `start`; a new one gets `topic_count` and is remembered by its record."""
    code = np.uint64(14695981039346656037)
    for i in range(start, start + length):
        code = (code ^ np.uint64(data[np.uint64(i)])) * np.uint64(1099511628211)
    slot = (code ^ (code >> np.uint64(32))) & mask
    while slots[slot] != 0:
        number = slots[slot] - 1
        known = topic_record[number]
        if topic_lengths[known] == length:
            known_start = topic_starts[known]
            i = 0
            while i < length and data[np.uint64(known_start + i)] == data[np.uint64(start + i)]:
                i += 1
            if i == length:
                return number
        slot = (slot + U1) & mask
    slots[slot] = topic_count + 1
    topic_record[topic_count] = record
    return np.int32(topic_count)


@compiled
def scan(buf, start, limit, base_offset, check_crc, force_prop_crc, wide, narrow, slots, topic_record):
    """Fills the blocks with the records of buf[start:limit]; (records, topics, end, stop).

    `slots` is zeroed, its length a power of two at least twice the records that fit; `topic_record[t]`
    becomes the first record of topic t.
    """
    data, slot_at, first_of = pointer(buf), pointer(slots), pointer(topic_record)
    topic_starts, topic_lengths = pointer(wide[layout.TOPIC_START]), pointer(narrow[layout.TOPIC_LENGTH])
    mask = np.uint64(len(slots) - 1)
    capacity = wide.shape[1]
    n = 0
    topics = 0
    position = start
    while n < capacity:
        if position == limit:
            return n, topics, position, layout.LIMIT
        kind, size, body_length, topic_start, topic_length, properties_length = check(
            data, position, limit, base_offset, check_crc, force_prop_crc
        )
        if kind != layout.MESSAGE:
            return n, topics, position + size, kind
        sys_flag = load32(data, position + 36)
        store_host_start = position + 64
        if sys_flag & BORN_V6:
            store_host_start += layout.IPV6_EXTRA
        after_hosts = store_host_start + 8
        if sys_flag & STORE_V6:
            after_hosts += layout.IPV6_EXTRA
        wide[layout.POSITION, n] = position
        wide[layout.PHYSICAL_OFFSET, n] = base_offset + position
        wide[layout.QUEUE_OFFSET, n] = load64(data, position + 20)
        wide[layout.BORN_TIMESTAMP, n] = load64(data, position + 40)
        wide[layout.STORE_TIMESTAMP, n] = load64(data, store_host_start - 8)
        wide[layout.PREPARED_TRANSACTION_OFFSET, n] = load64(data, after_hosts + 4)
        wide[layout.BODY_START, n] = after_hosts + 16
        wide[layout.TOPIC_START, n] = topic_start
        wide[layout.PROPERTIES_START, n] = topic_start + topic_length + 2
        wide[layout.BORN_HOST_START, n] = position + 48
        wide[layout.STORE_HOST_START, n] = store_host_start
        narrow[layout.SIZE, n] = size
        narrow[layout.QUEUE_ID, n] = load32(data, position + 12)
        narrow[layout.SYS_FLAG, n] = sys_flag
        narrow[layout.FLAG, n] = load32(data, position + 16)
        narrow[layout.BODY_CRC, n] = load32(data, position + 8)
        narrow[layout.RECONSUME_TIMES, n] = load32(data, after_hosts)
        narrow[layout.BODY_LENGTH, n] = body_length
        narrow[layout.TOPIC_LENGTH, n] = topic_length
        narrow[layout.PROPERTIES_LENGTH, n] = properties_length
        topic = topic_number(
            data, topic_start, topic_length, n, topics, topic_starts, topic_lengths, slot_at, mask, first_of
        )
        narrow[layout.TOPIC_ID, n] = topic
        topics = max(topics, topic + 1)
        n += 1
        position += size
    return n, topics, position, layout.LIMIT if position == limit else layout.MAX_RECORDS


@compiled
def find_record(buf, start, limit, base_offset):
    """First position in [start, limit) where a whole valid record begins, -1 if there is none."""
    data = pointer(buf)
    for position in range(start, limit - RECORD_SIZE_MIN + 1):
        if data[np.uint64(position + 4)] != 0xDA:
            continue
        if check(data, position, limit, base_offset, True, False)[0] == layout.MESSAGE:
            return position
    return -1


# --- dispatch -----------------------------------------------------------------------------------------------

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


# --- index --------------------------------------------------------------------------------------------------


I32_MAX = np.int64(0x7FFFFFFF)


@compiled
def index_put_many(index, slot_num, index_num, key_hash, physical_offset, store_timestamp):
    """Puts the keys in order until the file is full; how many were put.

    Entry, slot and header are written in this order for each key, so that a query beside it never meets a
    slot that points behind the header's count.
    """
    count = max(np.int64(load32(index, 36)), np.int64(1))
    used_slots = np.int64(load32(index, 32))
    begin_timestamp = load64(index, 0)
    entries = INDEX_HEADER_SIZE + slot_num * HASH_SLOT_SIZE
    put = 0
    while put < len(key_hash) and count < index_num:
        timestamp = store_timestamp[put]
        slot = INDEX_HEADER_SIZE + (key_hash[put] % slot_num) * HASH_SLOT_SIZE
        previous = np.int64(load32(index, slot))
        if previous < 0 or previous > count:
            previous = np.int64(0)
        seconds = np.int64(0)
        if begin_timestamp > 0 and timestamp > begin_timestamp:
            seconds = min((timestamp - begin_timestamp) // 1000, I32_MAX)
        entry = entries + count * INDEX_SIZE
        store32(index, entry, key_hash[put])
        store64(index, entry + 4, physical_offset[put])
        store32(index, entry + 12, seconds)
        store32(index, entry + 16, previous)
        store32(index, slot, count)
        if count == 1:
            begin_timestamp = timestamp
            store64(index, 0, begin_timestamp)
            store64(index, 16, physical_offset[put])
        if previous == 0:
            used_slots = min(used_slots + 1, I32_MAX)
            store32(index, 32, used_slots)
        count += 1
        store32(index, 36, count)
        store64(index, 8, timestamp)
        store64(index, 24, physical_offset[put])
        put += 1
    return put


@compiled
def index_query(index, slot_num, index_num, key_hash, begin, end, found):
    """Fills `found`, newest first, with offsets of entries of this hash and of [begin, end] ms; how many."""
    count = np.int64(load32(index, 36))
    if count <= 1:
        return 0
    begin_timestamp = load64(index, 0)
    entries = INDEX_HEADER_SIZE + slot_num * HASH_SLOT_SIZE
    current = np.int64(load32(index, INDEX_HEADER_SIZE + (key_hash % slot_num) * HASH_SLOT_SIZE))
    hits = 0
    for _ in range(index_num):  # a chain of more entries than there are runs in a circle
        if current <= 0 or current > count or current >= index_num or hits == len(found):
            break
        entry = entries + current * INDEX_SIZE
        seconds = np.int64(load32(index, entry + 12))
        if seconds < 0:
            break
        timestamp = begin_timestamp + seconds * 1000
        if load32(index, entry) == key_hash and begin <= timestamp <= end:
            found[hits] = load64(index, entry + 4)
            hits += 1
        previous = np.int64(load32(index, entry + 16))
        if previous == current or timestamp < begin:
            break
        current = previous
    return hits


# --- copies -------------------------------------------------------------------------------------------------


@compiled
def gather(buf, starts, offsets, data):
    """Copies from starts[i] on to data[offsets[i]:offsets[i + 1]]; False when a slice lies outside buf."""
    source, target = pointer(buf), pointer(data)
    for i in range(len(starts)):
        length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        if starts[i] < 0 or starts[i] > len(buf) - length:
            return False
        copy(target, offsets[i], source, starts[i], length)
    return True


@compiled
def gather_runs(buf, runs, data):
    """Copies each buf[runs[i, 0]:runs[i, 1]] behind the last one to `data`; False when one lies outside, or when they
    do not fill `data`."""
    at = np.int64(0)
    for i in range(len(runs)):
        start, length = runs[i, 0], runs[i, 1] - runs[i, 0]
        if start < 0 or start > len(buf) or not 0 <= length <= len(buf) - start or length > len(data) - at:
            return False
        copy(data, at, buf, start, length)
        at += length
    return at == len(data)


# --- consume queue ------------------------------------------------------------------------------------------


@compiled
def follow_units(buf, end, base_offset, units, topic, queue_id, queue_offsets, bytes_max, check_crc, runs):
    """(how many leading consume queue units have records of no more than `bytes_max` together, the first of them in any
    case; the bytes of those; the runs that they lie in). -1 units when one of them leads to anything but its own record
    in buf[:end], and that a whole one."""
    data = pointer(buf)
    total, count = np.int64(0), np.int64(0)
    run, run_end = np.int64(-1), np.int64(-1)
    nowhere = np.int64(-1), np.int64(0), np.int64(0)
    if end > len(buf):
        return nowhere
    for n in range(len(units) // CQ_STORE_UNIT_SIZE):
        position = load64(units, n * CQ_STORE_UNIT_SIZE) - base_offset
        size = np.int64(load32(units, n * CQ_STORE_UNIT_SIZE + 8))
        if n > 0 and total + size > bytes_max:
            break
        if size < RECORD_SIZE_MIN or position < 0 or position > end - size:
            return nowhere
        kind, found_size, _, topic_start, topic_length, _ = check(
            data, position, end, base_offset, check_crc, False
        )
        if (
            kind != layout.MESSAGE
            or found_size != size
            or load32(data, position + 12) != queue_id
            or load64(data, position + 20) != queue_offsets[n]
            or topic_length != len(topic)
        ):
            return nowhere
        for i in range(topic_length):
            if data[topic_start + i] != topic[i]:
                return nowhere
        if position != run_end:
            run += 1
            runs[run, 0] = position
        run_end = position + size
        runs[run, 1] = run_end
        total += size
        count += 1
    return count, total, run + 1


# --- append -------------------------------------------------------------------------------------------------


@compiled
def append_batch(
    out,
    position,
    max_blank,
    blob,
    template,
    head_length,
    extra_start,
    queue_offset,
    base_offset,
    max_record_size,
    offsets,
    sizes,
):
    """Turns the messages of `blob` into records at out[position:]; (records or a code < 0, bytes).

    `template` is what all records share: a head up to the body (head_length bytes), the topic length and the
    topic (up to extra_start), the batch's own properties. Nothing is written unless everything can be.
    """
    extra_length = len(template) - extra_start
    tail_length = extra_start - head_length + 2
    count = 0
    problem = np.int64(0)
    total = np.int64(0)
    item = np.int64(0)
    while item < len(blob):
        available = len(blob) - item
        if available < ITEM_SIZE_MIN:
            return np.int64(layout.BAD_BLOB), np.int64(0)
        item_size = np.int64(load32(blob, item))
        body_length = np.int64(load32(blob, item + 16))
        if (
            item_size < ITEM_SIZE_MIN
            or item_size > available
            or body_length < 0
            or body_length > item_size - ITEM_SIZE_MIN
        ):
            return np.int64(layout.BAD_BLOB), np.int64(0)
        properties_start = item + ITEM_SIZE_MIN + body_length
        own_length = np.int64(load16(blob, properties_start - 2))
        item += item_size
        if own_length < 0 or properties_start + own_length != item:
            return np.int64(layout.BAD_BLOB), np.int64(0)
        properties_length = own_length + extra_length
        if own_length > 0 and extra_length > 0 and blob[np.uint64(item - 1)] != 2:
            properties_length += 1
        size = head_length + body_length + tail_length + properties_length
        if problem == 0 and properties_length > PROPERTIES_LENGTH_MAX:
            problem = np.int64(layout.PROPERTIES_TOO_LARGE)
        elif problem == 0 and size > max_record_size:
            problem = np.int64(layout.RECORD_TOO_LARGE)
        offsets[count] = base_offset + position + total
        sizes[count] = size
        total += size
        count += 1
    if problem != 0:
        return problem, np.int64(0)
    if total + END_FILE_MIN_BLANK_LENGTH > max_blank:
        return np.int64(layout.NO_ROOM), np.int64(0)

    item = np.int64(0)
    for n in range(count):
        body_length = np.int64(load32(blob, item + 16))
        body_start = item + ITEM_SIZE_MIN - 2
        own_start = body_start + body_length + 2
        own_length = np.int64(load16(blob, own_start - 2))
        if n > 0:
            store32(out, position, sizes[n])
        copy(out, position + 4, template, 4, head_length - 4)
        store32(out, position + 8, crc32(blob, body_start, body_length))
        store32(out, position + 16, load32(blob, item + 12))
        store64(out, position + 20, queue_offset + n)
        store64(out, position + 28, offsets[n])
        store32(out, position + head_length - 4, body_length)
        at = position + head_length
        copy(out, at, blob, body_start, body_length)
        at += body_length
        copy(out, at, template, head_length, extra_start - head_length)
        at += extra_start - head_length
        store16(out, at, position + sizes[n] - at - 2)
        at += 2
        copy(out, at, blob, own_start, own_length)
        at += own_length
        if at + extra_length < position + sizes[n]:
            out[np.uint64(at)] = 2
            at += 1
        copy(out, at, template, extra_start, extra_length)
        item = own_start + own_length
        position += sizes[n]
    if count > 0:
        store32(out, position, 0)
    return np.int64(count), total
