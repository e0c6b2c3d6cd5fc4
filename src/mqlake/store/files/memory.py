"""Memory that must not be swapped out: mlock, and the limit that forbids it.

A page of a write buffer that the kernel has swapped out makes the next put wait for the disk, under the log's lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource

MLOCK_ONFAULT = 1

_LIBC = ctypes.CDLL(None, use_errno=True)


def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return _LIBC


def lock_memory(address: int, size: int, *, on_fault: bool = False) -> bool:
    """Locks the pages of [address, address + size); returns True if the system allowed it.

    `on_fault`: each page when it is first touched, so that none is made resident now (Linux 4.4; before it all are). To
    unmap pages unlocks them.
    """
    place = ctypes.c_void_p(address), ctypes.c_size_t(size)
    if on_fault and hasattr(_LIBC, "mlock2"):
        if _LIBC.mlock2(*place, ctypes.c_uint(MLOCK_ONFAULT)) == 0:
            return True
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
            return False
    return bool(_LIBC.mlock(*place) == 0)


def unlock_memory(address: int, size: int) -> None:
    _LIBC.munlock(ctypes.c_void_p(address), ctypes.c_size_t(size))


def how_to_lock(size: int) -> str:
    """Why `size` bytes cannot be locked, and what an operator does about it, as half a sentence."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return f"{os.strerror(errno.ENOMEM)}: {size >> 20} MiB are needed, and no limit is set"
    return (
        f"RLIMIT_MEMLOCK is {limit >> 10} KiB, {-(-size >> 10)} KiB are needed; raise it with ulimit -l, LimitMEMLOCK= "
        "of systemd or --ulimit memlock= of docker"
    )
