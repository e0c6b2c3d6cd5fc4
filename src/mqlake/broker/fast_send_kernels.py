# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Usual sends, compiled: requests to columns, columns to records of the log, columns to answers.

    frames ──parse_sends──▶ columns, text ──store_sends──▶ log, answers

A column holds one number of each send; texts lie unescaped, back to back, in `text`. What makes a send usual is
said in fast_send; everything else stops `parse_sends`, and the way of one message at a time takes it.
"""

from __future__ import annotations

import numpy as np

from mqlake.broker import fast_send_layout
from mqlake.broker.fast_send_layout import (
    BODY_LENGTH,
    BODY_START,
    BORN_TIMESTAMP,
    FLAG,
    FULL,
    HEAD_SIZE,
    HOLE_MSG_ID,
    HOLE_OPAQUE,
    HOLE_QUEUE_ID,
    HOLE_QUEUE_OFFSET,
    NEED_MORE,
    ONEWAY,
    OPAQUE,
    PHYSICAL_OFFSET,
    PLACE,
    PROPERTIES_LENGTH,
    PROPERTIES_START,
    QUEUE,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    SYS_FLAG,
    TOPIC_LENGTH,
    TOPIC_START,
    UNIQ_KEY_LENGTH,
    UNIQ_KEY_LENGTH_MAX,
    UNIQ_KEY_START,
    UNKNOWN_QUEUE,
    UNUSUAL,
)
from mqlake.formats.columns import kernels as column_kernels
from mqlake.formats.columns.kernels import (
    compiled_with,
    copy,
    crc32,
    load32,
    load64,
    store16,
    store32,
    store64,
)
from mqlake.formats.record import END_FILE_MIN_BLANK_LENGTH, PROPERTIES_LENGTH_MAX, RECORD_SIZE_MIN
from mqlake.message import MessageSysFlag
from mqlake.remoting import kernels as frames
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import ONEWAY_FLAG

compiled = compiled_with(fast_send_layout, column_kernels, frames)

SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
UNUSUAL_SYS_FLAGS = int(
    MessageSysFlag.TRANSACTION_COMMIT_TYPE
    | MessageSysFlag.TRANSACTION_PREPARED_TYPE
    | MessageSysFlag.BORNHOST_V6_FLAG
    | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    | MessageSysFlag.INNER_BATCH_FLAG
    | MessageSysFlag.NEED_UNWRAP_FLAG
)
"""Of a request's sysFlag; fast_send refuses to know a topic that would have any more set."""
UNIQ_KEY = np.int64(int.from_bytes(b"UNIQ_KEY", "big"))
WAIT = np.int32(int.from_bytes(b"WAIT", "big"))
NAMES_MAX = 32
A, B, C, D, E, F, G, H, I, J, K, L, M = range(13)  # noqa: E741 - the fields' names on the wire
TRUE, FALSE = (np.frombuffer(text, np.uint8).copy() for text in (b"true", b"false"))
I32_MIN, I32_MAX = -(2**31), 2**31 - 1
I64_MAX = 2**63 - 1


HASH_SEED, HASH_FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a


@compiled
def hash_bytes(data, start, length):
    code = HASH_SEED
    for i in range(start, start + length):
        code = (code ^ np.uint64(data[np.uint64(i)])) * HASH_FACTOR
    return code


@compiled
def find_queue(data, start, length, queue_id, slots, queues, topics):
    """(number of the queue, -1 when it is not known; the slot where it is or belongs)."""
    code = hash_bytes(data, start, length) * np.uint64(31) + np.uint64(queue_id)
    mask = np.uint64(len(slots) - 1)
    slot = (code ^ (code >> np.uint64(32))) & mask
    while slots[slot] != 0:
        number = np.int64(slots[slot] - 1)
        if queues[number, 0] == queue_id and queues[number, 2] == length:
            known = queues[number, 1]
            i = 0
            while i < length and topics[np.uint64(known + i)] == data[np.uint64(start + i)]:
                i += 1
            if i == length:
                return number, np.int64(slot)
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1), np.int64(slot)


