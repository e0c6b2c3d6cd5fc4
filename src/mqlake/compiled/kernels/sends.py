# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Simple sends, compiled: requests to columns, columns to records of the log, columns to answers.

    frames ──parse_sends──▶ columns, text ──store_sends──▶ log, answers

A column holds the numbers of one message; texts of headers lie unescaped, back to back, in `text`. What makes a send
simple is said in fast_send; anything else stops `parse_sends` and takes the slow path.
"""

from __future__ import annotations

import numpy as np

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels import frames, signatures
from mqlake.compiled.kernels.blocks import BLOCK, plain_length, put_blocks
from mqlake.compiled.kernels.primitives import (
    PROPERTY_SEPARATOR,
    ZERO,
    borrowed,
    copy,
    find,
    hash_bytes,
    keep_order,
    load16,
    load32,
    load64,
    name_end,
    pointer,
    put,
    same_bytes,
    store32,
    store64,
    value_end,
)
from mqlake.compiled.kernels.records import (
    ended_length,
    put_ended,
    read_item,
    terminate,
    write_record,
)
from mqlake.compiled.kernels.send_layout import (
    ACCESS,
    ALLOWED,
    ANSWER,
    ANSWER_END,
    ANSWERS,
    BODY_LENGTH,
    BODY_START,
    BORN_HOST,
    BORN_TIMESTAMP,
    CHECKED,
    CODE,
    COLUMNS,
    COMMIT,
    END_ANSWER,
    END_HOLES,
    EXTRA,
    FIELDS,
    FLAG,
    FRAME_SIZE,
    FRAME_START,
    FULL,
    GROUP_LENGTH,
    GROUP_START,
    HALF,
    HALF_PHYSICAL_OFFSET,
    HALF_QUEUE,
    HALF_QUEUE_OFFSET,
    HALF_SIZE,
    HALVES,
    HEAD,
    HEAD_SIZE,
    HOLE_MSG_ID,
    HOLE_UNIQ_KEY,
    HOLES,
    KEYS,
    KEYS_LEFT,
    KEYS_WANTED,
    KIND,
    LAST_PLACE,
    MESSAGES,
    MSG_ID_HOST,
    NAMES,
    NEED_MORE,
    NEW_KEY_SIZE,
    NEW_KEYS,
    NEWEST,
    NEXT_OFFSET,
    OF_BODY_LENGTH,
    OF_BORN_TIMESTAMP,
    OF_COLUMNS,
    OF_GROUP_AT,
    OF_GROUP_LENGTH,
    OF_PHYSICAL_OFFSET,
    OF_QUEUE,
    OF_QUEUE_OFFSET,
    OF_SIZE,
    OLDEST,
    ONEWAY,
    OPAQUE,
    OWN_LENGTH,
    OWN_START,
    PHYSICAL_OFFSET,
    PLACE,
    QUEUE,
    QUEUE_BYTES,
    QUEUE_ID,
    QUEUE_MESSAGES,
    QUEUE_OFFSET,
    QUEUE_PUTS,
    QUEUE_SIZE,
    QUEUES,
    REAL_QUEUE,
    RECONSUME_TIMES,
    REFUSED,
    REFUSED_HALVES,
    ROWS,
    SEND,
    SENDS_MAX,
    SHAPES,
    SHARED_LENGTH,
    SHARED_START,
    SIGNER_FOUND,
    SIGNER_NAMES,
    SIGNER_SLOTS,
    SIGNERS,
    SIZE,
    SLOTS,
    SLOW_PATH,
    STALE,
    SYS_FLAG,
    TEMPLATE,
    TEXT,
    TOPIC_LENGTH,
    TOPIC_START,
    TOPICS,
    TOUCHED,
    UNDECIDED,
    UNIQ_KEY_LENGTH,
    UNIQ_KEY_LENGTH_MAX,
    UNIQ_KEY_START,
    UNKNOWN_QUEUE,
    UNKNOWN_SIGNER,
)
from mqlake.formats.batch import ITEM_SIZE_MIN
from mqlake.formats.record import (
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    END_FILE_MIN_BLANK_LENGTH,
    PHYSICAL_OFFSET_POSITION,
    PREPARED_OFFSET_POSITION_V4,
    PROPERTIES_LENGTH_MAX,
    QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION,
    RECONSUME_TIMES_POSITION_V4,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_POSITION_V4,
    SYS_FLAG_POSITION,
)
from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_ID,
    MessageSysFlag,
)
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import ONEWAY_FLAG

SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
SEND_MESSAGE_V2 = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH_MESSAGE = int(RequestCode.SEND_BATCH_MESSAGE)
END_TRANSACTION = int(RequestCode.END_TRANSACTION)
TRANSACTION_BITS = int(MessageSysFlag.TRANSACTION_ROLLBACK_TYPE)
TRANSACTION_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
TRANSACTION_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT_TYPE)
SLOW_PATH_SYS_FLAGS = int(
    MessageSysFlag.BORNHOST_V6_FLAG
    | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    | MessageSysFlag.INNER_BATCH_FLAG
    | MessageSysFlag.NEED_UNWRAP_FLAG
)
"""Of a request's sysFlag; fast_send refuses to know a topic that would have any more set."""
UNIQ_KEY = np.int64(int.from_bytes(b"UNIQ_KEY", "big"))
TRAN_MSG = np.int64(int.from_bytes(b"TRAN_MSG", "big"))
WAIT = np.int32(int.from_bytes(b"WAIT", "big"))
PGRO, UP = np.int32(int.from_bytes(b"PGRO", "big")), int.from_bytes(b"UP", "big")
A, B, C, D, E, F, G, H, I, J, K, L, M = range(13)  # noqa: E741 - the fields' names on the wire
TABLE_OFFSET, LOG_OFFSET, COMMIT_OR_ROLLBACK, _, MSG_ID = range(13, 18)
TRUE, FALSE, TRANSACTION_ID = (
    np.frombuffer(text, np.uint8).copy() for text in (b"true", b"false", b',"transactionId":"')
)
HALF_NAMES = tuple(
    np.frombuffer(text, np.uint8).copy()
    for text in (
        PROPERTY_TRANSACTION_ID.encode() + b"\x01",
        b"\x02" + PROPERTY_REAL_TOPIC.encode() + b"\x01",
        b"\x02" + PROPERTY_REAL_QUEUE_ID.encode() + b"\x01",
    )
)
HALF_ID, HALF_REAL_TOPIC, HALF_REAL_QUEUE = HALF_NAMES
UNIQ_KEY_IS = np.frombuffer(b"UNIQ_KEY\x01", np.uint8).copy()
HALF_NAMES_LENGTH = sum(map(len, HALF_NAMES)) + 1
"""The properties that a half message has beyond those sent, without their values."""
I32_MIN, I32_MAX = -(2**31), 2**31 - 1
I64_MAX = 2**63 - 1
MAY_VARY = sum(1 << letter for letter in (A, B, C, E, G)) + sum(
    1 << letter for letter in (frames.ACCESS_KEY, frames.ONS_CHANNEL, frames.SECURITY_TOKEN, frames.SIGNATURE)
)
"""Of usual sends of one shape. Whatever else varies is checked each time."""
KEPT_IS_USUAL, KEPT_SYS_FLAG, KEPT_FLAG, KEPT_TIMES, KEPT_QUEUE_ID, KEPT_TIME, KEPT_QUEUES = range(7)
"""Of a shape whose last send was usual: its numbers, and of queues, each in the place that its id says, the number + 1.
"""
KEPT_QUEUES_MAX = 16


