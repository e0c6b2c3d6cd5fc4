"""Ctrl-C while modules are imported.

An exception in the middle of an import comes out as whatever the module in the middle makes of it: as an ImportError
that says something is not installed, as a traceback that cannot be caught. There is nothing to put in order yet, so the
signal ends the process by itself.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """For as long as the `with` lasts SIGINT has its default action, where Python would raise KeyboardInterrupt."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
