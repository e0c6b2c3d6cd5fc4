# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Usual pulls: frames to numbers, and units to answers that leave straight from the mapped log.

    frames ──match──▶ plan and numbers of each ─▶ fast_pull: units, file and limits ──give──▶ sendmsg
                                                                      head │ run │ run │ head │ …

A plan (see fast_pull) is a header without its three numbers. Nothing is copied but units, heads and short runs: sendmsg
gets the stretches of the mapped log in which the records lie. What does not fit into the socket is gathered by
`rest`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX
from libc.string cimport memset

from mqlake.native.prim cimport *
from mqlake.native.pull_layout cimport *
from mqlake.native.system cimport *
from mqlake.native.text cimport read_digits, write_number
from mqlake.native.units cimport follow, put_runs

cdef enum:
    DIGITS_MAX = 18

ctypedef i64 Plan[PLAN_SIZE]
ctypedef i64 Pull[PULL_SIZE]

cdef struct Given:
    # how many pulls, the bytes of their answers, how many of these were sent
    i64 pulls
    i64 size
    i64 sent

# --- frames --------------------------------------------------------------------------------------------------


cdef inline i64 read_number(Bytes data, i64 position, i64 end, i64 *value) noexcept nogil:
    """Where decimal digits without leading zeros end; -1 when there is no such number."""
    stop = read_digits(data, position, end, value)
    length = stop - position
    if length < 1 or length > DIGITS_MAX or (length > 1 and data[position] == 48):
        return -1
    return stop


cdef bint match_plan(Bytes data, i64 position, i64 end, i64 *plan, Bytes octets, i64 *pull) noexcept nogil:
    """True if the header is the plan's; its numbers are in the pull then."""
    cdef i64 at = plan[TEXT_AT], length
    cdef i64 numbers[3]
    for piece in range(4):
        length = plan[HEADER_0 + piece]
        if length > end - position or not same_bytes(data, position, octets, at, length):
            return False
        position += length
        at += length
        if piece < 3:
            position = read_number(data, position, end, &numbers[piece])
            if position < 0:
                return False
    pull[OPAQUE] = numbers[plan[OPAQUE_IS]]
    pull[QUEUE_OFFSET] = numbers[plan[QUEUE_OFFSET_IS]]
    pull[COMMIT_OFFSET] = numbers[plan[COMMIT_OFFSET_IS]]
    return position == end and pull[OPAQUE] <= INT32_MAX


cdef i64 match(Bytes data, i64 start, i64 stop, i64 hint, i64 plans, i64 *numbers, Bytes octets) noexcept nogil:
    """How many pulls of known plans begin data[start:stop]. `hint` is the plan that is tried first, of `plans`."""
    cdef Pull *pulls = <Pull *>(numbers + PULLS_AT)
    cdef Plan *rows = <Plan *>numbers
    cdef i64 count = 0, size, word, end, found, plan
    while count < PULLS_MAX and stop - start >= 8:
        size, word = load32(data, start), load32(data, start + 4)
        # a header in JSON, and no body
        if size < 4 or size > stop - start - 4 or word != size - 4:
            break
        end = start + 4 + size
        found = -1
        for n in range(min(plans, LOOK_MAX)):
            plan = (hint + n) % plans
            if match_plan(data, start + 8, end, rows[plan], octets, pulls[count]):
                found = plan
                break
        if found < 0:
            break
        pulls[count][PLAN] = found
        pulls[count][END] = end
        hint = found + 1
        start = end
        count += 1
    return count


# --- answers -------------------------------------------------------------------------------------------------


cdef i64 put_head(Room octets, i64 at, i64 *plan, i64 *pull) noexcept nogil:
    """Writes what comes before the records of an answer; where it ends."""
    text = plan[TEXT_AT]
    for piece in range(4):
        text += plan[HEADER_0 + piece]
    end = at + 8
    for piece in range(5):
        end = put(octets, end, octets, text, plan[ANSWER_0 + piece])
        text += plan[ANSWER_0 + piece]
        if piece == 0:
            end = write_number(octets, end, pull[NEXT])
        elif piece == 1:
            end = write_number(octets, end, pull[MIN_OFFSET])
        elif piece == 2:
            end = write_number(octets, end, pull[MAX_OFFSET])
        elif piece == 3:
            end = write_number(octets, end, pull[OPAQUE])
    store32(octets, at, end - at - 4 + pull[SIZE])
    store32(octets, at + 4, end - at - 8)
    return end


cdef i64 choose(i64 *pull, i64 *plan, i64 *numbers, Room octets) noexcept nogil:
    """Copies the units that the plan's filter lets through to CHOSEN, with their queue offsets, as many as an answer
    has; how many. 0 as well when there may be more of them than those that are at hand."""
    cdef i64 tags = TAGS_AT + pull[PLAN] * TAGS_MAX, count = 0, looked_at = 0, unit, code
    while looked_at < pull[UNITS] and count < plan[COUNT_MAX]:
        unit = pull[UNITS_START] + looked_at * UNIT_SIZE
        code = load64(octets, unit + 12)
        for tag in range(tags, tags + plan[TAGS]):
            if numbers[tag] == code:
                copy(octets, CHOSEN_AT + count * UNIT_SIZE, octets, unit, UNIT_SIZE)
                numbers[CHOSEN_OFFSETS_AT + count] = pull[QUEUE_OFFSET] + looked_at
                count += 1
                break
        looked_at += 1
    pull[NEXT] = pull[QUEUE_OFFSET] + looked_at
    return 0 if count < plan[COUNT_MAX] and pull[IS_WHOLE] == 0 else count


