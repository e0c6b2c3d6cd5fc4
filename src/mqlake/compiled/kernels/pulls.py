# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Usual pulls, compiled: frames to numbers, and units to answers that leave straight from the mapped log.

    frames ──match_pulls──▶ plan and numbers of each ─▶ fast_pull: units, file and limits ──give_pulls──▶ sendmsg
                                           └─▶ what pull_lease gave before the round ─┘   head │ run │ run │ head │ …

A plan (see fast_pull) is a header without its three numbers. Nothing is copied but units, heads and short runs: sendmsg
gets the stretches of the mapped log in which the records lie. What does not fit into the socket is gathered by
`take_rest`.
"""

from __future__ import annotations

import numpy as np
from numba import carray, config, types
from numba.core import imputils
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import (
    CLOCK_MONOTONIC,
    address,
    clock,
    copy,
    load32,
    load64,
    put,
    read_digits,
    same_bytes,
    store32,
)
from mqlake.compiled.kernels.pull_layout import (
    ANSWER_0,
    BYTES_MAX,
    CHOSEN_AT,
    CHOSEN_OFFSETS_AT,
    COMMIT_OFFSET,
    COMMIT_OFFSET_IS,
    COUNT_MAX,
    CUT_AT,
    CUT_FD,
    CUT_SIZE,
    END,
    FILE,
    FILE_BASE,
    FILE_END,
    FOUND,
    GATHERED_AT,
    GATHERED_SIZE,
    HEAD_SIZE_MAX,
    HEADER_0,
    HEADS_AT,
    HINT,
    IOV_AT,
    IOV_MAX,
    IS_READY,
    IS_WHOLE,
    KNOWN,
    LAST_OFFSET,
    LAST_SIZE,
    LOOK_MAX,
    MAX_OFFSET,
    MESSAGE_AT,
    MESSAGES_MAX,
    MIN_OFFSET,
    NEXT,
    OPAQUE,
    OPAQUE_IS,
    PLAN,
    PLAN_SIZE,
    PULL_SIZE,
    PULLS_AT,
    PULLS_MAX,
    QUEUE_ID,
    QUEUE_OFFSET,
    QUEUE_OFFSET_IS,
    READY_FILE,
    READY_FILE_BASE,
    READY_FILE_END,
    READY_FLOOR,
    READY_FROM,
    READY_MAX,
    READY_MIN,
    READY_TO,
    ROUND_AT,
    ROUND_BYTES_MAX,
    RUN_SIZE_MIN,
    RUNS_AT,
    SIZE,
    SLOW_NS,
    SPAN,
    STEP_BYTES_MAX,
    TAGS,
    TAGS_AT,
    TAGS_MAX,
    TAKEN_BYTES,
    TAKEN_COMMIT,
    TAKEN_FD,
    TAKEN_LAST_OFFSET,
    TAKEN_LAST_SIZE,
    TAKEN_MESSAGES,
    TAKEN_NEXT,
    TAKEN_NS,
    TAKEN_PULLS,
    TAKEN_SLOW,
    TAKEN_SLOW_NS,
    TAKEN_TURN,
    TEXT_AT,
    TIME,
    TOPIC_LENGTH,
    TURN,
    UNIT_SIZE,
    UNITS,
    UNITS_AHEAD,
    UNITS_AT,
    UNITS_START,
)
from mqlake.compiled.kernels.units import follow, put_runs

_sendmsg = types.ExternalFunction("sendmsg", types.intp(types.int32, types.uintp, types.int32))
MSG_DONTWAIT, MSG_NOSIGNAL = 0x40, 0x4000  # Linux

INT32_MAX = np.int64(2**31 - 1)
DIGITS_MAX = 18


@intrinsic
def at_address(_context, number):
    """The bytes from an address on, for functions that have their own limits of them."""

    def generate(context, builder, signature, arguments):
        found = builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))
        return imputils.impl_ret_untracked(context, builder, signature.return_type, found)

    return types.CPointer(types.uint8)(number), generate


if config.BOUNDSCHECK:

    @compiled
    def mapped(number, size):
        """The `size` bytes of a mapped file that readers may see. Where numba checks indexes it is an array."""
        return carray(at_address(np.uint64(number)), (size,))

else:

    @compiled
    def mapped(number, _size):
        return at_address(np.uint64(number))


# --- frames --------------------------------------------------------------------------------------------------


@compiled
def read_number(data, position, end):
    """(number, where it ends) of decimal digits without leading zeros; -1 as the end when there is no such number."""
    value, stop = read_digits(data, position, end)
    length = stop - position
    if length < 1 or length > DIGITS_MAX or (length > 1 and data[np.uint64(position)] == 48):
        return np.int64(0), np.int64(-1)
    return value, stop


@compiled
def match_plan(data, position, end, plan, octets, pull):
    """True if the header is the plan's; its numbers are in the pull then."""
    at, piece = plan[TEXT_AT], np.int64(0)
    a = b = c = np.int64(0)
    while piece < 4:
        length = plan[HEADER_0 + piece]
        if length > end - position or not same_bytes(data, position, octets, at, length):
            return False
        position += length
        at += length
        if piece < 3:
            value, position = read_number(data, position, end)
            if position < 0:
                return False
            if piece == 0:
                a = value
            elif piece == 1:
                b = value
            else:
                c = value
        piece += 1
    numbers = (a, b, c)
    pull[OPAQUE] = numbers[plan[OPAQUE_IS]]
    pull[QUEUE_OFFSET] = numbers[plan[QUEUE_OFFSET_IS]]
    pull[COMMIT_OFFSET] = numbers[plan[COMMIT_OFFSET_IS]]
    return position == end and pull[OPAQUE] <= INT32_MAX


