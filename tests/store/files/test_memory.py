"""What is locked is what the kernel says is locked, and a limit is named with what to do about it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mqlake.store.files import memory

PROGRAM = """
import logging, mmap, os, re, resource, sys
logging.basicConfig(format="%(message)s")
from mqlake.store.files.transient_store_pool import TransientStorePool

def locked():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmLck:\\s+(\\d+) kB", status.read())[1])

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if os.getuid() == 0:
    os.setuid(65534)  # root's locks have no limit
pool = TransientStorePool(4, 64 << 10)
print(pool.locked, locked())
first = pool.borrow()
first[:] = bytes([7]) * len(first)
assert bytes(first) == bytes([7]) * len(first)
"""


def run(limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limit)], capture_output=True, text=True, check=True, cwd="/"
    )


def test_the_buffers_of_the_pool_are_locked_without_being_resident() -> None:
    done = run(1 << 20)
    assert done.stdout.split() == ["4", "256"]
    assert done.stderr == ""


@pytest.mark.parametrize(("limit_kib", "locked"), [(0, 0), (128, 2)])
def test_a_limit_costs_one_warning_that_says_what_to_do(limit_kib: int, locked: int) -> None:
    done = run(limit_kib << 10)
    assert done.stdout.split() == [str(locked), str(locked * 64)]
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"transientStorePoolEnable: {4 - locked} of 4 buffers cannot be locked in memory")
    assert f"RLIMIT_MEMLOCK is {limit_kib} KiB, 256 KiB are needed; raise it with ulimit -l" in line


class OldKernel:
    """A C library whose kernel knows no mlock2."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def mlock2(self, *_: object) -> int:
        self.calls.append("mlock2")
        memory.ctypes.set_errno(memory.errno.ENOSYS)
        return -1

    def mlock(self, *_: object) -> int:
        self.calls.append("mlock")
        return 0


def test_an_old_kernel_locks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldKernel()
    monkeypatch.setattr(memory, "_LIBC", old)
    assert memory.lock_memory(0, 4096, on_fault=True)
    assert old.calls == ["mlock2", "mlock"]
