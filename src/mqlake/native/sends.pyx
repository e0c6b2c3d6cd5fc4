# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Simple sends: requests to columns, columns to records of the log, columns to answers.

    frames ──read_sends──▶ columns, text ──write_sends──▶ log, answers

A column holds the numbers of one message; texts of headers lie unescaped, back to back, in `text`. What makes a send
simple is said in fast_send; anything else stops `read_sends` and takes the slow path.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX

from mqlake.native cimport frame_layout as frames
from mqlake.native.append cimport *
from mqlake.native.constants cimport *
from mqlake.native.frames cimport Pair, place_fields, read_frame, whole_number
from mqlake.native.requests cimport *
from mqlake.native.send_layout cimport *
from mqlake.native.serving cimport *
from mqlake.native.signatures cimport find_signer, is_signed, permit, permit_slot
from mqlake.native.text cimport *

from mqlake.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_ID,
)
from mqlake.message.policy import Policy, names_with
from mqlake.native.checksums import crc32_address

cdef enum:
    KEPT_IS_USUAL, KEPT_SYS_FLAG, KEPT_FLAG, KEPT_TIMES, KEPT_QUEUE_ID, KEPT_TIME, KEPT_QUEUES
    KEPT_QUEUES_MAX = 16
    # of usual sends of one shape; whatever else varies is checked each time
    MAY_VARY = (
        1 << A | 1 << B | 1 << C | 1 << E | 1 << G
        | 1 << frames.ACCESS_KEY | 1 << frames.ONS_CHANNEL | 1 << frames.SECURITY_TOKEN | 1 << frames.SIGNATURE
    )

cdef struct Text:
    Bytes at
    i64 size

cdef Text text_of(bytes text):
    """Good as long as `text` is there."""
    cdef Text found
    found.at, found.size = <Bytes>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    return found


# the properties that a half message has beyond those sent, without their values
_half_id = PROPERTY_TRANSACTION_ID.encode() + b"\x01"
_half_real_topic = b"\x02" + PROPERTY_REAL_TOPIC.encode() + b"\x01"
_half_real_queue = b"\x02" + PROPERTY_REAL_QUEUE_ID.encode() + b"\x01"
cdef Text HALF_ID = text_of(_half_id), HALF_REAL_TOPIC = text_of(_half_real_topic)
cdef Text HALF_REAL_QUEUE = text_of(_half_real_queue)
_refused_in_batches = [name.encode() for name in names_with(Policy.LIGHT_QUEUE)]
cdef Text REFUSED_IN_BATCHES[8]
cdef i64 REFUSED_IN_BATCHES_COUNT = len(_refused_in_batches)
if REFUSED_IN_BATCHES_COUNT > 8:
    raise ImportError(f"there is room for 8 names of properties, not for {REFUSED_IN_BATCHES_COUNT}")
for _i in range(REFUSED_IN_BATCHES_COUNT):
    REFUSED_IN_BATCHES[_i] = text_of(_refused_in_batches[_i])
cdef i64 HALF_NAMES_LENGTH = HALF_ID.size + HALF_REAL_TOPIC.size + HALF_REAL_QUEUE.size + 1

use_crc32(crc32_address())


cdef Tables tables_of(i64 *numbers, Room octets) noexcept nogil:
    """The parts of the two arrays (see send_layout)."""
    cdef Tables t
    t.columns = <Row *>(numbers + numbers[2 * COLUMNS])
    t.queues = <Queue *>(numbers + numbers[2 * QUEUES])
    t.slots = numbers + numbers[2 * SLOTS]
    t.slots_mask = numbers[2 * SLOTS + 1] - numbers[2 * SLOTS] - 1
    t.refused = numbers + numbers[2 * REFUSED]
    t.refused_count = numbers[2 * REFUSED + 1] - numbers[2 * REFUSED]
    t.refused_halves = numbers + numbers[2 * REFUSED_HALVES]
    t.refused_halves_count = numbers[2 * REFUSED_HALVES + 1] - numbers[2 * REFUSED_HALVES]
    t.halves = <Half *>(numbers + numbers[2 * HALVES])
    t.halves_count = (numbers[2 * HALVES + 1] - numbers[2 * HALVES]) // OF_COLUMNS
    t.names = numbers + numbers[2 * NAMES]
    t.head = numbers + numbers[2 * HEAD]
    t.fields = <Pair *>(numbers + numbers[2 * FIELDS])
    t.holes = numbers + numbers[2 * HOLES]
    t.holes_count = (numbers[2 * HOLES + 1] - numbers[2 * HOLES]) // 2
    t.end_holes = numbers + numbers[2 * END_HOLES]
    t.end_holes_count = (numbers[2 * END_HOLES + 1] - numbers[2 * END_HOLES]) // 2
    t.access = numbers + numbers[2 * ACCESS]
    t.signers = numbers + numbers[2 * SIGNERS]
    t.signer_slots = numbers + numbers[2 * SIGNER_SLOTS]
    t.allowed = numbers + numbers[2 * ALLOWED]
    t.new_keys = numbers + numbers[2 * NEW_KEYS]
    t.text = octets + numbers[2 * TEXT]
    t.text_size = numbers[2 * TEXT + 1] - numbers[2 * TEXT]
    t.topics = octets + numbers[2 * TOPICS]
    t.topics_size = numbers[2 * TOPICS + 1] - numbers[2 * TOPICS]
    t.template = octets + numbers[2 * TEMPLATE]
    t.extra = octets + numbers[2 * EXTRA]
    t.extra_size = numbers[2 * EXTRA + 1] - numbers[2 * EXTRA]
    t.answer = octets + numbers[2 * ANSWER]
    t.answer_size = numbers[2 * ANSWER + 1] - numbers[2 * ANSWER]
    t.end_answer = octets + numbers[2 * END_ANSWER]
    t.end_answer_size = numbers[2 * END_ANSWER + 1] - numbers[2 * END_ANSWER]
    t.answers = octets + numbers[2 * ANSWERS]
    t.signer_names = octets + numbers[2 * SIGNER_NAMES]
    t.shapes = octets + numbers[2 * SHAPES]
    t.keys = octets + numbers[2 * KEYS]
    return t


