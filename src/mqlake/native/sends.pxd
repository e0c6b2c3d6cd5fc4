"""What other modules of native code use of sends.pyx."""

from mqlake.native.frames cimport Pair
from mqlake.native.prim cimport *
from mqlake.native.send_layout cimport OF_COLUMNS, QUEUE_SIZE, SENDS_MAX

ctypedef i64 Row[SENDS_MAX]
ctypedef i64 Queue[QUEUE_SIZE]
ctypedef i64 Half[OF_COLUMNS]

cdef struct Tables:
    # the parts of the arrays of send_layout
    Row *columns
    Queue *queues
    i64 *slots
    i64 slots_mask
    i64 *refused
    i64 refused_count
    i64 *refused_halves
    i64 refused_halves_count
    Half *halves
    i64 halves_count
    i64 *names
    i64 *head
    Pair *fields
    i64 *holes
    i64 holes_count
    i64 *end_holes
    i64 end_holes_count
    i64 *access
    i64 *signers
    i64 *signer_slots
    i64 *allowed
    i64 *new_keys
    Room text
    i64 text_size
    Bytes topics
    i64 topics_size
    Bytes template
    Bytes extra
    i64 extra_size
    Bytes answer
    i64 answer_size
    Bytes end_answer
    i64 end_answer_size
    Room answers
    Bytes signer_names
    Room shapes
    Bytes keys

cdef struct SoFar:
    # how many messages are in the columns, where their texts end, to how many queues they go, how many of them are half
    # messages or commits
    i64 messages
    i64 text_end
    i64 places
    i64 transactional

cdef struct Written:
    # how many messages, bytes of their records, bytes of the answers
    i64 messages
    i64 size
    i64 answers_size

cdef Tables tables_of(i64 *numbers, Room octets) noexcept nogil
cdef i64 queue_slot(Tables *t, Bytes data, i64 start, i64 length, i64 queue_id) noexcept nogil
cdef i64 read_sends(
    Tables *t, Bytes data, i64 *start, i64 end, i64 host, i64 record_max, SoFar *so_far,
) noexcept nogil
cdef void size_records(Row *columns, Room log, i64 position, i64 count) noexcept nogil
cdef Written write_sends(
    Tables *t, Room log, i64 log_size, i64 position, i64 base_offset, Bytes data, i64 count, i64 store_timestamp,
) noexcept nogil
