# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The two steps of making rows that cost most, compiled by numba: properties into pairs, message ids into text.

`properties` and `rows` do the same with numpy where numba is missing or a scan is too small to load it for.
Positions come from a scan or from gather(), so they lie in their buffers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

compiled = njit(cache=True, nogil=True)

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2


@compiled
def split_properties(
    data, offsets, first_pair, record, name, places, table, name_start, name_length, last_pair
):
    """Pairs of all records: (pairs, distinct names, pairs overwritten by a later one of the same name).

    `places` gets a row each for name start, name length, value start, value length. An overwritten pair's
    `record` becomes -1. `table` is zeroed, its length a power of two above twice the pairs that fit.
    """
    mask = np.uint64(len(table) - 1)
    pairs = names = overwritten = 0
    for r in range(len(offsets) - 1):
        first_pair[r] = pairs
        start, end = offsets[r], offsets[r + 1]
        while start < end:
            code = np.uint64(14695981039346656037)
            parting = end
            stop = start
            while stop < end and data[stop] != PROPERTY_SEPARATOR:
                if data[stop] == NAME_VALUE_SEPARATOR and parting == end:
                    parting = stop
                elif parting == end:
                    code = (code ^ np.uint64(data[stop])) * np.uint64(1099511628211)
                stop += 1
            if start < parting and parting + 1 < stop:
                length = parting - start
                slot = (code ^ (code >> np.uint64(32))) & mask
                known = -1
                while table[slot] != 0:
                    candidate = table[slot] - 1
                    if name_length[candidate] == length:
                        i = 0
                        while i < length and data[name_start[candidate] + i] == data[start + i]:
                            i += 1
                        if i == length:
                            known = candidate
                            break
                    slot = (slot + np.uint64(1)) & mask
                if known < 0:
                    known = names
                    names += 1
                    table[slot] = names
                    name_start[known] = start
                    name_length[known] = length
                elif record[last_pair[known]] == r:
                    record[last_pair[known]] = -1
                    overwritten += 1
                last_pair[known] = pairs
                record[pairs] = r
                name[pairs] = known
                places[0, pairs] = start
                places[1, pairs] = length
                places[2, pairs] = parting + 1
                places[3, pairs] = stop - parting - 1
                pairs += 1
            start = stop + 1
    first_pair[len(offsets) - 1] = pairs
    return pairs, names, overwritten


@compiled
def hex_ids(buf, starts, lengths, numbers, digits, out):
    """Host bytes and the big-endian 64-bit number of each record in hexadecimal, one behind the other."""
    at = 0
    for r in range(len(starts)):
        start = np.uint64(starts[r])
        for i in range(lengths[r]):
            byte = buf[start + np.uint64(i)]
            out[at] = digits[byte >> 4]
            out[at + 1] = digits[byte & 15]
            at += 2
        number = np.uint64(numbers[r])
        for shift in range(60, -4, -4):
            out[at] = digits[(number >> np.uint64(shift)) & np.uint64(15)]
            at += 1