cdef i64 queue_slot(Tables *t, Bytes data, i64 start, i64 length, i64 queue_id) noexcept nogil:
    """The slot where the queue is, or a free one where it belongs."""
    slot = slot_of(hash_bytes(data, start, length) * 31 + <u64>queue_id, t.slots_mask)
    while t.slots[slot] != 0:
        queue = <i64 *>t.queues[t.slots[slot] - 1]
        if queue[0] == queue_id and queue[2] == length and same_bytes(t.topics, queue[1], data, start, length):
            break
        slot = (slot + 1) & t.slots_mask
    return slot


cdef bint read_properties(
    Room text, i64 start, i64 length, i64 *refused, i64 refused_count, i64 *names, Row *columns, i64 n,
) noexcept nogil:
    """True if properties can be stored as they are, and are a half message's if column n is one; where the values of
    UNIQ_KEY and PGROUP are is in the column then, lengths of 0 when there are none.

    Each must be a name and a value, neither empty, no name twice, none among the `refused` (hashes), WAIT can only be
    true, and a half message has TRAN_MSG=true and PGROUP. `names` is room for hashes; equal hashes of different names
    only make a send one for the slow path.
    """
    cdef bint is_half = columns[KIND][n] == HALF, prepared = False
    columns[UNIQ_KEY_START][n] = columns[UNIQ_KEY_LENGTH][n] = 0
    columns[GROUP_START][n] = columns[GROUP_LENGTH][n] = 0
    position, end = start, start + length
    cdef i64 count = 0
    while position < end:
        separator = name_end(text, position, end)
        stop = value_end(text, separator, end)
        # A pair without a name, a \\1 or a value would be dropped by the slow path, which stores what it understood.
        if separator == position or separator + 1 >= stop or count == NAMES_MAX:
            return False
        name = <i64>hash_bytes(text, position, separator - position)
        for i in range(refused_count):
            if refused[i] == name:
                return False
        for i in range(count):
            if names[i] == name:
                return False
        names[count] = name
        count += 1
        name_length, value, value_length = separator - position, separator + 1, stop - separator - 1
        if equals(text, position, name_length, b"UNIQ_KEY"):
            columns[UNIQ_KEY_START][n] = value
            columns[UNIQ_KEY_LENGTH][n] = value_length
        elif equals(text, position, name_length, b"TRAN_MSG"):
            prepared = equals(text, value, value_length, b"true")
        elif equals(text, position, name_length, b"PGROUP"):
            columns[GROUP_START][n] = value
            columns[GROUP_LENGTH][n] = value_length
        elif equals(text, position, name_length, b"WAIT") and not equals(text, value, value_length, b"true"):
            return False
        position = stop + 1
    if prepared != is_half or (is_half and columns[GROUP_LENGTH][n] == 0):
        return False
    return is_key(text, columns[UNIQ_KEY_START][n], columns[UNIQ_KEY_LENGTH][n])


cdef i64 give_key(
    Room text, i64 at, i64 end, i64 start, i64 length, Row *columns, i64 n, i64 *left, Bytes keys,
) noexcept nogil:
    """Copies properties of the message in column n that have no UNIQ_KEY to text[at:end] and gives them the next of
    `keys`, as SendMessageProcessor does; where they end there, -1 when there is no key, or no room."""
    left[KEYS_WANTED] = 1
    if left[KEYS_LEFT] == 0 or end - at < length + 9 + NEW_KEY_SIZE + 2 + BLOCK:
        return -1
    left[KEYS_LEFT] -= 1
    copy(text, at, text, start, length)
    at += length
    if length > 0 and text[at - 1] != PROPERTY_SEPARATOR:
        text[at] = PROPERTY_SEPARATOR
        at += 1
    at = put_text(text, at, b"UNIQ_KEY\x01")
    columns[UNIQ_KEY_START][n] = at
    columns[UNIQ_KEY_LENGTH][n] = NEW_KEY_SIZE
    at = put(text, at, keys, NEW_KEY_SIZE * left[KEYS_LEFT], NEW_KEY_SIZE)
    text[at] = PROPERTY_SEPARATOR
    return at + 1


