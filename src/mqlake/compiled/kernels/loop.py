# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The reads and writes of an event loop, compiled: what all connections that are ready have sent, and their answers.

    ┌▶ epoll_wait ─▶ for each: [half frame +] recv ─ pulls are answered ─ parse_sends ─▶ columns of all   `receive`
    │  columns ─▶ records of the log, answers                                        `append`
    │  answers of all ─▶ for each: send                                              `answer`
    └─ ppoll: more of them, and nothing else to do                                   `serve`: all of it, for a while

Several threads may `serve` at once, each its own connections with arrays of its own. They write their records to the
log at once, too: each is given room for its own by `reserve`, and `publish` makes them visible in the order of the log.
`help` is what a thread beside the event loop's does all its life.

Whatever is not a usual send or pull, or is no read or write that a socket takes at once, is left in the rows (see
loop_layout) for Python. libc's functions are called by their names. An error of one of them leaves the connection to
Python too, which meets the same error and says so.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.loop_layout import (
    AWAKE,
    BASE,
    BY_KERNEL,
    BYTES,
    CARRIED_ROW,
    CARRIED_START,
    CARRIED_STOP,
    CARRIES,
    CODES,
    COUNT,
    DONE,
    DONE_FD,
    END,
    ENDS_NS,
    EPOLL_FD,
    EVENT_DATA,
    EVENT_SIZE,
    EVENTS_AT,
    EVENTS_MAX,
    FAILED,
    FD,
    FDS_MAX,
    FIRST,
    FIRST_SIZE,
    FREE_AT,
    HANDLE,
    HEARD,
    HELD,
    HOST,
    KNOWN,
    LATENCIES_AT,
    LATENCY_BOUNDS_MS,
    LATENCY_SIZE,
    LEASE_AT,
    LINGERS_NS,
    LOG_AT,
    LOG_SIZE,
    LONGEST_NS,
    MODE,
    NANOSECONDS,
    OFFSET,
    ONLY_CARRIED,
    OTHERS,
    OVER,
    PARTS_AT,
    PEER_SIZE,
    PEERS_AT,
    PLACES_AT,
    POLLED,
    POSITION,
    PUBLISHED,
    PUTS,
    QUEUES_AT,
    READ,
    READ_MAX,
    RECEIVED_AT,
    RECEIVED_SIZE,
    RECORD_MAX,
    RESULT,
    ROUNDS,
    ROW_SIZE,
    ROWS_AT,
    SECONDS,
    SEND_NUMBERS_AT,
    SEND_NUMBERS_SIZE,
    SEND_OCTETS_AT,
    SEND_OCTETS_SIZE,
    SLOT,
    SLOT_SIZE,
    START,
    STOP,
    STOP_FD,
    STOPS,
    STORED,
    THREADS,
    UNSENT_START,
    UNSENT_STOP,
    WAKE_FD,
    WHAT,
    WOKEN,
)
from mqlake.compiled.kernels.primitives import (
    CLOCK_MONOTONIC,
    CLOCK_REALTIME,
    SECOND_NS,
    address,
    borrowed,
    clock,
    copy,
    keep_order,
    load32,
    store32,
)
from mqlake.compiled.kernels.pull_layout import CUT_FD
from mqlake.compiled.kernels.pull_layout import KNOWN as PLANS_KNOWN
from mqlake.compiled.kernels.pulls import take_pulls
from mqlake.compiled.kernels.send_layout import (
    ANSWER_END,
    ANSWERS,
    CODE,
    COLUMNS,
    FRAME_SIZE,
    FULL,
    MESSAGES,
    NEED_MORE,
    NEXT_OFFSET,
    ONEWAY,
    PLACE,
    QUEUE_BYTES,
    QUEUE_MESSAGES,
    QUEUE_PUTS,
    SENDS_MAX,
    SIZE,
    TEXT,
)
from mqlake.compiled.kernels.send_layout import ROWS as COLUMN_ROWS
from mqlake.compiled.kernels.sends import (
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    parse_sends,
    part,
    size_records,
    table,
    write_sends,
)
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH

_epoll_wait = types.ExternalFunction(
    "epoll_wait", types.int32(types.int32, types.uintp, types.int32, types.int32)
)
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_epoll_ctl = types.ExternalFunction(
    "epoll_ctl", types.int32(types.int32, types.int32, types.int32, types.uintp)
)
_ppoll = types.ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
_read = types.ExternalFunction("read", types.intp(types.int32, types.uintp, types.uintp))
_write = types.ExternalFunction("write", types.intp(types.int32, types.uintp, types.uintp))
_memmove = types.ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))
_lock = types.ExternalFunction("pthread_mutex_lock", types.int32(types.uintp))
_unlock = types.ExternalFunction("pthread_mutex_unlock", types.int32(types.uintp))

MSG_DONTWAIT, MSG_NOSIGNAL = 0x40, 0x4000  # Linux
EPOLLIN = POLLIN = 1
EPOLL_CTL_MOD = 3
MILLISECOND_NS = 1_000_000
TURN_NS = 300_000
"""After so long the event loop has its turn if it has anything to do."""
PATIENT, PATIENCE_NS = 50, 20_000
"""How often a thread asks in vain whether its records are the next to be visible before it sleeps, and how long then:
whoever wrote the ones before has lost its processor."""
LATENCY_BOUNDS_NS = np.array(LATENCY_BOUNDS_MS, np.int64) * MILLISECOND_NS


@compiled
def event_of(octets, number):
    """(descriptor, whether it can be read and nothing else is said of it) of what epoll has written."""
    at = EVENTS_AT + EVENT_SIZE * number
    events = np.int64(octets[at]) | np.int64(octets[at + 1] | octets[at + 2] | octets[at + 3]) << 8
    at += EVENT_DATA
    fd = np.int64(octets[at]) | np.int64(octets[at + 1]) << 8 | np.int64(octets[at + 2]) << 16
    return fd | np.int64(octets[at + 3]) << 24, events == EPOLLIN


@compiled
def hold(octets, free, peer, start, size):
    """True if the half frame at `start` has a place until the rest of it comes."""
    if free[0] == 0 or size >= SLOT_SIZE or (size >= 4 and np.int64(load32(octets, start)) > SLOT_SIZE - 4):
        return False
    free[0] -= 1
    slot = free[1 + free[0]]
    copy(octets, PARTS_AT + SLOT_SIZE * slot, octets, start, size)
    peer[SLOT] = slot + 1
    peer[HELD] = size
    return True


@compiled
def read(octets, free, peer, fd, position):
    """Reads what has come after the half frame that is held, both to `position`; where they end, `position` if nothing
    has come."""
    held = peer[HELD]
    if held:
        copy(octets, position, octets, PARTS_AT + SLOT_SIZE * (peer[SLOT] - 1), held)
    got = np.int64(
        _recv(
            np.int32(fd), address(octets, position + held), np.uintp(READ_MAX - held), np.int32(MSG_DONTWAIT)
        )
    )
    if got <= 0:
        return position
    if held:
        free[1 + free[0]] = peer[SLOT] - 1
        free[0] += 1
        peer[SLOT] = peer[HELD] = 0
    peer[HEARD] = 1
    return position + held + got


