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
def number_queues(wide, narrow, slots, firsts, numbers, arrivals):
    """How many queues the records are of, in order of appearance; -1 when the slots are not twice as many.

    `numbers` gets the queue of each record; of each queue `firsts` gets its first record, and `arrivals` topic id,
    queue id, the next queue offset, how many records there are, and their bytes.
    """
    topic_ids, queue_ids = pointer(narrow[layout.TOPIC_ID]), pointer(narrow[layout.QUEUE_ID])
    queue_offsets, sizes = pointer(wide[layout.QUEUE_OFFSET]), pointer(narrow[layout.SIZE])
    slot_at, first_at, mask = pointer(slots), pointer(firsts), np.uint64(len(slots) - 1)
    queues, number, room = np.int64(0), np.int64(-1), np.int64(len(slots) // 2)
    for record in range(narrow.shape[1]):
        key = first_at, topic_ids, queue_ids, record
        if number < 0 or not is_of_queue(number, key):
            code = (np.uint64(topic_ids[record]) << U32 | np.uint64(np.uint32(queue_ids[record]))) * MIX
            number, slot = find(slot_at, mask, code, is_of_queue, key)
            if number < 0:
                if queues == room:
                    return np.int64(-1)
                number = queues
                queues += 1
                first_at[number] = record
                slot_at[slot] = queues
                arrivals[number, 0] = topic_ids[record]
                arrivals[number, 1] = queue_ids[record]
                arrivals[number, 2] = arrivals[number, 3] = arrivals[number, 4] = 0
        numbers[record] = number
        arrivals[number, 2] = max(arrivals[number, 2], queue_offsets[record] + 1)
        arrivals[number, 3] += 1
        arrivals[number, 4] += sizes[record]
    return queues


@compiled
def units_by_queue(wide, narrow, tags_code, inner_num, hidden, numbers, arrivals, ends, order, units, runs):
    """Units of the records without `hidden` bits of SYS_FLAG, queue by queue; (units, runs).

    `numbers` and `arrivals` are number_queues()', `ends` has room for each queue. `order` gets the
    record of each unit. A run is units of one queue whose messages follow each other: topic id, queue id, its first
    unit, one after its last, the first one's queue offset, whether no inner batch is among them, and where in the log
    the last record ends.
    """
    flags, sizes = pointer(narrow[layout.SYS_FLAG]), pointer(narrow[layout.SIZE])
    offsets, queue_offsets = pointer(wide[layout.PHYSICAL_OFFSET]), pointer(wide[layout.QUEUE_OFFSET])
    tags, inner, out = pointer(tags_code), pointer(inner_num), pointer(units)
    number_at, end_at, order_at = pointer(numbers), pointer(ends), pointer(order)
    records, queues, count, found = narrow.shape[1], len(ends), np.int64(0), np.int64(0)
    for number in range(queues):
        end_at[number] = 0
    for record in range(records):
        end_at[number_at[record]] += np.int64(flags[record] & hidden == 0)
    for number in range(queues):
        size = end_at[number]
        end_at[number] = count  # the end so far of its units
        count += size
    for record in range(records):
        if flags[record] & hidden == 0:
            number = number_at[record]
            unit = end_at[number]
            end_at[number] = unit + 1
            order_at[unit] = record
            at = unit * CQ_STORE_UNIT_SIZE
            store64(out, at, offsets[record])
            store32(out, at + 8, sizes[record])
            store64(out, at + 12, tags[record])

    unit = np.int64(0)
    for number in range(queues):
        run = np.int64(-1)
        following = np.int64(0)
        while unit < end_at[number]:
            record = order_at[unit]
            if run < 0 or queue_offsets[record] != following:
                run = found
                found += 1
                runs[run, 0] = arrivals[number, 0]
                runs[run, 1] = arrivals[number, 1]
                runs[run, 2] = unit
                runs[run, 4] = queue_offsets[record]
                runs[run, 5] = 1
            following = queue_offsets[record] + inner[record]
            if inner[record] != 1:
                runs[run, 5] = 0
            unit += 1
            runs[run, 3] = unit
            runs[run, 6] = offsets[record] + sizes[record]
    return count, found