cdef bint is_key(Room text, i64 start, i64 length) noexcept nogil:
    """True if it may go into an answer as it is."""
    if length > UNIQ_KEY_LENGTH_MAX:
        return False
    done = 0
    while done < length:  # after a header's text there is room for a block
        if plain_length(text, start + done) < min(length - done, BLOCK):
            return False
        done += BLOCK
    return True


cdef (bint, i64) number(Room text, Pair *fields, i64 letter, i64 low, i64 high) noexcept nogil:
    """(whether the field is there, and a number in [low, high]; the number)."""
    if fields[letter][1] < 1:
        return False, 0
    return whole_number(text, fields[letter][0], fields[letter][1], low, high)


cdef bint is_truth(Room text, Pair *fields, i64 letter) noexcept nogil:
    """True if the field is absent, one of the two words, or 0, which C++ clients write for false."""
    start, length = fields[letter][0], fields[letter][1]
    return (
        length < 0
        or equals(text, start, length, b"false")
        or equals(text, start, length, b"true")
        or (length == 1 and text[start] == 48)
    )


cdef bint read_send(Room text, Pair *fields, bint is_batch, Row *columns, i64 n) noexcept nogil:
    """True if the fields are a SendMessageRequestHeaderV2 of a simple send, as far as numbers tell; they are in
    column n then, with the KIND that sysFlag says."""
    if fields[A][1] < 0 or fields[B][1] < 1 or fields[C][1] < 0:
        return False
    cdef bint batch = equals(text, fields[M][0], fields[M][1], b"true")
    if not is_truth(text, fields, K) or not is_truth(text, fields, M) or batch != is_batch:
        return False
    cdef bint is_right, is_good = True
    is_right, columns[QUEUE_ID][n] = number(text, fields, E, 0, INT32_MAX)
    is_good = is_good and is_right
    is_right, columns[SYS_FLAG][n] = number(text, fields, F, INT32_MIN, INT32_MAX)
    is_good = is_good and is_right
    is_right, columns[BORN_TIMESTAMP][n] = number(text, fields, G, -INT64_MAX, INT64_MAX)
    is_good = is_good and is_right
    is_right, columns[FLAG][n] = number(text, fields, H, INT32_MIN, INT32_MAX)
    is_good = is_good and is_right
    is_right, columns[RECONSUME_TIMES][n] = number(text, fields, J, INT32_MIN, INT32_MAX)
    is_good = is_good and (is_right or fields[J][1] < 0)
    transaction = columns[SYS_FLAG][n] & TRANSACTION_BITS
    columns[KIND][n] = HALF if transaction == TRANSACTION_PREPARED else SEND
    return (
        is_good
        and columns[SYS_FLAG][n] & ~<i64>FAST_SEND_FLAGS == 0
        and (transaction == 0 or (transaction == TRANSACTION_PREPARED and not is_batch))
        and number(text, fields, D, INT32_MIN, INT32_MAX)[0]
        and (fields[L][1] < 0 or number(text, fields, L, INT32_MIN, INT32_MAX)[0])
    )


cdef bint read_usual(Room text, Pair *fields, i64 *head, i64 kept, i64 varying, Row *columns, i64 n) noexcept nogil:
    """As `read_send` and `read_properties`, of a send whose shape was that of a usual one."""
    columns[KIND][n] = SEND
    columns[SYS_FLAG][n] = head[kept + KEPT_SYS_FLAG]
    columns[FLAG][n] = head[kept + KEPT_FLAG]
    columns[RECONSUME_TIMES][n] = head[kept + KEPT_TIMES]
    cdef bint has_queue = True, has_time = True
    queue_id, time = head[kept + KEPT_QUEUE_ID], head[kept + KEPT_TIME]
    if varying & (1 << E):
        has_queue, queue_id = number(text, fields, E, 0, INT32_MAX)
    if varying & (1 << G):
        has_time, time = number(text, fields, G, -INT64_MAX, INT64_MAX)
    columns[QUEUE_ID][n] = queue_id
    columns[BORN_TIMESTAMP][n] = time
    start, length = head[frames.HEAD_UNIQ_KEY], head[frames.HEAD_UNIQ_KEY_LENGTH]
    columns[UNIQ_KEY_START][n] = start
    columns[UNIQ_KEY_LENGTH][n] = length
    return has_queue and has_time and is_key(text, start, length)