@compiled
def receive(
    epoll,
    takes,
    record_max,
    received,
    loop_numbers,
    octets,
    numbers,
    send_octets,
    pull_numbers,
    pull_octets,
    known,
):
    """Reads every connection that is ready, once, answers the pulls before its first send, and reads the sends; (rows,
    how many are left to Python, how many messages are in the columns, to how many queues, how many of them half
    messages or commits).

    `received` is `octets`, read-only as the other caller of parse_sends has it. Unless it `takes` sends, all are left.
    The first `known` queues of TOUCHED are there already, and count among the queues. A connection that did not take
    the whole answer to a pull is the last one of the round. What does not fit into the columns is left, too, or in a
    lease CARRIED to the next round, of which it is the first.
    """
    received, loop_numbers, octets = borrowed(received), borrowed(loop_numbers), borrowed(octets)
    numbers, send_octets = borrowed(numbers), borrowed(send_octets)
    rows = loop_numbers[ROWS_AT:FREE_AT].reshape((EVENTS_MAX, ROW_SIZE))
    free = loop_numbers[FREE_AT:PEERS_AT]
    peers = loop_numbers[PEERS_AT:LEASE_AT].reshape((FDS_MAX, PEER_SIZE))
    lease = loop_numbers[LEASE_AT:LATENCIES_AT]
    text_size = len(part(numbers, send_octets, TEXT))
    so_far = np.int64(0), np.int64(0), np.int64(known), np.int64(0)
    position, carried = np.int64(RECEIVED_AT), np.int64(-1)
    row, left, is_cut, is_full = 0, 0, False, False
    if lease[CARRIED_STOP] > 0:
        carried, size = rows[lease[CARRIED_ROW], FD], lease[CARRIED_STOP] - lease[CARRIED_START]
        _memmove(address(octets, position), address(octets, lease[CARRIED_START]), np.uint64(size))
    events_max = EVENTS_MAX - (carried >= 0)
    count = np.int32(0)
    if lease[CARRIES] != ONLY_CARRIED:
        count = _epoll_wait(
            np.int32(epoll), address(octets, np.int64(EVENTS_AT)), np.int32(events_max), np.int32(0)
        )
    for event in range(-1 if carried >= 0 else 0, count):
        fd, can_be_read = (carried, True) if event < 0 else event_of(octets, event)
        if event >= 0 and fd == carried:
            continue  # once a round
        rows[row, FD] = fd
        rows[row, FIRST] = rows[row, END] = so_far[0]
        rows[row, UNSENT_START] = rows[row, UNSENT_STOP] = 0
        rows[row, WHAT] = READ
        if takes and can_be_read and 0 <= fd < FDS_MAX and peers[fd, MODE] == BY_KERNEL:
            if event < 0:
                stop = position + lease[CARRIED_STOP] - lease[CARRIED_START]
                lease[CARRIED_STOP] = 0
            else:
                if so_far[0] == SENDS_MAX or text_size - so_far[1] < READ_MAX:
                    is_full = True
                if is_full or position + READ_MAX > RECEIVED_AT + RECEIVED_SIZE:
                    continue  # it is ready in the next round, too
                stop = read(octets, free, peers[fd], fd, position)
            if stop > position:
                start, is_half = position, False
                if pull_numbers[PLANS_KNOWN] > 0:
                    start = take_pulls(received, position, stop, fd, pull_numbers, pull_octets)
                    is_cut = pull_numbers[CUT_FD] >= 0
                if start < stop and not is_cut:
                    start, why, so_far = parse_sends(
                        received, start, stop, peers[fd, HOST], record_max, so_far, numbers, send_octets
                    )
                    is_half, is_full = why == NEED_MORE, why == FULL
                rows[row, END] = so_far[0]
                rows[row, START] = start
                rows[row, STOP] = position = stop
                is_done = start == stop or (is_half and hold(octets, free, peers[fd], start, stop - start))
                if not is_done and is_full and lease[CARRIES] != 0:
                    lease[CARRIED_ROW], lease[CARRIED_START], lease[CARRIED_STOP] = row, start, stop
                    is_done = True
                rows[row, WHAT] = DONE if is_done else HANDLE
        left += is_cut or rows[row, WHAT] != DONE
        row += 1
        if is_cut:
            break
    return row, left, so_far[0], so_far[2], so_far[3]


