"""LogLock: the commit log's lock, which one holder may keep for long as long as nobody else wants it.

put ──▶ with lock ── it is taken ──▶ `next` ─▶ tells who has it lent ─▶ waits ─▶ has it
lease ─▶ with lock.lent(on_wanted) ─▶ `next` ─▶ …                                ▲ only then may the next lease wait
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class LogLock:
    """A mutex. Puts take it for a moment; to whom it is lent is told when another wants it, and stands behind that one
    the next time. So a put waits for the end of one loan, not for many that begin before it has woken up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = threading.Lock()
        """Of whoever gets the lock next. A put that finds the lock free needs it not."""
        self._on_wanted: Callable[[], None] | None = None
        self.locked = self._lock.locked

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            with self._next:
                if (on_wanted := self._on_wanted) is not None:
                    on_wanted()
                self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def lent(self, on_wanted: Callable[[], None]) -> Iterator[None]:
        """Takes it for longer. `on_wanted` is called by another thread that waits for it: while it is lent, or a
        moment later, but before it is lent again."""
        with self._next:
            self._lock.acquire()
        try:
            self._on_wanted = on_wanted
            if self._next.locked():  # whoever has it may have looked before
                on_wanted()
            yield
        finally:
            self._on_wanted = None
            self._lock.release()