cdef void keep(i64 *head, Row *columns, i64 n) noexcept nogil:
    """Keeps what is to be known of the next send of the same shape as the one in column n, which is usual."""
    shape = head[frames.HEAD_SHAPE]
    if shape and head[shape + frames.SHAPE_VARYING] & ~MAY_VARY == 0:
        kept = shape + frames.SHAPE_KEPT
        head[kept + KEPT_IS_USUAL] = 1
        head[kept + KEPT_SYS_FLAG] = columns[SYS_FLAG][n]
        head[kept + KEPT_FLAG] = columns[FLAG][n]
        head[kept + KEPT_TIMES] = columns[RECONSUME_TIMES][n]
        head[kept + KEPT_QUEUE_ID] = columns[QUEUE_ID][n]
        head[kept + KEPT_TIME] = columns[BORN_TIMESTAMP][n]


cdef bint is_send(i64 *head) noexcept nogil:
    """Whether the command is one of the sends, with the names that it has."""
    code = head[frames.HEAD_CODE]
    return (
        code in (SEND_MESSAGE_V2, SEND_MESSAGE, SEND_BATCH_MESSAGE)
        and head[frames.HEAD_NAMES] == (frames.LONG if code == SEND_MESSAGE else frames.SHORT)
        and (head[frames.HEAD_FLAG] == 0 or head[frames.HEAD_FLAG] == ONEWAY_FLAG)
        and head[frames.HEAD_OPAQUE] >= 0
    )


cdef bint read_message(Row *columns, i64 n, i64 own_length, i64 shared_length, i64 record_max) noexcept nogil:
    """True if the record of the message in column n, of whose properties the lengths are given, is as large as records
    may be; its SIZE is in the column then."""
    properties_length = own_length + shared_length
    size = RECORD_SIZE_MIN + columns[BODY_LENGTH][n] + columns[TOPIC_LENGTH][n] + properties_length
    columns[SIZE][n] = size
    return properties_length <= PROPERTIES_LENGTH_MAX and size <= record_max


cdef inline bint is_text(Bytes data, i64 start, i64 length, Text *text) noexcept nogil:
    return length == text.size and same_bytes(data, start, text.at, 0, length)


cdef bint is_refused(Bytes data, i64 start, i64 end) noexcept nogil:
    """True if properties of a batch's message name light queues or a lite topic, which SendMessageProcessor refuses."""
    position = start
    while position < end:
        separator = name_end(data, position, end)
        length = separator - position
        for i in range(REFUSED_IN_BATCHES_COUNT):
            if is_text(data, position, length, &REFUSED_IN_BATCHES[i]):
                return True
        position = value_end(data, separator, end) + 1
    return False


cdef i64 read_batch(
    Bytes data, i64 position, i64 end, i64 shared_length, i64 record_max, Row *columns, i64 first,
) noexcept nogil:
    """How many messages data[position:end] encodes (see formats.batch), each in a column from `first` on; 0 when it is
    no batch, or of none, or one is not simple; -1 when there are more than columns."""
    n = first
    topic_length = columns[TOPIC_LENGTH][first]
    while position < end:
        size, body_length, own_length = read_item(data, position, end)
        if size == 0:
            return 0
        own_start = position + size - own_length
        if n == SENDS_MAX:
            return -1
        if own_length > 0 and is_refused(data, own_start, own_start + own_length):
            return 0
        columns[MESSAGES][n] = 0
        columns[KIND][n] = SEND
        columns[TOPIC_LENGTH][n] = topic_length
        columns[FLAG][n] = load32(data, position + 12)
        columns[BODY_START][n] = position + ITEM_SIZE_MIN - 2
        columns[BODY_LENGTH][n] = body_length
        columns[OWN_START][n] = own_start
        columns[OWN_LENGTH][n] = own_length
        if not read_message(columns, n, ended_length(data, own_start, own_length), shared_length, record_max):
            return 0
        position += size
        n += 1
    return n - first


cdef i64 digits_of(i64 value) noexcept nogil:
    """How many digits a number has that is not negative."""
    cdef i64 digits = 1
    while value > 9:
        value //= 10
        digits += 1
    return digits


