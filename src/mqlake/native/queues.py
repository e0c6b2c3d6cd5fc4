# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, freethreading_compatible=True
"""Scanned records by queue: their consume queue units, and what arrived in each queue."""

import cython

if cython.compiled:
    from cython.cimports.mqlake.native import layout
    from cython.cimports.mqlake.native.constants import *
    from cython.cimports.mqlake.native.prim import *
else:
    from mqlake.formats.columns import layout
    from mqlake.native.constants import *
    from mqlake.native.prim import *


def number_queues(
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    slots: cython.int[::1],
    firsts: cython.longlong[::1],
    numbers: cython.longlong[::1],
    arrivals: cython.longlong[:, ::1],
):
    """How many queues the records are of, in order of appearance; -1 when the slots are not twice as many.

    `numbers` gets the queue of each record; of each queue `firsts` gets its first record, and `arrivals` topic id,
    queue id, the next queue offset, how many records there are, and their bytes.
    """
    if not cython.compiled:
        wide, narrow = views(wide, narrow)
    with cython.nogil:
        queues = number_into(wide, narrow, slots, firsts, numbers, arrivals)
    return queues


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def number_into(
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    slots: cython.int[::1],
    firsts: cython.longlong[::1],
    numbers: cython.longlong[::1],
    arrivals: cython.longlong[:, ::1],
) -> i64:
    """As number_queues()."""
    queues: i64 = 0
    number: i64 = -1
    room = slots.shape[0] // 2
    for record in range(narrow.shape[1]):
        topic, queue_id = narrow[layout.TOPIC_ID, record], narrow[layout.QUEUE_ID, record]
        # most records have the queue of the one before
        if number < 0 or arrivals[number, 0] != topic or arrivals[number, 1] != queue_id:
            number, slot = find_queue(slots, arrivals, topic, queue_id)
            if number < 0:
                if queues == room:
                    return -1
                number = queues
                queues += 1
                firsts[number] = record
                slots[slot] = queues
                arrivals[number, 0] = topic
                arrivals[number, 1] = queue_id
                arrivals[number, 2] = arrivals[number, 3] = arrivals[number, 4] = 0
        numbers[record] = number
        arrivals[number, 2] = max(arrivals[number, 2], wide[layout.QUEUE_OFFSET, record] + 1)
        arrivals[number, 3] += 1
        arrivals[number, 4] += narrow[layout.SIZE, record]
    return queues


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_queue(
    slots: cython.int[::1], arrivals: cython.longlong[:, ::1], topic: i64, queue_id: i64
) -> tuple[i64, i64]:
    """(number, slot) of a queue; (-1, the slot where it belongs) of a new one."""
    mask = slots.shape[0] - 1
    slot = slot_of(hash_pair(topic, queue_id), mask)
    while slots[slot] != 0:
        number = slots[slot] - 1
        if arrivals[number, 0] == topic and arrivals[number, 1] == queue_id:
            return number, slot
        slot = (slot + 1) & mask
    return -1, slot


def units_by_queue(
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    tags_code: cython.const_longlong[::1],
    inner_num: cython.const_short[::1],
    hidden: i64,
    numbers: cython.const_longlong[::1],
    arrivals: cython.const_longlong[:, ::1],
    ends: cython.longlong[::1],
    order: cython.longlong[::1],
    units: cython.uchar[::1],
    runs: cython.longlong[:, ::1],
):
    """Units of the records without `hidden` bits of SYS_FLAG, queue by queue; (units, runs).

    `numbers` and `arrivals` are number_queues()', `ends` has room for each queue. `order` gets the
    record of each unit. A run is units of one queue whose messages follow each other: topic id, queue id, its first
    unit, one after its last, the first one's queue offset, whether no inner batch is among them, and where in the log
    the last record ends.
    """
    if not cython.compiled:
        wide, narrow, tags_code, numbers, inner_num = views(wide, narrow, tags_code, numbers, inner_num)
    out = room_of(units)
    with cython.nogil:
        count = order_units(wide, narrow, tags_code, hidden, numbers, ends, order, out)
        found = find_runs(wide, narrow, inner_num, arrivals, ends, order, runs)
    return count, found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def order_units(
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    tags_code: cython.const_longlong[::1],
    hidden: i64,
    numbers: cython.const_longlong[::1],
    ends: cython.longlong[::1],
    order: cython.longlong[::1],
    out: Room,
) -> i64:
    """Writes the units queue by queue, and sets where each queue's end in `ends`; how many there are."""
    count: i64 = 0
    for number in range(ends.shape[0]):
        ends[number] = 0
    for record in range(narrow.shape[1]):
        if narrow[layout.SYS_FLAG, record] & hidden == 0:
            ends[numbers[record]] += 1
    for number in range(ends.shape[0]):
        size = ends[number]
        ends[number] = count  # the end so far of its units
        count += size
    for record in range(narrow.shape[1]):
        if narrow[layout.SYS_FLAG, record] & hidden == 0:
            unit = ends[numbers[record]]
            ends[numbers[record]] = unit + 1
            order[unit] = record
            at = unit * CQ_STORE_UNIT_SIZE
            store64(out, at, wide[layout.PHYSICAL_OFFSET, record])
            store32(out, at + 8, narrow[layout.SIZE, record])
            store64(out, at + 12, tags_code[record])
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_runs(
    wide: cython.const_longlong[:, :],
    narrow: cython.const_int[:, :],
    inner_num: cython.const_short[::1],
    arrivals: cython.const_longlong[:, ::1],
    ends: cython.const_longlong[::1],
    order: cython.const_longlong[::1],
    runs: cython.longlong[:, ::1],
) -> i64:
    """Fills `runs`; how many there are."""
    found: i64 = 0
    unit: i64 = 0
    for number in range(ends.shape[0]):
        run: i64 = -1
        following: i64 = 0
        while unit < ends[number]:
            record = order[unit]
            queue_offset = wide[layout.QUEUE_OFFSET, record]
            if run < 0 or queue_offset != following:
                run = found
                found += 1
                runs[run, 0] = arrivals[number, 0]
                runs[run, 1] = arrivals[number, 1]
                runs[run, 2] = unit
                runs[run, 4] = queue_offset
                runs[run, 5] = 1
            following = queue_offset + inner_num[record]
            if inner_num[record] != 1:
                runs[run, 5] = 0
            unit += 1
            runs[run, 3] = unit
            runs[run, 6] = wide[layout.PHYSICAL_OFFSET, record] + narrow[layout.SIZE, record]
    return found