@compiled
def part(numbers, array, which):
    return borrowed(array)[numbers[2 * which] : numbers[2 * which + 1]]


@compiled
def table(numbers, which, rows, columns):
    return part(numbers, numbers, which).reshape((rows, columns))


@compiled
def is_queue(number, key):
    data, start, length, queue_id, queues, topics = key
    at = QUEUE_SIZE * number
    return (
        queues[at] == queue_id
        and queues[at + 2] == length
        and same_bytes(topics, queues[at + 1], data, start, length)
    )


@compiled
def find_queue(data, start, length, queue_id, numbers, topics):
    """(number of the queue, -1 when it is not known; the slot where it is or belongs)."""
    code = hash_bytes(data, start, length) * np.uint64(31) + np.uint64(queue_id)
    slots = part(numbers, numbers, SLOTS)
    key = data, start, length, queue_id, pointer(part(numbers, numbers, QUEUES)), topics
    return find(pointer(slots), np.uint64(len(slots) - 1), code, is_queue, key)


@compiled
def add_queue(number, topics_end, topic, queue_id, numbers, octets):
    """Makes a queue known under `number`; the end of `topics`. The caller has made sure of the room.

    In `topics` a topic stands as in a record, its length before it.
    """
    slots, topics = part(numbers, numbers, SLOTS), part(numbers, octets, TOPICS)
    queues = table(numbers, QUEUES, -1, QUEUE_SIZE)
    length = len(topic)
    _, slot = find_queue(pointer(topic), 0, length, queue_id, numbers, pointer(topics))
    topics[topics_end] = np.uint8(length)
    copy(topics, topics_end + 1, topic, 0, length)
    queues[number, 0] = queue_id
    queues[number, 1] = topics_end + 1
    queues[number, 2] = length
    slots[slot] = number + 1
    return topics_end + 1 + length


@compiled
def read_properties(text, start, length, refused, names, columns, n):
    """True if properties can be stored as they are, and are a half message's if column n is one; where the values of
    UNIQ_KEY and PGROUP are is in the column then, lengths of 0 when there are none.

    Each must be a name and a value, neither empty, no name twice, none among the `refused` (hashes), WAIT can only be
    true, and a half message has TRAN_MSG=true and PGROUP. `names` is room for hashes; equal hashes of different names
    only make a send one for the slow path.
    """
    is_half, prepared = columns[KIND, n] == HALF, False
    columns[UNIQ_KEY_START, n] = columns[UNIQ_KEY_LENGTH, n] = 0
    columns[GROUP_START, n] = columns[GROUP_LENGTH, n] = 0
    position, end = start, start + length
    count = 0
    while position < end:
        separator = name_end(text, position, end)
        stop = value_end(text, separator, end)
        # A pair without a name, a \1 or a value would be dropped by the slow path, which stores what it understood.
        if separator == position or separator + 1 >= stop or count == len(names):
            return False
        name = hash_bytes(text, position, separator - position)
        for i in range(len(refused)):
            if np.uint64(refused[i]) == name:
                return False
        for i in range(count):
            if np.uint64(names[i]) == name:
                return False
        names[count] = np.int64(name)
        count += 1
        name_length, value, value_length = separator - position, separator + 1, stop - separator - 1
        if name_length == 8:
            word = load64(text, position)
            if word == UNIQ_KEY:
                columns[UNIQ_KEY_START, n] = value
                columns[UNIQ_KEY_LENGTH, n] = value_length
            elif word == TRAN_MSG:
                prepared = frames.equals(text, value, value_length, TRUE)
        elif name_length == 6 and load32(text, position) == PGRO and load16(text, position + 4) == UP:
            columns[GROUP_START, n] = value
            columns[GROUP_LENGTH, n] = value_length
        elif (
            name_length == 4
            and load32(text, position) == WAIT
            and not frames.equals(text, value, value_length, TRUE)
        ):
            return False
        position = stop + 1
    if prepared != is_half or (is_half and columns[GROUP_LENGTH, n] == 0):
        return False
    return is_key(text, columns[UNIQ_KEY_START, n], columns[UNIQ_KEY_LENGTH, n])