cdef bint read_commit(
    Room text, Pair *fields, i64 *head, i64 stop, Row *columns, i64 n, Tables *t, i64 record_max,
) noexcept nogil:
    """True if the fields are an EndTransactionRequestHeader that commits a half message of `halves`; the message to
    store is in column n then, as far as it is known."""
    if (
        head[frames.HEAD_NAMES] != frames.LONG
        or (head[frames.HEAD_FLAG] != 0 and head[frames.HEAD_FLAG] != ONEWAY_FLAG)
        or head[frames.HEAD_OPAQUE] < 0
        or head[frames.HEAD_BODY_START] != stop
        or fields[A][1] < 1
        or fields[MSG_ID][1] < 0
        or t.halves_count == 0
    ):
        return False
    has_offset, table_offset = number(text, fields, TABLE_OFFSET, 0, INT64_MAX)
    has_place, log_offset = number(text, fields, LOG_OFFSET, 0, INT64_MAX)
    has_state, state = number(text, fields, COMMIT_OR_ROLLBACK, 0, INT32_MAX)
    if not has_offset or not has_place or not has_state or state != TRANSACTION_COMMIT:
        return False
    queues, halves = t.queues, t.halves
    half = table_offset & (t.halves_count - 1)
    if (
        halves[half][OF_SIZE] == 0
        or halves[half][OF_QUEUE_OFFSET] != table_offset
        or halves[half][OF_PHYSICAL_OFFSET] != log_offset
        or halves[half][OF_GROUP_LENGTH] != fields[A][1]
    ):
        return False
    queue = halves[half][OF_QUEUE]
    topic_length = queues[queue][2]
    size = halves[half][OF_SIZE] - queues[HALF_QUEUE][2] + topic_length
    if size > record_max:
        return False
    columns[KIND][n] = COMMIT
    columns[REAL_QUEUE][n] = queue
    columns[HALF_QUEUE_OFFSET][n] = table_offset
    columns[HALF_PHYSICAL_OFFSET][n] = log_offset
    columns[HALF_SIZE][n] = halves[half][OF_SIZE]
    columns[BODY_LENGTH][n] = halves[half][OF_BODY_LENGTH]
    columns[BORN_TIMESTAMP][n] = halves[half][OF_BORN_TIMESTAMP]
    columns[GROUP_START][n] = fields[A][0]
    columns[GROUP_LENGTH][n] = fields[A][1]
    columns[BODY_START][n] = halves[half][OF_GROUP_AT]
    columns[QUEUE_ID][n] = queues[queue][0]
    columns[TOPIC_LENGTH][n] = topic_length
    columns[SIZE][n] = size
    columns[SHARED_LENGTH][n] = columns[UNIQ_KEY_START][n] = columns[UNIQ_KEY_LENGTH][n] = 0
    return True


