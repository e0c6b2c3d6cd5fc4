"""Ports for servers that have to be told theirs: one stays its server's until it listens, and again after a kill."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from pathlib import Path

FIRST = 10_920
"""Behind RocketMQ's own."""
WORKERS_MAX = 8
HOST = "127.0.0.1"


def _below_the_systems() -> int:
    """The first of the ports that the system gives to whoever connects: such a one may be taken at any moment."""
    try:
        given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768
    return min(int(given.split()[0]), 32_768)


def _of_this_worker() -> range:
    """Each of pytest's workers has ports of its own."""
    share = (_below_the_systems() - FIRST) // WORKERS_MAX
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    return range(FIRST + number * share, FIRST + (number + 1) * share)


_mine = _of_this_worker()
# begun anywhere, as other runs of the tests may have the same ports, and gone through: none is given twice in a row
_next = itertools.count(random.randrange(len(_mine)))


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free."""
    for _ in range(len(_mine)):
        first = _mine[next(_next) % len(_mine)]
        for _ in range(count - 1):
            next(_next)
        if first + count > _mine.stop:
            continue
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + count):
                sockets.enter_context(socket.create_server((HOST, port)))
            return first
    raise RuntimeError(f"no {count} free ports in a row from {_mine.start} to {_mine.stop}")


def free_port() -> int:
    return free_ports(1)


def listens_on_all(port: int) -> bool:
    """Whether a server takes connections on another address of this machine than 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.2", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True