@compiled
def give_key(text, at, end, start, length, columns, n, left, keys):
    """Copies properties of the message in column n that have no UNIQ_KEY to text[at:end] and gives them the next of
    `keys`, as SendMessageProcessor does; where they end there, -1 when there is no key, or no room."""
    left[KEYS_WANTED] = 1
    if left[KEYS_LEFT] == 0 or end - at < length + len(UNIQ_KEY_IS) + NEW_KEY_SIZE + 2 + BLOCK:
        return np.int64(-1)
    left[KEYS_LEFT] -= 1
    copy(text, at, text, start, length)
    at += length
    if length > 0 and text[np.uint64(at - 1)] != PROPERTY_SEPARATOR:
        text[np.uint64(at)] = PROPERTY_SEPARATOR
        at += 1
    at = put(text, at, UNIQ_KEY_IS, 0, len(UNIQ_KEY_IS))
    columns[UNIQ_KEY_START, n] = at
    columns[UNIQ_KEY_LENGTH, n] = NEW_KEY_SIZE
    at = put(text, at, keys, NEW_KEY_SIZE * left[KEYS_LEFT], NEW_KEY_SIZE)
    text[np.uint64(at)] = PROPERTY_SEPARATOR
    return np.int64(at + 1)


@compiled
def is_key(text, start, length):
    """True if it may go into an answer as it is."""
    if length > UNIQ_KEY_LENGTH_MAX:
        return False
    done = np.int64(0)
    while done < length:  # after a header's text there is room for a block
        if plain_length(text, start + done) < min(length - done, BLOCK):
            return False
        done += BLOCK
    return True


@compiled
def number(text, fields, letter, low, high):
    """(whether the field is there, and a number in [low, high]; the number)."""
    if fields[letter, 1] < 1:
        return False, np.int64(0)
    return frames.whole_number(text, fields[letter, 0], fields[letter, 1], low, high)


@compiled
def is_truth(text, fields, letter):
    """True if the field is absent, one of the two words, or 0, which C++ clients write for false."""
    start, length = fields[letter, 0], fields[letter, 1]
    return (
        length < 0
        or frames.equals(text, start, length, FALSE)
        or frames.equals(text, start, length, TRUE)
        or (length == 1 and frames.byte(text, start) == ZERO)
    )


@compiled
def read_send(text, fields, is_batch, columns, n):
    """True if the fields are a SendMessageRequestHeaderV2 of a simple send, as far as numbers tell; they are in
    column n then, with the KIND that sysFlag says."""
    if fields[A, 1] < 0 or fields[B, 1] < 1 or fields[C, 1] < 0:
        return False
    batch = frames.equals(text, fields[M, 0], fields[M, 1], TRUE)
    if not is_truth(text, fields, K) or not is_truth(text, fields, M) or batch != is_batch:
        return False
    has_queue, columns[QUEUE_ID, n] = number(text, fields, E, 0, I32_MAX)
    has_sys_flag, columns[SYS_FLAG, n] = number(text, fields, F, I32_MIN, I32_MAX)
    has_time, columns[BORN_TIMESTAMP, n] = number(text, fields, G, -I64_MAX, I64_MAX)
    has_flag, columns[FLAG, n] = number(text, fields, H, I32_MIN, I32_MAX)
    has_times, columns[RECONSUME_TIMES, n] = number(text, fields, J, I32_MIN, I32_MAX)
    transaction = columns[SYS_FLAG, n] & TRANSACTION_BITS
    columns[KIND, n] = HALF if transaction == TRANSACTION_PREPARED else SEND
    return (
        has_queue
        and has_sys_flag
        and has_time
        and has_flag
        and (has_times or fields[J, 1] < 0)
        and columns[SYS_FLAG, n] & SLOW_PATH_SYS_FLAGS == 0
        and (transaction == 0 or (transaction == TRANSACTION_PREPARED and not is_batch))
        and number(text, fields, D, I32_MIN, I32_MAX)[0]
        and (fields[L, 1] < 0 or number(text, fields, L, I32_MIN, I32_MAX)[0])
    )


@compiled
def read_usual(text, fields, head, kept, varying, columns, n):
    """As `read_send` and `read_properties`, of a send whose shape was that of a usual one."""
    columns[KIND, n] = SEND
    columns[SYS_FLAG, n] = head[kept + KEPT_SYS_FLAG]
    columns[FLAG, n] = head[kept + KEPT_FLAG]
    columns[RECONSUME_TIMES, n] = head[kept + KEPT_TIMES]
    has_queue, queue_id = True, head[kept + KEPT_QUEUE_ID]
    if varying & (1 << E):
        has_queue, queue_id = number(text, fields, E, 0, I32_MAX)
    has_time, time = True, head[kept + KEPT_TIME]
    if varying & (1 << G):
        has_time, time = number(text, fields, G, -I64_MAX, I64_MAX)
    columns[QUEUE_ID, n] = queue_id
    columns[BORN_TIMESTAMP, n] = time
    start, length = head[frames.HEAD_UNIQ_KEY], head[frames.HEAD_UNIQ_KEY_LENGTH]
    columns[UNIQ_KEY_START, n] = start
    columns[UNIQ_KEY_LENGTH, n] = length
    return has_queue and has_time and is_key(text, start, length)


