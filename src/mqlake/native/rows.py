# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""The steps of making rows that cost most: properties into pairs, hosts and message ids into text.

`properties` and `rows` of lake.arrow do the same with numpy where this is not compiled. Outputs have the layout of
Arrow's strings: `ends[i]` to `ends[i + 1]` are the bytes of text i. Positions come from a scan, so they lie in their
buffers.
"""

import cython

if cython.compiled:
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.native.constants import *
    from mqlake.native.prim import *


TEXT_OVERLAP = OVERLAP
"""Bytes of room that pair_texts and values_of need after their texts."""

# --- properties ---------------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begins_with(data: Bytes, start: i64, end: i64, name: i64, length: i64) -> cython.bint:
    """True if data[start:end] begins with data[name:name + length] and the \\1 after it."""
    return (
        length < end - start
        and data[start + length] == NAME_VALUE_SEPARATOR
        and same_bytes(data, start, data, name, length)
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_name(
    data: Bytes,
    start: i64,
    length: i64,
    table: cython.int[::1],
    name_start: cython.longlong[::1],
    name_length: cython.int[::1],
) -> tuple[i64, i64]:
    """(number, slot) of the name data[start:start + length]; (-1, the slot where it belongs) of a new one."""
    mask = table.shape[0] - 1
    slot = slot_of(hash_bytes(data, start, length), mask)
    while table[slot] != 0:
        number = table[slot] - 1
        if name_length[number] == length and same_bytes(data, name_start[number], data, start, length):
            return number, slot
        slot = (slot + 1) & mask
    return -1, slot


def split_properties(
    buf: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    lengths: cython.const_int[::1],
    first_pair: cython.int[::1],
    name: cython.int[::1],
    value_start: cython.longlong[::1],
    value_length: cython.int[::1],
    table: cython.int[::1],
    name_start: cython.longlong[::1],
    name_length: cython.int[::1],
    last_pair: cython.longlong[::1],
    next_name: cython.int[::1],
):
    """Pairs of all records: (pairs, distinct names); -1 pairs when there is no room for the names.

    A name starts where it was first met; of a record's equal names the last value counts. `table` and `next_name` are
    zeroed; the length of `table` is a power of two above twice the names that fit, `next_name` has room for one more
    than those.
    """
    if not cython.compiled:
        starts, lengths, name_start, name_length = views(starts, lengths, name_start, name_length)
    data = bytes_of(buf)
    with cython.nogil:
        found = split_into(
            data,
            starts,
            lengths,
            first_pair,
            name,
            value_start,
            value_length,
            table,
            name_start,
            name_length,
            last_pair,
            next_name,
        )
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def split_into(
    data: Bytes,
    starts: cython.const_longlong[::1],
    lengths: cython.const_int[::1],
    first_pair: cython.int[::1],
    name: cython.int[::1],
    value_start: cython.longlong[::1],
    value_length: cython.int[::1],
    table: cython.int[::1],
    name_start: cython.longlong[::1],
    name_length: cython.int[::1],
    last_pair: cython.longlong[::1],
    next_name: cython.int[::1],
) -> tuple[i64, i64]:
    """As split_properties()."""
    pairs: i64 = 0
    names: i64 = 0
    for r in range(starts.shape[0]):
        first_pair[r] = pairs
        start: i64 = starts[r]
        end = start + lengths[r]
        before: i64 = 0  # the number of the name before, counted from 1
        while start < end:
            # mostly the name that came there the last time comes again
            known: i64 = next_name[before] - 1
            if known >= 0 and begins_with(data, start, end, name_start[known], name_length[known]):
                parting = start + name_length[known]
            else:
                known = -1
                parting = name_end(data, start, end)
            stop = value_end(data, parting, end)
            if start < parting and parting + 1 < stop:
                if known < 0:
                    known, slot = find_name(data, start, parting - start, table, name_start, name_length)
                    if known < 0:
                        if names == name_start.shape[0]:
                            return -1, names
                        known = names
                        names += 1
                        table[slot] = names
                        name_start[known] = start
                        name_length[known] = parting - start
                        last_pair[known] = -1
                    next_name[before] = known + 1
                before = known + 1
                pair: i64 = last_pair[known]
                if pair < first_pair[r]:
                    pair = pairs
                    last_pair[known] = pair
                    name[pair] = known
                    pairs += 1
                value_start[pair] = parting + 1
                value_length[pair] = stop - parting - 1
            start = stop + 1
    first_pair[starts.shape[0]] = pairs
    return pairs, names


def pair_texts(
    buf: cython.const_uchar[::1],
    name: cython.const_int[::1],
    name_start: cython.const_longlong[::1],
    name_length: cython.const_int[::1],
    value_start: cython.const_longlong[::1],
    value_length: cython.const_int[::1],
    name_ends: cython.int[::1],
    names: cython.uchar[::1],
    value_ends: cython.int[::1],
    values: cython.uchar[::1],
):
    """The names and the values of all pairs; how many bytes both take."""
    if not cython.compiled:
        name_start, name_length, value_start, value_length = views(
            name_start, name_length, value_start, value_length
        )
    data, size, names_to, values_to = bytes_of(buf), buf.shape[0], room_of(names), room_of(values)
    names_end: i64 = 0
    values_end: i64 = 0
    with cython.nogil:
        name_ends[0] = value_ends[0] = 0
        for pair in range(name.shape[0]):
            number: i64 = name[pair]
            copy_text(names_to, names_end, data, name_start[number], name_length[number], size)
            names_end += name_length[number]
            name_ends[pair + 1] = names_end
            copy_text(values_to, values_end, data, value_start[pair], value_length[pair], size)
            values_end += value_length[pair]
            value_ends[pair + 1] = values_end
    return names_end, values_end


def values_of(
    buf: cython.const_uchar[::1],
    wanted: i64,
    first_pair: cython.const_int[::1],
    name: cython.const_int[::1],
    value_start: cython.const_longlong[::1],
    value_length: cython.const_int[::1],
    ends: cython.int[::1],
    values: cython.uchar[::1],
    valid: cython.uchar[::1],
):
    """Each record's value of the name numbered `wanted`: (how many have one, bytes)."""
    if not cython.compiled:
        value_start, value_length = views(value_start, value_length)
    data, size, values_to = bytes_of(buf), buf.shape[0], room_of(values)
    found: i64 = 0
    end: i64 = 0
    with cython.nogil:
        ends[0] = 0
        for r in range(valid.shape[0]):
            valid[r] = 0
            for pair in range(first_pair[r], first_pair[r + 1]):
                if name[pair] == wanted:
                    copy_text(values_to, end, data, value_start[pair], value_length[pair], size)
                    end += value_length[pair]
                    valid[r] = 1
                    found += 1
                    break
            ends[r + 1] = end
    return found, end


