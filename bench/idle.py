"""Waiting until nothing is being made ready any more: kernels that compile, a JVM's compiler, threads that load.

A broker loads compiled code in a thread when the load is worth it, for seconds, or for a minute where it has to compile
it first: rounds in the meantime are those of plain Python. So after warming up a bench waits until this process and
those that it has started do nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

STEP_S = 0.25
BUSY = 0.5
"""Of a processor that one thread wants. On a busy machine one that wakes up now and then waits for it for long."""
PATIENCE_S = 60.0
"""Less than the two minutes after which a broker closes a connection of which it has heard nothing."""


def wait_until_idle() -> None:
    """Waits until no thread of theirs wants BUSY of a processor, for PATIENCE_S at most."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        before, began = wanted_ns(), time.monotonic_ns()
        time.sleep(STEP_S)
        most = max(ns - before.get(thread, 0) for thread, ns in wanted_ns().items())
        if most < BUSY * (time.monotonic_ns() - began):
            return


def wanted_ns() -> dict[str, int]:
    """How long each thread of this process, and of all that come from it, has run or waited for a processor."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    wanted: dict[str, int] = {}
    for pid in ours:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                ran, waited, _ = path.read_text().split()
                wanted[path.parent.name] = int(ran) + int(waited)
    return wanted
