from __future__ import annotations

import threading

from mqlake.base.service_thread import ServiceThread
from tests.waiting import PATIENCE_S


class Counting(ServiceThread):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.rounds = threading.Semaphore(0)

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait()
            self._wake.clear()
            self.rounds.release()


class Periodic(ServiceThread):
    rounds = 0

    def _run(self) -> None:
        while not self._stops_within(0.0 if self.rounds < 3 else PATIENCE_S):
            self.rounds += 1


def test_it_works_when_it_is_woken_until_it_is_shut_down() -> None:
    service = Counting()
    assert service._thread.name == "Counting" and service._thread.daemon
    service.start()
    service.wakeup()
    assert service.rounds.acquire(timeout=PATIENCE_S)
    service.shutdown()
    service.shutdown()
    assert not service._thread.is_alive()


def test_a_wait_ends_with_the_service() -> None:
    service = Periodic("Named")
    assert service._thread.name == "Named"
    service.start()
    service.shutdown()
    assert not service._thread.is_alive() and service.rounds <= 4


def test_one_that_never_started_ends_too() -> None:
    Counting().shutdown()
