# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The limit of the socket benches: an epoll loop that reads frames and answers each, and does nothing else.

    python bench/empty_loop.py ANSWER_SIZE ANSWERS [--numba]     says "empty loop at PORT" on its stdout

empty_loop.c where a C compiler is there, which the process then becomes; else, or with --numba, the same in compiled
Python, which costs as much.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numba import njit, types

from bench.socket_client import EVENT_DATA, EVENT_SIZE, EVENTS_MAX, MSG_DONTWAIT, MSG_NOSIGNAL

RECEIVE_SIZE = 1 << 18
FDS_MAX = 1 << 16
ANSWERS_MAX = 512
HEADER_SIZE_MAX = 102

_epoll_wait = types.ExternalFunction(
    "epoll_wait", types.int32(types.int32, types.uintp, types.int32, types.int32)
)
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_send = types.ExternalFunction("send", types.intp(types.int32, types.uintp, types.uintp, types.int32))


def become_the_program(size: str, answers: str) -> None:
    """Builds empty_loop.c and goes on as that; returns where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        program = f"{directory}/empty_loop"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_suffix(".c")], check=True)
        fd = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    os.execve(fd, ["empty_loop", size, answers], os.environ)


@njit(cache=True)
def serve(epoll, listener, events, left, kept, received, answers, size, walks):
    """Serves until there is somebody to accept, or a connection is closed: its descriptor. It `walks` through all
    answers, or sends the first ones again."""
    following, end = np.int64(0), np.int64(len(answers))
    while True:
        ready = _epoll_wait(np.int32(epoll), events.ctypes.data, np.int32(EVENTS_MAX), np.int32(-1))
        for event in range(ready):
            at = EVENT_SIZE * event + EVENT_DATA
            fd = np.int64(events[at]) | np.int64(events[at + 1]) << 8 | np.int64(events[at + 2]) << 16
            if fd == listener:
                return fd
            count = _recv(np.int32(fd), received.ctypes.data, np.uintp(RECEIVE_SIZE), np.int32(MSG_DONTWAIT))
            if count == 0:
                return fd
            ended, position = 0, np.int64(0)
            while position < count:
                if left[fd]:
                    taken = min(left[fd], count - position)
                    left[fd] -= taken
                    position += taken
                    ended += left[fd] == 0
                    continue
                kept[fd, 1] = kept[fd, 1] << 8 | received[position]
                kept[fd, 0] += 1
                position += 1
                if kept[fd, 0] == 4:
                    left[fd] = kept[fd, 1]
                    kept[fd] = 0
            while ended > 0:
                sent, wanted = np.int64(0), size * min(ended, ANSWERS_MAX)
                if following + wanted > end:
                    following = np.int64(0)
                while sent < wanted:
                    done = _send(
                        np.int32(fd),
                        answers.ctypes.data + np.uintp(following + sent),
                        np.uintp(wanted - sent),
                        np.int32(MSG_NOSIGNAL),
                    )
                    if done <= 0:
                        return fd
                    sent += done
                if walks:
                    following += wanted
                ended -= ANSWERS_MAX


def main(size: int, walks: int) -> None:
    header = min(size - 8, HEADER_SIZE_MAX)
    answer = (size - 4).to_bytes(4, "big") + header.to_bytes(4, "big") + b'{"code":0,'.ljust(size - 8)
    answers = np.frombuffer(answer * max(walks, ANSWERS_MAX), np.uint8)
    events, received = np.zeros(EVENT_SIZE * EVENTS_MAX, np.uint8), np.zeros(RECEIVE_SIZE, np.uint8)
    left, kept = np.zeros(FDS_MAX, np.int64), np.zeros((FDS_MAX, 2), np.int64)
    connections: dict[int, socket.socket] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener, select.epoll() as epoll:
        epoll.register(listener.fileno(), select.EPOLLIN)
        print(f"empty loop at {listener.getsockname()[1]}", flush=True)
        while True:
            fd = serve(
                epoll.fileno(), listener.fileno(), events, left, kept, received, answers, size, walks > 0
            )
            if fd == listener.fileno():
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[peer.fileno()] = peer
                epoll.register(peer.fileno(), select.EPOLLIN)
                continue
            connections.pop(fd).close()
            left[fd], kept[fd] = 0, 0


if __name__ == "__main__":
    if "--numba" not in sys.argv:
        become_the_program(*sys.argv[1:3])
    main(*map(int, sys.argv[1:3]))
