# mypy: disable-error-code="assignment,no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The steps of making rows that cost most, compiled by numba: properties into pairs, hosts and message ids into text.

`properties` and `rows` do the same with numpy where numba is missing or a process has too few records to load it for.
Outputs have the layout of Arrow's strings: `ends[i]` to `ends[i + 1]` are the bytes of text i. Positions come from a
scan, so they lie in their buffers; they are used as unsigned indexes, as in `primitives`.
"""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    NAME_VALUE_SEPARATOR,
    OVERLAP,  # noqa: F401 - the caller makes that much room
    copy_text,
    find,
    hash_bytes,
    load32,
    load64,
    name_end,
    pointer,
    same_bytes,
    store64,
    value_end,
)

# --- properties ---------------------------------------------------------------------------------------------


@compiled
def begins_with(data, start, end, name, length):
    """True if data[start:end] begins with data[name:name + length] and the \\1 after it."""
    return (
        length < end - start
        and data[np.uint64(start + length)] == NAME_VALUE_SEPARATOR
        and same_bytes(data, start, data, name, length)
    )


@compiled
def is_name(number, key):
    data, start, length, name_start, name_length = key
    return name_length[number] == length and same_bytes(data, name_start[number], data, start, length)


@compiled
def split_properties(
    buf,
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
):
    """Pairs of all records: (pairs, distinct names); -1 pairs when there is no room for the names.

    A name starts where it was first met; of a record's equal names the last value counts. `table` and `next_name` are
    zeroed; the length of `table` is a power of two above twice the names that fit, `next_name` has room for one more
    than those.
    """
    data, slots, name_starts, name_lengths = (
        pointer(buf),
        pointer(table),
        pointer(name_start),
        pointer(name_length),
    )
    mask = np.uint64(len(table) - 1)
    pairs = names = 0
    for r in range(len(starts)):
        first_pair[r] = pairs
        start = np.int64(starts[r])
        end = start + lengths[r]
        before = 0  # the number of the name before, counted from 1
        while start < end:
            # mostly the name that came there the last time comes again
            known = np.int64(next_name[before]) - 1
            if known >= 0 and begins_with(data, start, end, name_start[known], name_length[known]):
                parting = start + name_length[known]
            else:
                known = np.int64(-1)
                parting = name_end(data, start, end)
            stop = value_end(data, parting, end)
            if start < parting and parting + 1 < stop:
                if known < 0:
                    key = data, start, parting - start, name_starts, name_lengths
                    code = hash_bytes(data, start, parting - start)
                    known, slot = find(slots, mask, code, is_name, key)
                    if known < 0:
                        if names == len(name_start):
                            return -1, names
                        known = np.int64(names)
                        names += 1
                        table[slot] = names
                        name_start[known] = start
                        name_length[known] = parting - start
                        last_pair[known] = -1
                    next_name[before] = known + 1
                before = known + 1
                pair = last_pair[known]
                if pair < first_pair[r]:
                    last_pair[known] = pair = pairs
                    name[pair] = known
                    pairs += 1
                value_start[pair] = parting + 1
                value_length[pair] = stop - parting - 1
            start = stop + 1
    first_pair[len(starts)] = pairs
    return pairs, names


@compiled
def pair_texts(
    buf, name, name_start, name_length, value_start, value_length, name_ends, names, value_ends, values
):
    """The names and the values of all pairs; how many bytes both take."""
    data, size, names_to, values_to = pointer(buf), np.int64(len(buf)), pointer(names), pointer(values)
    names_end = values_end = np.int64(0)
    name_ends[0] = value_ends[0] = 0
    for pair in range(len(name)):
        number = name[pair]
        copy_text(names_to, names_end, data, name_start[number], name_length[number], size)
        names_end += name_length[number]
        name_ends[pair + 1] = names_end
        copy_text(values_to, values_end, data, value_start[pair], value_length[pair], size)
        values_end += value_length[pair]
        value_ends[pair + 1] = values_end
    return names_end, values_end


@compiled
def values_of(buf, wanted, first_pair, name, value_start, value_length, ends, values, valid):
    """Each record's value of the name numbered `wanted`: (how many have one, bytes)."""
    data, size, values_to = pointer(buf), np.int64(len(buf)), pointer(values)
    found, end = 0, np.int64(0)
    ends[0] = 0
    for r in range(len(valid)):
        valid[r] = False
        for pair in range(first_pair[r], first_pair[r + 1]):
            if name[pair] == wanted:
                copy_text(values_to, end, data, value_start[pair], value_length[pair], size)
                end += value_length[pair]
                valid[r] = True
                found += 1
                break
        ends[r + 1] = end
    return found, end