cdef i64 read_sends(Tables *t, Bytes data, i64 *start, i64 end, i64 host, i64 record_max, SoFar *so_far) noexcept nogil:
    """Reads simple sends and commits of the client at `host` from data[start:end], after those that are in the columns
    already, which `so_far` says; why it stopped. `start` is where the next frame begins then.

    TOUCHED gets the numbers of the queues; PLACE says for each send where in TOUCHED its queue is. UNKNOWN_QUEUE: the
    column after the last message says which: TOPIC_START, TOPIC_LENGTH (in TEXT) and QUEUE_ID. UNKNOWN_SIGNER: the next
    frame is not signed by one of the SIGNERS; TOPIC_START and TOPIC_LENGTH say where the name is. UNDECIDED: its signer
    is not among the ALLOWED for the queue.
    """
    columns, queues, fields, halves = t.columns, t.queues, t.fields, t.halves
    head, text, access = t.head, t.text, t.access
    cdef i64 signer = 0, queue, count, place_of_queue, shared_start, own_length, name_at, name_length, text_end, stop
    cdef bint is_usual, is_batch, is_half
    head[frames.HEAD_PAIR] = (host ^ host >> 4) & (frames.PAIRS - 1)
    while so_far.messages < SENDS_MAX:
        position, n, at = start[0], so_far.messages, so_far.text_end
        stop, text_end = read_frame(data, position, end, head, fields, text, t.text_size, at, t.shapes)
        if stop <= 0:
            return NEED_MORE if stop == 0 else SLOW_PATH
        shape = head[frames.HEAD_SHAPE]
        is_usual = shape > 0 and head[shape + frames.SHAPE_KEPT + KEPT_IS_USUAL] != 0
        if access[CHECKED] or not is_usual:
            place_fields(head, fields, at)
        if access[CHECKED]:
            if t.text_size - text_end < text_end - at + NEW_ROOM:
                return FULL if n > 0 else SLOW_PATH
            name_at, name_length = fields[frames.ACCESS_KEY][0], fields[frames.ACCESS_KEY][1]
            signer = -1
            if name_length > 0 and not access[STALE]:
                signer = find_signer(text, name_at, name_length, t.signers, t.signer_slots, t.signer_names)
            access[SIGNER_FOUND] = signer
            if signer < 0 or not is_signed(
                text, text_end, data, head[frames.HEAD_BODY_START], stop, head, fields, t.signers, signer, access
            ):
                columns[TOPIC_START][n] = name_at
                columns[TOPIC_LENGTH][n] = name_length
                return UNKNOWN_SIGNER
        if head[frames.HEAD_CODE] == END_TRANSACTION:
            if not read_commit(text, fields, head, stop, columns, n, t, record_max):
                return SLOW_PATH
            queue, count = columns[REAL_QUEUE][n], 1
        else:
            if not is_send(head):
                return SLOW_PATH
            is_batch, is_half = head[frames.HEAD_CODE] == SEND_BATCH_MESSAGE, False
            queue, place_of_queue = -1, 0
            shared_start, own_length = fields[I][0], max(<i64>0, fields[I][1])
            if is_usual and not is_batch:
                kept, varying = shape + frames.SHAPE_KEPT, head[shape + frames.SHAPE_VARYING]
                if not read_usual(text, fields, head, kept, varying, columns, n):
                    return SLOW_PATH
                if not varying & (1 << B):
                    queue_id = columns[QUEUE_ID][n]
                    place_of_queue = kept + KEPT_QUEUES + (queue_id & (KEPT_QUEUES_MAX - 1))
                    queue = head[place_of_queue] - 1
                    if queue >= 0 and queues[queue][0] != queue_id:
                        queue = -1
            else:
                if not read_send(text, fields, is_batch, columns, n):
                    return SLOW_PATH
                is_half = columns[KIND][n] == HALF
                if is_half and t.halves_count == 0:
                    return SLOW_PATH
                if not read_properties(
                    text, shared_start, own_length, t.refused_halves if is_half else t.refused,
                    t.refused_halves_count if is_half else t.refused_count, t.names, columns, n,
                ) or (columns[UNIQ_KEY_LENGTH][n] == 0 and is_half):
                    return SLOW_PATH
                if columns[UNIQ_KEY_LENGTH][n] == 0 and not is_batch:
                    given = text_end
                    text_end = give_key(
                        text, given, t.text_size, shared_start, own_length, columns, n, t.new_keys, t.keys
                    )
                    if text_end < 0:
                        return SLOW_PATH
                    shared_start, own_length = given, text_end - given
                if not is_half and not is_batch:
                    keep(head, columns, n)
            if queue < 0:
                place_fields(head, fields, at)
                columns[TOPIC_START][n] = fields[B][0]
                columns[TOPIC_LENGTH][n] = fields[B][1]
                queue = t.slots[queue_slot(t, text, fields[B][0], fields[B][1], columns[QUEUE_ID][n])] - 1
                if queue < 0:
                    return UNKNOWN_QUEUE
                if place_of_queue > 0:
                    head[place_of_queue] = queue + 1
            topic_length = queues[queue][2]
            columns[TOPIC_LENGTH][n] = topic_length
            columns[REAL_QUEUE][n] = queue
            columns[SHARED_START][n] = shared_start
            columns[SHARED_LENGTH][n] = own_length
            shared_length = ended_length(text, shared_start, own_length) + t.extra_size
            if is_half:
                shared_length += HALF_NAMES_LENGTH + columns[UNIQ_KEY_LENGTH][n]
                shared_length += topic_length + digits_of(columns[QUEUE_ID][n])
                queue = HALF_QUEUE
                columns[TOPIC_LENGTH][n] = queues[HALF_QUEUE][2]
            body_start = head[frames.HEAD_BODY_START]
            if is_batch:
                count = 0
                if stop - body_start <= record_max:
                    count = read_batch(data, body_start, stop, shared_length, record_max, columns, n)
                if count < 0 and n > 0:
                    return FULL
                if count <= 0:
                    return SLOW_PATH
            else:
                count = 1
                columns[BODY_START][n] = body_start
                columns[BODY_LENGTH][n] = stop - body_start
                columns[OWN_START][n] = stop
                columns[OWN_LENGTH][n] = 0
                if not read_message(columns, n, 0, shared_length, record_max):
                    return SLOW_PATH
        if access[CHECKED]:
            allowed = permit(host, signer, columns[REAL_QUEUE][n])
            if t.allowed[permit_slot(t.allowed, allowed)] != allowed:
                return UNDECIDED
            born = columns[BORN_TIMESTAMP][n]
            if access[NEWEST] and columns[KIND][n] != COMMIT and (born < access[OLDEST] or born > access[NEWEST]):
                return SLOW_PATH
        if columns[KIND][n] == COMMIT:  # who says it again is answered by EndTransactionProcessor, which knows
            halves[columns[HALF_QUEUE_OFFSET][n] & (t.halves_count - 1)][OF_SIZE] = 0
        frame_size = <i64>0
        for i in range(n, n + count):
            frame_size += columns[SIZE][i]
        place = queues[queue][LAST_PLACE]
        if place >= so_far.places or columns[TOUCHED][place] != queue:
            place = queues[queue][LAST_PLACE] = so_far.places
            columns[TOUCHED][place] = queue
            columns[QUEUE_MESSAGES][place] = columns[QUEUE_BYTES][place] = columns[QUEUE_PUTS][place] = 0
            so_far.places += 1
        columns[QUEUE][n] = queue
        columns[PLACE][n] = place
        columns[FRAME_START][n] = position
        columns[FRAME_SIZE][n] = frame_size
        columns[MESSAGES][n] = count
        columns[BORN_HOST][n] = host
        columns[CODE][n] = head[frames.HEAD_CODE]
        columns[OPAQUE][n] = head[frames.HEAD_OPAQUE]
        columns[ONEWAY][n] = head[frames.HEAD_FLAG]
        if columns[KIND][n] != SEND:
            so_far.transactional += 1
        start[0], so_far.text_end = stop, text_end
        so_far.messages += count
    return FULL


cdef i64 put_ids(Room out, i64 at, Row *columns, i64 n) noexcept nogil:
    """Ends the first id of the messages of the send in column n, of which the host is there, and writes the others."""
    host = at - MSG_ID_HOST
    at = write_hex(out, at, columns[PHYSICAL_OFFSET][n])
    for i in range(n + 1, n + columns[MESSAGES][n]):
        out[at] = 44
        at = put(out, at + 1, out, host, MSG_ID_HOST)
        at = write_hex(out, at, columns[PHYSICAL_OFFSET][i])
    return at


