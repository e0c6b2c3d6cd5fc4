"""LogLock: nobody waits for more than the loan that lasts, and one who holds it for long is told at once."""

from __future__ import annotations

import threading

from mqlake.store.log.log_lock import LogLock
from tests.waiting import PATIENCE_S, until


def test_one_at_a_time() -> None:
    lock, count, threads = LogLock(), [0], []

    def adds(is_lent: bool) -> None:
        for _ in range(300):
            with lock.lent(lambda: None) if is_lent else lock:
                before = count[0]
                threading.Event().wait(0.00001)
                count[0] = before + 1

    for n in range(4):
        threads.append(threading.Thread(target=adds, args=(n % 2 == 0,)))
        threads[-1].start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert count == [1200] and not lock.locked()


def test_who_waits_is_next() -> None:
    """Somebody lends it again and again, and gives it back only when he is told; each put waits for one loan."""
    lock, is_over, loans = LogLock(), threading.Event(), [0]

    def lends() -> None:
        while not is_over.is_set():
            wanted = threading.Event()
            with lock.lent(wanted.set):
                loans[0] += 1
                while not (wanted.wait(0.01) or is_over.is_set()):
                    pass

    lending = threading.Thread(target=lends)
    lending.start()
    for _ in range(200):
        until(lock.locked)
        before = loans[0]
        with lock:
            assert loans[0] <= before + 1
    is_over.set()
    lending.join(PATIENCE_S)
    assert loans[0] > 1


def test_all_who_wait_get_it() -> None:
    lock, had, told = LogLock(), [0] * 5, threading.Semaphore(0)

    def waits(n: int) -> None:
        with lock:
            had[n] += 1

    threads = [threading.Thread(target=waits, args=(n,)) for n in range(5)]
    with lock.lent(told.release):
        for thread in threads:
            thread.start()
        assert told.acquire(timeout=PATIENCE_S)
        assert had == [0] * 5
    for thread in threads:
        thread.join(PATIENCE_S)
    assert had == [1] * 5