@compiled
def keep(head, columns, n):
    """Keeps what is to be known of the next send of the same shape as the one in column n, which is usual."""
    shape = head[frames.HEAD_SHAPE]
    if shape and head[shape + frames.SHAPE_VARYING] & ~MAY_VARY == 0:
        kept = shape + frames.SHAPE_KEPT
        head[kept + KEPT_IS_USUAL] = 1
        head[kept + KEPT_SYS_FLAG] = columns[SYS_FLAG, n]
        head[kept + KEPT_FLAG] = columns[FLAG, n]
        head[kept + KEPT_TIMES] = columns[RECONSUME_TIMES, n]
        head[kept + KEPT_QUEUE_ID] = columns[QUEUE_ID, n]
        head[kept + KEPT_TIME] = columns[BORN_TIMESTAMP, n]


@compiled
def read_code(head):
    """(whether the command is one of the sends, with the names that it has; whether it is a batch)."""
    code = head[frames.HEAD_CODE]
    is_batch = code == SEND_BATCH_MESSAGE
    names = frames.LONG if code == SEND_MESSAGE else frames.SHORT
    return (
        (is_batch or code in (SEND_MESSAGE_V2, SEND_MESSAGE))
        and head[frames.HEAD_NAMES] == names
        and (head[frames.HEAD_FLAG] == 0 or head[frames.HEAD_FLAG] == ONEWAY_FLAG)
        and head[frames.HEAD_OPAQUE] >= 0
    ), is_batch


@compiled
def read_message(columns, n, own_length, shared_length, record_max):
    """True if the record of the message in column n, of whose properties the lengths are given, is as large as records
    may be; its SIZE is in the column then."""
    properties_length = own_length + shared_length
    size = RECORD_SIZE_MIN + columns[BODY_LENGTH, n] + columns[TOPIC_LENGTH, n] + properties_length
    columns[SIZE, n] = size
    return properties_length <= PROPERTIES_LENGTH_MAX and size <= record_max


@compiled
def read_batch(data, position, end, shared_length, record_max, columns, first):
    """How many messages data[position:end] encodes (see formats.batch), each in a column from `first` on; 0 when it is
    no batch, or of none, or one is not simple; -1 when there are more than columns."""
    n = first
    topic_length = columns[TOPIC_LENGTH, first]
    while position < end:
        size, body_length, own_length = read_item(data, position, end)
        if size == 0:
            return 0
        own_start = position + size - own_length
        if n == columns.shape[1]:
            return -1
        columns[MESSAGES, n] = 0
        columns[KIND, n] = SEND
        columns[TOPIC_LENGTH, n] = topic_length
        columns[FLAG, n] = load32(data, position + 12)
        columns[BODY_START, n] = position + ITEM_SIZE_MIN - 2
        columns[BODY_LENGTH, n] = body_length
        columns[OWN_START, n] = own_start
        columns[OWN_LENGTH, n] = own_length
        if not read_message(columns, n, ended_length(data, own_start, own_length), shared_length, record_max):
            return 0
        position += size
        n += 1
    return n - first


@compiled
def digits_of(value):
    """How many digits a number has that is not negative."""
    digits = 1
    while value > 9:
        value //= 10
        digits += 1
    return digits


@compiled
def read_commit(text, fields, head, stop, columns, n, queues, halves, record_max):
    """True if the fields are an EndTransactionRequestHeader that commits a half message of `halves`; the message to
    store is in column n then, as far as it is known."""
    if (
        head[frames.HEAD_NAMES] != frames.LONG
        or (head[frames.HEAD_FLAG] != 0 and head[frames.HEAD_FLAG] != ONEWAY_FLAG)
        or head[frames.HEAD_OPAQUE] < 0
        or head[frames.HEAD_BODY_START] != stop
        or fields[A, 1] < 1
        or fields[MSG_ID, 1] < 0
        or len(halves) == 0
    ):
        return False
    has_offset, table_offset = number(text, fields, TABLE_OFFSET, 0, I64_MAX)
    has_place, log_offset = number(text, fields, LOG_OFFSET, 0, I64_MAX)
    has_state, state = number(text, fields, COMMIT_OR_ROLLBACK, 0, I32_MAX)
    if not has_offset or not has_place or not has_state or state != TRANSACTION_COMMIT:
        return False
    half = table_offset & (len(halves) - 1)
    if (
        halves[half, OF_SIZE] == 0
        or halves[half, OF_QUEUE_OFFSET] != table_offset
        or halves[half, OF_PHYSICAL_OFFSET] != log_offset
        or halves[half, OF_GROUP_LENGTH] != fields[A, 1]
    ):
        return False
    queue = halves[half, OF_QUEUE]
    topic_length = queues[queue, 2]
    size = halves[half, OF_SIZE] - queues[HALF_QUEUE, 2] + topic_length
    if size > record_max:
        return False
    columns[KIND, n] = COMMIT
    columns[REAL_QUEUE, n] = queue
    columns[HALF_QUEUE_OFFSET, n] = table_offset
    columns[HALF_PHYSICAL_OFFSET, n] = log_offset
    columns[HALF_SIZE, n] = halves[half, OF_SIZE]
    columns[BODY_LENGTH, n] = halves[half, OF_BODY_LENGTH]
    columns[BORN_TIMESTAMP, n] = halves[half, OF_BORN_TIMESTAMP]
    columns[GROUP_START, n] = fields[A, 0]
    columns[GROUP_LENGTH, n] = fields[A, 1]
    columns[BODY_START, n] = halves[half, OF_GROUP_AT]
    columns[QUEUE_ID, n] = queues[queue, 0]
    columns[TOPIC_LENGTH, n] = topic_length
    columns[SIZE, n] = size
    columns[SHARED_LENGTH, n] = columns[UNIQ_KEY_START, n] = columns[UNIQ_KEY_LENGTH, n] = 0
    return True


