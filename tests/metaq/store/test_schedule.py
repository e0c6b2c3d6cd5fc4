from __future__ import annotations

import threading

from mqlake.metaq.store.schedule import Schedule, every
from tests.waiting import PATIENCE_S


def test_jobs_run_at_their_times() -> None:
    now = 100.0
    schedule = Schedule(lambda: now)
    ran: list[str] = []
    schedule.put("a", every(10), lambda: ran.append("a"))
    schedule.put("b", every(25), lambda: ran.append("b"))
    schedule.put("never", lambda at: None, lambda: ran.append("never"))
    for _ in range(6):
        schedule.run_due()
        now += 10
    assert ran == ["a", "a", "a", "b", "a", "a"]
    schedule.remove("a")
    schedule.put("b", every(1), lambda: ran.append("B"))
    now += 5
    schedule.run_due()
    assert ran[6:] == ["B"] and schedule.names == ["b", "never"]


def test_the_thread_takes_new_jobs_and_survives_failing_ones() -> None:
    schedule = Schedule()
    schedule.start()
    ran = threading.Semaphore(0)

    def job() -> None:
        ran.release()
        raise RuntimeError

    schedule.put("x", every(0.001), job)
    for _ in range(3):
        assert ran.acquire(timeout=PATIENCE_S)
    schedule.stop()