@compiled
def match_pulls(data, start, stop, hint, plans, numbers, octets):
    """How many pulls of known plans begin data[start:stop]. `hint` is the plan that is tried first, of `plans`."""
    pulls = numbers[PULLS_AT:RUNS_AT].reshape((PULLS_MAX, PULL_SIZE))
    rows = numbers[:PULLS_AT].reshape((-1, PLAN_SIZE))
    count = 0
    while count < PULLS_MAX and stop - start >= 8:
        size = np.int64(load32(data, start))
        word = np.int64(load32(data, start + 4))
        # a header in JSON, and no body
        if size < 4 or size > stop - start - 4 or word != size - 4:
            break
        end = start + 4 + size
        found = np.int64(-1)
        for n in range(min(plans, LOOK_MAX)):
            plan = (hint + n) % plans
            if match_plan(data, start + 8, end, rows[plan], octets, pulls[count]):
                found = plan
                break
        if found < 0:
            break
        pulls[count, PLAN] = found
        pulls[count, END] = end
        hint = found + 1
        start = end
        count += 1
    return count


# --- answers -------------------------------------------------------------------------------------------------


@compiled
def put_number(out, at, value):
    """Writes a number that is not negative in decimal digits; where they end."""
    length, rest = 1, value
    while rest >= 10:
        rest //= 10
        length += 1
    for n in range(length):
        out[np.uint64(at + length - 1 - n)] = np.uint8(48 + value % 10)
        value //= 10
    return at + length


@compiled
def put_head(octets, at, plan, pull):
    """Writes what comes before the records of an answer; where it ends."""
    text = plan[TEXT_AT]
    for piece in range(4):
        text += plan[HEADER_0 + piece]
    end = at + 8
    for piece in range(5):
        end = put(octets, end, octets, text, plan[ANSWER_0 + piece])
        text += plan[ANSWER_0 + piece]
        if piece == 0:
            end = put_number(octets, end, pull[NEXT])
        elif piece == 1:
            end = put_number(octets, end, pull[MIN_OFFSET])
        elif piece == 2:
            end = put_number(octets, end, pull[MAX_OFFSET])
        elif piece == 3:
            end = put_number(octets, end, pull[OPAQUE])
    store32(octets, at, end - at - 4 + pull[SIZE])
    store32(octets, at + 4, end - at - 8)
    return end


@compiled
def choose(pull, plan, numbers, octets):
    """Copies the units that the plan's filter lets through to CHOSEN, with their queue offsets, as many as an answer
    has; how many. 0 as well when there may be more of them than those that are at hand."""
    tags, count, looked_at = TAGS_AT + pull[PLAN] * TAGS_MAX, np.int64(0), np.int64(0)
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
    return np.int64(0) if count < plan[COUNT_MAX] and pull[IS_WHOLE] == 0 else count