@compiled
def parse_sends(buf, start, end, host, record_max, so_far, numbers, octets):
    """Reads simple sends and commits of the client at `host` from buf[start:end], after those that are in the columns
    already, which `so_far` says; (where the next frame begins, why it stopped there, so far).

    So far: how many messages, where their texts end, to how many queues they go, how many of them are half messages or
    commits; at first 0 of each.

    TOUCHED gets the numbers of those queues; PLACE says for each send where in TOUCHED its queue is. UNKNOWN_QUEUE: the
    column after the last message says which: TOPIC_START, TOPIC_LENGTH (in TEXT) and QUEUE_ID. UNKNOWN_SIGNER: the next
    frame is not signed by one of the SIGNERS; TOPIC_START and TOPIC_LENGTH say where the name is. UNDECIDED: its signer
    is not among the ALLOWED for the queue.
    """
    buf, numbers, octets = borrowed(buf), borrowed(numbers), borrowed(octets)
    columns = table(numbers, COLUMNS, ROWS, SENDS_MAX)
    queues = table(numbers, QUEUES, -1, QUEUE_SIZE)
    fields = table(numbers, FIELDS, -1, 2)
    halves = table(numbers, HALVES, -1, OF_COLUMNS)
    refused, refused_halves = part(numbers, numbers, REFUSED), part(numbers, numbers, REFUSED_HALVES)
    names, head_part = part(numbers, numbers, NAMES), part(numbers, numbers, HEAD)
    head = pointer(head_part)
    text_part, topics = part(numbers, octets, TEXT), pointer(part(numbers, octets, TOPICS))
    text, data, shapes = pointer(text_part), pointer(buf), pointer(part(numbers, octets, SHAPES))
    head[frames.HEAD_PAIR] = (host ^ host >> 4) & (frames.PAIRS - 1)
    access, allowed = pointer(part(numbers, numbers, ACCESS)), pointer(part(numbers, numbers, ALLOWED))
    signers = pointer(part(numbers, numbers, SIGNERS))
    signer_slots = pointer(part(numbers, numbers, SIGNER_SLOTS))
    signer_names = pointer(part(numbers, octets, SIGNER_NAMES))
    signer = np.int64(0)
    extra_length = len(part(numbers, octets, EXTRA))
    keys_left, keys = part(numbers, numbers, NEW_KEYS), pointer(part(numbers, octets, KEYS))
    position = np.int64(start)
    n, at, places, transactional = so_far
    while n < SENDS_MAX:
        so_far = n, at, places, transactional
        stop, text_end = frames.read_frame(buf, position, end, head_part, fields, text_part, at, shapes)
        if stop <= 0:
            return position, np.int64(NEED_MORE if stop == 0 else SLOW_PATH), so_far
        shape = head[frames.HEAD_SHAPE]
        is_usual = shape > 0 and head[shape + frames.SHAPE_KEPT + KEPT_IS_USUAL] != 0
        if access[CHECKED] or not is_usual:
            frames.place_fields(head, fields, at)
        if access[CHECKED]:
            if len(text_part) - text_end < text_end - at + signatures.NEW_ROOM:
                return position, np.int64(FULL if n > 0 else SLOW_PATH), so_far
            name_at, name_length = fields[frames.ACCESS_KEY, 0], fields[frames.ACCESS_KEY, 1]
            body, signer = head[frames.HEAD_BODY_START], np.int64(-1)
            if name_length > 0 and not access[STALE]:
                signer, _ = signatures.find_signer(
                    text, name_at, name_length, signers, signer_slots, signer_names
                )
            access[SIGNER_FOUND] = signer
            if signer < 0 or not signatures.is_signed(
                text, text_end, data, body, stop, head, fields, signers, signer, access
            ):
                columns[TOPIC_START, n] = name_at
                columns[TOPIC_LENGTH, n] = name_length
                return position, np.int64(UNKNOWN_SIGNER), so_far
        if head[frames.HEAD_CODE] == END_TRANSACTION:
            if not read_commit(text, fields, head, stop, columns, n, queues, halves, record_max):
                return position, np.int64(SLOW_PATH), so_far
            queue, count = columns[REAL_QUEUE, n], np.int64(1)
        else:
            is_send, is_batch = read_code(head)
            if not is_send:
                return position, np.int64(SLOW_PATH), so_far
            is_half, queue, place_of_queue = False, np.int64(-1), np.int64(0)
            shared_start, own_length = fields[I, 0], max(np.int64(0), fields[I, 1])
            if is_usual and not is_batch:
                kept, varying = shape + frames.SHAPE_KEPT, head[shape + frames.SHAPE_VARYING]
                if not read_usual(text, fields, head, kept, varying, columns, n):
                    return position, np.int64(SLOW_PATH), so_far
                if not varying & (1 << B):
                    queue_id = columns[QUEUE_ID, n]
                    place_of_queue = kept + KEPT_QUEUES + (queue_id & (KEPT_QUEUES_MAX - 1))
                    queue = head[place_of_queue] - 1
                    if queue >= 0 and queues[queue, 0] != queue_id:
                        queue = np.int64(-1)
            else:
                if not read_send(text, fields, is_batch, columns, n):
                    return position, np.int64(SLOW_PATH), so_far
                is_half = columns[KIND, n] == HALF
                if is_half and len(halves) == 0:
                    return position, np.int64(SLOW_PATH), so_far
                if not read_properties(
                    text, shared_start, own_length, refused_halves if is_half else refused, names, columns, n
                ) or (columns[UNIQ_KEY_LENGTH, n] == 0 and is_half):
                    return position, np.int64(SLOW_PATH), so_far
                if columns[UNIQ_KEY_LENGTH, n] == 0 and not is_batch:
                    given, given_to = text_end, len(text_part)
                    text_end = give_key(
                        text, given, given_to, shared_start, own_length, columns, n, keys_left, keys
                    )
                    if text_end < 0:
                        return position, np.int64(SLOW_PATH), so_far
                    shared_start, own_length = given, text_end - given
                if not is_half and not is_batch:
                    keep(head, columns, n)
            if queue < 0:
                frames.place_fields(head, fields, at)
                columns[TOPIC_START, n] = fields[B, 0]
                columns[TOPIC_LENGTH, n] = fields[B, 1]
                queue, _ = find_queue(text, fields[B, 0], fields[B, 1], columns[QUEUE_ID, n], numbers, topics)
                if queue < 0:
                    return position, np.int64(UNKNOWN_QUEUE), so_far
                if place_of_queue > 0:
                    head[place_of_queue] = queue + 1
            topic_length = queues[queue, 2]
            columns[TOPIC_LENGTH, n] = topic_length
            columns[REAL_QUEUE, n] = queue
            columns[SHARED_START, n] = shared_start
            columns[SHARED_LENGTH, n] = own_length
            shared_length = ended_length(text, shared_start, own_length) + extra_length
            if is_half:
                shared_length += HALF_NAMES_LENGTH + columns[UNIQ_KEY_LENGTH, n]
                shared_length += topic_length + digits_of(columns[QUEUE_ID, n])
                queue = np.int64(HALF_QUEUE)
                columns[TOPIC_LENGTH, n] = queues[HALF_QUEUE, 2]
            body_start = head[frames.HEAD_BODY_START]
            if is_batch:
                count = np.int64(0)
                if stop - body_start <= record_max:
                    count = read_batch(data, body_start, stop, shared_length, record_max, columns, n)
                if count < 0 and n > 0:
                    return position, np.int64(FULL), so_far
                if count <= 0:
                    return position, np.int64(SLOW_PATH), so_far
            else:
                count = np.int64(1)
                columns[BODY_START, n] = body_start
                columns[BODY_LENGTH, n] = stop - body_start
                columns[OWN_START, n] = stop
                columns[OWN_LENGTH, n] = 0
                if not read_message(columns, n, 0, shared_length, record_max):
                    return position, np.int64(SLOW_PATH), so_far
        if access[CHECKED]:
            permit = signatures.permit(host, signer, columns[REAL_QUEUE, n])
            if allowed[signatures.permit_slot(allowed, permit)] != permit:
                return position, np.int64(UNDECIDED), so_far
            born = columns[BORN_TIMESTAMP, n]
            is_commit = columns[KIND, n] == COMMIT
            if access[NEWEST] and not is_commit and (born < access[OLDEST] or born > access[NEWEST]):
                return position, np.int64(SLOW_PATH), so_far
        if (
            columns[KIND, n] == COMMIT
        ):  # who says it again is answered by EndTransactionProcessor, which knows
            halves[columns[HALF_QUEUE_OFFSET, n] & (len(halves) - 1), OF_SIZE] = 0
        frame_size = np.int64(0)
        for i in range(n, n + count):
            frame_size += columns[SIZE, i]
        place = queues[queue, LAST_PLACE]
        if place >= places or columns[TOUCHED, place] != queue:
            place = queues[queue, LAST_PLACE] = places
            columns[TOUCHED, place] = queue
            columns[QUEUE_MESSAGES, place] = columns[QUEUE_BYTES, place] = columns[QUEUE_PUTS, place] = 0
            places += 1
        columns[QUEUE, n] = queue
        columns[PLACE, n] = place
        columns[FRAME_START, n] = position
        columns[FRAME_SIZE, n] = frame_size
        columns[MESSAGES, n] = count
        columns[BORN_HOST, n] = host
        columns[CODE, n] = head[frames.HEAD_CODE]
        columns[OPAQUE, n] = head[frames.HEAD_OPAQUE]
        columns[ONEWAY, n] = head[frames.HEAD_FLAG]
        if columns[KIND, n] != SEND:
            transactional += 1
        position, at = stop, text_end
        n += count
    return position, np.int64(FULL), (n, at, places, transactional)