cdef i64 put_key(Room out, i64 at, Row *columns, i64 n, Room text) noexcept nogil:
    length = columns[UNIQ_KEY_LENGTH][n]
    if length == 0:
        return at
    at = put_text(out, at, b',"transactionId":"')
    at = put_blocks(out, at, text, columns[UNIQ_KEY_START][n], length)
    out[at] = 34
    return at + 1


cdef i64 write_answer(
    Room out, i64 at, Bytes parts, i64 end, i64 *holes, i64 count, Row *columns, i64 n, Room text,
) noexcept nogil:
    """Writes the answer to the send in column n; its end. It is parts[:end] with `count` holes: where, counted from its
    beginning, and what goes there."""
    start = at
    cdef i64 taken = 0, stop, hole
    for i in range(count):
        stop, hole = holes[2 * i], holes[2 * i + 1]
        at = put_blocks(out, at, parts, taken, stop - taken)
        if hole == HOLE_MSG_ID:
            at = put_ids(out, at, columns, n)
        elif hole == HOLE_UNIQ_KEY:
            at = put_key(out, at, columns, n, text)
        else:
            at = write_number(out, at, columns[hole][n])
        taken = stop
    at = put_blocks(out, at, parts, taken, end - taken)
    finish_frame(out, start, at, frames.JSON)
    return at


cdef i64 write_answers(Tables *t, i64 count) noexcept nogil:
    """Writes the answers to the sends of the first `count` messages that want one; bytes."""
    columns, out = t.columns, t.answers
    cdef i64 at = 0, n = 0
    while n < count:
        if columns[ONEWAY][n] != 0:
            pass
        elif columns[KIND][n] == COMMIT:
            at = write_answer(
                out, at, t.end_answer, t.end_answer_size, t.end_holes, t.end_holes_count, columns, n, t.text
            )
        else:
            at = write_answer(out, at, t.answer, t.answer_size, t.holes, t.holes_count, columns, n, t.text)
        columns[ANSWER_END][n] = at
        n += columns[MESSAGES][n]
    return at


cdef void size_records(Row *columns, Room log, i64 position, i64 count) noexcept nogil:
    """Writes the TOTALSIZE of the records at log[position:] that `write_sends` has made of `count` messages, but for
    the first one's: who writes that makes all of them visible."""
    for n in range(1, count):
        position += columns[SIZE][n - 1]
        publish(log, position, columns[SIZE][n])


cdef void fill_record(Tables *t, Record *record, Room born_host, i64 n) noexcept nogil:
    """What the records of the send in column n share; room for the bytes of its client's host."""
    columns = t.columns
    store64(born_host, 0, columns[BORN_HOST][n])
    record.sys_flag, record.born_timestamp = columns[SYS_FLAG][n] & ~TRANSACTION_BITS, columns[BORN_TIMESTAMP][n]
    record.born_host, record.store_host = born_host, t.template + STORE_HOST_POSITION_V4
    record.reconsume_times, record.prepared_offset = columns[RECONSUME_TIMES][n], 0


cdef void fill_commit(Record *record, Bytes half, i64 physical_offset) noexcept nogil:
    """The same of the commit of the half message whose record is there."""
    record.flag, record.sys_flag = load32(half, FLAG_POSITION), load32(half, SYS_FLAG_POSITION) | TRANSACTION_COMMIT
    record.born_timestamp, record.born_host = load64(half, BORN_TIMESTAMP_POSITION), half + BORN_HOST_POSITION
    record.store_host = half + STORE_HOST_POSITION_V4
    record.reconsume_times, record.prepared_offset = load32(half, RECONSUME_TIMES_POSITION_V4), physical_offset
    record.body, record.body_crc = half + HEAD_SIZE, load32(half, BODY_CRC_POSITION)