@compiled
def add_queue(number, topics_end, topic, queue_id, slots, queues, topics):
    """Makes a queue known under `number`; the end of `topics`. The caller has made sure of the room.

    In `topics` a topic stands as in a record, its length before it.
    """
    length = len(topic)
    _, slot = find_queue(topic, 0, length, queue_id, slots, queues, topics)
    topics[topics_end] = np.uint8(length)
    copy(topics, topics_end + 1, topic, 0, length)
    queues[number, 0] = queue_id
    queues[number, 1] = topics_end + 1
    queues[number, 2] = length
    slots[slot] = number + 1
    return topics_end + 1 + length


@compiled
def find_uniq_key(text, start, length, refused, names):
    """(start, length) of the value of UNIQ_KEY in properties that can be stored as they are, else (0, -1).

    Each must be a name and a value, neither empty, no name twice, none among the `refused` (hashes), and WAIT can
    only be true. `names` is room for hashes; equal hashes of different names only make a send unusual.
    """
    none = np.int64(0), np.int64(-1)
    uniq_start, uniq_length = none
    position, end = start, start + length
    count = 0
    while position < end:
        name, code = HASH_SEED, np.uint8(0)
        separator = position
        while separator < end:
            code = text[np.uint64(separator)]
            if code <= 2:
                break
            name = (name ^ np.uint64(code)) * HASH_FACTOR
            separator += 1
        if separator == position or code != 1 or count == len(names):
            return none
        for i in range(len(refused)):
            if refused[i] == name:
                return none
        for i in range(count):
            if names[i] == name:
                return none
        names[count] = name
        count += 1
        stop = separator + 1
        while stop < end and text[np.uint64(stop)] != 2:
            stop += 1
        if stop == separator + 1:
            return none
        if separator - position == 8 and load64(text, position) == UNIQ_KEY:
            uniq_start, uniq_length = separator + 1, stop - separator - 1
        elif (
            separator - position == 4
            and load32(text, position) == WAIT
            and not frames.equals(text, separator + 1, stop - separator - 1, TRUE)
        ):
            return none
        position = stop + 1
    if uniq_length > UNIQ_KEY_LENGTH_MAX:
        return none
    for i in range(uniq_start, uniq_start + uniq_length):  # it goes into the answer unescaped
        code = text[np.uint64(i)]
        if code < 0x20 or code > 0x7E or code == frames.QUOTE or code == frames.BACKSLASH:
            return none
    return np.int64(uniq_start), np.int64(uniq_length)


@compiled
def number(text, fields, letter, low, high):
    """(whether the field is there, and a number in [low, high]; the number)."""
    if fields[letter, 1] < 1:
        return False, np.int64(0)
    return frames.whole_number(text, fields[letter, 0], fields[letter, 1], low, high)


@compiled
def is_truth(text, fields, letter):
    """Whether the field is absent, or one of the two words."""
    start, length = fields[letter, 0], fields[letter, 1]
    return length < 0 or frames.equals(text, start, length, FALSE) or frames.equals(text, start, length, TRUE)


@compiled
def read_send(text, fields, columns, n):
    """Whether the fields are a SendMessageRequestHeaderV2 of a usual message, as far as numbers tell; they are in
    column n then."""
    if fields[A, 1] < 0 or fields[B, 1] < 1 or fields[C, 1] < 0 or fields[I, 1] < 1:
        return False
    if not is_truth(text, fields, K) or (
        fields[M, 1] >= 0 and not frames.equals(text, fields[M, 0], fields[M, 1], FALSE)
    ):
        return False
    has_queue, columns[QUEUE_ID, n] = number(text, fields, E, 0, I32_MAX)
    has_sys_flag, columns[SYS_FLAG, n] = number(text, fields, F, I32_MIN, I32_MAX)
    has_time, columns[BORN_TIMESTAMP, n] = number(text, fields, G, -I64_MAX, I64_MAX)
    has_flag, columns[FLAG, n] = number(text, fields, H, I32_MIN, I32_MAX)
    has_times, columns[RECONSUME_TIMES, n] = number(text, fields, J, I32_MIN, I32_MAX)
    return (
        has_queue
        and has_sys_flag
        and has_time
        and has_flag
        and (has_times or fields[J, 1] < 0)
        and columns[SYS_FLAG, n] & UNUSUAL_SYS_FLAGS == 0
        and number(text, fields, D, I32_MIN, I32_MAX)[0]
        and (fields[L, 1] < 0 or number(text, fields, L, I32_MIN, I32_MAX)[0])
    )


