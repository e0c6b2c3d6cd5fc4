"""Ctrl-C while modules are imported.

Modules turn an exception in the middle of an import into other errors: an ImportError that says something is not
installed, or a traceback that cannot be caught. There is nothing to clean up yet, so the signal ends the process.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """While the `with` lasts SIGINT has its default action instead of raising KeyboardInterrupt."""
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
