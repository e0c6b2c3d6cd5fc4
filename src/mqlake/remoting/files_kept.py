"""FilesKept: the last descriptors of a server's process are for the files of its store, not for connections.

Servers alone import this module: `resource` is there on Unix only, and clients run elsewhere too.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable
from typing import Any

from mqlake.remoting.peer import PeerConnection

logger = logging.getLogger(__name__)

FILES_KEPT_MAX = 256
FILES_SAID_S = 10.0
"""Seconds between two lines that say that connections were refused."""


class FilesKept:
    """Descriptors that a server leaves to the files of its store: with too many connections it could create none, and
    a connection that gets no descriptor is closed by uvloop without a word."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._refused = 0
        self._next_line = 0.0

    def refuses(self, connection: PeerConnection[Any], fd: int) -> bool:
        """True if the socket of a connection that was just accepted is one of the last descriptors: the system gives
        out the lowest one that is free."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY or fd < allowed - min(FILES_KEPT_MAX, allowed // 8):
            return False
        self._refused += 1
        if (now := self._clock_s()) >= self._next_line:
            logger.warning(
                "%s: closed, as this process may have %s files and connections open and keeps the last ones for files "
                "(refused so far: %s); raise the limit: ulimit -n, LimitNOFILE= of systemd",
                connection.remote_address,
                f"{allowed:,}",
                f"{self._refused:,}",
            )
            self._next_line = now + FILES_SAID_S
        return True