@compiled
def put_ids(out, at, cells, n):
    """Ends the first id of the messages of the send in column n, of which the host is there, and writes the others."""
    host = at - MSG_ID_HOST
    at = frames.write_hex(out, at, cells[PHYSICAL_OFFSET * SENDS_MAX + n])
    for i in range(n + 1, n + cells[MESSAGES * SENDS_MAX + n]):
        out[np.uint64(at)] = np.uint8(frames.COMMA)
        at = put(out, at + 1, out, host, MSG_ID_HOST)
        at = frames.write_hex(out, at, cells[PHYSICAL_OFFSET * SENDS_MAX + i])
    return at


@compiled
def put_key(out, at, cells, n, text):
    length = cells[UNIQ_KEY_LENGTH * SENDS_MAX + n]
    if length == 0:
        return at
    at = put(out, at, TRANSACTION_ID, 0, len(TRANSACTION_ID))
    at = put_blocks(out, at, text, cells[UNIQ_KEY_START * SENDS_MAX + n], length)
    out[np.uint64(at)] = np.uint8(frames.QUOTE)
    return at + 1


@compiled
def write_answer(out, at, parts, taken, end, holes, count, cells, n, text):
    """Writes the answer to the send in column n; its end. It is parts[taken:end] with `count` holes: where, counted
    from its beginning, and what goes there."""
    start, first = at, taken
    for i in range(count):
        stop, hole = first + holes[2 * i], holes[2 * i + 1]
        at = put_blocks(out, at, parts, taken, stop - taken)
        if hole == HOLE_MSG_ID:
            at = put_ids(out, at, cells, n)
        elif hole == HOLE_UNIQ_KEY:
            at = put_key(out, at, cells, n, text)
        else:
            at = frames.write_number(out, at, cells[hole * SENDS_MAX + n])
        taken = stop
    at = put_blocks(out, at, parts, taken, end - taken)
    frames.finish_frame(out, start, at, frames.JSON)
    return at


