"""A forked child, such as a pool's worker, has no thread of its parent's: without a loop of its own its first call
would wait for ever."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from mqlake.client.loop_thread import LOOP_THREAD, LoopThread


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_results_and_errors_come_back():
    assert LOOP_THREAD.run(doubled(4)) == 8
    assert LOOP_THREAD.submit(doubled(5)).result() == 10
    assert LOOP_THREAD.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        LOOP_THREAD.call(lambda: 1 // 0)


def test_a_forked_child_has_a_loop_of_its_own():
    thread = LoopThread()
    parents = thread.loop()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        try:
            own = thread.loop() is not parents and thread.run(doubled(21)) == 42
            os.write(write, b"42" if own else b"no")
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        assert answer.read() == b"42"
    assert os.waitpid(child, 0)[1] == 0
    assert thread.loop() is parents
