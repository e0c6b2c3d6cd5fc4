"""Child processes that end with their parent, even when that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGTERM) -> Callable[[], None] | None:
    """Runs in a child before its program starts, so that it gets the signal when the thread that started it ends:
    for `preexec_fn`. Only Linux has this; elsewhere None.
    """
    if not sys.platform.startswith("linux"):
        return None
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def ask_for_it() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return ask_for_it