cdef Written write_sends(
    Tables *t, Room log, i64 log_size, i64 position, i64 base_offset, Bytes data, i64 count, i64 store_timestamp,
) noexcept nogil:
    """Writes records of the first `count` messages to log[position:], as many whole sends as fit, and the answers to
    those that want one. A commit whose half message is not in the log before them is where it stops, too.

    Of each queue touched NEXT_OFFSET is its next queue offset, counted up here like its QUEUE_MESSAGES, QUEUE_BYTES and
    QUEUE_PUTS. The records lack their TOTALSIZE: a process that is killed before they have it leaves none that seems to
    be whole, whatever another thread has written after them.
    """
    columns, text = t.columns, t.text
    start = position
    cdef i64 first = 0, half_at, at
    cdef i64 *queue
    cdef u8 born_host[HOST_LENGTH_V4]
    cdef Record record
    cdef Written written
    record.magic, record.store_timestamp = MESSAGE_MAGIC_CODE, store_timestamp
    record.born_host_length = record.store_host_length = HOST_LENGTH_V4
    while first < count and position + columns[FRAME_SIZE][first] + END_FILE_MIN_BLANK_LENGTH <= log_size:
        queue, place, kind = <i64 *>t.queues[columns[QUEUE][first]], columns[PLACE][first], columns[KIND][first]
        topic_length = queue[2]
        following = first + columns[MESSAGES][first]
        columns[QUEUE_OFFSET][first] = columns[NEXT_OFFSET][place]
        record.queue_id = 0 if kind == HALF else columns[QUEUE_ID][first]
        record.topic, record.topic_length = t.topics + queue[1] - 1, topic_length + 1
        half_at = 0
        if kind == COMMIT:
            half_at = columns[HALF_PHYSICAL_OFFSET][first] - base_offset
            if half_at < 0 or not is_half_of(log, half_at, start, columns, first, text):
                break
            fill_commit(&record, log + half_at, columns[HALF_PHYSICAL_OFFSET][first])
        else:
            fill_record(t, &record, born_host, first)
        for n in range(first, following):
            size = columns[SIZE][n]
            record.body_length = columns[BODY_LENGTH][n]
            record.properties_length = size - RECORD_SIZE_MIN - record.body_length - topic_length
            if kind != COMMIT:
                record.flag, record.body = columns[FLAG][n], data + columns[BODY_START][n]
                record.body_crc = crc32(record.body, 0, record.body_length)
            at = write_record(log, position, &record, columns[NEXT_OFFSET][place], base_offset + position)
            if kind == COMMIT:  # the half message's
                copy(log, at, log, half_at + columns[HALF_SIZE][n] - record.properties_length, record.properties_length)
            else:
                at = put_ended(log, at, data, columns[OWN_START][n], columns[OWN_LENGTH][n])
                at = put_ended(log, at, text, columns[SHARED_START][first], columns[SHARED_LENGTH][first])
                at = put(log, at, t.extra, 0, t.extra_size)
            columns[PHYSICAL_OFFSET][n] = base_offset + position
            if kind == HALF:
                put_half(t, log, at, n)
            columns[NEXT_OFFSET][place] += 1
            position += size
        columns[QUEUE_MESSAGES][place] += following - first
        columns[QUEUE_BYTES][place] += columns[FRAME_SIZE][first]
        columns[QUEUE_PUTS][place] += 1
        first = following
    if first > 0:
        terminate(log, position)
    written.messages, written.size, written.answers_size = first, position - start, write_answers(t, first)
    return written


cdef bint is_half_of(Room log, i64 position, i64 end, Row *columns, i64 n, Room text) noexcept nogil:
    """True if the record at `position` is the half message of the commit in column n, and its producers' group the one
    that commits."""
    size = columns[HALF_SIZE][n]
    if (
        position + size > end
        or load32(log, position) != size
        or load64(log, position + 20) != columns[HALF_QUEUE_OFFSET][n]
        or load64(log, position + 28) != columns[HALF_PHYSICAL_OFFSET][n]
    ):
        return False
    group, start = position + columns[BODY_START][n], columns[GROUP_START][n]
    return same_bytes(log, group, text, start, columns[GROUP_LENGTH][n])


cdef void put_half(Tables *t, Room log, i64 at, i64 n) noexcept nogil:
    """Ends the half message in column n with the properties that say where it belongs, and remembers it."""
    columns, text = t.columns, t.text
    queue = columns[REAL_QUEUE][n]
    cdef i64 *half = t.halves[columns[QUEUE_OFFSET][n] & (t.halves_count - 1)]
    at = put(log, at, HALF_ID.at, 0, HALF_ID.size)
    at = put(log, at, text, columns[UNIQ_KEY_START][n], columns[UNIQ_KEY_LENGTH][n])
    at = put(log, at, HALF_REAL_TOPIC.at, 0, HALF_REAL_TOPIC.size)
    at = put(log, at, t.topics, t.queues[queue][1], t.queues[queue][2])
    at = put(log, at, HALF_REAL_QUEUE.at, 0, HALF_REAL_QUEUE.size)
    rest, last = columns[QUEUE_ID][n], at + digits_of(columns[QUEUE_ID][n])
    for i in range(last - 1, at - 1, -1):  # write_number would write on
        log[i] = <u8>(48 + rest % 10)
        rest //= 10
    log[last] = PROPERTY_SEPARATOR
    half[OF_PHYSICAL_OFFSET] = columns[PHYSICAL_OFFSET][n]
    half[OF_QUEUE_OFFSET] = columns[QUEUE_OFFSET][n]
    half[OF_SIZE] = columns[SIZE][n]
    half[OF_BODY_LENGTH] = columns[BODY_LENGTH][n]
    half[OF_BORN_TIMESTAMP] = columns[BORN_TIMESTAMP][n]
    half[OF_QUEUE] = queue
    properties = HEAD_SIZE + columns[BODY_LENGTH][n] + 1 + columns[TOPIC_LENGTH][n] + 2
    half[OF_GROUP_AT] = properties + columns[GROUP_START][n] - columns[SHARED_START][n]
    half[OF_GROUP_LENGTH] = columns[GROUP_LENGTH][n]