@compiled
def give_pulls(count, fd, numbers, octets, no_offsets):
    """Answers the first of `count` pulls, as many as lead to their own whole records; (how many, bytes of the answers,
    how many of these the socket `fd` took: with -1 none, they are left for `take_rest`)."""
    pulls = numbers[PULLS_AT:RUNS_AT].reshape((PULLS_MAX, PULL_SIZE))
    rows = numbers[:PULLS_AT].reshape((-1, PLAN_SIZE))
    runs = numbers[RUNS_AT:IOV_AT].reshape((MESSAGES_MAX, 2))
    iov = numbers[IOV_AT:MESSAGE_AT].reshape((IOV_MAX, 2))
    done, parts, total, gathered = 0, 0, np.int64(0), np.int64(0)
    while done < count and total < STEP_BYTES_MAX:
        pull = pulls[done]
        plan = rows[pull[PLAN]]
        units_at, unit_count, queue_offsets = pull[UNITS_START], pull[UNITS], no_offsets
        if plan[TAGS] > 0:
            units_at, unit_count = np.int64(CHOSEN_AT), choose(pull, plan, numbers, octets)
            queue_offsets = numbers[CHOSEN_OFFSETS_AT : CHOSEN_OFFSETS_AT + unit_count]
        if parts + 1 + unit_count > IOV_MAX:
            break
        topic_at = plan[TEXT_AT]
        for piece in range(4):
            topic_at += plan[HEADER_0 + piece]
        for piece in range(5):
            topic_at += plan[ANSWER_0 + piece]
        found, size, run_count = follow(
            mapped(pull[FILE], pull[FILE_END]),
            pull[FILE_END],
            pull[FILE_BASE],
            octets,
            units_at,
            unit_count,
            octets,
            topic_at,
            plan[TOPIC_LENGTH],
            plan[QUEUE_ID],
            pull[QUEUE_OFFSET],
            queue_offsets,
            plan[BYTES_MAX],
            False,
            runs,
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
        head = np.int64(HEADS_AT + done * HEAD_SIZE_MAX)
        iov[parts, 0] = np.int64(address(octets, head))
        iov[parts, 1] = put_head(octets, head, plan, pull) - head
        total += iov[parts, 1] + size
        parts += 1
        if size < run_count * RUN_SIZE_MIN and size <= GATHERED_SIZE - gathered:
            at = np.int64(GATHERED_AT) + gathered
            put_runs(octets, at, mapped(pull[FILE], pull[FILE_END]), runs, run_count)
            gathered += size
            iov[parts, 0], iov[parts, 1] = np.int64(address(octets, at)), size
            parts += 1
        else:
            for run in range(run_count):
                iov[parts, 0] = pull[FILE] + runs[run, 0]
                iov[parts, 1] = runs[run, 1] - runs[run, 0]
                parts += 1
        done += 1
    message = numbers[MESSAGE_AT:ROUND_AT]
    message[:] = 0
    message[2] = np.int64(iov.ctypes.data)  # msg_iov; before it msg_name and its length
    message[3] = parts
    sent = np.int64(0)
    if fd >= 0 and total > 0:
        sent = max(
            sent, np.int64(_sendmsg(np.int32(fd), message.ctypes.data, np.int32(MSG_DONTWAIT | MSG_NOSIGNAL)))
        )
    return done, total, sent


@compiled
def take_rest(sent, numbers, data):
    """Copies what the socket did not take of the last answers, all after the first `sent` bytes, into `data`."""
    iov = numbers[IOV_AT:MESSAGE_AT].reshape((IOV_MAX, 2))
    at = np.int64(0)
    for part in range(numbers[MESSAGE_AT + 3]):
        start, length = iov[part, 0], iov[part, 1]
        skipped = min(sent, length)
        sent -= skipped
        if length - skipped > len(data) - at:
            break
        copy(data, at, at_address(np.uint64(start)), skipped, length - skipped)
        at += length - skipped
    return at


# --- without Python ------------------------------------------------------------------------------------------


@compiled
def may_be_pull(received, start, stop):
    """Whether the frame may have a header that begins as those of PULL_MESSAGE and LITE_PULL_MESSAGE do."""
    if stop - start < 18:
        return False
    digit, following = received[np.uint64(start + 16)], received[np.uint64(start + 17)]
    return (digit == 49 and following == 49) or (digit == 51 and following == 54)


@compiled
def prepare_pull(pull, plan, octets):
    """Gives the pull what its plan has for this round; False when that is not enough for it."""
    offset = pull[QUEUE_OFFSET]
    end = min(offset + plan[SPAN], plan[READY_MAX])
    if plan[IS_READY] == 0 or offset < plan[READY_MIN] or offset >= end:
        return False
    is_whole = end <= plan[READY_TO]
    if not plan[READY_FROM] <= offset < plan[READY_TO] or not (is_whole or plan[TAGS] > 0):
        return False
    unit = UNITS_AT + (pull[PLAN] * UNITS_AHEAD + offset - plan[READY_FROM]) * UNIT_SIZE
    if load64(octets, unit) < plan[READY_FLOOR]:
        return False
    pull[FILE] = plan[READY_FILE]
    pull[FILE_END] = plan[READY_FILE_END]
    pull[FILE_BASE] = plan[READY_FILE_BASE]
    pull[UNITS_START] = unit
    pull[UNITS] = min(end, plan[READY_TO]) - offset
    pull[IS_WHOLE] = is_whole
    pull[MIN_OFFSET] = plan[READY_MIN]
    pull[MAX_OFFSET] = plan[READY_MAX]
    return True


@compiled
def note_pull(pull, plan, fd, turn, elapsed):
    """Counts an answered pull."""
    plan[TAKEN_PULLS] += 1
    plan[TAKEN_MESSAGES] += pull[FOUND]
    plan[TAKEN_BYTES] += pull[SIZE]
    if elapsed >= SLOW_NS:
        plan[TAKEN_SLOW] += 1
        plan[TAKEN_SLOW_NS] += elapsed
    else:
        plan[TAKEN_NS] += elapsed
    plan[TAKEN_NEXT] = pull[NEXT]
    plan[TAKEN_COMMIT] = pull[COMMIT_OFFSET]
    plan[TAKEN_FD] = fd
    plan[TAKEN_LAST_OFFSET] = pull[LAST_OFFSET]
    plan[TAKEN_LAST_SIZE] = pull[LAST_SIZE]
    plan[TAKEN_TURN] = turn


@compiled
def take_pulls(received, start, stop, fd, numbers, octets):
    """Answers the pulls at the beginning of received[start:stop] whose plans are ready; where the next frame begins.

    What `fd` does not take of an answer is left for `take_rest`, and CUT_FD says so: nothing else may be sent to it,
    and no other pull be taken, before.
    """
    pulls = numbers[PULLS_AT:RUNS_AT].reshape((PULLS_MAX, PULL_SIZE))
    rows = numbers[:PULLS_AT].reshape((-1, PLAN_SIZE))
    no_offsets = numbers[:0]
    total = np.int64(0)
    while may_be_pull(received, start, stop) and total < ROUND_BYTES_MAX:
        began = clock(CLOCK_MONOTONIC, numbers, TIME)
        count = match_pulls(received, start, stop, numbers[HINT], numbers[KNOWN], numbers, octets)
        ready = 0
        while ready < count and prepare_pull(pulls[ready], rows[pulls[ready, PLAN]], octets):
            ready += 1
        if ready == 0:
            break
        done, size, sent = give_pulls(ready, fd, numbers, octets, no_offsets)
        if done == 0:
            break
        elapsed = clock(CLOCK_MONOTONIC, numbers, TIME) - began
        for n in range(done):
            numbers[TURN] += 1
            note_pull(pulls[n], rows[pulls[n, PLAN]], fd, numbers[TURN], elapsed)
        numbers[HINT] = (pulls[done - 1, PLAN] + 1) % numbers[KNOWN]
        start = pulls[done - 1, END]
        total += size
        if sent < size:
            numbers[CUT_FD] = fd
            numbers[CUT_SIZE] = size
            numbers[CUT_AT] = sent
            break
    return start