@compiled
def write_answers(count, text, numbers, octets):
    """Writes the answers to the sends of the first `count` messages that want one; bytes."""
    out, parts = pointer(part(numbers, octets, ANSWERS)), pointer(octets)
    cells = pointer(part(numbers, numbers, COLUMNS))
    answer, end_answer = numbers[2 * ANSWER], numbers[2 * END_ANSWER]
    answer_end, end_answer_end = numbers[2 * ANSWER + 1], numbers[2 * END_ANSWER + 1]
    holes, end_holes = part(numbers, numbers, HOLES), part(numbers, numbers, END_HOLES)
    at = np.int64(0)
    n = np.int64(0)
    while n < count:
        if cells[ONEWAY * SENDS_MAX + n] != 0:
            pass
        elif cells[KIND * SENDS_MAX + n] == COMMIT:
            at = write_answer(
                out,
                at,
                parts,
                end_answer,
                end_answer_end,
                pointer(end_holes),
                len(end_holes) // 2,
                cells,
                n,
                text,
            )
        else:
            at = write_answer(
                out, at, parts, answer, answer_end, pointer(holes), len(holes) // 2, cells, n, text
            )
        cells[ANSWER_END * SENDS_MAX + n] = at
        n += cells[MESSAGES * SENDS_MAX + n]
    return at


@compiled
def store_sends(out, position, base_offset, buf, count, store_timestamp, numbers, octets):
    """As `write_sends` and `size_records`."""
    done, size, answers_size = write_sends(
        out, position, base_offset, buf, count, store_timestamp, numbers, octets
    )
    size_records(out, position, done, numbers)
    return done, size, answers_size


@compiled
def size_records(out, position, count, numbers):
    """Writes the TOTALSIZE of the records at out[position:] that `write_sends` has made of `count` messages, but for
    the first one's: who writes that makes all of them visible."""
    columns, log = table(numbers, COLUMNS, ROWS, SENDS_MAX), pointer(borrowed(out))
    keep_order()
    at = np.int64(position)
    for n in range(1, count):
        at += columns[SIZE, n - 1]
        store32(log, at, columns[SIZE, n])


