"""A process that has hardly any file descriptors left."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def nearly_none_left() -> Iterator[None]:
    """The next descriptors are the last ones that this process may have: FilesKept keeps nine, and what else runs in
    this process may need some for a moment."""
    taken = [os.dup(0)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # a duplicate takes the lowest that is free: none is left between those that were open
        highest = max(64, *(int(fd) for fd in os.listdir("/proc/self/fd")))
        while taken[-1] <= highest:
            taken.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 9, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
