# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Entries of an index file, compiled: put and looked up."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import load32, load64, prefetch, store32, store64
from mqlake.formats.index import HASH_SLOT_SIZE, INDEX_HEADER_SIZE, INDEX_SIZE

I32_MAX = np.int64(0x7FFFFFFF)
FETCHED_AHEAD = 16
"""Keys whose slots are found and fetched before it is their turn: they lie anywhere in 20 MB."""


@compiled
def slot_position(key_hash, slot_num):
    return INDEX_HEADER_SIZE + (key_hash % slot_num) * HASH_SLOT_SIZE


@compiled
def index_put_many(index, slot_num, index_num, key_hash, physical_offset, store_timestamp):
    """Puts the keys in order until the file is full; how many were put.

    Entry, slot and header are written in this order for each key, so that a query beside it never meets a
    slot that points past the header's count.
    """
    count = max(np.int64(load32(index, 36)), np.int64(1))
    used_slots = np.int64(load32(index, 32))
    begin_timestamp = load64(index, 0)
    entries = INDEX_HEADER_SIZE + slot_num * HASH_SLOT_SIZE
    fetched = np.empty(FETCHED_AHEAD, np.int64)
    for key in range(min(FETCHED_AHEAD, len(key_hash))):
        fetched[key] = slot_position(key_hash[key], slot_num)
        prefetch(index, fetched[key])
    put = 0
    while put < len(key_hash) and count < index_num:
        timestamp = store_timestamp[put]
        slot, later = fetched[put % FETCHED_AHEAD], put + FETCHED_AHEAD
        if later < len(key_hash):
            fetched[put % FETCHED_AHEAD] = slot_position(key_hash[later], slot_num)
            prefetch(index, fetched[put % FETCHED_AHEAD])
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
    current = np.int64(load32(index, slot_position(key_hash, slot_num)))
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
