"""Ports for servers that have to be told theirs: one stays its server's until it listens, and again after a kill."""

from __future__ import annotations

import contextlib
import itertools
import socket
from pathlib import Path

FIRST = 10_920
"""After RocketMQ's own."""
SHARES = 100
"""Each process that asks for ports takes one of so many shares, of some 200 ports."""
HOST = "127.0.0.1"


def _below_the_systems() -> int:
    """The first of the ports that the system gives to whoever connects: such a one may be taken at any moment."""
    try:
        given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768
    return min(int(given.split()[0]), 32_768)


def _of_this_process() -> range:
    """Ports that no other process of these tests has, of this run or of another one on the machine.

    A share is marked by a name in the network's own space, in which its ports are: it is there as long as this process
    is, whatever TMPDIR says and whoever clears that directory.
    """
    share = (_below_the_systems() - FIRST) // SHARES
    for number in range(SHARES):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0mqlake-test-ports-{number}")
        except OSError:
            mark.close()
            continue
        mark.detach()  # until this process ends
        return range(FIRST + number * share, FIRST + (number + 1) * share)
    raise RuntimeError(f"all {SHARES} shares of the ports are taken: see `ss -xl | grep mqlake-test-ports`")


_mine = _of_this_process()
# gone through in turn: a port is given again as late as possible
_next = itertools.count()


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
    """True if a server takes connections on another address of this machine than 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.2", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True
