# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The reads and writes of an event loop: what all connections that are ready have sent, and their answers.

    ┌▶ epoll_wait ─▶ for each: [half frame +] recv ─ pulls are answered ─ read_sends ─▶ columns of all   `receive`
    │  columns ─▶ records of the log, answers                                       `append`
    │  answers of all ─▶ for each: send                                             `answer`
    └─ ppoll: more of them, and nothing else to do                                  `serve`: all of it, for a while

Several threads may `serve` at once, each its own connections with arrays of its own. They write their records to the
log at once, too: each is given room for its own by `reserve`, and `publish` makes them visible in the order of the log.
`help` is what a thread beside the event loop's does all its life.

Whatever is not a usual send or pull, or is no read or write that a socket takes at once, is left in the rows (see
loop_layout) for Python. An error of one of the system's functions leaves the connection to Python too, which meets the
same error and says so.
"""

from libc.string cimport memmove, memset

from mqlake.native cimport pull_layout, send_layout
from mqlake.native.append cimport publish as publish_record
from mqlake.native.constants cimport END_FILE_MIN_BLANK_LENGTH
from mqlake.native.loop_layout cimport *
from mqlake.native.prim cimport *
from mqlake.native.pulls cimport take
from mqlake.native.requests cimport SEND_BATCH_MESSAGE, SEND_MESSAGE
from mqlake.native.send_layout cimport (
    ANSWER_END,
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
)
from mqlake.native.sends cimport Row, SoFar, Tables, Written, read_sends, size_records, tables_of, write_sends
from mqlake.native.system cimport *

from mqlake.native import loop_layout as _layout

cdef enum:
    SECOND_NS = 1_000_000_000
    MILLISECOND_NS = 1_000_000
    TURN_NS = 300_000  # after so long the event loop has its turn if it has anything to do
    # how often a thread asks in vain whether its records are the next to be visible before it sleeps, and how long
    # then: whoever wrote the ones before has lost its processor
    PATIENT = 50
    PATIENCE_NS = 20_000
    BOUNDS = 9

ctypedef i64 LoopRow[ROW_SIZE]
ctypedef i64 Peer[PEER_SIZE]
ctypedef i64 Latencies[LATENCY_SIZE]

cdef i64 LATENCY_BOUNDS_NS[BOUNDS]
for _i in range(BOUNDS):
    LATENCY_BOUNDS_NS[_i] = _layout.LATENCY_BOUNDS_MS[_i] * MILLISECOND_NS


cdef struct Loop:
    # a thread's epoll, arrays, and parts of these
    int epoll
    i64 record_max
    i64 *numbers
    i64 *lease
    LoopRow *rows
    i64 *free
    Peer *peers
    i64 *places
    Room octets
    Tables sends
    i64 *pull_numbers
    Room pull_octets


cdef struct Common:
    # of the threads of a lease: the lock, the numbers, and rows of QUEUES
    pthread_mutex_t *lock
    i64 *numbers
    i64 *queue_offsets
    i64 *queue_counts
    i64 *queue_bytes
    i64 *queue_puts


cdef struct Round:
    # how many rows, how many of them are left to Python, how many messages are in the columns, to how many queues, how
    # many of them half messages or commits
    i64 rows
    i64 left
    i64 messages
    i64 places
    i64 transactional


cdef struct Reserved:
    # for how many messages, where their records go, the bytes of these, their store timestamp
    i64 count
    i64 position
    i64 size
    i64 store_timestamp


# --- reads and answers ---------------------------------------------------------------------------------------


cdef bint hold(Loop *loop, i64 *peer, i64 start, i64 size) noexcept nogil:
    """True if the half frame at `start` has a place until the rest of it comes."""
    free = loop.free
    if free[0] == 0 or size >= SLOT_SIZE or (size >= 4 and load32(loop.octets, start) > SLOT_SIZE - 4):
        return False
    free[0] -= 1
    slot = free[1 + free[0]]
    copy(loop.octets, PARTS_AT + SLOT_SIZE * slot, loop.octets, start, size)
    peer[SLOT] = slot + 1
    peer[HELD] = size
    return True


cdef i64 receive_from(Loop *loop, i64 *peer, int fd, i64 position) noexcept nogil:
    """Reads what has come after the half frame that is held, both to `position`; where they end, `position` if nothing
    has come."""
    octets, free, held = loop.octets, loop.free, peer[HELD]
    if held:
        copy(octets, position, octets, PARTS_AT + SLOT_SIZE * (peer[SLOT] - 1), held)
    cdef i64 got = recv(fd, octets + position + held, READ_MAX - held, MSG_DONTWAIT)
    if got <= 0:
        return position
    if held:
        free[1 + free[0]] = peer[SLOT] - 1
        free[0] += 1
        peer[SLOT] = peer[HELD] = 0
    peer[HEARD] = 1
    return position + held + got


cdef Round receive(Loop *loop, bint takes, i64 known) noexcept nogil:
    """Reads every connection that is ready, once, answers the pulls before its first send, and reads the sends.

    Unless it `takes` sends, all are left. The first `known` queues of TOUCHED are there already, and count among the
    queues. A connection that did not take the whole answer to a pull is the last one of the round. What does not fit
    into the columns is left, too, or in a lease CARRIED to the next round, of which it is the first.
    """
    octets, lease = loop.octets, loop.lease
    cdef epoll_event *events = <epoll_event *>(octets + EVENTS_AT)
    cdef Round found
    cdef SoFar so_far
    cdef i64 position = RECEIVED_AT, carried = -1, size, start, stop, why, fd
    cdef i64 *row
    cdef i64 *peer
    cdef bint is_cut = False, is_full = False, is_half, is_done, can_be_read
    cdef int count = 0, events_max = EVENTS_MAX, event
    so_far.messages = so_far.text_end = so_far.transactional = 0
    so_far.places = known
    found.rows = found.left = 0
    if lease[CARRIED_STOP] > 0:
        carried, size = loop.rows[lease[CARRIED_ROW]][FD], lease[CARRIED_STOP] - lease[CARRIED_START]
        memmove(octets + position, octets + lease[CARRIED_START], size)
        events_max -= 1
    if lease[CARRIES] != ONLY_CARRIED:
        count = epoll_wait(loop.epoll, events, events_max, 0)
    for event in range(-1 if carried >= 0 else 0, count):
        fd, can_be_read = carried, True
        if event >= 0:
            fd, can_be_read = events[event].data.fd, events[event].events == EPOLLIN
            if fd == carried:
                continue  # once a round
        row = <i64 *>loop.rows[found.rows]
        row[FD] = fd
        row[FIRST] = row[END] = so_far.messages
        row[UNSENT_START] = row[UNSENT_STOP] = 0
        row[WHAT] = READ
        if takes and can_be_read and 0 <= fd < FDS_MAX and loop.peers[fd][MODE] == BY_KERNEL:
            peer = <i64 *>loop.peers[fd]
            if event < 0:
                stop = position + lease[CARRIED_STOP] - lease[CARRIED_START]
                lease[CARRIED_STOP] = 0
            else:
                if so_far.messages == SENDS_MAX or loop.sends.text_size - so_far.text_end < READ_MAX:
                    is_full = True
                if is_full or position + READ_MAX > RECEIVED_AT + RECEIVED_SIZE:
                    continue  # it is ready in the next round, too
                stop = receive_from(loop, peer, fd, position)
            if stop > position:
                start, is_half = position, False
                if loop.pull_numbers[pull_layout.KNOWN] > 0:
                    start = take(octets, position, stop, fd, loop.pull_numbers, loop.pull_octets)
                    is_cut = loop.pull_numbers[pull_layout.CUT_FD] >= 0
                if start < stop and not is_cut:
                    why = read_sends(&loop.sends, octets, &start, stop, peer[HOST], loop.record_max, &so_far)
                    is_half, is_full = why == NEED_MORE, why == FULL
                row[END] = so_far.messages
                row[START] = start
                row[STOP] = position = stop
                is_done = start == stop or (is_half and hold(loop, peer, start, stop - start))
                if not is_done and is_full and lease[CARRIES] != 0:
                    lease[CARRIED_ROW], lease[CARRIED_START], lease[CARRIED_STOP] = found.rows, start, stop
                    is_done = True
                row[WHAT] = DONE if is_done else HANDLE
        found.left += is_cut or row[WHAT] != DONE
        found.rows += 1
        if is_cut:
            break
    found.messages, found.places, found.transactional = so_far.messages, so_far.places, so_far.transactional
    return found


cdef i64 answer_rows(LoopRow *rows, Row *columns, Bytes answers, i64 count, i64 done) noexcept nogil:
    """Sends their answers to the connections of `count` rows, for the first `done` messages; to how many of them not
    everything could be sent."""
    cdef i64 at = 0, left = 0, n, start, size, sent
    for row in range(count):
        n, start = rows[row][FIRST], at
        while n < min(rows[row][END], done):
            at = columns[ANSWER_END][n]
            n += columns[MESSAGES][n]
        if at == start:
            continue
        size = at - start
        sent = send(rows[row][FD], answers + start, size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < size:
            rows[row][UNSENT_START] = start + max(<i64>0, sent)
            rows[row][UNSENT_STOP] = at
            left += 1
    return left


# --- waits ---------------------------------------------------------------------------------------------------


cdef bint wait(Loop *loop, i64 nanoseconds, bint *others) noexcept nogil:
    """Waits for connections of the epoll, or for what ends the lease; True if it was the former, which may be both.
    `others`: whether the event loop has something else to do."""
    cdef pollfd polled[3]
    cdef timespec at_most
    at_most.tv_sec, at_most.tv_nsec = 0, min(nanoseconds, <i64>(SECOND_NS - 1))
    polled[0].fd, polled[1].fd, polled[2].fd = loop.epoll, loop.lease[OTHERS], loop.lease[STOP_FD]  # -1 is passed over
    polled[0].events = polled[1].events = polled[2].events = POLLIN
    polled[0].revents = polled[1].revents = polled[2].revents = 0
    ready = ppoll(polled, 3, &at_most)
    others[0] = polled[1].revents != 0
    return ready > 0 and polled[0].revents != 0


cdef bint rest_for(Loop *loop, i64 nanoseconds, Common *common) noexcept nogil:
    """As `wait`, in a lease; for LINGERS_NS at most when all of its threads wait."""
    cdef bint others
    pthread_mutex_lock(common.lock)
    common.numbers[AWAKE] -= 1
    if common.numbers[AWAKE] <= 0:
        nanoseconds = min(nanoseconds, loop.lease[LINGERS_NS])
    pthread_mutex_unlock(common.lock)
    is_more = wait(loop, nanoseconds, &others)
    pthread_mutex_lock(common.lock)
    common.numbers[AWAKE] += 1
    pthread_mutex_unlock(common.lock)
    return is_more


cdef void show_events(Loop *loop, int events) noexcept nogil:
    """Has OTHERS, the epoll of the event loop, be readable for these events of the epoll, or, with 0, for none of it.
    """
    cdef epoll_event event
    memset(&event, 0, sizeof(event))
    event.events, event.data.fd = events, loop.epoll
    epoll_ctl(loop.lease[OTHERS], EPOLL_CTL_MOD, loop.epoll, &event)


# --- the log -------------------------------------------------------------------------------------------------


cdef (i64, i64) add_up(Row *columns, i64 known, i64 count, i64 room) noexcept nogil:
    """(how many of the first `count` messages have `room`, as many whole sends as there are; bytes of their records).
    What each queue gets of them is its NEXT_OFFSET then."""
    cdef i64 n = 0, size = 0
    for place in range(known):
        columns[NEXT_OFFSET][place] = 0
    while n < count and size + columns[FRAME_SIZE][n] <= room:
        columns[NEXT_OFFSET][columns[PLACE][n]] += columns[MESSAGES][n]
        size += columns[FRAME_SIZE][n]
        n += columns[MESSAGES][n]
    return n, size


cdef Reserved reserve_room(Row *columns, i64 log_size, i64 count, i64 known, i64 *places, Common *common) noexcept nogil:
    """Takes room in the log, and in the queues, for as many of the messages in the columns as fit, to queues that are
    all known.

    The time is that of the lock: a thread that lost its processor before it asked for it would give its records a later
    one than others gave those behind them."""
    cdef Reserved reserved
    cdef i64 messages
    room = log_size - END_FILE_MIN_BLANK_LENGTH
    count, size = add_up(columns, known, count, room)
    pthread_mutex_lock(common.lock)
    reserved.store_timestamp = clock_ns(CLOCK_REALTIME) // MILLISECOND_NS
    position = common.numbers[POSITION]
    if size > room - position:
        count, size = add_up(columns, known, count, room - position)
    common.numbers[POSITION] = position + size
    for place in range(known):
        column = places[place]
        messages, columns[NEXT_OFFSET][place] = columns[NEXT_OFFSET][place], common.queue_offsets[column]
        common.queue_offsets[column] += messages
    pthread_mutex_unlock(common.lock)
    reserved.count, reserved.position, reserved.size = count, position, size
    return reserved


cdef i64 publish_records(Row *columns, Room log, Reserved *reserved, i64 count, Common *common) noexcept nogil:
    """Makes `count` messages visible, whose records are in the room that was reserved, when all before them are; how
    many. None may have a size or be answered before: after a kill nothing whole follows what is missing.

    Whoever was given room before publishes it: nothing between `reserve_room` and here can raise, wait for anything but
    a page of the log's file, or end early. Should it happen all the same, a thread that FAILED ends the wait of the
    others."""
    numbers = common.numbers
    cdef i64 asked = 0
    cdef bint is_next
    cdef timespec at_most
    while True:
        pthread_mutex_lock(common.lock)
        is_next = numbers[PUBLISHED] == reserved.position
        pthread_mutex_unlock(common.lock)
        if is_next:
            break
        if numbers[FAILED] != 0:
            return 0
        asked += 1
        if asked > PATIENT:
            at_most.tv_sec, at_most.tv_nsec = 0, PATIENCE_NS
            ppoll(NULL, 0, &at_most)
    size_records(columns, log, reserved.position, count)
    publish_record(log, reserved.position, columns[SIZE][0])
    pthread_mutex_lock(common.lock)
    if numbers[STORED] == 0:
        numbers[FIRST_SIZE] = columns[SIZE][0]
    numbers[STORED] += count
    numbers[PUBLISHED] = reserved.position + reserved.size
    pthread_mutex_unlock(common.lock)
    return count


cdef i64 append(Loop *loop, Room log, i64 log_size, i64 count, Common *common) noexcept nogil:
    """Stores the messages in the columns, to queues that are all known; how many of them."""
    columns = loop.sends.columns
    cdef Reserved reserved = reserve_room(columns, log_size, count, loop.lease[KNOWN], loop.places, common)
    if reserved.count == 0:
        return 0
    write_sends(
        &loop.sends, log, log_size, reserved.position, common.numbers[BASE], loop.octets, reserved.count,
        reserved.store_timestamp,
    )
    return publish_records(columns, log, &reserved, reserved.count, common)


cdef void stop_others(Loop *loop, Common *common) noexcept nogil:
    """Has the other threads end the lease, too."""
    cdef i64 one = 1
    if common.numbers[THREADS] > 1 and common.numbers[STOPS] == 0:
        common.numbers[STOPS] = 1
        write(loop.lease[STOP_FD], &one, 8)


cdef void count_queues(Loop *loop, Common *common) noexcept nogil:
    """Counts what this thread has stored in a lease."""
    columns = loop.sends.columns
    pthread_mutex_lock(common.lock)
    for place in range(loop.lease[KNOWN]):
        column = loop.places[place]
        common.queue_counts[column] += columns[QUEUE_MESSAGES][place]
        common.queue_bytes[column] += columns[QUEUE_BYTES][place]
        common.queue_puts[column] += columns[QUEUE_PUTS][place]
    pthread_mutex_unlock(common.lock)


cdef void count_sends(Row *columns, i64 done, i64 elapsed, Latencies *latencies) noexcept nogil:
    """Counts the sends of the first `done` messages, which were stored in `elapsed` ns."""
    cdef i64 column = 0, n = 0, row
    while column < BOUNDS and elapsed >= LATENCY_BOUNDS_NS[column]:
        column += 1
    while n < done:
        code = columns[CODE][n]
        row = 0 if code == SEND_MESSAGE else 2 if code == SEND_BATCH_MESSAGE else 1
        row = 2 * row + (columns[ONEWAY][n] != 0)
        latencies[row][2 * column] += 1
        latencies[row][2 * column + 1] += elapsed
        n += columns[MESSAGES][n]


# --- rounds --------------------------------------------------------------------------------------------------


cdef Round rounds(Loop *loop, bint takes, i64 lasts_ns) noexcept nogil:
    """As `receive`, again and again for `lasts_ns` (0: once) as long as only pulls come that are answered here; what it
    says is of the last round. Ends early where the event loop has other things to do."""
    cdef Round last
    cdef bint others = False, is_ready
    cdef i64 began = clock_ns(CLOCK_MONOTONIC), now
    polled = began
    if lasts_ns > 0:
        show_events(loop, 0)  # what is readable then is something else
    while True:
        last = receive(loop, takes, 0)
        if lasts_ns == 0 or last.left > 0 or last.messages > 0:
            break
        now = clock_ns(CLOCK_MONOTONIC)
        if now - began >= lasts_ns:
            break
        if last.rows < 2 or now - polled >= TURN_NS:  # after more than one there mostly is another
            polled = now
            is_ready = wait(loop, began + lasts_ns - now if last.rows < 2 else 0, &others)
            if last.rows < 2 and not is_ready:
                break
            if now - began >= TURN_NS and others:
                break
    if lasts_ns > 0:
        show_events(loop, EPOLLIN)
    return last


cdef i64 serve_lease(Loop *loop, Room log, i64 log_size, Common *common, Round *last) noexcept nogil:
    """Rounds of all connections that are ready, until ENDS_NS, or the event loop has other things to do, or something
    of the last round is left to Python, here or in another thread of the lease; how many messages of the `last` round
    are stored and answered.

    The caller holds the log's lock and has given what LEASE and `common` say. A round with messages to queues that are
    not KNOWN, or of transactions, is not stored. What is stored is visible to readers of the file, and answered; the
    caller has still to say where the log ends now.
    """
    lease, columns = loop.lease, loop.sends.columns
    cdef Latencies *latencies = <Latencies *>(loop.numbers + LATENCIES_AT)
    cdef i64 known = lease[KNOWN], done = 0, now, elapsed, began, polled
    cdef bint stops = True, is_over, others = False
    memset(latencies, 0, 8 * (PLACES_AT - LATENCIES_AT))
    for place in range(known):
        columns[QUEUE_MESSAGES][place] = columns[QUEUE_BYTES][place] = columns[QUEUE_PUTS][place] = 0
    lease[ROUNDS] = lease[LONGEST_NS] = lease[CARRIED_STOP] = 0
    lease[CARRIES] = 1
    began = polled = clock_ns(CLOCK_MONOTONIC)
    while True:
        last[0] = receive(loop, True, known)
        done = 0
        lease[ROUNDS] += 1
        if last.messages > 0:
            if last.places > known or last.transactional > 0:
                break
            done = append(loop, log, log_size, last.messages, common)
            if done > 0:
                last.left += answer_rows(loop.rows, columns, loop.sends.answers, last.rows, done)
        now = clock_ns(CLOCK_MONOTONIC)
        elapsed = now - began
        count_sends(columns, done, elapsed, latencies)
        if done > 0:
            lease[LONGEST_NS] = max(lease[LONGEST_NS], elapsed)
        is_over = now >= lease[ENDS_NS] or common.numbers[STOPS] != 0
        if last.left > 0 or done < last.messages or lease[CARRIES] == ONLY_CARRIED:
            break
        if is_over and lease[CARRIED_STOP] == 0:
            break
        if is_over:
            lease[CARRIES] = ONLY_CARRIED  # else Python would have to handle it
        elif lease[CARRIED_STOP] > 0:
            pass  # there is more
        elif lease[LINGERS_NS] == 0:
            if last.rows < 2:  # after one alone there is hardly ever another
                stops = False
                break
        elif last.rows < 2 and not rest_for(loop, lease[ENDS_NS] - now, common):
            break  # after more than one there mostly is another, which `receive` sees for half the price
        began = clock_ns(CLOCK_MONOTONIC)
        if lease[OTHERS] >= 0 and began - polled >= TURN_NS:
            polled = began
            wait(loop, 0, &others)
            if others:
                if lease[CARRIED_STOP] == 0:
                    break
                lease[CARRIES] = ONLY_CARRIED
    lease[CARRIES] = 0
    if lease[CARRIED_STOP] > 0:
        lease[CARRIED_STOP] = 0
        loop.rows[lease[CARRIED_ROW]][WHAT] = HANDLE
        last.left += 1
    count_queues(loop, common)
    if stops:
        stop_others(loop, common)
    return done


# --- for Python ----------------------------------------------------------------------------------------------


cdef Loop loop_of(
    int epoll, i64 record_max, i64[::1] loop_numbers, u8[::1] octets, i64[::1] pull_numbers, u8[::1] pull_octets,
) except *:
    cdef Loop loop
    if loop_numbers.shape[0] != NUMBERS_SIZE or octets.shape[0] != OCTETS_SIZE:
        raise ValueError("these are no arrays of loop_layout")
    if pull_numbers.shape[0] != pull_layout.NUMBERS_SIZE:
        raise ValueError("this is no array of pull_layout")
    memset(&loop, 0, sizeof(loop))
    loop.epoll, loop.record_max = epoll, record_max
    loop.numbers, loop.octets = &loop_numbers[0], &octets[0]
    loop.lease, loop.rows = loop.numbers + LEASE_AT, <LoopRow *>(loop.numbers + ROWS_AT)
    loop.free, loop.peers = loop.numbers + FREE_AT, <Peer *>(loop.numbers + PEERS_AT)
    loop.places = loop.numbers + PLACES_AT
    loop.pull_numbers, loop.pull_octets = &pull_numbers[0], room_of(pull_octets)
    return loop


cdef Tables tables(i64[::1] numbers, u8[::1] octets) except *:
    if numbers.shape[0] < 2 * send_layout.PARTS:
        raise ValueError("these are no arrays of send_layout")
    return tables_of(&numbers[0], room_of(octets))


cdef Common common_of(i64[::1] numbers) except *:
    cdef Common common
    if numbers.shape[0] < QUEUES_AT or (numbers.shape[0] - QUEUES_AT) % 4:
        raise ValueError("these are no numbers of a lease")
    columns = (numbers.shape[0] - QUEUES_AT) // 4
    common.lock, common.numbers = <pthread_mutex_t *>&numbers[0], &numbers[0]
    common.queue_offsets = common.numbers + QUEUES_AT + OFFSET * columns
    common.queue_counts = common.numbers + QUEUES_AT + COUNT * columns
    common.queue_bytes = common.numbers + QUEUES_AT + BYTES * columns
    common.queue_puts = common.numbers + QUEUES_AT + PUTS * columns
    return common


def receive_until(
    int epoll, bint takes, i64 record_max, i64[::1] loop_numbers, u8[::1] octets, i64[::1] numbers,
    u8[::1] send_octets, i64[::1] pull_numbers, u8[::1] pull_octets, i64 lasts_ns,
):
    """Rounds for `lasts_ns` (see rounds); of the last one: (rows, how many are left to Python, how many messages are in
    the columns, to how many queues, how many of them half messages or commits)."""
    cdef Loop loop = loop_of(epoll, record_max, loop_numbers, octets, pull_numbers, pull_octets)
    cdef Round last
    loop.sends = tables(numbers, send_octets)
    with nogil:
        last = rounds(&loop, takes, lasts_ns)
    return last.rows, last.left, last.messages, last.places, last.transactional


def answer(i64 count, i64 done, i64[::1] loop_numbers, i64[::1] numbers, u8[::1] send_octets):
    """Sends their answers to the connections of `count` rows, for the first `done` messages; to how many of them not
    everything could be sent."""
    if loop_numbers.shape[0] != NUMBERS_SIZE or not 0 <= count <= EVENTS_MAX or not 0 <= done <= SENDS_MAX:
        raise ValueError(f"{count} rows, {done} messages")
    cdef Tables sends = tables(numbers, send_octets)
    cdef LoopRow *rows = <LoopRow *>&loop_numbers[ROWS_AT]
    cdef i64 left
    with nogil:
        left = answer_rows(rows, sends.columns, sends.answers, count, done)
    return left


def serve(
    int epoll, u8[::1] log, i64 record_max, i64[::1] loop_numbers, u8[::1] octets, i64[::1] numbers,
    u8[::1] send_octets, i64[::1] pull_numbers, u8[::1] pull_octets, i64[::1] common,
):
    """A lease (see serve_lease); (rows of its last round, how many of them are left, its messages, how many of these
    are stored and answered, how many queues it touches, how many of its messages are half messages or commits)."""
    cdef Loop loop = loop_of(epoll, record_max, loop_numbers, octets, pull_numbers, pull_octets)
    cdef Common shared = common_of(common)
    cdef Room out = room_of(log)
    cdef i64 log_size = log.shape[0], done
    cdef Round last
    loop.sends = tables(numbers, send_octets)
    with nogil:
        done = serve_lease(&loop, out, log_size, &shared, &last)
    return last.rows, last.left, last.messages, done, last.places, last.transactional


def help(
    i64[::1] desk, i64[::1] loop_numbers, u8[::1] octets, i64[::1] pull_numbers, u8[::1] pull_octets,
    i64[::1] common,
):
    """Serves in each lease that it is woken for, until it is told that all is OVER (see loop_layout), or its eventfd
    fails."""
    if desk.shape[0] != DESK_SIZE:
        raise ValueError("this is no desk")
    cdef Loop loop = loop_of(-1, 0, loop_numbers, octets, pull_numbers, pull_octets)
    cdef Common shared = common_of(common)
    cdef i64 *cells = &desk[0]
    cdef Round last
    with nogil:
        while read(cells[WAKE_FD], &cells[WOKEN], 8) == 8 and not cells[OVER]:
            loop.epoll, loop.record_max = cells[EPOLL_FD], cells[RECORD_MAX]
            loop.sends = tables_of(<i64 *>cells[SEND_NUMBERS_AT], <Room>cells[SEND_OCTETS_AT])
            cells[RESULT + 3] = serve_lease(&loop, <Room>cells[LOG_AT], cells[LOG_SIZE], &shared, &last)
            cells[RESULT], cells[RESULT + 1], cells[RESULT + 2] = last.rows, last.left, last.messages
            cells[RESULT + 4], cells[RESULT + 5] = last.places, last.transactional
            cells[WOKEN] = 1
            write(cells[DONE_FD], &cells[WOKEN], 8)


# --- for tests -----------------------------------------------------------------------------------------------


def reserve(i64 log_size, i64 count, i64[::1] loop_numbers, i64[::1] numbers, i64[::1] common):
    """Room for messages (see reserve_room): (how many, where, bytes, store timestamp)."""
    cdef Common shared = common_of(common)
    cdef Reserved found = reserve_room(
        <Row *>(&numbers[0] + numbers[2 * COLUMNS]), log_size, count, loop_numbers[LEASE_AT + KNOWN],
        &loop_numbers[PLACES_AT], &shared,
    )
    return found.count, found.position, found.size, found.store_timestamp


def publish(u8[::1] log, i64 position, i64 size, i64 count, i64[::1] numbers, i64[::1] common):
    """Makes messages visible (see publish_records)."""
    cdef Common shared = common_of(common)
    cdef Reserved reserved
    cdef Row *columns = <Row *>(&numbers[0] + numbers[2 * COLUMNS])
    cdef Room out = &log[0]
    cdef i64 done
    reserved.position, reserved.size = position, size
    with nogil:
        done = publish_records(columns, out, &reserved, count, &shared)
    return done


def rest(int epoll, i64 nanoseconds, i64[::1] loop_numbers, i64[::1] common):
    """Waits in a lease (see rest_for)."""
    cdef Common shared = common_of(common)
    cdef Loop loop
    cdef bint is_more
    loop.epoll, loop.lease = epoll, &loop_numbers[LEASE_AT]
    with nogil:
        is_more = rest_for(&loop, nanoseconds, &shared)
    return is_more


def show(int epoll, int events, i64[::1] loop_numbers):
    """What the event loop sees of an epoll (see show_events)."""
    cdef Loop loop
    loop.epoll, loop.lease = epoll, &loop_numbers[LEASE_AT]
    show_events(&loop, events)


def count_latencies(i64[::1] numbers, i64 done, i64 elapsed, i64[:, ::1] latencies):
    """Counts sends (see count_sends)."""
    count_sends(<Row *>(&numbers[0] + numbers[2 * COLUMNS]), done, elapsed, <Latencies *>&latencies[0, 0])