@compiled
def parse_sends(
    buf,
    start,
    slots,
    queues,
    topics,
    touched,
    extra_length,
    record_max,
    refused,
    columns,
    text,
    head,
    fields,
    names,
):
    """Reads usual sends from `start` on; (how many, where the next frame begins, why it stopped there, to how many
    queues they go).

    `touched` gets the numbers of those queues; the column PLACE says for each send where in `touched` its queue is.
    UNKNOWN_QUEUE: the columns of the next send say which: TOPIC_START, TOPIC_LENGTH (in `text`) and QUEUE_ID.
    """
    position = np.int64(start)
    at = np.int64(0)
    places = np.int64(0)
    for n in range(columns.shape[1]):
        stop, text_end = frames.read_frame(buf, position, len(buf), head, fields, text, at)
        if stop <= 0:
            return n, position, np.int64(NEED_MORE if stop == 0 else UNUSUAL), places
        if (
            head[frames.CODE] != SEND_MESSAGE_V2
            or (head[frames.FLAG] != 0 and head[frames.FLAG] != ONEWAY_FLAG)
            or head[frames.OPAQUE] < 0
            or not read_send(text, fields, columns, n)
        ):
            return n, position, np.int64(UNUSUAL), places
        uniq_start, uniq_length = find_uniq_key(text, fields[I, 0], fields[I, 1], refused, names)
        if uniq_length < 0:
            return n, position, np.int64(UNUSUAL), places
        topic_start, topic_length = fields[B, 0], fields[B, 1]
        columns[TOPIC_START, n] = topic_start
        columns[TOPIC_LENGTH, n] = topic_length
        queue, _ = find_queue(text, topic_start, topic_length, columns[QUEUE_ID, n], slots, queues, topics)
        if queue < 0:
            return n, position, np.int64(UNKNOWN_QUEUE), places
        properties_length = fields[I, 1] + extra_length
        if text[np.uint64(fields[I, 0] + fields[I, 1] - 1)] != 2:
            properties_length += 1
        body_length = stop - head[frames.BODY_START]
        size = RECORD_SIZE_MIN + body_length + topic_length + properties_length
        if properties_length > PROPERTIES_LENGTH_MAX or size > record_max:
            return n, position, np.int64(UNUSUAL), places
        place = queues[queue, 3]
        if place >= places or touched[place] != queue:
            place = queues[queue, 3] = places
            touched[place] = queue
            places += 1
        columns[QUEUE, n] = queue
        columns[PLACE, n] = place
        columns[SIZE, n] = size
        columns[OPAQUE, n] = head[frames.OPAQUE]
        columns[ONEWAY, n] = head[frames.FLAG]
        columns[PROPERTIES_START, n] = fields[I, 0]
        columns[PROPERTIES_LENGTH, n] = fields[I, 1]
        columns[BODY_START, n] = head[frames.BODY_START]
        columns[BODY_LENGTH, n] = body_length
        columns[UNIQ_KEY_START, n] = uniq_start
        columns[UNIQ_KEY_LENGTH, n] = uniq_length
        position, at = stop, text_end
    return columns.shape[1], position, np.int64(FULL), places