cdef Given give(i64 count, int fd, i64 *numbers, Room octets) noexcept nogil:
    """Answers the first of `count` pulls, as many as lead to their own whole records; how many, the bytes of the
    answers, how many of these the socket `fd` took: with -1 none, they are left for `rest`."""
    cdef Pull *pulls = <Pull *>(numbers + PULLS_AT)
    cdef Plan *rows = <Plan *>numbers
    cdef i64 *runs = numbers + RUNS_AT
    cdef iovec *iov = <iovec *>(numbers + IOV_AT)
    cdef i64 parts = 0, gathered = 0, units_at, unit_count, topic_at, head, at
    cdef i64 *pull
    cdef i64 *plan
    cdef i64 *queue_offsets
    cdef i64 found, size, run_count
    cdef Given given
    cdef msghdr message
    given.pulls = given.size = given.sent = 0
    while given.pulls < count and given.size < STEP_BYTES_MAX:
        pull = <i64 *>pulls[given.pulls]
        plan = <i64 *>rows[pull[PLAN]]
        units_at, unit_count, queue_offsets = pull[UNITS_START], pull[UNITS], NULL
        if plan[TAGS] > 0:
            units_at, unit_count = CHOSEN_AT, choose(pull, plan, numbers, octets)
            queue_offsets = numbers + CHOSEN_OFFSETS_AT
        if unit_count > MESSAGES_MAX or parts + 1 + unit_count > IOV_MAX:
            break
        topic_at = plan[TEXT_AT]
        for piece in range(4):
            topic_at += plan[HEADER_0 + piece]
        for piece in range(5):
            topic_at += plan[ANSWER_0 + piece]
        data = <Bytes>pull[FILE]
        found, size, run_count = follow(
            data, pull[FILE_END], pull[FILE_BASE], octets, units_at, unit_count, octets, topic_at, plan[TOPIC_LENGTH],
            plan[QUEUE_ID], pull[QUEUE_OFFSET], queue_offsets, plan[BYTES_MAX], False, runs,
        )
        if found <= 0:
            break
        pull[FOUND] = found
        pull[SIZE] = size
        if plan[TAGS] == 0:
            pull[NEXT] = pull[QUEUE_OFFSET] + found
        elif found < unit_count:
            pull[NEXT] = queue_offsets[found]
        pull[LAST_OFFSET] = load64(octets, units_at + (found - 1) * UNIT_SIZE)
        pull[LAST_SIZE] = load32(octets, units_at + (found - 1) * UNIT_SIZE + 8)
        head = HEADS_AT + given.pulls * HEAD_SIZE_MAX
        iov[parts].iov_base = octets + head
        iov[parts].iov_len = put_head(octets, head, plan, pull) - head
        given.size += <i64>iov[parts].iov_len + size
        parts += 1
        if size < run_count * RUN_SIZE_MIN and size <= GATHERED_SIZE - gathered:
            at = GATHERED_AT + gathered
            put_runs(octets, at, data, runs, run_count)
            gathered += size
            iov[parts].iov_base, iov[parts].iov_len = octets + at, size
            parts += 1
        else:
            for run in range(run_count):
                iov[parts].iov_base = <Room>data + runs[2 * run]
                iov[parts].iov_len = runs[2 * run + 1] - runs[2 * run]
                parts += 1
        given.pulls += 1
    numbers[IOV_COUNT] = parts
    if fd >= 0 and given.size > 0:
        memset(&message, 0, sizeof(message))
        message.msg_iov, message.msg_iovlen = iov, parts
        given.sent = max(<i64>0, <i64>sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL))
    return given


# --- for Python ----------------------------------------------------------------------------------------------


cdef class NativePulls:
    """Reads and answers pulls with the two arrays of a FastPull (see pull_layout).

    `size`, `sent`: bytes of the last answers, and how many of them the socket took."""
    cdef i64[::1] numbers
    cdef u8[::1] octets
    cdef readonly i64 size
    cdef readonly i64 sent

    def __init__(self, i64[::1] numbers, u8[::1] octets):
        if numbers.shape[0] != NUMBERS_SIZE or octets.shape[0] != OCTETS_SIZE:
            raise ValueError("these are no arrays of pull_layout")
        self.numbers, self.octets = numbers, octets

    def match(self, data, i64 start, i64 hint, i64 plans):
        """How many pulls of known plans begin data[start:]. `hint` is the plan that is tried first, of `plans`."""
        cdef Py_buffer view
        cdef i64 count
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= view.len or not 0 < plans <= PLANS_MAX or hint < 0:
                raise ValueError(f"{start} of {view.len} bytes, plan {hint} of {plans}")
            count = match(<Bytes>view.buf, start, view.len, hint, plans, &self.numbers[0], &self.octets[0])
        finally:
            PyBuffer_Release(&view)
        return count

    def give(self, i64 count, int fd):
        """Answers the first of `count` pulls (see give); how many."""
        if not 0 <= count <= PULLS_MAX:
            raise ValueError(f"{count} pulls")
        cdef i64 *cells = &self.numbers[0]
        cdef Room texts = &self.octets[0]
        cdef Given given
        with nogil:
            given = give(count, fd, cells, texts)
        self.size, self.sent = given.size, given.sent
        return given.pulls

    def rest(self):
        """What the socket did not take of the last answers."""
        cdef bytes rest = PyBytes_FromStringAndSize(NULL, self.size - self.sent)
        cdef iovec *iov = <iovec *>&self.numbers[IOV_AT]
        cdef Room out = <Room>PyBytes_AS_STRING(rest)
        cdef i64 at = 0, length, skipped, sent = self.sent
        for part in range(self.numbers[IOV_COUNT]):
            length = iov[part].iov_len
            skipped = min(sent, length)
            sent -= skipped
            if length - skipped > self.size - self.sent - at:
                break
            copy(out, at, <Bytes>iov[part].iov_base, skipped, length - skipped)
            at += length - skipped
        return rest