@compiled
def answer(count, done, loop_numbers, numbers, send_octets):
    """Sends their answers to the connections of `count` rows, for the first `done` messages; to how many of them not
    everything could be sent."""
    loop_numbers, numbers, send_octets = borrowed(loop_numbers), borrowed(numbers), borrowed(send_octets)
    rows = loop_numbers[ROWS_AT:FREE_AT].reshape((EVENTS_MAX, ROW_SIZE))
    columns = table(numbers, COLUMNS, COLUMN_ROWS, SENDS_MAX)
    answers = part(numbers, send_octets, ANSWERS)
    at, left = np.int64(0), 0
    for row in range(count):
        n, start = rows[row, FIRST], at
        while n < min(rows[row, END], done):
            at = columns[ANSWER_END, n]
            n += columns[MESSAGES, n]
        if at == start:
            continue
        size = at - start
        sent = np.int64(
            _send(
                np.int32(rows[row, FD]),
                address(answers, start),
                np.uintp(size),
                np.int32(MSG_DONTWAIT | MSG_NOSIGNAL),
            )
        )
        if sent < size:
            rows[row, UNSENT_START] = start + max(np.int64(0), sent)
            rows[row, UNSENT_STOP] = at
            left += 1
    return left


@compiled
def wait(epoll, nanoseconds, loop_numbers):
    """Waits for connections of `epoll`, or for what ends the lease; True if it was the former, which may be both."""
    lease = loop_numbers[LEASE_AT:LATENCIES_AT]
    lease[SECONDS] = 0
    lease[NANOSECONDS] = min(nanoseconds, SECOND_NS - 1)
    # a pollfd: 4 bytes of descriptor, 2 of what is asked, 2 of what there is; a descriptor of -1 is passed over
    lease[POLLED] = np.int64(epoll) | POLLIN << 32
    lease[POLLED + 1] = (lease[OTHERS] & 0xFFFFFFFF) | POLLIN << 32
    lease[POLLED + 2] = (lease[STOP_FD] & 0xFFFFFFFF) | POLLIN << 32
    ready = _ppoll(
        address(lease, np.int64(POLLED)), np.uint64(3), address(lease, np.int64(SECONDS)), np.uintp(0)
    )
    return ready > 0 and lease[POLLED] >> 48 != 0


@compiled
def rest(epoll, nanoseconds, loop_numbers, common):
    """As `wait`, in a lease; for LINGERS_NS at most when all of its threads wait."""
    lock = address(common, np.int64(0))
    _lock(lock)
    common[AWAKE] -= 1
    if common[AWAKE] <= 0:
        nanoseconds = min(nanoseconds, loop_numbers[LEASE_AT + LINGERS_NS])
    _unlock(lock)
    is_more = wait(epoll, nanoseconds, loop_numbers)
    _lock(lock)
    common[AWAKE] += 1
    _unlock(lock)
    return is_more


@compiled
def show(epoll, events, loop_numbers):
    """Has OTHERS, the epoll of the event loop, be readable for these events of `epoll`, or, with 0, for none of it."""
    lease = loop_numbers[LEASE_AT:LATENCIES_AT]
    lease[SECONDS], lease[NANOSECONDS] = events, epoll  # an epoll_event
    if EVENT_DATA == 4:
        lease[SECONDS], lease[NANOSECONDS] = np.int64(events) | np.int64(epoll) << 32, 0
    _epoll_ctl(
        np.int32(lease[OTHERS]), np.int32(EPOLL_CTL_MOD), np.int32(epoll), address(lease, np.int64(SECONDS))
    )


@compiled
def add_up(columns, known, count, room):
    """(how many of the first `count` messages have `room`, as many whole sends as there are; bytes of their records).
    What each queue gets of them is its NEXT_OFFSET then."""
    columns[NEXT_OFFSET, :known] = 0
    n, size = np.int64(0), np.int64(0)
    while n < count and size + columns[FRAME_SIZE, n] <= room:
        columns[NEXT_OFFSET, columns[PLACE, n]] += columns[MESSAGES, n]
        size += columns[FRAME_SIZE, n]
        n += columns[MESSAGES, n]
    return n, size