@compiled
def fill_hole(out, at, hole, columns, n, text):
    if hole == HOLE_OPAQUE:
        return frames.write_number(out, at, columns[OPAQUE, n])
    if hole == HOLE_QUEUE_ID:
        return frames.write_number(out, at, columns[QUEUE_ID, n])
    if hole == HOLE_QUEUE_OFFSET:
        return frames.write_number(out, at, columns[QUEUE_OFFSET, n])
    if hole == HOLE_MSG_ID:
        return frames.write_hex(out, at, columns[PHYSICAL_OFFSET, n])
    copy(out, at, text, columns[UNIQ_KEY_START, n], columns[UNIQ_KEY_LENGTH, n])
    return at + columns[UNIQ_KEY_LENGTH, n]


@compiled
def write_answers(out, columns, count, text, parts, holes):
    """Writes the answers to the first `count` sends that want one; bytes. `out` has room for them.

    `parts` is an answer without what differs, `holes[i]` (where in `parts`, what goes there).
    """
    at = np.int64(0)
    for n in range(count):
        if columns[ONEWAY, n] != 0:
            continue
        start = at
        taken = np.int64(0)
        for i in range(len(holes)):
            copy(out, at, parts, taken, holes[i, 0] - taken)
            at = fill_hole(out, at + holes[i, 0] - taken, holes[i, 1], columns, n, text)
            taken = holes[i, 0]
        copy(out, at, parts, taken, len(parts) - taken)
        at += len(parts) - taken
        frames.finish_frame(out, start, at, frames.JSON)
    return at


@compiled
def store_sends(
    out,
    position,
    base_offset,
    buf,
    text,
    columns,
    count,
    queues,
    topics,
    totals,
    template,
    store_timestamp,
    extra,
    answers,
    parts,
    holes,
):
    """Writes records of the first `count` sends to out[position:], as many as fit, and the answers to those that want
    one; (how many, bytes of the records, bytes of the answers).

    `totals[:, i]` belongs to the i-th queue touched: its next queue offset, counted up here, and its records' bytes.
    `template` is the head of a record with the fields that all have in common. The first record's TOTALSIZE is
    left as it is: who writes it makes all of them visible. For `parts` and `holes` see `write_answers`.
    """
    start = position
    done = 0
    while done < count:
        size = columns[SIZE, done]
        if position + size + END_FILE_MIN_BLANK_LENGTH > len(out):
            break
        queue, place = columns[QUEUE, done], columns[PLACE, done]
        body_start, body_length = columns[BODY_START, done], columns[BODY_LENGTH, done]
        properties_start, own_length = columns[PROPERTIES_START, done], columns[PROPERTIES_LENGTH, done]
        if done > 0:
            store32(out, position, size)
        copy(out, position + 4, template, 4, HEAD_SIZE - 4)
        store32(out, position + 8, crc32(buf, body_start, body_length) if body_length > 0 else 0)
        store32(out, position + 12, columns[QUEUE_ID, done])
        store32(out, position + 16, columns[FLAG, done])
        store64(out, position + 20, totals[0, place])
        store64(out, position + 28, base_offset + position)
        store32(out, position + 36, columns[SYS_FLAG, done])
        store64(out, position + 40, columns[BORN_TIMESTAMP, done])
        store64(out, position + 56, store_timestamp)
        store32(out, position + 72, columns[RECONSUME_TIMES, done])
        store32(out, position + 84, body_length)
        at = position + HEAD_SIZE
        copy(out, at, buf, body_start, body_length)
        at += body_length
        topic_start, topic_length = queues[queue, 1], queues[queue, 2]
        copy(out, at, topics, topic_start - 1, topic_length + 1)
        at += topic_length + 1
        store16(out, at, position + size - at - 2)
        at += 2
        copy(out, at, text, properties_start, own_length)
        at += own_length
        if out[np.uint64(at - 1)] != 2:
            out[np.uint64(at)] = 2
            at += 1
        copy(out, at, extra, 0, len(extra))
        columns[QUEUE_OFFSET, done] = totals[0, place]
        columns[PHYSICAL_OFFSET, done] = base_offset + position
        totals[0, place] += 1
        totals[1, place] += size
        position += size
        done += 1
    if done > 0:
        store32(out, position, 0)
    return done, position - start, write_answers(answers, columns, done, text, parts, holes)
