# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The steps of making rows that cost most, compiled by numba: properties into pairs, message ids into text.

`properties` and `rows` do the same with numpy where numba is missing or a scan is too small to load it for.
Positions come from a scan, so they lie in their buffers; they are used as unsigned indexes, as in
formats.columns.kernels.
"""

from __future__ import annotations

import numpy as np

from mqlake.formats.columns import kernels as column_kernels
from mqlake.formats.columns.kernels import compiled_with, load32, store64

compiled = compiled_with(column_kernels)

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2
U1 = np.uint64(1)


@compiled
def count_partings(buf, starts, lengths):
    """How many bytes of the slices are \\1: they hold no more pairs than that."""
    count = np.int64(0)
    for r in range(len(starts)):
        start = np.uint64(starts[r])
        for i in range(lengths[r]):
            count += buf[start + np.uint64(i)] == NAME_VALUE_SEPARATOR
    return count


@compiled
def begins_with(buf, start, end, name, length):
    """Whether buf[start:end] begins with buf[name:name + length] and the \\1 behind it."""
    if length >= end - start or buf[np.uint64(start + length)] != NAME_VALUE_SEPARATOR:
        return False
    for i in range(length):  # noqa: SIM110 - numba has no all() of a generator
        if buf[np.uint64(start + i)] != buf[np.uint64(name + i)]:
            return False
    return True


@compiled
def split_properties(
    buf,
    starts,
    lengths,
    first_pair,
    record,
    name,
    places,
    table,
    name_start,
    name_length,
    last_pair,
    next_name,
):
    """Pairs of all records: (pairs, distinct names, pairs overwritten by a later one of the same name).

    `places` gets a row each for name start, name length, value start, value length; a name starts where it was
    first met. An overwritten pair's `record` becomes -1. `table` and `next_name` are zeroed; the length of `table` is
    a power of two above twice the pairs that fit, `next_name` has room for one more than those.
    """
    mask = np.uint64(len(table) - 1)
    pairs = names = overwritten = 0
    for r in range(len(starts)):
        first_pair[r] = pairs
        start = np.int64(starts[r])
        end = start + lengths[r]
        before = 0  # the number of the name before, counted from 1
        while start < end:
            # mostly the name that came there the last time comes again
            known = next_name[before] - 1
            if known >= 0 and begins_with(buf, start, end, name_start[known], name_length[known]):
                parting = start + name_length[known]
            else:
                known = -1
                code = np.uint64(14695981039346656037)
                parting = start
                while parting < end:
                    byte = buf[np.uint64(parting)]
                    if byte in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
                        break
                    code = (code ^ np.uint64(byte)) * np.uint64(1099511628211)
                    parting += 1
            stop = parting
            while stop < end and buf[np.uint64(stop)] != PROPERTY_SEPARATOR:
                stop += 1
            if start < parting and parting + 1 < stop:
                length = parting - start
                if known < 0:
                    slot = (code ^ (code >> np.uint64(32))) & mask
                    while table[slot] != 0:
                        candidate = table[slot] - 1
                        if name_length[candidate] == length and begins_with(
                            buf, start, end, name_start[candidate], length
                        ):
                            known = candidate
                            break
                        slot = (slot + U1) & mask
                    if known < 0:
                        known = names
                        names += 1
                        table[slot] = names
                        name_start[known] = start
                        name_length[known] = length
                        last_pair[known] = -1
                    next_name[before] = known + 1
                before = known + 1
                last = last_pair[known]
                if last >= 0 and record[last] == r:
                    record[last] = -1
                    overwritten += 1
                last_pair[known] = pairs
                record[pairs] = r
                name[pairs] = known
                places[0, pairs] = name_start[known]
                places[1, pairs] = length
                places[2, pairs] = parting + 1
                places[3, pairs] = stop - parting - 1
                pairs += 1
            start = stop + 1
    first_pair[len(starts)] = pairs
    return pairs, names, overwritten


@compiled
def places_of(wanted, record, name, value_start, value_length, starts, lengths, valid):
    """Where each record has its value of the name numbered `wanted`; outputs are zeroed."""
    for pair in range(len(record)):
        if name[pair] == wanted:
            r = record[pair]
            starts[r] = value_start[pair]
            lengths[r] = value_length[pair]
            valid[r] = True


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
def hex_ids(buf, starts, lengths, numbers, out):
    """Host bytes (8 or 20) and the big-endian 64-bit number of each record in hexadecimal, one behind the other."""
    at = np.int64(0)
    for r in range(len(starts)):
        for i in range(0, lengths[r], 4):
            store_hex(out, at, load32(buf, starts[r] + i))
            at += 8
        store_hex(out, at, numbers[r] >> 32)
        store_hex(out, at + 8, numbers[r])
        at += 16