@compiled
def reserve(log_size, count, columns, loop_numbers, common):
    """Takes room in the log, and in the queues, for as many of the messages in the columns as fit, to queues that are
    all known; (how many, where their records go, bytes of these, their store timestamp).

    The time is that of the lock: a thread that lost its processor before it asked for it would give its records a later
    one than others gave those behind them."""
    known, places = loop_numbers[LEASE_AT + KNOWN], loop_numbers[PLACES_AT:]
    queues = common[QUEUES_AT:].reshape((4, -1))
    room = np.int64(log_size) - END_FILE_MIN_BLANK_LENGTH
    count, size = add_up(columns, known, count, room)
    _lock(address(common, np.int64(0)))
    store_timestamp = clock(CLOCK_REALTIME, loop_numbers, LEASE_AT + SECONDS) // MILLISECOND_NS
    position = common[POSITION]
    if size > room - position:
        count, size = add_up(columns, known, count, room - position)
    common[POSITION] = position + size
    for place in range(known):
        column = places[place]
        messages, columns[NEXT_OFFSET, place] = columns[NEXT_OFFSET, place], queues[OFFSET, column]
        queues[OFFSET, column] += messages
    _unlock(address(common, np.int64(0)))
    return count, position, size, store_timestamp


@compiled
def publish(log, position, size, count, loop_numbers, numbers, common):
    """Makes `count` messages visible, whose records are at log[position:] and have `size` bytes, when all before them
    are; how many. None may have a size or be answered before: after a kill nothing whole follows what is missing.

    Whoever was given room before publishes it: nothing between `reserve` and here can raise, wait for anything but a
    page of the log's file, or end early. Should it happen all the same, a thread that FAILED ends the wait of the
    others."""
    lease, asked = loop_numbers[LEASE_AT:LATENCIES_AT], 0
    columns = table(numbers, COLUMNS, COLUMN_ROWS, SENDS_MAX)
    while True:
        _lock(address(common, np.int64(0)))
        is_next = common[PUBLISHED] == position
        _unlock(address(common, np.int64(0)))
        if is_next:
            break
        if common[FAILED] != 0:
            return np.int64(0)
        asked += 1
        if asked > PATIENT:
            lease[SECONDS], lease[NANOSECONDS] = 0, PATIENCE_NS
            _ppoll(np.uintp(0), np.uint64(0), address(lease, np.int64(SECONDS)), np.uintp(0))
    size_records(log, position, count, numbers)
    keep_order()
    store32(log, position, columns[SIZE, 0])
    _lock(address(common, np.int64(0)))
    if common[STORED] == 0:
        common[FIRST_SIZE] = columns[SIZE, 0]
    common[STORED] += count
    common[PUBLISHED] = position + size
    _unlock(address(common, np.int64(0)))
    return np.int64(count)


@compiled
def append(log, received, count, loop_numbers, numbers, send_octets, common):
    """Stores the messages in the columns, to queues that are all known; how many of them."""
    columns = table(numbers, COLUMNS, COLUMN_ROWS, SENDS_MAX)
    count, position, size, store_timestamp = reserve(len(log), count, columns, loop_numbers, common)
    if count > 0:
        write_sends(log, position, common[BASE], received, count, store_timestamp, numbers, send_octets)
        count = publish(log, position, size, count, loop_numbers, numbers, common)
    return count


@compiled
def stop(loop_numbers, common):
    """Has the other threads end the lease, too."""
    lease = loop_numbers[LEASE_AT:LATENCIES_AT]
    if common[THREADS] > 1 and common[STOPS] == 0:
        common[STOPS] = 1
        lease[SECONDS] = 1
        _write(np.int32(lease[STOP_FD]), address(lease, np.int64(SECONDS)), np.uintp(8))


@compiled
def count_queues(loop_numbers, numbers, common):
    """Counts what this thread has stored in a lease."""
    known, places = loop_numbers[LEASE_AT + KNOWN], loop_numbers[PLACES_AT:]
    queues = common[QUEUES_AT:].reshape((4, -1))
    columns = table(numbers, COLUMNS, COLUMN_ROWS, SENDS_MAX)
    _lock(address(common, np.int64(0)))
    for place in range(known):
        queues[COUNT, places[place]] += columns[QUEUE_MESSAGES, place]
        queues[BYTES, places[place]] += columns[QUEUE_BYTES, place]
        queues[PUTS, places[place]] += columns[QUEUE_PUTS, place]
    _unlock(address(common, np.int64(0)))


