"""The two arrays that fast_loop shares with its kernels, one of numbers (int64) and one of bytes.

numbers  │ ROWS of this round │ free slots │ a row for each descriptor │ LEASE │
octets   │ what epoll says │ PARTS: half frames │ RECEIVED: what this round's reads brought │
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
    POSITION,
    BASE,
    KNOWN,
    LASTS_NS,
    LINGERS,
    OTHERS,
    STORED,
    ROUNDS,
    FIRST_SIZE,
    SECONDS,
    NANOSECONDS,
    POLLED,
) = range(12)
"""Of a lease (see `serve` in kernels.loop). Given: where in the log's file the next record goes, the physical offset of
that file, how many queues are known, how long it lasts, whether it waits for more, and the descriptor of who else is to
be served (-1: nobody). Taken: POSITION after the last record, how many messages were stored in how many rounds, and the
size of the first record. The others are room for what the system is asked: a timespec, and two pollfds."""
LEASE_AT = PEERS_AT + FDS_MAX * PEER_SIZE
LATENCIES_AT = LEASE_AT + POLLED + 2
"""A row for each of CODES, by one (see LATENCY_SIZE) each for answered and one-way: of the sends of this lease how many
there were and how long they took together, in ns; and the same of those that took so long that the lease ended."""
CODES = 3
"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE."""
LATENCY_SIZE = 4
SLOW_NS = 2_000_000
NUMBERS_SIZE = LATENCIES_AT + CODES * 2 * LATENCY_SIZE

EVENTS_AT = 0
PARTS_AT = 4096
RECEIVED_AT = PARTS_AT + SLOTS_MAX * SLOT_SIZE
OCTETS_SIZE = RECEIVED_AT + RECEIVED_SIZE
