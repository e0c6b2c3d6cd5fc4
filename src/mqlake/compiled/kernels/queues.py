# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Scanned records by queue, compiled: their consume queue units, and what arrived in each queue."""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import find, pointer, store32, store64
from mqlake.formats.columns import layout
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE

MIX = np.uint64(0x9E3779B97F4A7C15)
U32 = np.uint64(32)


@compiled
def is_of_queue(number, key):
    firsts, topic_ids, queue_ids, record = key
    first = firsts[number]
    return topic_ids[first] == topic_ids[record] and queue_ids[first] == queue_ids[record]


@compiled
def queue_number(record, topic_ids, queue_ids, slots, mask, firsts, queues):
    """The number of the record's queue, in order of appearance; `queues` for a new one, whose record `firsts` has
    then."""
    code = (np.uint64(topic_ids[record]) << U32 | np.uint64(np.uint32(queue_ids[record]))) * MIX
    number, slot = find(slots, mask, code, is_of_queue, (firsts, topic_ids, queue_ids, record))
    if number < 0:
        number = queues
        firsts[number] = record
        slots[slot] = number + 1
    return number


@compiled
def units_by_queue(wide, narrow, tags_code, inner_num, hidden, slots, firsts, ends, order, units, runs):
    """Units of the records without `hidden` bits of SYS_FLAG, queue by queue; (units, runs).

    `order` gets the record of each unit. A run is units of one queue whose messages follow each other: topic id, queue
    id, its first unit, one after its last, the first one's queue offset, whether no inner batch is among them, and
    where in the log the last record ends.
    """
    topic_ids, queue_ids = pointer(narrow[layout.TOPIC_ID]), pointer(narrow[layout.QUEUE_ID])
    flags, sizes = pointer(narrow[layout.SYS_FLAG]), pointer(narrow[layout.SIZE])
    offsets, queue_offsets = pointer(wide[layout.PHYSICAL_OFFSET]), pointer(wide[layout.QUEUE_OFFSET])
    tags, numbers, out = pointer(tags_code), pointer(inner_num), pointer(units)
    slot_at, first_at, end_at, order_at = pointer(slots), pointer(firsts), pointer(ends), pointer(order)
    mask = np.uint64(len(slots) - 1)
    records, queues, count = narrow.shape[1], np.int64(0), np.int64(0)
    for record in range(records):
        if flags[record] & hidden == 0:
            number = queue_number(record, topic_ids, queue_ids, slot_at, mask, first_at, queues)
            if number == queues:
                end_at[number] = 0
                queues += 1
            end_at[number] += 1
    for number in range(queues):
        size = end_at[number]
        end_at[number] = count  # the end so far of its units
        count += size
    for record in range(records):
        if flags[record] & hidden == 0:
            number = queue_number(record, topic_ids, queue_ids, slot_at, mask, first_at, queues)
            order_at[end_at[number]] = record
            end_at[number] += 1

    found, following, first = np.int64(-1), np.int64(0), np.int64(0)
    for number in range(queues):
        for unit in range(first, end_at[number]):
            record = order_at[unit]
            at = unit * CQ_STORE_UNIT_SIZE
            store64(out, at, offsets[record])
            store32(out, at + 8, sizes[record])
            store64(out, at + 12, tags[record])
            if unit == first or queue_offsets[record] != following:
                found += 1
                runs[found, 0] = topic_ids[record]
                runs[found, 1] = queue_ids[record]
                runs[found, 2] = unit
                runs[found, 4] = queue_offsets[record]
                runs[found, 5] = 1
            following = queue_offsets[record] + numbers[record]
            if numbers[record] != 1:
                runs[found, 5] = 0
            runs[found, 3] = unit + 1
            runs[found, 6] = offsets[record] + sizes[record]
        first = end_at[number]
    return count, found + 1


@compiled
def arrivals_by_queue(wide, narrow, slots, firsts, arrivals):
    """How many queues the records are of; of each `arrivals` gets topic id, queue id, the next queue offset, how many
    records there are, and their bytes."""
    topic_ids, queue_ids = pointer(narrow[layout.TOPIC_ID]), pointer(narrow[layout.QUEUE_ID])
    queue_offsets, sizes = pointer(wide[layout.QUEUE_OFFSET]), pointer(narrow[layout.SIZE])
    slot_at, first_at, mask = pointer(slots), pointer(firsts), np.uint64(len(slots) - 1)
    queues = np.int64(0)
    for record in range(narrow.shape[1]):
        number = queue_number(record, topic_ids, queue_ids, slot_at, mask, first_at, queues)
        if number == queues:
            queues += 1
            arrivals[number, 0] = topic_ids[record]
            arrivals[number, 1] = queue_ids[record]
            arrivals[number, 2] = arrivals[number, 3] = arrivals[number, 4] = 0
        arrivals[number, 2] = max(arrivals[number, 2], queue_offsets[record] + 1)
        arrivals[number, 3] += 1
        arrivals[number, 4] += sizes[record]
    return queues
