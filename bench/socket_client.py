# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""A load client that costs next to nothing: one thread of compiled code, an epoll, many connections.

    connection ─▶ `in_flight` requests ─▶ the next request for each answer, until all of its share are answered

    frames     │ request 0 │ request 1 │ …     sent again from the first one when they are used up
    starts     where each begins, and where the last one ends

An answer is looked at no closer than for its code, which is how mqlake, RocketMQ and the empty loop all begin theirs;
its body is counted and thrown away.
"""

from __future__ import annotations

import platform

import numpy as np
from numba import njit, types

_epoll_wait = types.ExternalFunction(
    "epoll_wait", types.int32(types.int32, types.uintp, types.int32, types.int32)
)
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))

MSG_DONTWAIT, MSG_NOSIGNAL = 0x40, 0x4000  # Linux
EVENT_SIZE, EVENT_DATA = (12, 4) if platform.machine() == "x86_64" else (16, 8)
"""Of an epoll_event, which has no gap between its two fields on x86-64."""
EVENTS_MAX = 256
PATIENCE_MS = 60_000
RECEIVE_SIZE = 1 << 20

DONE = b'{"code":0,'
"""How the header of an answer begins."""
BEGINNING = 8 + len(DONE)
"""Of a frame: what is needed at once."""

SENT, SHARE, ANSWERED, LEFT, KEPT = range(5)
"""Of a connection: its next request, the end of its share of them, how many are answered, how many bytes of an answer
are still to come, and how many of the next one's beginning are kept."""
CONNECTION_SIZE = 5

CLOSED, REFUSED, SILENT = -1, -2, -3
"""What `exchange` gives instead of a number of bytes."""


@njit(nogil=True, cache=True)
def big_endian(octets, at):
    return (
        (np.int64(octets[at]) << 24)
        | (np.int64(octets[at + 1]) << 16)
        | (np.int64(octets[at + 2]) << 8)
        | np.int64(octets[at + 3])
    )


@njit(nogil=True, cache=True)
def send_more(fd, connection, count, frames, starts):
    """Sends the next `count` requests of the connection, or what is left of its share; False when it is closed."""
    ring = len(starts) - 1
    left = min(count, connection[SHARE] - connection[SENT])
    connection[SENT] += left
    request = (connection[SENT] - left) % ring
    while left > 0:
        together = min(left, ring - request)
        at, end = starts[request], starts[request + together]
        while at < end:
            sent = _send(
                np.int32(fd), np.uintp(frames.ctypes.data + at), np.uintp(end - at), np.int32(MSG_NOSIGNAL)
            )
            if sent <= 0:
                return False
            at += sent
        left -= together
        request = 0
    return True


@njit(nogil=True, cache=True)
def take(connection, kept, received, count, done):
    """Takes the `count` bytes that came (after those kept) in `received`; (answers that ended, bytes of their bodies).
    -1 answers when one has another code."""
    answers, bodies = 0, np.int64(0)
    at, end = np.int64(0), np.int64(count)
    if connection[KEPT]:
        received[: connection[KEPT]] = kept[: connection[KEPT]]
        end += connection[KEPT]
        connection[KEPT] = 0
    while True:
        if connection[LEFT]:
            taken = min(connection[LEFT], end - at)
            connection[LEFT] -= taken
            at += taken
            if connection[LEFT]:
                return answers, bodies
            answers += 1
        if end - at < BEGINNING:
            connection[KEPT] = end - at
            kept[: end - at] = received[at:end]
            return answers, bodies
        for n in range(len(done)):
            if received[at + 8 + n] != done[n]:
                received[: min(512, end - at)] = received[at : at + min(512, end - at)].copy()
                return -1, bodies
        length = big_endian(received, at)
        bodies += length - 4 - (big_endian(received, at + 4) & 0xFFFFFF)
        connection[LEFT] = 4 + length


@njit(nogil=True, cache=True)
def exchange(epoll, fds, places, connections, kept, in_flight, frames, starts, received, events, done):
    """Has every connection's share of requests answered; the bytes of the answers' bodies, or why not.

    `places`: the number of the connection of each descriptor. `received` begins with a refusing answer.
    """
    unanswered, bodies = np.int64(0), np.int64(0)
    for n in range(len(fds)):
        unanswered += connections[n, SHARE] - connections[n, SENT]
        if not send_more(fds[n], connections[n], in_flight, frames, starts):
            return np.int64(CLOSED)
    while unanswered:
        count = _epoll_wait(
            np.int32(epoll), np.uintp(events.ctypes.data), np.int32(EVENTS_MAX), np.int32(PATIENCE_MS)
        )
        if count < 0:  # interrupted by a signal
            continue
        if count == 0:
            return np.int64(SILENT)
        for event in range(count):
            at = EVENT_SIZE * event + EVENT_DATA
            fd = np.int64(events[at]) | np.int64(events[at + 1]) << 8 | np.int64(events[at + 2]) << 16
            place = places[fd]
            connection = connections[place]
            got = _recv(
                np.int32(fd),
                np.uintp(received.ctypes.data + connection[KEPT]),
                np.uintp(len(received) - connection[KEPT]),
                np.int32(MSG_DONTWAIT),
            )
            if got == 0:
                return np.int64(CLOSED)
            if got < 0:
                continue
            answers, nbytes = take(connection, kept[place], received, got, done)
            if answers < 0:
                return np.int64(REFUSED)
            bodies += nbytes
            connection[ANSWERED] += answers
            unanswered -= answers
            if answers and not send_more(fd, connection, answers, frames, starts):
                return np.int64(CLOSED)
    return bodies
