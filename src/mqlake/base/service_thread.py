"""ServiceThread: a daemon thread that works when it is woken or when its time has come, until it is shut down."""

from __future__ import annotations

import threading


class ServiceThread:
    """`_run` returns soon after `_stopped` is set; shutdown() waits for that."""

    def __init__(self, name: str = "") -> None:
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name or type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wakeup(self) -> None:
        if not self._wake.is_set():  # set() takes a lock, and every put comes here
            self._wake.set()

    def shutdown(self) -> None:
        """Ends the thread after the round in flight; also good when it was never started. Idempotent."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _stops_within(self, seconds: float) -> bool:
        """For a service that nobody wakes: waits so long, or less when it is shut down; True then."""
        self._wake.wait(seconds)
        return self._stopped

    def _run(self) -> None:
        raise NotImplementedError
