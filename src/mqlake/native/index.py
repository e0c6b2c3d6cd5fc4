# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Entries of an index file: put and looked up."""

import cython

if cython.compiled:
    from cython.cimports.mqlake.native import layout
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.formats.columns import layout
    from mqlake.native.constants import *
    from mqlake.native.prim import *

I32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
FETCHED_AHEAD = cython.declare(cython.longlong, 16)
"""Keys whose slots are found and fetched before it is their turn: they lie anywhere in 20 MB."""


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def slot_position(key_hash: i64, slot_num: i64) -> i64:
    slot = key_hash % slot_num
    if slot < 0:  # C's remainder
        slot += slot_num
    return INDEX_HEADER_SIZE + slot * HASH_SLOT_SIZE


def index_put_many(
    index: cython.uchar[::1],
    slot_num: i64,
    index_num: i64,
    key_hash: cython.const_int[::1],
    physical_offset: cython.const_longlong[::1],
    store_timestamp: cython.const_longlong[::1],
):
    """Puts the keys in order until the file is full; returns how many were put.

    Entry, slot and header are written in this order for each key, so that a query beside it never meets a
    slot that points past the header's count.
    """
    if not cython.compiled:
        key_hash, physical_offset, store_timestamp = views(key_hash, physical_offset, store_timestamp)
    out = room_of(index)
    with cython.nogil:
        put_count = put_keys(out, slot_num, index_num, key_hash, physical_offset, store_timestamp)
    return put_count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_keys(
    index: Room,
    slot_num: i64,
    index_num: i64,
    key_hash: cython.const_int[::1],
    physical_offset: cython.const_longlong[::1],
    store_timestamp: cython.const_longlong[::1],
) -> i64:
    """The work of index_put_many()."""
    count: i64 = max(load32(index, 36), 1)
    used_slots: i64 = load32(index, 32)
    begin_timestamp = load64(index, 0)
    entries = INDEX_HEADER_SIZE + slot_num * HASH_SLOT_SIZE
    for key in range(min(FETCHED_AHEAD, key_hash.shape[0])):
        prefetch(index, slot_position(key_hash[key], slot_num))
    key: i64 = 0
    while key < key_hash.shape[0] and count < index_num:
        timestamp = store_timestamp[key]
        slot = slot_position(key_hash[key], slot_num)
        if key + FETCHED_AHEAD < key_hash.shape[0]:
            prefetch(index, slot_position(key_hash[key + FETCHED_AHEAD], slot_num))
        previous: i64 = load32(index, slot)
        if previous < 0 or previous > count:
            previous = 0
        seconds: i64 = 0
        if begin_timestamp > 0 and timestamp > begin_timestamp:
            seconds = min((timestamp - begin_timestamp) // 1000, I32_MAX)
        entry = entries + count * INDEX_SIZE
        store32(index, entry, key_hash[key])
        store64(index, entry + 4, physical_offset[key])
        store32(index, entry + 12, seconds)
        store32(index, entry + 16, previous)
        store32(index, slot, count)
        if count == 1:
            begin_timestamp = timestamp
            store64(index, 0, begin_timestamp)
            store64(index, 16, physical_offset[key])
        if previous == 0:
            used_slots = min(used_slots + 1, I32_MAX)
            store32(index, 32, used_slots)
        count += 1
        store32(index, 36, count)
        store64(index, 8, timestamp)
        store64(index, 24, physical_offset[key])
        key += 1
    return key


def index_query(
    index: cython.const_uchar[::1],
    slot_num: i64,
    index_num: i64,
    key_hash: i64,
    begin: i64,
    end: i64,
    found: cython.longlong[::1],
):
    """Fills `found`, newest first, with offsets of entries of this hash and of [begin, end] ms; how many."""
    data = bytes_of(index)
    with cython.nogil:
        hits = find_keys(data, slot_num, index_num, key_hash, begin, end, found)
    return hits


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_keys(
    index: Bytes,
    slot_num: i64,
    index_num: i64,
    key_hash: i64,
    begin: i64,
    end: i64,
    found: cython.longlong[::1],
) -> i64:
    """As index_query()."""
    count = load32(index, 36)
    if count <= 1:
        return 0
    begin_timestamp = load64(index, 0)
    entries = INDEX_HEADER_SIZE + slot_num * HASH_SLOT_SIZE
    current = load32(index, slot_position(key_hash, slot_num))
    hits: i64 = 0
    for _ in range(index_num):  # a chain of more entries than there are runs in a circle
        if current <= 0 or current > count or current >= index_num or hits == found.shape[0]:
            break
        entry = entries + current * INDEX_SIZE
        seconds = load32(index, entry + 12)
        if seconds < 0:
            break
        timestamp = begin_timestamp + seconds * 1000
        if load32(index, entry) == key_hash and begin <= timestamp <= end:
            found[hits] = load64(index, entry + 4)
            hits += 1
        previous = load32(index, entry + 16)
        if previous == current or timestamp < begin:
            break
        current = previous
    return hits