# --- hosts --------------------------------------------------------------------------------------------------

HOST_V4, HOST_V6 = 8, 20


@compiled
def same_host(data, a, b, length):
    """True if the hosts at `a` and `b`, both so long, are equal."""
    if load64(data, a) != load64(data, b):
        return False
    return length == HOST_V4 or (
        load64(data, a + 8) == load64(data, b + 8) and load32(data, a + 16) == load32(data, b + 16)
    )


@compiled
def is_host(number, key):
    data, start, is_v6, v6_flag, starts, sys_flag, first = key
    record = first[number]
    length = HOST_V6 if is_v6 else HOST_V4
    return sys_flag[record] & v6_flag == is_v6 and same_host(data, start, starts[record], length)


@compiled
def number_hosts(buf, starts, sys_flag, v6_flag, number, first, table):
    """Numbers the hosts by the order in which they appear, equal ones alike; how many there are.

    `first` gets the first record of each. `table` is zeroed, its length a power of two above twice the records.
    """
    data, slots = pointer(buf), pointer(table)
    host_at, flags, first_of = pointer(starts), pointer(sys_flag), pointer(first)
    mask = np.uint64(len(table) - 1)
    hosts = 0
    known = np.int64(-1)
    for r in range(len(starts)):
        start = starts[r]
        is_v6 = sys_flag[r] & v6_flag
        length = HOST_V6 if is_v6 else HOST_V4
        # mostly the host of the record before comes again
        if (
            known < 0
            or sys_flag[first[known]] & v6_flag != is_v6
            or not same_host(data, start, starts[first[known]], length)
        ):
            code = np.uint64(load64(data, start))
            if is_v6:
                code ^= np.uint64(load64(data, start + 8)) * np.uint64(31) + np.uint64(
                    load32(data, start + 16)
                )
            code *= np.uint64(0x9E3779B97F4A7C15)
            key = data, start, is_v6, v6_flag, host_at, flags, first_of
            known, slot = find(slots, mask, code, is_host, key)
            if known < 0:
                known = np.int64(hosts)
                hosts += 1
                table[slot] = hosts
                first[known] = r
        number[r] = known
    return hosts


@compiled
def store_hex(out, at, word):
    """The 8 hexadecimal digits of a 32-bit number, four bits spread to a byte each and then made digits."""
    spread = np.uint64(np.uint32(word))
    spread = (spread | (spread << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    spread = (spread | (spread << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    spread = (spread | (spread << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    is_letter = ((spread + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    store64(out, at, spread + np.uint64(0x3030303030303030) + is_letter * np.uint64(7))


@compiled
def message_ids(buf, starts, sys_flag, v6_flag, numbers, ends, texts):
    """The host and the 64-bit number of each record in hexadecimal; how many bytes."""
    data, out = pointer(buf), pointer(texts)
    at = np.int64(0)
    ends[0] = 0
    for r in range(len(starts)):
        for i in range(0, HOST_V6 if sys_flag[r] & v6_flag else HOST_V4, 4):
            store_hex(out, at, load32(data, starts[r] + i))
            at += 8
        store_hex(out, at, numbers[r] >> 32)
        store_hex(out, at + 8, numbers[r])
        at += 16
        ends[r + 1] = at
    return at