@compiled
def receive_until(
    epoll,
    takes,
    record_max,
    received,
    loop_numbers,
    octets,
    numbers,
    send_octets,
    pull_numbers,
    pull_octets,
    lasts_ns,
):
    """As `receive`, again and again for `lasts_ns` (0: once) as long as only pulls come that are answered here; what it
    says is of the last round. Ends early where the event loop has other things to do."""
    loop_numbers = borrowed(loop_numbers)
    began = polled = clock(CLOCK_MONOTONIC, loop_numbers, LEASE_AT + SECONDS)
    if lasts_ns > 0:
        show(epoll, 0, loop_numbers)  # what is readable then is something else
    while True:
        last = receive(
            epoll,
            takes,
            record_max,
            received,
            loop_numbers,
            octets,
            numbers,
            send_octets,
            pull_numbers,
            pull_octets,
            np.int64(0),
        )
        rows, left, count, _, _ = last
        if lasts_ns == 0 or left > 0 or count > 0:
            break
        now = clock(CLOCK_MONOTONIC, loop_numbers, LEASE_AT + SECONDS)
        if now - began >= lasts_ns:
            break
        if rows < 2 or now - polled >= TURN_NS:  # after more than one there mostly is another
            polled = now
            is_ready = wait(epoll, began + lasts_ns - now if rows < 2 else np.int64(0), loop_numbers)
            if rows < 2 and not is_ready:
                break
            if now - began >= TURN_NS and loop_numbers[LEASE_AT + POLLED + 1] >> 48 != 0:
                break
    if lasts_ns > 0:
        show(epoll, EPOLLIN, loop_numbers)
    return last


@compiled
def count_latencies(columns, done, elapsed, latencies):
    """Counts the sends of the first `done` messages, which were stored in `elapsed` ns."""
    column = 0
    while column < len(LATENCY_BOUNDS_NS) and elapsed >= LATENCY_BOUNDS_NS[column]:
        column += 1
    n = np.int64(0)
    while n < done:
        code = columns[CODE, n]
        row = 0 if code == SEND_MESSAGE else 2 if code == SEND_BATCH_MESSAGE else 1
        row = 2 * row + (columns[ONEWAY, n] != 0)
        latencies[row, 2 * column] += 1
        latencies[row, 2 * column + 1] += elapsed
        n += columns[MESSAGES, n]