# --- hosts --------------------------------------------------------------------------------------------------

HOST_V4, HOST_V6 = 8, 20


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def same_host(data: Bytes, a: i64, b: i64, is_v6: cython.bint) -> cython.bint:
    """True if the hosts at `a` and `b`, both of that kind, are equal."""
    if load64(data, a) != load64(data, b):
        return False
    return not is_v6 or (
        load64(data, a + 8) == load64(data, b + 8) and load32(data, a + 16) == load32(data, b + 16)
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_host(
    data: Bytes,
    start: i64,
    is_v6: cython.bint,
    starts: cython.const_longlong[::1],
    sys_flag: cython.const_int[::1],
    v6_flag: i64,
    first: cython.longlong[::1],
    table: cython.int[::1],
) -> tuple[i64, i64]:
    """(number, slot) of the host at `start`; (-1, the slot where it belongs) of a new one."""
    mask = table.shape[0] - 1
    slot = slot_of(hash_bytes(data, start, 20 if is_v6 else 8), mask)
    while table[slot] != 0:
        record: i64 = first[table[slot] - 1]
        record_is_v6: cython.bint = (sys_flag[record] & v6_flag) != 0
        if record_is_v6 == is_v6 and same_host(data, start, starts[record], is_v6):
            return table[slot] - 1, slot
        slot = (slot + 1) & mask
    return -1, slot


def number_hosts(
    buf: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    sys_flag: cython.const_int[::1],
    v6_flag: i64,
    number: cython.int[::1],
    first: cython.longlong[::1],
    table: cython.int[::1],
):
    """Numbers the hosts by the order in which they appear, equal ones alike; how many there are.

    `first` gets the first record of each. `table` is zeroed, its length a power of two above twice the records.
    """
    if not cython.compiled:
        starts, sys_flag = views(starts, sys_flag)
    data = bytes_of(buf)
    hosts: i64 = 0
    known: i64 = -1
    before: cython.bint = False
    with cython.nogil:
        for r in range(starts.shape[0]):
            is_v6: cython.bint = (sys_flag[r] & v6_flag) != 0
            # mostly the host of the record before comes again
            if known < 0 or before != is_v6 or not same_host(data, starts[r], starts[first[known]], is_v6):
                known, slot = find_host(data, starts[r], is_v6, starts, sys_flag, v6_flag, first, table)
                if known < 0:
                    known = hosts
                    hosts += 1
                    table[slot] = hosts
                    first[known] = r
            before = is_v6
            number[r] = known
    return hosts


def message_ids(
    buf: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    sys_flag: cython.const_int[::1],
    v6_flag: i64,
    numbers: cython.const_longlong[::1],
    ends: cython.int[::1],
    texts: cython.uchar[::1],
):
    """The host and the 64-bit number of each record in hexadecimal; how many bytes."""
    if not cython.compiled:
        starts, sys_flag, numbers = views(starts, sys_flag, numbers)
    data, out = bytes_of(buf), room_of(texts)
    at: i64 = 0
    with cython.nogil:
        ends[0] = 0
        for r in range(starts.shape[0]):
            for i in range(5 if sys_flag[r] & v6_flag else 2):
                store_hex(out, at, load32(data, starts[r] + 4 * i))
                at += 8
            store_hex(out, at, numbers[r] >> 32)
            store_hex(out, at + 8, numbers[r])
            at += 16
            ends[r + 1] = at
    return at