@compiled
def write_sends(out, position, base_offset, buf, count, store_timestamp, numbers, octets):
    """Writes records of the first `count` messages to out[position:], as many whole sends as fit, and the answers to
    those that want one; (how many messages, bytes of the records, bytes of the answers). A commit whose half message is
    not in `out` before them is where it stops, too.

    Of each queue touched NEXT_OFFSET is its next queue offset, counted up here like its QUEUE_MESSAGES, QUEUE_BYTES and
    QUEUE_PUTS. The records lack their TOTALSIZE: a process that is killed before they have it leaves none that seems to
    be whole, whatever another thread has written after them.
    """
    out, buf, numbers, octets = borrowed(out), borrowed(buf), borrowed(numbers), borrowed(octets)
    columns = table(numbers, COLUMNS, ROWS, SENDS_MAX)
    queues, halves = table(numbers, QUEUES, -1, QUEUE_SIZE), table(numbers, HALVES, -1, OF_COLUMNS)
    text, topics = pointer(part(numbers, octets, TEXT)), pointer(part(numbers, octets, TOPICS))
    template, extra = pointer(part(numbers, octets, TEMPLATE)), pointer(part(numbers, octets, EXTRA))
    extra_length = len(part(numbers, octets, EXTRA))
    log, data = pointer(out), pointer(buf)
    start = position
    first = np.int64(0)
    while first < count and position + columns[FRAME_SIZE, first] + END_FILE_MIN_BLANK_LENGTH <= len(out):
        queue, place, kind = columns[QUEUE, first], columns[PLACE, first], columns[KIND, first]
        topic_start, topic_length = queues[queue, 1], queues[queue, 2]
        shared_start, shared_length = columns[SHARED_START, first], columns[SHARED_LENGTH, first]
        following = first + columns[MESSAGES, first]
        queue_id = np.int64(0) if kind == HALF else columns[QUEUE_ID, first]
        columns[QUEUE_OFFSET, first] = columns[NEXT_OFFSET, place]
        half_at = np.int64(0)
        if kind == COMMIT:
            half_at = columns[HALF_PHYSICAL_OFFSET, first] - base_offset
            if half_at < 0 or not is_half_of(log, half_at, start, columns, first, text):
                break
        for n in range(first, following):
            size = columns[SIZE, n]
            body_start, body_length = columns[BODY_START, n], columns[BODY_LENGTH, n]
            if kind == COMMIT:
                copy(log, position + 4, log, half_at + 4, HEAD_SIZE + body_length - 4)
                sys_flag = load32(log, half_at + SYS_FLAG_POSITION) | TRANSACTION_COMMIT
                store64(log, position + QUEUE_OFFSET_POSITION, columns[NEXT_OFFSET, place])
                store64(log, position + PHYSICAL_OFFSET_POSITION, base_offset + position)
                store64(log, position + PREPARED_OFFSET_POSITION_V4, columns[HALF_PHYSICAL_OFFSET, first])
                at = put(log, position + HEAD_SIZE + body_length, topics, topic_start - 1, topic_length + 1)
                # the length of the properties, and they, are the half message's
                rest = position + size - at
                copy(log, at, log, half_at + columns[HALF_SIZE, n] - rest, rest)
            else:
                at = write_record(
                    log,
                    position,
                    size,
                    template,
                    HEAD_SIZE,
                    columns[FLAG, n],
                    columns[NEXT_OFFSET, place],
                    base_offset + position,
                    data,
                    body_start,
                    body_length,
                    topics,
                    topic_start - 1,
                    topic_length + 1,
                )
                sys_flag = columns[SYS_FLAG, first] & ~TRANSACTION_BITS
                store64(log, position + BORN_HOST_POSITION, columns[BORN_HOST, first])
                store64(log, position + BORN_TIMESTAMP_POSITION, columns[BORN_TIMESTAMP, first])
                store32(log, position + RECONSUME_TIMES_POSITION_V4, columns[RECONSUME_TIMES, first])
                at = put_ended(log, at, data, columns[OWN_START, n], columns[OWN_LENGTH, n])
                at = put_ended(log, at, text, shared_start, shared_length)
                at = put(log, at, extra, 0, extra_length)
            store32(log, position + QUEUE_ID_POSITION, queue_id)
            store32(log, position + SYS_FLAG_POSITION, sys_flag)
            store64(log, position + STORE_TIMESTAMP_POSITION_V4, store_timestamp)
            columns[PHYSICAL_OFFSET, n] = base_offset + position
            if kind == HALF:
                put_half(log, at, text, topics, columns, n, queues, halves)
            columns[NEXT_OFFSET, place] += 1
            position += size
        columns[QUEUE_MESSAGES, place] += following - first
        columns[QUEUE_BYTES, place] += columns[FRAME_SIZE, first]
        columns[QUEUE_PUTS, place] += 1
        first = following
    if first > 0:
        terminate(log, position)
    return first, position - start, write_answers(first, text, numbers, octets)


@compiled
def is_half_of(log, position, end, columns, n, text):
    """True if the record at `position` is the half message of the commit in column n, and its producers' group the one
    that commits."""
    size = columns[HALF_SIZE, n]
    if (
        position + size > end
        or load32(log, position) != size
        or load64(log, position + 20) != columns[HALF_QUEUE_OFFSET, n]
        or load64(log, position + 28) != columns[HALF_PHYSICAL_OFFSET, n]
    ):
        return False
    group, start = position + columns[BODY_START, n], columns[GROUP_START, n]
    return same_bytes(log, group, text, start, columns[GROUP_LENGTH, n])


@compiled
def put_half(log, at, text, topics, columns, n, queues, halves):
    """Ends the half message in column n with the properties that say where it belongs, and remembers it."""
    queue = columns[REAL_QUEUE, n]
    at = put(log, at, HALF_ID, 0, len(HALF_ID))
    at = put(log, at, text, columns[UNIQ_KEY_START, n], columns[UNIQ_KEY_LENGTH, n])
    at = put(log, at, HALF_REAL_TOPIC, 0, len(HALF_REAL_TOPIC))
    at = put(log, at, topics, queues[queue, 1], queues[queue, 2])
    at = put(log, at, HALF_REAL_QUEUE, 0, len(HALF_REAL_QUEUE))
    rest, last = columns[QUEUE_ID, n], at + digits_of(columns[QUEUE_ID, n])
    for i in range(last - 1, at - 1, -1):  # write_number would write on
        log[np.uint64(i)] = np.uint8(ZERO + rest % 10)
        rest //= 10
    log[np.uint64(last)] = PROPERTY_SEPARATOR
    half = columns[QUEUE_OFFSET, n] & (len(halves) - 1)
    halves[half, OF_PHYSICAL_OFFSET] = columns[PHYSICAL_OFFSET, n]
    halves[half, OF_QUEUE_OFFSET] = columns[QUEUE_OFFSET, n]
    halves[half, OF_SIZE] = columns[SIZE, n]
    halves[half, OF_BODY_LENGTH] = columns[BODY_LENGTH, n]
    halves[half, OF_BORN_TIMESTAMP] = columns[BORN_TIMESTAMP, n]
    halves[half, OF_QUEUE] = queue
    properties = HEAD_SIZE + columns[BODY_LENGTH, n] + 1 + columns[TOPIC_LENGTH, n] + 2
    halves[half, OF_GROUP_AT] = properties + columns[GROUP_START, n] - columns[SHARED_START, n]
    halves[half, OF_GROUP_LENGTH] = columns[GROUP_LENGTH, n]