@compiled
def serve(
    epoll,
    log,
    record_max,
    received,
    loop_numbers,
    octets,
    numbers,
    send_octets,
    pull_numbers,
    pull_octets,
    common,
):
    """Rounds of all connections that are ready, until ENDS_NS, or the event loop has other things to do, or something
    of the last round is left to Python, here or in another thread of the lease; (its rows, how many of them are left,
    its messages, how many of these are stored and answered, how many queues it touches, how many of its messages are
    half messages or commits).

    The caller holds the log's lock and has given what LEASE and `common` say. A round with messages to queues that are
    not KNOWN, or of transactions, is not stored. What is stored is visible to readers of the file, and answered; the
    caller has still to say where the log ends now.
    """
    log, received, loop_numbers = borrowed(log), borrowed(received), borrowed(loop_numbers)
    octets, numbers, send_octets = borrowed(octets), borrowed(numbers), borrowed(send_octets)
    common = borrowed(common)
    lease = loop_numbers[LEASE_AT:LATENCIES_AT]
    latencies = loop_numbers[LATENCIES_AT:PLACES_AT].reshape((2 * CODES, LATENCY_SIZE))
    latencies[:] = 0
    columns = table(numbers, COLUMNS, COLUMN_ROWS, SENDS_MAX)
    known = lease[KNOWN]
    for row in (QUEUE_MESSAGES, QUEUE_BYTES, QUEUE_PUTS):
        columns[row, :known] = 0
    lease[ROUNDS] = lease[LONGEST_NS] = lease[CARRIED_STOP] = 0
    lease[CARRIES] = 1
    began = polled = clock(CLOCK_MONOTONIC, loop_numbers, LEASE_AT + SECONDS)
    stops = True
    while True:
        rows, left, count, places, transactional = receive(
            epoll,
            True,
            record_max,
            received,
            loop_numbers,
            octets,
            numbers,
            send_octets,
            pull_numbers,
            pull_octets,
            known,
        )
        done = np.int64(0)
        lease[ROUNDS] += 1
        if count > 0:
            if places > known or transactional > 0:
                break
            done = append(log, received, count, loop_numbers, numbers, send_octets, common)
            if done > 0:
                left += answer(rows, done, loop_numbers, numbers, send_octets)
        now = clock(CLOCK_MONOTONIC, loop_numbers, LEASE_AT + SECONDS)
        elapsed = now - began
        count_latencies(columns, done, elapsed, latencies)
        if done > 0:
            lease[LONGEST_NS] = max(lease[LONGEST_NS], elapsed)
        is_over = now >= lease[ENDS_NS] or common[STOPS] != 0
        if left > 0 or done < count or lease[CARRIES] == ONLY_CARRIED:
            break
        if is_over and lease[CARRIED_STOP] == 0:
            break
        if is_over:
            lease[CARRIES] = ONLY_CARRIED  # else Python would have to handle it
        elif lease[CARRIED_STOP] > 0:
            pass  # there is more
        elif lease[LINGERS_NS] == 0:
            if rows < 2:  # after one alone there is hardly ever another
                stops = False
                break
        elif rows < 2 and not rest(epoll, lease[ENDS_NS] - now, loop_numbers, common):
            break  # after more than one there mostly is another, which `receive` sees for half the price
        began = clock(CLOCK_MONOTONIC, loop_numbers, LEASE_AT + SECONDS)
        if lease[OTHERS] >= 0 and began - polled >= TURN_NS:
            polled = began
            wait(epoll, np.int64(0), loop_numbers)
            if lease[POLLED + 1] >> 48 != 0:
                if lease[CARRIED_STOP] == 0:
                    break
                lease[CARRIES] = ONLY_CARRIED
    lease[CARRIES] = 0
    if lease[CARRIED_STOP] > 0:
        lease[CARRIED_STOP] = 0
        loop_numbers[ROWS_AT + lease[CARRIED_ROW] * ROW_SIZE + WHAT] = HANDLE
        left += 1
    count_queues(loop_numbers, numbers, common)
    if stops:
        stop(loop_numbers, common)
    return rows, left, count, done, places, transactional


@intrinsic
def lent(_context, like, _where, _size):
    """An array of the type of `like`, which has one dimension, of `size` elements at an address. Good as long as their
    owner is alive."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = context.get_constant_null(types.MemInfoPointer(types.voidptr))
        view.parent = context.get_constant_null(types.pyobject)
        view.data = builder.inttoptr(arguments[1], view.data.type)
        view.nitems = arguments[2]
        view.shape = builder.insert_value(view.shape, arguments[2], 0)
        return view._getvalue()

    return like(like, types.int64, types.int64), generate


@compiled
def help(desk, received, loop_numbers, octets, pull_numbers, pull_octets, common):
    """Serves in each lease that it is woken for, until it is told that all is OVER (see loop_layout), or its eventfd
    fails."""
    while True:
        if _read(np.int32(desk[WAKE_FD]), address(desk, np.int64(WOKEN)), np.uintp(8)) != 8 or desk[OVER]:
            return
        (
            desk[RESULT],
            desk[RESULT + 1],
            desk[RESULT + 2],
            desk[RESULT + 3],
            desk[RESULT + 4],
            desk[RESULT + 5],
        ) = serve(
            desk[EPOLL_FD],
            lent(octets, desk[LOG_AT], desk[LOG_SIZE]),
            desk[RECORD_MAX],
            received,
            loop_numbers,
            octets,
            lent(loop_numbers, desk[SEND_NUMBERS_AT], desk[SEND_NUMBERS_SIZE]),
            lent(octets, desk[SEND_OCTETS_AT], desk[SEND_OCTETS_SIZE]),
            pull_numbers,
            pull_octets,
            common,
        )
        desk[WOKEN] = 1
        _write(np.int32(desk[DONE_FD]), address(desk, np.int64(WOKEN)), np.uintp(8))
