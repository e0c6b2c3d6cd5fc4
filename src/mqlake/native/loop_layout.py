"""The two arrays that a share of the fast loop has in common with its kernels, one of numbers (int64) and one of bytes,
and the numbers that the threads of a lease have in common.

numbers  │ ROWS of this round │ free slots │ a row for each descriptor │ LEASE │ LATENCIES │ PLACES │
octets   │ what epoll says │ PARTS: half frames │ RECEIVED: what this round's reads brought │
common   │ a lock │ where the next record goes │ QUEUES: what the lease stores in each │
"""

from __future__ import annotations

import platform

EVENTS_MAX = 128
"""Connections that one round serves at most."""
EVENT_SIZE, EVENT_DATA = (12, 4) if platform.machine() == "x86_64" else (16, 8)
"""Of an epoll_event, which has no gap between its two fields on x86-64."""

FD, FIRST, END, START, STOP, WHAT, UNSENT_START, UNSENT_STOP = range(8)
"""Of a row, one for each connection of a round that was ready: its descriptor, its columns (see send_layout), its
bytes in RECEIVED that are not in columns, what is to be done, and what of ANSWERS could not be sent to it."""
ROW_SIZE = 8
DONE, READ, HANDLE = range(3)
"""WHAT Python is to do: nothing; to read the connection (its peer is gone, or compiled code does not read it); to
handle the bytes from START to STOP, of which the first frame is for the slow path."""

MODE, HOST, SLOT, HELD, HEARD = range(5)
"""Of a descriptor: whether compiled code reads it, its peer's address, which slot of PARTS holds its half frame (0:
none, else its number + 1) and how many bytes of one, and whether bytes came."""
PEER_SIZE = 5
FDS_MAX = 1 << 15
"""A connection with a higher descriptor stays on the slow path."""
BY_PYTHON, BY_KERNEL = range(2)

SLOTS_MAX = 64
SLOT_SIZE = 64 * 1024
"""A longer half frame is held by its Connection, and so are more of them than slots."""
READ_MAX = 64 * 1024
"""Bytes of one read."""
RECEIVED_SIZE = 1 << 20

ROWS_AT = 0
FREE_AT = ROWS_AT + EVENTS_MAX * ROW_SIZE
"""How many slots are free, and their numbers."""
PEERS_AT = FREE_AT + 1 + SLOTS_MAX

(
    KNOWN,
    ENDS_NS,
    LINGERS_NS,
    OTHERS,
    STOP_FD,
    ROUNDS,
    LONGEST_NS,
    CARRIES,
    CARRIED_ROW,
    CARRIED_START,
    CARRIED_STOP,
    SECONDS,
    NANOSECONDS,
    POLLED,
) = range(14)
"""Of a thread's part in a lease. Given: how many queues are known, when it ends, how long it waits for more, the
descriptor of who else is to be served, and the eventfd that ends the lease of all its threads (-1: nobody, none).
Taken: how many rounds there were (-1: it has not begun), and how long the longest took that stored messages. While it
lasts: what of a read did not fit into the columns, for the next round: its row, and its bytes in RECEIVED
(CARRIED_STOP 0: nothing). The others are room for what the system is asked: a timespec, and three pollfds."""
ONLY_CARRIED = 2
"""Of CARRIES: the last round, which reads nothing new."""
LEASE_AT = PEERS_AT + FDS_MAX * PEER_SIZE
LATENCIES_AT = LEASE_AT + POLLED + 3
"""A row for each of CODES, by one each for answered and one-way: of the sends of this lease, by how long they took (see
LATENCY_BOUNDS_MS), how many there were and how long they took together, in ns."""
CODES = 3
"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE."""
LATENCY_BOUNDS_MS = 2, 4, 6, 8, 11, 101, 1001, 2001, 3001
"""Those of the histogram of latencies, which takes whole milliseconds (see RpcLatencies)."""
LATENCY_SIZE = 2 * (len(LATENCY_BOUNDS_MS) + 1)
PLACES_AT = LATENCIES_AT + CODES * 2 * LATENCY_SIZE
"""Of each known queue its column in QUEUES."""
QUEUES_KNOWN_MAX = 128
"""Queues of which the next offsets are looked up for each lease; with one more, all are forgotten."""
NUMBERS_SIZE = PLACES_AT + QUEUES_KNOWN_MAX

LOCK_SIZE = 8
POSITION, PUBLISHED, BASE, THREADS, AWAKE, STORED, FIRST_SIZE, STOPS, FAILED = range(LOCK_SIZE, LOCK_SIZE + 9)
"""Of the numbers that the threads of a lease have in common, after a pthread_mutex_t (zeros: free). Given: where in the
log's file the next record goes, up to where there are records, the physical offset of that file, and how many threads
there are (also AWAKE). Taken: POSITION after the last record, how many messages were stored, the size of the first
record, and whether a thread, or somebody else, has ended the lease. While it lasts: POSITION is where nobody has been
given room yet, PUBLISHED where the first record begins that is not visible, AWAKE how many threads do not wait for
more. FAILED: a thread has left compiled code by an exception, and what it was given room for may never be visible."""
OFFSET, COUNT, BYTES, PUTS = range(4)
"""Rows of QUEUES, with a column for each queue that a thread knows: its next offset, and what the lease has stored in
it (see QUEUE_MESSAGES in send_layout)."""
QUEUES_AT = LOCK_SIZE + 9


def common_size(threads: int) -> int:
    return QUEUES_AT + 4 * QUEUES_KNOWN_MAX * threads


RESULT = 0
(
    WAKE_FD,
    DONE_FD,
    WOKEN,
    OVER,
    EPOLL_FD,
    RECORD_MAX,
    LOG_AT,
    LOG_SIZE,
    SEND_NUMBERS_AT,
    SEND_NUMBERS_SIZE,
    SEND_OCTETS_AT,
    SEND_OCTETS_SIZE,
) = range(6, 18)
"""Of the desk of a thread that helps: what `serve` returned, the eventfds that wake it and that it answers with, room
for what these count, and whether it is to end; then what to serve with, arrays by address and size."""
DESK_SIZE = 18

EVENTS_AT = 0
PARTS_AT = 4096
RECEIVED_AT = PARTS_AT + SLOTS_MAX * SLOT_SIZE
OCTETS_SIZE = RECEIVED_AT + RECEIVED_SIZE
